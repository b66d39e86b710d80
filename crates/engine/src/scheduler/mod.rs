//! Which sequences run in the next step, and what a finished step means for them.
//!
//! Pure: no clock, no channel, no backend. [`Scheduler::next`] explains a step and [`Scheduler::commit`] (or
//! [`Scheduler::abandon`]) ends it; nothing about a sequence changes in between, so a step that failed leaves no trace.
//!
//! A step takes first one token for each sequence that generates, then chunks of prompts, by priority and arrival,
//! as far as tokens and rows reach. A sequence gets the pages of all its present tokens when it is admitted, so only
//! generating ever asks for more. When the pool is empty then, the newest sequence of the lowest priority gives
//! up its pages and computes them again later. The oldest is never chosen, hence every sequence ends.

mod sequence;

use std::collections::{BTreeSet, HashMap};

use galvani_graph::PageId;

use crate::limits::Limits;
use crate::pages::PagePool;
use crate::request::{EngineStats, Event, FinishReason, RequestId, TokenLogprob};
use sequence::{Key, Sequence, State};

/// What the scheduler needs to know of a request.
#[derive(Debug, Clone)]
pub struct SequenceSpec {
    /// Prompt; not empty and shorter than the context.
    pub prompt: Vec<u32>,
    /// Most tokens to generate.
    pub tokens_max: usize,
    /// Tokens that end the sequence.
    pub stop_ids: Vec<u32>,
    /// Whether rows are wanted for the whole prompt.
    pub prompt_rows: bool,
    /// Tenant of the prefix cache.
    pub cache_salt: u64,
    /// Lower runs first.
    pub priority: i32,
}

/// One sequence's part of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Whose.
    pub id: RequestId,
    /// First position computed.
    pub position_start: usize,
    /// Positions computed.
    pub token_count: usize,
    /// Rows of logits wanted: those of the last `row_count` positions.
    pub row_count: usize,
    /// Whether the last row chooses a token; the rows before it are the prompt's.
    pub samples: bool,
}

/// What one step works on.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Batch {
    /// The sequences' parts, in the order of the step.
    pub parts: Vec<Part>,
    /// Sum of the parts' tokens.
    pub token_count: usize,
    /// Sum of the parts' rows.
    pub row_count: usize,
}

/// What came of one part.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Positions are computed; no token was asked for.
    Computed,
    /// A token was chosen.
    Sampled {
        /// The token.
        token: u32,
        /// Its log-probability, if asked for.
        logprob: Option<TokenLogprob>,
        /// Whether the constraint is complete with it.
        complete: bool,
    },
    /// The sequence cannot go on.
    Failed(String),
}

/// Result of one part of the batch.
#[derive(Debug, Clone, PartialEq)]
pub struct PartResult {
    /// Log-probabilities of the prompt's next tokens, one for each of the part's prompt rows.
    pub prompt: Vec<TokenLogprob>,
    /// The rest.
    pub outcome: Outcome,
}

/// Continuous batching over one page pool.
pub struct Scheduler {
    limits: Limits,
    pool: PagePool,
    sequences: HashMap<RequestId, Sequence>,
    // Ascending: the first is the last to be preempted.
    running: Vec<Key>,
    waiting: BTreeSet<Key>,
    in_flight: Option<Batch>,
    // Number of the step being put together, from 1.
    step: u64,
    stats: EngineStats,
}

impl Scheduler {
    /// An idle scheduler.
    pub fn new(limits: Limits, prefix_cache: bool) -> Self {
        Self {
            limits,
            pool: PagePool::new(limits.page_count, limits.page_tokens, prefix_cache),
            sequences: HashMap::with_capacity(limits.live_max.min(1 << 16)),
            running: Vec::with_capacity(limits.sequences_max),
            waiting: BTreeSet::new(),
            in_flight: None,
            step: 0,
            stats: EngineStats::default(),
        }
    }

    /// Takes a sequence. Ids must ascend with arrival.
    pub fn add(&mut self, id: RequestId, spec: SequenceSpec) {
        assert!(
            !spec.prompt.is_empty() && spec.prompt.len() < self.limits.context_max,
            "checked at submission"
        );
        assert!(spec.tokens_max > 0, "checked at submission");
        let key = Key {
            priority: spec.priority,
            id,
        };
        let known = self
            .sequences
            .insert(id, Sequence::new(spec, self.limits.context_max));
        assert!(known.is_none(), "request {} is added twice", id.0);
        self.waiting.insert(key);
    }

    /// Sequences running and waiting.
    pub fn len(&self) -> usize {
        self.sequences.len()
    }

    /// Whether `id` is in the scheduler.
    pub fn contains(&self, id: RequestId) -> bool {
        self.sequences.contains_key(&id)
    }

    /// All tokens so far (prompt and generated) and the page table of a sequence.
    pub fn sequence(&self, id: RequestId) -> (&[u32], &[PageId]) {
        let sequence = &self.sequences[&id];
        (&sequence.tokens, &sequence.pages)
    }

    /// Positions in a page.
    pub fn page_tokens(&self) -> usize {
        self.limits.page_tokens
    }

    /// Tokens that a sequence has generated so far.
    pub fn generated(&self, id: RequestId) -> usize {
        self.sequences[&id].generated()
    }

    /// Counts since the start and the state now.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            running: self.running.len(),
            waiting: self.waiting.len(),
            pages_total: self.pool.total(),
            pages_used: self.pool.used(),
            pages_cached: self.pool.reusable(),
            ..self.stats
        }
    }

    /// The next step, or nothing when no sequence is there. The step is in flight until `commit` or `abandon`.
    pub fn next(&mut self) -> Option<Batch> {
        assert!(self.in_flight.is_none(), "the last step is still in flight");
        let mut batch = Batch {
            parts: Vec::with_capacity(self.limits.sequences_max),
            ..Batch::default()
        };
        self.step += 1;
        let preemptions = self.stats.preemptions;
        self.schedule_single_tokens(&mut batch);
        // Right after a preemption pages are short: admitting now would only shuffle sequences in and out.
        let may_admit = self.stats.preemptions == preemptions;
        self.schedule_chunks(&mut batch, may_admit);
        if batch.parts.is_empty() {
            assert!(
                self.sequences.is_empty(),
                "sequences are waiting and none can run"
            );
            return None;
        }
        assert!(
            batch.token_count <= self.limits.step_tokens_max && batch.row_count <= self.limits.step_rows_max
        );
        self.in_flight = Some(batch.clone());
        Some(batch)
    }

    /// Ends the step in flight with its results, one for each part, and tells what happened.
    pub fn commit(&mut self, results: Vec<PartResult>) -> Vec<(RequestId, Event)> {
        let batch = self.in_flight.take().expect("commit follows next");
        assert_eq!(batch.parts.len(), results.len(), "one result a part");
        self.stats.steps += 1;
        let mut events = Vec::with_capacity(results.len() + 8);
        for (part, result) in batch.parts.iter().zip(results) {
            self.commit_part(part, result, &mut events);
        }
        events
    }

    /// Ends the step in flight as if it had not been, for sequences cancelled meanwhile as well: these end now.
    pub fn abandon(&mut self) -> Vec<(RequestId, Event)> {
        let batch = self.in_flight.take().expect("abandon follows next");
        let cancelled = |part: &&Part| self.sequences[&part.id].cancelled;
        let ids: Vec<_> = batch.parts.iter().filter(cancelled).map(|part| part.id).collect();
        ids.into_iter()
            .map(|id| (id, self.finish(id, FinishReason::Cancelled, None)))
            .collect()
    }

    /// Cancels a sequence. The event comes now, or with the commit of the step it is in; an unknown id is no fault (the
    /// sequence may just have ended).
    pub fn cancel(&mut self, id: RequestId) -> Option<Event> {
        let in_flight = self
            .in_flight
            .as_ref()
            .is_some_and(|batch| batch.parts.iter().any(|part| part.id == id));
        let sequence = self.sequences.get_mut(&id)?;
        if in_flight {
            sequence.cancelled = true;
            return None;
        }
        Some(self.finish(id, FinishReason::Cancelled, None))
    }

    /// Ends a sequence with a fault, between steps. Its pages are not offered for reuse.
    pub fn fail(&mut self, id: RequestId, message: String) -> Event {
        assert!(self.in_flight.is_none(), "faults in a step go through commit");
        self.finish_failed(id, message)
    }

    /// Ids of all sequences.
    pub fn ids(&self) -> Vec<RequestId> {
        let mut ids: Vec<_> = self.sequences.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    fn schedule_single_tokens(&mut self, batch: &mut Batch) {
        let mut at = 0;
        while let Some(&key) = self.running.get(at) {
            if self.sequences[&key.id].remaining() == 1 {
                if !self.page_for_next(key, at) {
                    // Only sequences with precedence are left running, and all their pages are in use.
                    self.preempt(at);
                    continue;
                }
                self.push(batch, key.id, 1);
            }
            at += 1;
        }
    }

    /// Makes sure that the sequence has a page for its last token, at the cost of those behind it.
    fn page_for_next(&mut self, key: Key, at: usize) -> bool {
        let sequence = &self.sequences[&key.id];
        if sequence.pages.len() * self.limits.page_tokens >= sequence.tokens.len() {
            return true;
        }
        loop {
            if let Some(page) = self.pool.take() {
                self.sequences
                    .get_mut(&key.id)
                    .expect("running sequences exist")
                    .pages
                    .push(page);
                return true;
            }
            if self.running.len() <= at + 1 {
                return false;
            }
            self.preempt(self.running.len() - 1);
        }
    }

    fn preempt(&mut self, at: usize) {
        let key = self.running.remove(at);
        let sequence = self.sequences.get_mut(&key.id).expect("running sequences exist");
        sequence.give_pages_back(&mut self.pool);
        sequence.state = State::Waiting;
        sequence.preemptions += 1;
        self.stats.preemptions += 1;
        self.waiting.insert(key);
    }

    /// Chunks for running prompts and for waiting ones that can be admitted, whichever has precedence.
    fn schedule_chunks(&mut self, batch: &mut Batch, mut may_admit: bool) {
        let mut at = 0;
        while batch.token_count < self.limits.step_tokens_max && batch.row_count < self.limits.step_rows_max {
            while self
                .running
                .get(at)
                .is_some_and(|key| self.sequences[&key.id].scheduled_in == self.step)
            {
                at += 1;
            }
            let running = self.running.get(at).copied();
            let waiting = self.waiting.first().copied().filter(|_| may_admit);
            match (running, waiting) {
                (None, None) => return,
                (running, Some(waiting)) if running.is_none_or(|running| waiting < running) => {
                    may_admit = self.admit(waiting);
                    if may_admit {
                        self.push_chunk(batch, waiting.id);
                    }
                }
                (Some(running), _) => {
                    self.push_chunk(batch, running.id);
                    at += 1;
                }
                (None, Some(_)) => unreachable!("a waiting sequence precedes none"),
            }
        }
    }

    /// Gives a waiting sequence its pages and puts it among the running ones; `false` when there is no
    /// room, or its prompt is just being computed for another.
    fn admit(&mut self, key: Key) -> bool {
        if self.running.len() >= self.limits.sequences_max {
            return false;
        }
        let sequence = &self.sequences[&key.id];
        let page_tokens = self.limits.page_tokens;
        let reuse_max = sequence.reusable_tokens_max() / page_tokens;
        let (salt, pages) = (sequence.cache_salt, sequence.tokens.len().div_ceil(page_tokens));
        let (found, idle) = self.pool.peek(salt, &sequence.tokens, reuse_max);
        if self.is_being_computed(key, found, reuse_max) {
            return false;
        }
        // A page for each running sequence is left, or the next step would preempt what was just admitted.
        if self.pool.available() < pages - found + idle + self.running.len() {
            return false;
        }
        let sequence = self.sequences.get_mut(&key.id).expect("waiting sequences exist");
        sequence.chain = self
            .pool
            .lookup(salt, &sequence.tokens, reuse_max, &mut sequence.pages);
        sequence.registered = sequence.pages.len();
        sequence.computed = sequence.registered * page_tokens;
        if !sequence.admitted {
            sequence.admitted = true;
            sequence.cached_tokens = sequence.computed;
            self.stats.prefix_queries += sequence.prompt_len as u64;
            self.stats.prefix_hits += sequence.computed as u64;
        }
        while sequence.pages.len() < pages {
            sequence.pages.push(self.pool.take().expect("counted above"));
        }
        sequence.state = State::Running;
        self.waiting.remove(&key);
        let place = self.running.partition_point(|other| *other < key);
        self.running.insert(place, key);
        true
    }

    /// Whether a running prompt with precedence is about to compute the page after the `found` ones: it will be in the
    /// cache soon, so that several choices for one prompt, or a burst on one system prompt, compute it once.
    fn is_being_computed(&self, key: Key, found: usize, reuse_max: usize) -> bool {
        let sequence = &self.sequences[&key.id];
        let end = (found + 1) * self.limits.page_tokens;
        let soon = |other: &Key| {
            let other_sequence = &self.sequences[&other.id];
            other < &key
                && other_sequence.cache_salt == sequence.cache_salt
                && other_sequence.computed < end
                && end < other_sequence.tokens.len()
                && other_sequence.tokens[..end] == sequence.tokens[..end]
        };
        self.pool.caches() && found < reuse_max && self.running.iter().any(soon)
    }

    /// As many of the sequence's tokens as tokens and rows of the step allow.
    fn push_chunk(&mut self, batch: &mut Batch, id: RequestId) {
        let sequence = &self.sequences[&id];
        let rows_left = self.limits.step_rows_max - batch.row_count;
        let mut count = sequence
            .remaining()
            .min(self.limits.step_tokens_max - batch.token_count);
        while sequence.rows_in(count) > rows_left {
            count = count.saturating_sub(sequence.rows_in(count) - rows_left);
        }
        if count > 0 {
            self.push(batch, id, count);
        }
    }

    fn push(&mut self, batch: &mut Batch, id: RequestId, token_count: usize) {
        let sequence = self.sequences.get_mut(&id).expect("running sequences exist");
        sequence.scheduled_in = self.step;
        let part = Part {
            id,
            position_start: sequence.computed,
            token_count,
            row_count: sequence.rows_in(token_count),
            samples: token_count == sequence.remaining(),
        };
        batch.token_count += token_count;
        batch.row_count += part.row_count;
        batch.parts.push(part);
    }

    fn commit_part(&mut self, part: &Part, result: PartResult, events: &mut Vec<(RequestId, Event)>) {
        let id = part.id;
        let sequence = self.sequences.get_mut(&id).expect("sequences in flight exist");
        if let Outcome::Failed(message) = result.outcome {
            // The client is told of the fault even where it just cancelled: it is the truth.
            events.push((id, self.finish_failed(id, message)));
            return;
        }
        sequence.computed += part.token_count;
        let prompt_end = sequence.computed.min(sequence.prompt_len);
        self.stats.prompt_tokens += prompt_end.saturating_sub(part.position_start) as u64;
        sequence.register_full_pages(&mut self.pool, self.limits.page_tokens);
        if let Some(prompt) = &mut sequence.prompt_logprobs {
            prompt.extend(result.prompt.into_iter().map(Some));
        }
        if sequence.cancelled {
            events.push((id, self.finish(id, FinishReason::Cancelled, None)));
            return;
        }
        let Outcome::Sampled {
            token,
            logprob,
            complete,
        } = result.outcome
        else {
            assert!(!part.samples, "a part that reaches the last token chooses one");
            return;
        };
        assert!(
            part.samples,
            "only a part that reaches the last token chooses one"
        );
        self.stats.generated_tokens += 1;
        if let Some(prompt) = sequence.prompt_logprobs.take() {
            assert_eq!(
                prompt.len(),
                sequence.prompt_len,
                "each token of the prompt has its row"
            );
            events.push((id, Event::Prompt(prompt)));
        }
        sequence.tokens.push(token);
        if sequence.stop_ids.contains(&token) {
            events.push((id, self.finish(id, FinishReason::Stop, Some(token))));
            return;
        }
        events.push((id, Event::Token { token, logprob }));
        if complete {
            events.push((id, self.finish(id, FinishReason::Stop, None)));
        } else if sequence.tokens.len() >= sequence.length_max {
            events.push((id, self.finish(id, FinishReason::Length, None)));
        }
    }

    fn finish(&mut self, id: RequestId, reason: FinishReason, stop_token: Option<u32>) -> Event {
        let sequence = self.remove(id);
        match reason {
            FinishReason::Stop => self.stats.finished_stop += 1,
            FinishReason::Length => self.stats.finished_length += 1,
            FinishReason::Cancelled => self.stats.finished_cancelled += 1,
        }
        Event::Finished {
            reason,
            stop_token,
            usage: sequence.usage(),
        }
    }

    fn finish_failed(&mut self, id: RequestId, message: String) -> Event {
        // What was computed is doubted, whatever the fault: nobody else is to build on it.
        for page in &self.sequences[&id].pages {
            self.pool.forget(*page);
        }
        self.remove(id);
        self.stats.failed += 1;
        Event::Failed { message }
    }

    fn remove(&mut self, id: RequestId) -> Sequence {
        let mut sequence = self.sequences.remove(&id).expect("only live sequences end");
        let key = Key {
            priority: sequence.priority,
            id,
        };
        match sequence.state {
            State::Waiting => assert!(self.waiting.remove(&key), "a waiting sequence is listed"),
            State::Running => {
                let at = self
                    .running
                    .binary_search(&key)
                    .expect("a running sequence is listed");
                self.running.remove(at);
            }
        }
        sequence.give_pages_back(&mut self.pool);
        sequence
    }

    /// Checks pages, tables and lists against each other.
    ///
    /// # Errors
    /// Says what does not fit. For tests and the simulator.
    pub fn check_integrity(&self) -> Result<(), String> {
        self.pool
            .check_integrity(self.sequences.values().map(|sequence| &sequence.pages[..]))?;
        if self.running.len() + self.waiting.len() != self.sequences.len() {
            return Err("a sequence is lost or listed twice".to_owned());
        }
        if self.running.len() > self.limits.sequences_max || !self.running.is_sorted() {
            return Err("the running list is too long or out of order".to_owned());
        }
        for key in &self.running {
            let sequence = self
                .sequences
                .get(&key.id)
                .ok_or("a running sequence is unknown")?;
            sequence.check(State::Running, self.limits.page_tokens)?;
        }
        for key in &self.waiting {
            let sequence = self
                .sequences
                .get(&key.id)
                .ok_or("a waiting sequence is unknown")?;
            sequence.check(State::Waiting, self.limits.page_tokens)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
