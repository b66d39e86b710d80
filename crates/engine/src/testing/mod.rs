//! A backend that replays scripts, for tests of the engine and of what stands on it.
//!
//! It keeps its own paged store: every step writes its tokens where its page tables say, and reads each sequence's whole
//! history back from there. A wrong page table, a page in two hands or a wrong position is an error of the step.

mod sim;

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use galvani_graph::{
    Backend, BackendError, Compiled, Graph, LimitsSpec, StepInput, StepSequence, WeightSource,
};

use crate::limits::{EngineConfig, EngineError};
use crate::request::{Event, EventSink, FnSink};
use crate::runner::Engine;
use crate::sampling::mix;

pub use sim::{Summary, run as simulate};

/// What a script says about the token after a history.
#[derive(Debug, Clone, PartialEq)]
pub enum Scripted {
    /// This token, all but certainly: its logit is 100 and every other 0.
    Token(u32),
    /// These logits, one a token of the vocabulary.
    Logits(Vec<f32>),
}

type Script = dyn Fn(&[u32]) -> Scripted + Send + Sync;

/// A model made of a closure over the history.
pub struct ScriptBackend {
    vocab: usize,
    script: Box<Script>,
    delay: Duration,
    fail_at: Option<u64>,
    panic_at: Option<(u64, u64)>,
    nan_at: Option<u64>,
}

/// One position of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slot {
    token: u32,
    position: u32,
    // Hash of all tokens up to here, standing for keys and values, which depend on all of them too.
    history: u64,
}

/// The store.
pub struct ScriptProgram {
    limits: LimitsSpec,
    slots: Vec<Option<Slot>>,
    step: u64,
    history: Vec<u32>,
}

impl ScriptBackend {
    /// A model of `vocab` tokens that follows `script`.
    pub fn new(vocab: usize, script: impl Fn(&[u32]) -> Scripted + Send + Sync + 'static) -> Self {
        Self {
            vocab,
            script: Box::new(script),
            delay: Duration::ZERO,
            fail_at: None,
            panic_at: None,
            nan_at: None,
        }
    }

    /// A model whose logits are a hash of the whole history: any mix-up of histories changes the tokens.
    pub fn hash(vocab: usize, seed: u64) -> Self {
        Self::new(vocab, move |history| {
            Scripted::Logits(hash_logits(vocab, seed, history))
        })
    }

    /// Makes each step last at least this long.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Makes the `step`-th step (from 0) an error.
    #[must_use]
    pub fn fail_at(self, step: u64) -> Self {
        Self {
            fail_at: Some(step),
            ..self
        }
    }

    /// Makes `count` steps from the `step`-th on panic.
    #[must_use]
    pub fn panic_at(self, step: u64, count: u64) -> Self {
        Self {
            panic_at: Some((step, count)),
            ..self
        }
    }

    /// Puts a NaN into the first row of the `step`-th step.
    #[must_use]
    pub fn nan_at(self, step: u64) -> Self {
        Self {
            nan_at: Some(step),
            ..self
        }
    }

    /// A program without a graph.
    pub fn program(&self, limits: LimitsSpec) -> ScriptProgram {
        ScriptProgram {
            limits,
            slots: vec![None; limits.page_count * limits.page_tokens],
            step: 0,
            history: Vec::new(),
        }
    }

    /// An engine around this backend.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub fn start(self, config: EngineConfig) -> Result<Engine, EngineError> {
        let program = self.program(config.limits()?.spec());
        Engine::start(self, program, config)
    }
}

/// After the last `marker` in the history come the tokens of `reply`, then `end` for ever. Without a marker, `end`.
pub fn reply_after(
    marker: Vec<u32>,
    reply: Vec<u32>,
    end: u32,
) -> impl Fn(&[u32]) -> Scripted + Send + Sync + 'static {
    assert!(!marker.is_empty(), "a marker has tokens");
    move |history| {
        let at = history.windows(marker.len()).rposition(|window| window == marker);
        let next = at.and_then(|at| reply.get(history.len() - at - marker.len()));
        Scripted::Token(next.copied().unwrap_or(end))
    }
}

/// A small engine: context 256, 4 sequences, pages of 16.
pub fn config(vocab: usize) -> EngineConfig {
    EngineConfig {
        step_tokens_max: 64,
        sequences_max: 4,
        queue_max: 16,
        page_tokens: 16,
        page_count: 64,
        context_max: 256,
        vocab,
        prefix_cache: true,
    }
}

/// A sink into a channel; it is gone when the receiver is dropped.
pub fn collect() -> (Box<dyn EventSink>, Receiver<Event>) {
    let (sender, receiver) = channel();
    (
        Box::new(FnSink(move |event| sender.send(event).is_ok())),
        receiver,
    )
}

/// Logits of the hash model after `history`: numbers from 0 to 4 that depend on every token and its place.
pub fn hash_logits(vocab: usize, seed: u64, history: &[u32]) -> Vec<f32> {
    let state = history
        .iter()
        .fold(mix(seed), |state, token| extend(state, *token));
    (0..vocab as u64)
        .map(|token| (mix(state ^ token) >> 40) as f32 / (1u64 << 22) as f32)
        .collect()
}

fn extend(state: u64, token: u32) -> u64 {
    mix(state.rotate_left(5) ^ u64::from(token))
}

impl Backend for ScriptBackend {
    type Program = ScriptProgram;

    fn compile(
        &self,
        _graph: &Graph,
        _weights: &dyn WeightSource,
        limits: LimitsSpec,
    ) -> Result<ScriptProgram, BackendError> {
        Ok(self.program(limits))
    }

    fn compiled<'p>(&self, _program: &'p ScriptProgram) -> &'p Compiled {
        // Scripts have neither kernels nor weights.
        static NOTHING: Compiled = Compiled {
            census: Vec::new(),
            weight_bytes: 0,
            arena_bytes: 0,
            cache_bytes: 0,
        };
        &NOTHING
    }

    fn run(
        &self,
        program: &mut ScriptProgram,
        step: &StepInput<'_>,
        logits: &mut [f32],
    ) -> Result<(), BackendError> {
        let number = program.step;
        program.step += 1;
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
        }
        if self.fail_at == Some(number) {
            return Err(BackendError::Step(format!("scripted failure of step {number}")));
        }
        if let Some((first, count)) = self.panic_at
            && (first..first.saturating_add(count)).contains(&number)
        {
            panic!("scripted panic of step {number}");
        }
        program.check_limits(step).map_err(BackendError::Step)?;
        for sequence in step.sequences {
            program.write(step, sequence).map_err(BackendError::Step)?;
        }
        if logits.len() != step.rows.len() * self.vocab {
            return Err(BackendError::Step(format!(
                "{} logits for {} rows",
                logits.len(),
                step.rows.len()
            )));
        }
        let mut rows = step
            .rows
            .iter()
            .zip(logits.chunks_exact_mut(self.vocab))
            .peekable();
        for sequence in step.sequences {
            while let Some((row, out)) =
                rows.next_if(|(row, _)| **row < sequence.token_start + sequence.token_count)
            {
                let history = program.read(step, sequence, *row - sequence.token_start);
                self.write_row(history.map_err(BackendError::Step)?, out)?;
            }
        }
        if self.nan_at == Some(number)
            && let Some(first) = logits.first_mut()
        {
            *first = f32::NAN;
        }
        Ok(())
    }
}

impl ScriptBackend {
    fn write_row(&self, history: &[u32], out: &mut [f32]) -> Result<(), BackendError> {
        match (self.script)(history) {
            Scripted::Token(token) if (token as usize) < self.vocab => {
                out.fill(0.0);
                out[token as usize] = 100.0;
                Ok(())
            }
            Scripted::Logits(logits) if logits.len() == self.vocab => {
                out.copy_from_slice(&logits);
                Ok(())
            }
            other => Err(BackendError::Step(format!(
                "the script's answer is outside the vocabulary: {other:?}"
            ))),
        }
    }
}

impl ScriptProgram {
    fn check_limits(&self, step: &StepInput<'_>) -> Result<(), String> {
        let limits = &self.limits;
        let token_count: usize = step
            .sequences
            .iter()
            .map(|sequence| sequence.token_count as usize)
            .sum();
        for (what, got, most) in [
            ("tokens", step.tokens.len(), limits.step_tokens_max),
            ("rows", step.rows.len(), limits.step_rows_max),
            ("sequences", step.sequences.len(), limits.step_sequences_max),
        ] {
            if got > most {
                return Err(format!("{got} {what}, at most {most}"));
            }
        }
        if token_count != step.tokens.len() || step.positions.len() != token_count {
            return Err("tokens, positions and sequences do not agree".to_owned());
        }
        let rows_ascend = step.rows.windows(2).all(|pair| pair[0] < pair[1]);
        if !rows_ascend || step.rows.last().is_some_and(|row| *row as usize >= token_count) {
            return Err("rows do not ascend or name no token".to_owned());
        }
        Ok(())
    }

    fn slot_index(
        &self,
        step: &StepInput<'_>,
        sequence: &StepSequence,
        position: u32,
    ) -> Result<usize, String> {
        let (page, inside) = (
            position as usize / self.limits.page_tokens,
            position as usize % self.limits.page_tokens,
        );
        if page >= sequence.page_count as usize {
            return Err(format!("position {position} is beyond the page table"));
        }
        let page = step.pages[sequence.page_start as usize + page].0 as usize;
        if page >= self.limits.page_count {
            return Err(format!("page {page} is beyond the pool"));
        }
        Ok(page * self.limits.page_tokens + inside)
    }

    fn write(&mut self, step: &StepInput<'_>, sequence: &StepSequence) -> Result<(), String> {
        let start = sequence.position_start;
        let mut history = match start.checked_sub(1) {
            None => 0,
            Some(before) => {
                let index = self.slot_index(step, sequence, before)?;
                self.slots[index]
                    .ok_or_else(|| format!("position {before} was never computed"))?
                    .history
            }
        };
        for at in 0..sequence.token_count {
            let position = start + at;
            let token = step.tokens[(sequence.token_start + at) as usize];
            if step.positions[(sequence.token_start + at) as usize] != position {
                return Err(format!("token {at} of a sequence has not position {position}"));
            }
            history = extend(history, token);
            let index = self.slot_index(step, sequence, position)?;
            self.slots[index] = Some(Slot {
                token,
                position,
                history,
            });
        }
        Ok(())
    }

    /// The tokens at positions up to that of the sequence's `at`-th token of this step, as the page table gives them.
    fn read(&mut self, step: &StepInput<'_>, sequence: &StepSequence, at: u32) -> Result<&[u32], String> {
        self.history.clear();
        let mut hash = 0;
        for position in 0..=sequence.position_start + at {
            let slot = self.slots[self.slot_index(step, sequence, position)?];
            let slot = slot.ok_or_else(|| format!("position {position} was never computed"))?;
            hash = extend(hash, slot.token);
            if slot.position != position || slot.history != hash {
                return Err(format!("position {position} holds another history's values"));
            }
            self.history.push(slot.token);
        }
        Ok(&self.history)
    }
}

#[cfg(test)]
mod tests;
