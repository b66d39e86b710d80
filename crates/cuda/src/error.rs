//! What can go wrong.

use std::path::PathBuf;

/// The crate's error.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// NVRTC is not to be had.
    #[error(
        "NVRTC: {reason}; `pip install nvidia-cuda-nvrtc-cu12==12.9.86` brings it, GALVANI_NVRTC=PATH names one"
    )]
    NoCompiler {
        /// What was tried, or what is wrong with what was found.
        reason: String,
    },
    /// CUDA's headers are not to be had.
    #[error(
        "CUDA headers: {reason}; `pip install nvidia-cuda-runtime-cu12==12.9.79` brings them, GALVANI_CUDA_INCLUDE=PATH names a folder"
    )]
    NoHeaders {
        /// What was tried.
        reason: String,
    },
    /// A row does not compile.
    #[error("{symbol} for {arch}: {log}")]
    Compile {
        /// Its symbol.
        symbol: String,
        /// The architecture.
        arch: &'static str,
        /// The compiler's words.
        log: String,
    },
    /// A file that is not a whole kernel pack.
    #[error("kernel pack: {reason}")]
    Pack {
        /// What is wrong with it.
        reason: String,
    },
    /// A part of a buffer that it does not have.
    #[error("{bytes} bytes at {offset}, allowed: inside {allowed} bytes")]
    Range {
        /// First byte.
        offset: usize,
        /// How many.
        bytes: usize,
        /// The buffer's length.
        allowed: usize,
    },
    /// An executor other than the driver failed.
    #[error("{symbol}: {reason}")]
    Executor {
        /// The kernel.
        symbol: String,
        /// What happened.
        reason: String,
    },
    /// The device computed something else.
    #[error("self-test: {what}[{index}] is {got:#x}, wanted {want:#x}")]
    SelfTest {
        /// Which result.
        what: &'static str,
        /// Its word.
        index: usize,
        /// Found.
        got: u32,
        /// Expected.
        want: u32,
    },
    /// A file.
    #[error("{path}: {source}")]
    File {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}
