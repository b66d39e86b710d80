//! The CUDA kernels: each row over shapes that straddle edges, on a GPU or in the PTX interpreter.
//!
//! A case is planned as the backend plans it, run by an [`Executor`], and held against a product in f64 of the same halves.
//! [`bits`] holds a GPU against the interpreter, bit for bit; [`bench`] measures a GPU.

pub mod bench;
pub mod bits;
pub mod bits_rows;
pub mod cases;
pub mod check;
pub mod command;
pub mod decode;
pub mod gpu;
pub mod interpreter;
pub mod random;
pub mod speed;

use galvani_cuda::ops::linear::Product;
use galvani_cuda::{CudaError, Launcher};

/// What runs plans.
pub trait Executor: Launcher {
    /// Does a library's product.
    ///
    /// # Errors
    /// The executor's own.
    fn product(&mut self, product: &Product) -> Result<(), CudaError>;

    /// Whether an access outside a buffer, or a read of what nothing wrote, is an error by itself.
    fn checks(&self) -> bool;
}
