//! One folder an operation: its rows, its plan, its layouts. `kernels::rows` collects their tables.

pub mod experts;
pub mod linear;
pub mod measure;
