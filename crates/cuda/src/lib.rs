//! The CUDA side: kernels as rows, compiled ahead of time into one pack file, and the layer that launches them.
//!
//! Nothing links against CUDA. The compiler (NVRTC), the driver and cuBLAS are found at run time, and each that is
//! missing is an error that says what to install.

pub mod arch;
pub mod driver;
pub mod error;
pub mod kernels;
pub mod launch;
pub mod layout;
pub mod model;
pub mod ops;
pub mod pack;
pub mod repack;
pub mod selftest;
pub mod source;
pub mod sources;

pub use arch::Arch;
pub use error::CudaError;
pub use kernels::{Fact, KernelRow, rows};
pub use launch::{Arg, DeviceBuffer, Launcher};
