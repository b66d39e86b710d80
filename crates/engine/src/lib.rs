//! Steps: requests, scheduling, pages, sampling. Knows no device, no HTTP, no model name.

mod request;

pub use request::{
    EngineStats, Event, EventSink, FinishReason, Request, RequestId, SamplingParams, SubmitError,
    TokenLogprob, TokenMask, Usage,
};
