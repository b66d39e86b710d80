//! Bytes in: containers (GGUF, safetensors), the strict config reader and the block formats.
//!
//! Everything here takes files from strangers. Nothing panics on their contents, nothing is allocated by a number that
//! they state before that number is held against the bytes that are there, and whatever is unexpected is an error that
//! names the thing, the value and what would be allowed. Data is read by position, never mapped, so that a loaded model
//! does not keep its file in memory.

mod canon;
mod checkpoint;
pub mod config;
mod error;
pub mod gguf;
pub mod quant;
mod raw;
pub mod safetensors;
mod source;

pub use canon::TensorInfo;
pub use checkpoint::{Checkpoint, Container};
pub use config::Config;
pub use error::LoadError;
pub use raw::{RawDtype, RawTensor};
