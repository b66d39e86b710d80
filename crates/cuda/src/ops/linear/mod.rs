//! Quantised products: out[m, n] = column_scale[n] * sum_k x[m, k] w[n, k] (+ bias[n]) (+ residual[m, n]).
//!
//! `rows` lists the kernels, `plan` decides which of them run, on how many blocks, in which workspace.

pub mod divide;
pub mod formats;
pub mod plan;
pub mod rows;
pub mod steps;

pub use formats::{FORMATS, LinearFormat, formats};
pub use plan::{Linear, LinearPlan, OutType, Route, Skinny, Workspace};
pub use steps::{Operands, Product, Step};
