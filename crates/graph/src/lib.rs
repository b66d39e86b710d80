//! The language of Galvani: a model is a [`Graph`] over a small closed set of typed operations.
//!
//! This crate knows nobody: no files, no devices, no serialisation. Families build graphs with [`Builder`], passes
//! rewrite them ([`shard`], [`fuse`]), [`plan`] gives every buffer a fixed offset, and a [`Backend`] compiles the result
//! to a program that runs one step.

#![forbid(unsafe_code)]

mod backend;
mod builder;
mod check;
mod compact;
mod dim;
mod error;
mod format;
mod fuse;
mod graph;
mod infer;
mod op;
mod plan;
mod print;
mod rope;
mod shard;
mod shard_roles;

pub use backend::{
    Backend, BackendError, CensusRow, Compiled, LimitsSpec, PageId, StepInput, StepSequence, WeightSource,
};
pub use builder::Builder;
pub use dim::{Dim, Extent};
pub use error::GraphError;
pub use format::{Format, FormatError};
pub use fuse::fuse;
pub use graph::{
    CacheId, CacheSpec, Graph, Node, NodeId, Value, ValueId, ValueSource, View, Weight, WeightId,
};
pub use op::{Activation, Op, RouterScore};
pub use plan::{Buffer, PLAN_ALIGNMENT, Plan, plan};
pub use rope::{RopeId, RopeScaling, RopeSpec};
pub use shard::{Rank, shard};
