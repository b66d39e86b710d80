//! What can go wrong before anything runs on the CPU.

use crate::isa::IsaError;

/// A CPU backend that cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// A thread count that the pool does not take.
    #[error("{threads} threads: the pool takes 1 to {most}")]
    Threads {
        /// The number asked for.
        threads: usize,
        /// The most it takes.
        most: usize,
    },
    /// Kernels were asked for that this machine cannot run.
    #[error(transparent)]
    Isa(#[from] IsaError),
    /// A worker thread could not be started.
    #[error("{threads} threads could not be started: {source}")]
    Spawn {
        /// How many were asked for.
        threads: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}
