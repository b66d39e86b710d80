//! A request's sequences in the engine, and the way back from it.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::http::StatusCode;
use galvani_engine::{EngineHandle, Event, Request, RequestId, TokenMask, Usage};
use tokio::sync::{OwnedSemaphorePermit, watch};

use crate::error::ApiError;
use crate::metrics::Times;
use crate::params::Common;
use crate::pipe::{End, Pipe, Step};
use crate::queue::{self, Received, Receiver};
use crate::runtime::ModelRuntime;
use crate::state::{Running, Shared};

/// Events taken from the queue in one go. A client that lags gets the text of several tokens in one event.
const ITEMS_MAX: usize = 64;

/// One sequence to generate.
pub struct Ask {
    /// Tokens of the prompt.
    pub prompt: Vec<u32>,
    /// Most tokens to generate.
    pub tokens_max: usize,
    /// Choice within the request, which gives the seed.
    pub choice: usize,
    /// Constraint.
    pub mask: Option<Box<dyn TokenMask>>,
    /// Where its tokens go.
    pub pipe: Pipe,
}

/// The place a request holds among those being handled.
pub struct Ticket {
    _permit: OwnedSemaphorePermit,
    _running: Running,
    started: Instant,
}

impl Ticket {
    /// Takes a place.
    ///
    /// # Errors
    /// 429 when there is none.
    pub fn take(shared: &Arc<Shared>) -> Result<Self, ApiError> {
        let permit = shared.requests.clone().try_acquire_owned().map_err(|_| {
            let max = shared.config.limits.requests_max;
            ApiError::too_many(format!(
                "{max} requests are being handled, which is this server's limit; try again later"
            ))
        })?;
        Ok(Self {
            _permit: permit,
            _running: shared.enter(),
            started: Instant::now(),
        })
    }
}

struct Track {
    id: RequestId,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
}

/// The sequences of one request. Dropping it cancels what still runs.
pub struct Sequences {
    shared: Arc<Shared>,
    engine: EngineHandle,
    receiver: Receiver,
    pipes: Vec<Pipe>,
    tracks: Vec<Track>,
    /// Sequences whose last word from the engine is still to come.
    open: usize,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    ticket: Ticket,
}

impl Sequences {
    /// Hands all sequences to the engine.
    ///
    /// # Errors
    /// When the engine refuses one; those before it are cancelled.
    pub fn submit(
        shared: &Arc<Shared>,
        runtime: &ModelRuntime,
        ticket: Ticket,
        common: &Common,
        logprobs: Option<usize>,
        asks: Vec<Ask>,
    ) -> Result<Self, ApiError> {
        let live_max = runtime.engine.limits().live_max;
        if asks.len() > live_max {
            // Later will not do either.
            let message = format!(
                "{} answers are asked for at once; this server holds at most {live_max}",
                asks.len()
            );
            return Err(ApiError::field("n", message));
        }
        let (sender, receiver) = queue::queue(shared.config.limits.stream_buffer_bytes * asks.len().max(1));
        let mut all = Self {
            shared: shared.clone(),
            engine: runtime.engine.clone(),
            receiver,
            pipes: Vec::with_capacity(asks.len()),
            tracks: Vec::with_capacity(asks.len()),
            open: 0,
            cut: Box::pin(wait(shared.cut_signal())),
            ticket,
        };
        for (sequence, ask) in asks.into_iter().enumerate() {
            let mut sampling = common.sampling.clone();
            sampling.seed = common.seed_of(ask.choice);
            let request = Request {
                prompt: ask.prompt,
                tokens_max: ask.tokens_max,
                tokens_min: common.tokens_min.min(ask.tokens_max),
                sampling,
                stop_ids: common.stop_ids.clone(),
                logprobs,
                prompt_logprobs: common.prompt_logprobs,
                mask: ask.mask,
                cache_salt: common.cache_salt,
                priority: common.priority,
            };
            // On an error `all` is dropped, which cancels the sequences before this one.
            let id = all.engine.submit(request, sender.sink(sequence))?;
            all.tracks.push(Track {
                id,
                first_token: None,
                last_token: None,
            });
            all.pipes.push(ask.pipe);
            all.open += 1;
        }
        Ok(all)
    }

    /// What came next: one step a sequence that has news, or nothing once all have ended.
    pub fn poll(&mut self, context: &mut Context) -> Poll<Vec<Step>> {
        if self.open == 0 {
            return Poll::Ready(Vec::new());
        }
        if self.cut.as_mut().poll(context).is_ready() {
            return Poll::Ready(self.fail(&ApiError::unavailable(
                "shutting_down",
                "the server is shutting down",
                5,
            )));
        }
        let items = match self.receiver.poll(context, ITEMS_MAX) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Received::Items(items)) => items,
            Poll::Ready(Received::CutOff) => {
                self.shared.metrics.cut_off();
                let message = "the client read too slowly: its buffer was full and it was cut off";
                let error = ApiError::status(StatusCode::REQUEST_TIMEOUT, "slow_client", message);
                return Poll::Ready(self.fail(&error));
            }
            Poll::Ready(Received::Closed) => {
                return Poll::Ready(self.fail(&ApiError::internal("the engine stopped")));
            }
        };
        let mut steps: Vec<Step> = Vec::new();
        for item in items {
            let i = item.sequence;
            if steps.last().is_none_or(|step| step.sequence != i) {
                steps.push(Step {
                    sequence: i,
                    ..Step::default()
                });
            }
            self.time(i, item.at, &item.event);
            let last = matches!(item.event, Event::Finished { .. } | Event::Failed { .. });
            let step = steps.last_mut().expect("a step was just pushed");
            if self.pipes[i].take(item.event, step) {
                self.shared.metrics.stopped_by_text();
                self.engine.cancel(self.tracks[i].id);
            }
            self.open -= usize::from(last);
        }
        Poll::Ready(steps)
    }

    /// Waits for what comes next.
    pub async fn next(&mut self) -> Vec<Step> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    /// Whether every sequence has had its last word.
    pub fn done(&self) -> bool {
        self.open == 0
    }

    /// Counts of a sequence; before its end, as far as it is known.
    pub fn usage(&self, sequence: usize) -> Usage {
        let pipe = &self.pipes[sequence];
        // Tokens that the engine made after a stop text was seen are not the client's.
        Usage {
            generated_tokens: pipe.token_count,
            ..pipe.usage.unwrap_or_default()
        }
    }

    /// The same, a stop token included.
    pub fn final_usage(&self, sequence: usize) -> Usage {
        let pipe = &self.pipes[sequence];
        let usage = pipe.usage.unwrap_or_default();
        let generated = if usage.generated_tokens == pipe.token_count + 1 {
            usage.generated_tokens
        } else {
            pipe.token_count
        };
        Usage {
            generated_tokens: generated,
            ..usage
        }
    }

    fn time(&mut self, sequence: usize, at: Instant, event: &Event) {
        let track = &mut self.tracks[sequence];
        let metrics = &self.shared.metrics;
        match event {
            Event::Token { .. } => {
                match track.last_token {
                    None => metrics.first_token(at - self.ticket.started),
                    Some(last) => metrics.next_token(at - last),
                }
                track.first_token.get_or_insert(at);
                track.last_token = Some(at);
            }
            Event::Finished { usage, .. } => {
                let times = Times {
                    queue: self
                        .receiver
                        .started(sequence)
                        .map(|start| start - self.ticket.started),
                    first_token: track.first_token.map(|first| first - self.ticket.started),
                    total: at - self.ticket.started,
                };
                metrics.finished(usage, times);
            }
            Event::Prompt(_) | Event::Failed { .. } => {}
        }
    }

    /// Ends every sequence that has not ended.
    fn fail(&mut self, error: &ApiError) -> Vec<Step> {
        self.open = 0;
        for track in &self.tracks {
            self.engine.cancel(track.id);
        }
        let open = self.pipes.iter_mut().enumerate().filter(|(_, pipe)| !pipe.ended);
        open.map(|(sequence, pipe)| {
            pipe.ended = true;
            let end = Some(End::Failed(error.clone()));
            Step {
                sequence,
                end,
                ..Step::default()
            }
        })
        .collect()
    }
}

impl Drop for Sequences {
    /// The client is gone, or all is done. Sequences that wait or prefill send no events, so they would not notice.
    fn drop(&mut self) {
        if self.open > 0 {
            for (track, _) in self
                .tracks
                .iter()
                .zip(&self.pipes)
                .filter(|(_, pipe)| pipe.usage.is_none())
            {
                self.engine.cancel(track.id);
            }
        }
    }
}

async fn wait(mut signal: watch::Receiver<bool>) {
    // The sender lives as long as the server's state, so an error is as good as a cut.
    let _ = signal.wait_for(|cut| *cut).await;
}
