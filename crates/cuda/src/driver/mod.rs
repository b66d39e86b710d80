//! The CUDA driver, loaded at run time: devices, memory, modules, streams, graphs; and cuBLAS beside it.
//!
//! [`Gpu`] is a [`crate::Launcher`]. Nothing here is called before [`probe::Driver::load`] has seen that the driver is
//! there and has every function that is used, since a missing function would end the process.

pub mod arena;
pub mod blas;
pub mod check;
pub mod context;
pub mod gpu;
pub mod graph;
pub mod module;
pub mod probe;

pub use arena::Arena;
pub use gpu::{Gpu, Image};
pub use graph::Graph;
pub use probe::{DeviceInfo, Driver};
