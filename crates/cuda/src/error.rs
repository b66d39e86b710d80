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
    /// A size that an operation does not take.
    #[error("{what} is {value}, allowed: {allowed}")]
    Shape {
        /// The size.
        what: &'static str,
        /// Its value.
        value: usize,
        /// What it may be.
        allowed: String,
    },
    /// A number of a weight that no kernel can multiply by.
    #[error("weight row {row}, position {position}: {what}, allowed: finite numbers that the format has")]
    BadWeight {
        /// Row of the matrix.
        row: usize,
        /// Position in the row: the first that the number is for.
        position: usize,
        /// What stands there.
        what: String,
    },
    /// A format that no kernel reads.
    #[error("{format} has no packed form on a GPU")]
    NoPackedForm {
        /// The format.
        format: galvani_graph::Format,
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
    /// There is no driver to load.
    #[error("no NVIDIA driver: {reason}")]
    NoDriver {
        /// What was tried, or what is wrong with what was found.
        reason: String,
    },
    /// The driver sees no GPU.
    #[error("the NVIDIA driver (CUDA {}) sees no GPU{note}", shown(*version))]
    NoGpu {
        /// The driver's CUDA version as it gives it: 13000.
        version: u32,
        /// What may be the reason.
        note: &'static str,
    },
    /// The driver is of a version that does not serve.
    #[error("the NVIDIA driver is for CUDA {}, {reason}", shown(*version))]
    DriverVersion {
        /// As the driver gives it: 11080.
        version: u32,
        /// What is needed.
        reason: String,
    },
    /// A device's number.
    #[error("GPU {ordinal}, allowed: below {count}")]
    NoSuchGpu {
        /// Asked for.
        ordinal: usize,
        /// There are.
        count: usize,
    },
    /// A call of the driver failed.
    #[error("{call}: {reason}")]
    Driver {
        /// The function.
        call: &'static str,
        /// The driver's words.
        reason: String,
    },
    /// The pack has no code that the device runs.
    #[error("no kernels for {device} (sm_{sm}): the pack has {have}{note}")]
    NoImage {
        /// The device's name.
        device: String,
        /// Its compute capability times ten.
        sm: u32,
        /// What there is.
        have: String,
        /// What can be done.
        note: &'static str,
    },
    /// The arena does not give memory.
    #[error("device memory: {bytes} bytes wanted, {reason}")]
    Arena {
        /// Wanted.
        bytes: usize,
        /// Why not.
        reason: String,
    },
    /// A launch that its kernel does not allow.
    #[error("launch of {symbol}: {reason}")]
    Launch {
        /// The kernel.
        symbol: String,
        /// Thing, value, allowed.
        reason: String,
    },
    /// Something that a recorded sequence cannot hold.
    #[error("{what} while a graph is recorded; do it before")]
    Recording {
        /// What was tried.
        what: &'static str,
    },
    /// cuBLAS is not to be had.
    #[error(
        "cuBLAS: {reason}; `pip install nvidia-cublas-cu12` brings it, GALVANI_CUBLAS=PATH names a libcublas.so.12"
    )]
    NoBlas {
        /// What was tried.
        reason: String,
    },
    /// A call of cuBLAS failed.
    #[error("{call}: {reason}")]
    Blas {
        /// The function.
        call: &'static str,
        /// What it says.
        reason: String,
    },
}

/// `12.9` of 12090.
fn shown(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}
