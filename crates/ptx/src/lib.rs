//! Runs PTX on a CPU: an interpreter, a checker and a counter for kernels that NVRTC made for compute_70.
//!
//! [`Module::parse`] decodes the text once. [`run`] executes a kernel warp by warp over a [`Memory`], 32 lanes side by
//! side, and gives [`Counters`] or the first [`Fault`]. Arithmetic is the hardware's bit for bit; what PTX leaves open
//! (approximate functions, clocks) is refused rather than guessed.

mod ast;
mod banks;
mod counters;
mod decode;
mod error;
mod exec;
mod fault;
mod flow;
mod half;
mod ir;
mod lanes;
mod lex;
mod memory;
mod module;
mod operators;
mod rounding;
mod shared;
mod syntax;
mod types;

pub use counters::{Counters, PIPES, Pipe, SharedTraffic, Traffic};
pub use error::PtxError;
pub use exec::{Approximate, Launch, MmaOrder, Options, run};
pub use fault::{Fault, FaultKind, Place, RaceAccess};
pub use memory::Memory;
pub use module::{Arg, Kernel, Module, Param};
pub use types::Space;

pub(crate) use module::SHARED_BYTES_MAX;
