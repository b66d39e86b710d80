//! The HTTP surface: OpenAI's endpoints, health, metrics, the chat page. The only crate that knows JSON bodies and tokio.
//!
//! ```text
//! bytes -> json (fields, still text) -> body (held against the table in fields) -> api/<endpoint> (a job)
//!       -> generate (sequences in the engine) -> queue -> pipe (text, reasoning, calls) -> answer | sse
//! ```

mod answer;
mod api;
mod body;
mod config;
mod constraint;
mod error;
mod fields;
mod generate;
mod guard;
mod io;
mod json;
mod messages;
mod metrics;
mod openapi;
mod params;
mod pipe;
mod queue;
mod runtime;
mod serve;
mod sse;
mod state;

pub use api::router;
pub use config::{Limits, ServerConfig};
pub use error::ApiError;
pub use openapi::document as openapi_document;
pub use runtime::{GenerationDefaults, ModelRuntime};
pub use serve::{LoadProgress, ServeError, Server, Shutdown, serve};
pub use state::{Health, Shared};
