//! The CPU: a plain reference of every operation, and the backend that runs graphs on SIMD kernels.
//!
//! [`reference::Reference`] is what all kernels, of every backend, are checked against.

pub mod dot;
mod error;
pub mod isa;
pub mod linear;
pub mod pack;
pub mod pool;
pub mod quantise;
pub mod reference;
pub mod simd;
mod step;

pub use error::CpuError;
