//! Server-sent events: a response body that is pulled. Nothing is made before the client's socket can take it, so a slow
//! client costs its bounded queue and nothing more.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use serde_json::Value;
use tokio::time::{Instant, Sleep};

use crate::error::ApiError;
use crate::generate::Sequences;
use crate::pipe::Step;

/// Turns steps into events.
pub trait Encoder: Send + 'static {
    /// Events before the first token.
    fn open(&mut self, out: &mut Events);
    /// Events for a step.
    fn step(&mut self, step: Step, sequences: &Sequences, out: &mut Events);
    /// Events after the last sequence ended.
    fn close(&mut self, sequences: &Sequences, out: &mut Events);
}

/// Events on their way out.
#[derive(Debug, Default)]
pub struct Events(Vec<u8>);

impl Events {
    /// Adds an event.
    pub fn push(&mut self, value: &Value) {
        self.0.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut self.0, value).expect("a value writes to memory");
        self.0.extend_from_slice(b"\n\n");
    }

    /// Adds an error.
    pub fn fail(&mut self, error: &ApiError) {
        self.push(&error.to_json());
    }
}

/// A streamed answer.
pub fn response(sequences: Sequences, encoder: impl Encoder, keep_alive: Duration) -> Response {
    let body = SseBody {
        sequences: Some(sequences),
        encoder: Box::new(encoder),
        opened: false,
        keep_alive,
        timer: Box::pin(tokio::time::sleep(keep_alive)),
    };
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream; charset=utf-8"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that buffer would hold the events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct SseBody {
    /// `None` once the last event is out.
    sequences: Option<Sequences>,
    encoder: Box<dyn Encoder>,
    opened: bool,
    keep_alive: Duration,
    timer: Pin<Box<Sleep>>,
}

impl SseBody {
    fn poll(&mut self, context: &mut Context) -> Poll<Option<Vec<u8>>> {
        let mut out = Events::default();
        let Some(sequences) = &mut self.sequences else {
            return Poll::Ready(None);
        };
        if !self.opened {
            self.opened = true;
            self.encoder.open(&mut out);
        }
        while out.0.is_empty() {
            match sequences.poll(context) {
                Poll::Ready(steps) => {
                    for step in steps {
                        self.encoder.step(step, sequences, &mut out);
                    }
                    if sequences.done() {
                        self.encoder.close(sequences, &mut out);
                        out.0.extend_from_slice(b"data: [DONE]\n\n");
                        self.sequences = None;
                        return Poll::Ready(Some(out.0));
                    }
                }
                Poll::Pending => {
                    if self.timer.as_mut().poll(context).is_pending() {
                        return Poll::Pending;
                    }
                    out.0.extend_from_slice(b": keep-alive\n\n");
                }
            }
        }
        self.timer.as_mut().reset(Instant::now() + self.keep_alive);
        Poll::Ready(Some(out.0))
    }
}

impl http_body::Body for SseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = &mut *self;
        match catch_unwind(AssertUnwindSafe(|| this.poll(context))) {
            Ok(poll) => poll.map(|bytes| bytes.map(|bytes| Ok(Frame::data(Bytes::from(bytes))))),
            Err(_) => {
                this.sequences = None;
                let mut out = Events::default();
                out.fail(&ApiError::internal(
                    "an internal fault ended this stream; the server goes on",
                ));
                out.0.extend_from_slice(b"data: [DONE]\n\n");
                Poll::Ready(Some(Ok(Frame::data(Bytes::from(out.0)))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.sequences.is_none()
    }
}
