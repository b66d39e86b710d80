//! The CPU: a plain reference of every operation, and the backend that runs graphs on SIMD kernels.
//!
//! [`reference::Reference`] is what all kernels, of every backend, are checked against.

mod backend;
pub mod dot;
mod error;
pub mod isa;
mod lanes;
pub mod linear;
mod ops;
pub mod pack;
pub mod pool;
mod program;
pub mod quantise;
pub mod reference;
pub mod simd;
mod step;

pub use backend::{CpuBackend, CpuOptions};
pub use error::CpuError;
pub use isa::Isa;
pub use pack::CpuMath;
pub use program::{CpuProgram, OpTime};
