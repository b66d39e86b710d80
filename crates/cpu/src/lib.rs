//! The CPU: a plain reference of every operation, and the backend that runs graphs on SIMD kernels.
//!
//! [`reference::Reference`] is what all kernels, of every backend, are checked against.

mod error;
pub mod reference;
mod step;

pub use error::CpuError;
