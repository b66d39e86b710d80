//! One step from batch to events, without a thread: the engine's thread and the simulator both drive this.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use galvani_graph::{Backend, BackendError, PageId, StepInput, StepSequence};

use crate::limits::{EngineError, Limits};
use crate::request::{EngineStats, Event, EventSink, Request, RequestId, TokenMask};
use crate::sampling::{Conditions, Sampler, Scratch, token_logprob};
use crate::scheduler::{Batch, Outcome, Part, PartResult, Scheduler, SequenceSpec};

/// Panics of the backend in a row after which nothing more is asked of it.
const PANICS_MAX: u32 = 3;

/// What the engine keeps of a request beside its place in the schedule.
struct Session {
    sampler: Sampler,
    mask: Option<Box<dyn TokenMask>>,
    sink: Box<dyn EventSink>,
    tokens_min: usize,
    stop_ids: Vec<u32>,
    logprobs: Option<usize>,
    prompt_logprobs: Option<usize>,
    started: bool,
}

/// Buffers of a step, as large as the limits from the start.
struct StepBuffers {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<StepSequence>,
    pages: Vec<PageId>,
    rows: Vec<u32>,
    logits: Vec<f32>,
}

/// Scheduler, sessions and backend together.
pub struct Core<B: Backend> {
    backend: B,
    program: B::Program,
    limits: Limits,
    scheduler: Scheduler,
    sessions: HashMap<RequestId, Session>,
    buffers: StepBuffers,
    scratch: Scratch,
    // Events not delivered yet.
    outbox: Vec<(RequestId, Event)>,
    panics: u32,
    broken: Option<String>,
}

impl<B: Backend> Core<B> {
    /// An idle engine around a compiled program.
    ///
    /// # Errors
    /// When there is no memory for the logits.
    pub fn new(
        backend: B,
        program: B::Program,
        limits: Limits,
        prefix_cache: bool,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            backend,
            program,
            limits,
            scheduler: Scheduler::new(limits, prefix_cache),
            sessions: HashMap::with_capacity(limits.live_max.min(1 << 16)),
            buffers: StepBuffers::new(&limits)?,
            scratch: Scratch::default(),
            outbox: Vec::new(),
            panics: 0,
            broken: None,
        })
    }

    /// Takes a request that was validated. Ids ascend.
    pub fn submit(&mut self, id: RequestId, request: Request, mut sink: Box<dyn EventSink>) {
        if let Some(reason) = &self.broken {
            let message = format!("the engine's backend is broken: {reason}");
            deliver(&mut sink, Event::Failed { message });
            return;
        }
        let session = Session {
            sampler: Sampler::new(request.sampling, &request.prompt),
            mask: request.mask,
            sink,
            tokens_min: request.tokens_min,
            stop_ids: request.stop_ids.clone(),
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            started: false,
        };
        self.sessions.insert(id, session);
        self.scheduler.add(
            id,
            SequenceSpec {
                prompt: request.prompt,
                tokens_max: request.tokens_max,
                stop_ids: request.stop_ids,
                prompt_rows: request.prompt_logprobs.is_some(),
                cache_salt: request.cache_salt,
                priority: request.priority,
            },
        );
    }

    /// Cancels a request; an unknown one has already ended.
    pub fn cancel(&mut self, id: RequestId) {
        if let Some(event) = self.scheduler.cancel(id) {
            self.outbox.push((id, event));
        }
    }

    /// Cancels all requests.
    pub fn cancel_all(&mut self) {
        for id in self.scheduler.ids() {
            self.cancel(id);
        }
    }

    /// Ends everything after a mistake of the engine itself: the schedule is no longer trusted, but everybody is told.
    pub fn abort(&mut self, reason: &str) {
        self.outbox.clear();
        self.broken = Some(reason.to_owned());
        for (_, mut session) in self.sessions.drain() {
            deliver(
                &mut session.sink,
                Event::Failed {
                    message: reason.to_owned(),
                },
            );
        }
    }

    /// Requests in the engine; one whose last event waits to be delivered has left.
    pub fn live(&self) -> usize {
        self.scheduler.len()
    }

    /// Whether no event waits for [`Core::deliver`].
    pub fn all_delivered(&self) -> bool {
        self.outbox.is_empty()
    }

    /// Why the backend is no longer used, if so.
    pub fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }

    /// Counts and state.
    pub fn stats(&self) -> EngineStats {
        self.scheduler.stats()
    }

    /// The schedule, for checks.
    pub fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Runs one step. `false` when there is nothing to do. Its events wait for [`Core::deliver`], so that the state can be
    /// made known before anybody acts on them.
    pub fn step(&mut self) -> bool {
        let Some(batch) = self.scheduler.next() else {
            return false;
        };
        self.tell_started(&batch);
        self.buffers.fill(&batch, &self.scheduler);
        let row_floats = batch.row_count * self.limits.vocab;
        let (input, logits) = self.buffers.input(row_floats);
        let ran = catch_unwind(AssertUnwindSafe(|| {
            self.backend.run(&mut self.program, &input, logits)
        }));
        let results = match ran {
            Ok(Ok(())) => {
                self.panics = 0;
                self.sample(&batch)
            }
            Ok(Err(BackendError::NotFinite { row })) if row < batch.row_count => {
                self.panics = 0;
                self.fail_row(&batch, row);
                return true;
            }
            Ok(Err(error)) => {
                self.panics = 0;
                all_failed(&batch, &format!("the step failed: {error}"))
            }
            Err(panic) => {
                self.panics += 1;
                let message = format!("the backend panicked: {}", panic_text(&*panic));
                let results = all_failed(&batch, &message);
                if self.panics >= PANICS_MAX {
                    self.broken = Some(message);
                }
                results
            }
        };
        let events = self.scheduler.commit(results);
        self.outbox.extend(events);
        if let Some(reason) = self.broken.clone() {
            self.fail_all(&format!("the engine's backend is broken: {reason}"));
        }
        true
    }

    /// Tells sinks whose requests waited until now.
    fn tell_started(&mut self, batch: &Batch) {
        for part in &batch.parts {
            if let Some(session) = self.sessions.get_mut(&part.id)
                && !std::mem::replace(&mut session.started, true)
            {
                // A sink that panics here will be found out by its first event.
                let _ = catch_unwind(AssertUnwindSafe(|| session.sink.started()));
            }
        }
    }

    /// The backend names the row at fault: its request ends, the others have the step once more.
    fn fail_row(&mut self, batch: &Batch, row: usize) {
        let mut row_end = 0;
        let part = batch.parts.iter().find(|part| {
            row_end += part.row_count;
            row < row_end
        });
        let id = part.expect("the row is one of the batch").id;
        self.outbox.extend(self.scheduler.abandon());
        if self.scheduler.contains(id) {
            let message = "the model gave a logit that is not finite".to_owned();
            self.outbox.push((id, self.scheduler.fail(id, message)));
        }
    }

    fn fail_all(&mut self, message: &str) {
        for id in self.scheduler.ids() {
            let event = self.scheduler.fail(id, message.to_owned());
            self.outbox.push((id, event));
        }
    }

    fn sample(&mut self, batch: &Batch) -> Vec<PartResult> {
        let vocab = self.limits.vocab;
        let mut results = Vec::with_capacity(batch.parts.len());
        let mut rows = self.buffers.logits.chunks_exact_mut(vocab);
        for part in &batch.parts {
            let session = self
                .sessions
                .get_mut(&part.id)
                .expect("sequences in a batch have sessions");
            let mut part_rows = rows.by_ref().take(part.row_count);
            let (tokens, _) = self.scheduler.sequence(part.id);
            let generated = self.scheduler.generated(part.id);
            // A mask or a sampler that panics is the fault of its own request.
            let sampled = catch_unwind(AssertUnwindSafe(|| {
                session.sample(part, tokens, generated, &mut part_rows, &mut self.scratch)
            }));
            // Rows that a fault left behind belong to this part still.
            part_rows.for_each(drop);
            let result =
                sampled.unwrap_or_else(|panic| Err(format!("sampling panicked: {}", panic_text(&*panic))));
            results.push(result.unwrap_or_else(|message| PartResult {
                prompt: Vec::new(),
                outcome: Outcome::Failed(message),
            }));
        }
        results
    }

    /// Sends the waiting events to their sinks. A sink that is gone cancels its request. Whether there were any.
    pub fn deliver(&mut self) -> bool {
        let any = !self.outbox.is_empty();
        for (id, event) in self.outbox.drain(..) {
            let last = matches!(event, Event::Finished { .. } | Event::Failed { .. });
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            let listening = deliver(&mut session.sink, event);
            if last || !listening {
                self.sessions.remove(&id);
            }
            if !last && !listening {
                // It may have ended in this very step; then there is nothing left to cancel, nor anybody to tell.
                self.scheduler.cancel(id);
            }
        }
        any
    }
}

impl Session {
    fn sample<'r>(
        &mut self,
        part: &Part,
        tokens: &[u32],
        generated: usize,
        rows: &mut impl Iterator<Item = &'r mut [f32]>,
        scratch: &mut Scratch,
    ) -> Result<PartResult, String> {
        let prompt_rows = part.row_count - usize::from(part.samples);
        let mut prompt = Vec::with_capacity(prompt_rows);
        // The row of a position is about the token after it.
        let row_first = part.position_start + part.token_count - part.row_count;
        for (row, next) in rows.take(prompt_rows).zip(&tokens[row_first + 1..]) {
            prompt.push(token_logprob(
                row,
                *next,
                self.prompt_logprobs.unwrap_or(0),
                scratch,
            )?);
        }
        if !part.samples {
            return Ok(PartResult {
                prompt,
                outcome: Outcome::Computed,
            });
        }
        let row = rows.next().expect("the batch counts a row for it");
        let conditions = Conditions {
            index: generated,
            banned: if generated < self.tokens_min {
                &self.stop_ids
            } else {
                &[]
            },
            mask: self.mask.as_deref_mut(),
            logprobs: self.logprobs,
        };
        let (token, logprob) = self.sampler.choose(row, conditions, scratch)?;
        let mut complete = false;
        if let Some(mask) = &mut self.mask
            && !self.stop_ids.contains(&token)
        {
            mask.accept(token)?;
            complete = mask.is_complete();
        }
        Ok(PartResult {
            prompt,
            outcome: Outcome::Sampled {
                token,
                logprob,
                complete,
            },
        })
    }
}

impl StepBuffers {
    fn new(limits: &Limits) -> Result<Self, EngineError> {
        let floats = limits.step_rows_max.saturating_mul(limits.vocab);
        let mut logits = Vec::new();
        // Reserved at once, but filled as far as steps have needed: most never ask for the most rows.
        logits
            .try_reserve_exact(floats)
            .map_err(|_| EngineError::Memory {
                what: "the rows of logits",
                bytes: floats.saturating_mul(size_of::<f32>()),
            })?;
        Ok(Self {
            tokens: Vec::with_capacity(limits.step_tokens_max),
            positions: Vec::with_capacity(limits.step_tokens_max),
            sequences: Vec::with_capacity(limits.sequences_max),
            pages: Vec::with_capacity(limits.sequences_max * limits.sequence_pages_max.min(64)),
            rows: Vec::with_capacity(limits.step_rows_max),
            logits,
        })
    }

    fn fill(&mut self, batch: &Batch, scheduler: &Scheduler) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.pages.clear();
        self.rows.clear();
        let page_tokens = scheduler.page_tokens();
        for part in &batch.parts {
            let (tokens, pages) = scheduler.sequence(part.id);
            let end = part.position_start + part.token_count;
            let pages = &pages[..end.div_ceil(page_tokens)];
            self.sequences.push(StepSequence {
                token_start: self.tokens.len() as u32,
                token_count: part.token_count as u32,
                position_start: part.position_start as u32,
                page_start: self.pages.len() as u32,
                page_count: pages.len() as u32,
            });
            self.tokens.extend_from_slice(&tokens[part.position_start..end]);
            self.positions.extend(part.position_start as u32..end as u32);
            self.pages.extend_from_slice(pages);
            let token_end = self.tokens.len() as u32;
            self.rows.extend(token_end - part.row_count as u32..token_end);
        }
    }

    fn input(&mut self, row_floats: usize) -> (StepInput<'_>, &mut [f32]) {
        if self.logits.len() < row_floats {
            self.logits.resize(row_floats, 0.0);
        }
        let input = StepInput {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &self.sequences,
            pages: &self.pages,
            rows: &self.rows,
        };
        (input, &mut self.logits[..row_floats])
    }
}

fn all_failed(batch: &Batch, message: &str) -> Vec<PartResult> {
    let failed = |_: &Part| PartResult {
        prompt: Vec::new(),
        outcome: Outcome::Failed(message.to_owned()),
    };
    batch.parts.iter().map(failed).collect()
}

/// A sink that panics counts as gone: it must not take the other requests with it.
fn deliver(sink: &mut Box<dyn EventSink>, event: Event) -> bool {
    catch_unwind(AssertUnwindSafe(|| sink.send(event))).unwrap_or(false)
}

/// What a panic said.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::SamplingParams;
    use crate::testing::{ScriptBackend, collect, config};

    #[test]
    fn after_a_mistake_of_its_own_everybody_is_told() {
        let limits = config(16).limits().unwrap();
        let backend = ScriptBackend::hash(16, 1);
        let program = backend.program(limits.spec());
        let mut core = Core::new(backend, program, limits, true).unwrap();
        let send = |core: &mut Core<ScriptBackend>, id| {
            let (sink, events) = collect();
            let request = Request {
                prompt: vec![1],
                tokens_max: 3,
                tokens_min: 0,
                sampling: SamplingParams::greedy(),
                stop_ids: vec![],
                logprobs: None,
                prompt_logprobs: None,
                mask: None,
                cache_salt: 0,
                priority: 0,
            };
            core.submit(RequestId(id), request, sink);
            events
        };
        let (first, second) = (send(&mut core, 1), send(&mut core, 2));
        core.step();
        core.abort("a mistake");
        let told = [Event::Failed {
            message: "a mistake".to_owned(),
        }];
        assert_eq!(first.try_iter().collect::<Vec<_>>(), told);
        assert_eq!(second.try_iter().collect::<Vec<_>>(), told);
        let late: Vec<_> = send(&mut core, 3).try_iter().collect();
        assert!(
            matches!(&late[..], [Event::Failed { message }] if message.contains("a mistake")),
            "{late:?}"
        );
    }

    #[test]
    fn impossible_buffers_are_an_error() {
        let mut config = config(1 << 30);
        (config.step_tokens_max, config.sequences_max) = (1 << 30, 1 << 30);
        let limits = config.limits().unwrap();
        let backend = ScriptBackend::hash(16, 1);
        let program = backend.program(crate::testing::config(16).limits().unwrap().spec());
        assert!(matches!(
            Core::new(backend, program, limits, true),
            Err(EngineError::Memory { .. })
        ));
    }
}
