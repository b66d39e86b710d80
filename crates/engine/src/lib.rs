//! Steps: requests, scheduling, pages, sampling. Knows no device, no HTTP, no model name.
//!
//! [`Engine::start`] takes a compiled program and gives a handle. A request goes in through [`EngineHandle::submit`] and
//! comes back as [`Event`]s to its sink, the last of which is always one `Finished` or `Failed`.

mod core;
mod limits;
mod pages;
mod request;
mod runner;
mod sampling;
mod scheduler;
pub mod testing;
mod validate;

pub use limits::{EngineConfig, EngineError, LOGPROBS_MAX, Limits};
pub use request::{
    EngineStats, Event, EventSink, FinishReason, FnSink, Request, RequestId, SamplingParams, SubmitError,
    TokenLogprob, TokenMask, Usage,
};
pub use runner::{Engine, EngineHandle};
