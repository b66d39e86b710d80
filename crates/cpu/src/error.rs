//! What can go wrong before anything runs on the CPU.

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
    #[error("instruction set {wanted} is not available here; available: {available}")]
    Isa {
        /// The name asked for.
        wanted: String,
        /// The names this machine has.
        available: String,
    },
    /// A worker thread could not be started.
    #[error("worker thread {index} could not be started: {source}")]
    Spawn {
        /// Which worker.
        index: usize,
        /// The system's reason.
        source: std::io::Error,
    },
}
