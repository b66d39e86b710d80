//! Steps without an engine: what `bench` and `eval` are made of. Sequence s owns a fixed range of pages.

use galvani_graph::{Backend, PageId, StepInput, StepSequence};

use crate::error::CliError;
use crate::load::Ready;

/// Drives a program by hand.
pub struct Direct {
    ready: Ready,
    pages_each: usize,
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<StepSequence>,
    pages: Vec<PageId>,
    rows: Vec<u32>,
    logits: Vec<f32>,
}

/// Tokens of one sequence in a step.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Which sequence; below the `sequences` of [`Direct::new`].
    pub sequence: usize,
    /// Position of the first token.
    pub start: usize,
    /// Tokens.
    pub tokens: &'a [u32],
    /// The last so many tokens' logits are wanted.
    pub rows: usize,
}

impl Direct {
    /// Divides the pool among `sequences`.
    pub fn new(ready: Ready, sequences: usize) -> Self {
        let pages_each = ready.fit.limits.page_count / sequences.max(1);
        Self {
            ready,
            pages_each,
            tokens: Vec::new(),
            positions: Vec::new(),
            sequences: Vec::new(),
            pages: Vec::new(),
            rows: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// The program and its sizes.
    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    /// Most tokens of a step.
    pub fn width(&self) -> usize {
        self.ready.fit.limits.step_tokens_max
    }

    /// Most rows of a step.
    pub fn rows_max(&self) -> usize {
        self.ready.fit.limits.step_rows_max
    }

    /// Runs one step and gives the logits of the wanted rows, `[rows, vocab]`.
    ///
    /// # Errors
    /// When the backend refuses the step.
    pub fn step(&mut self, parts: &[Part<'_>]) -> Result<&[f32], CliError> {
        let page_tokens = self.ready.fit.limits.page_tokens;
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.pages.clear();
        self.rows.clear();
        for part in parts {
            let end = part.start + part.tokens.len();
            let page_count = end.div_ceil(page_tokens);
            assert!(
                page_count <= self.pages_each,
                "a sequence of {end} tokens outgrows its pages"
            );
            let first = part.sequence * self.pages_each;
            let token_start = self.tokens.len() as u32;
            self.sequences.push(StepSequence {
                token_start,
                token_count: part.tokens.len() as u32,
                position_start: part.start as u32,
                page_start: self.pages.len() as u32,
                page_count: page_count as u32,
            });
            self.pages
                .extend((first..first + page_count).map(|page| PageId(page as u32)));
            self.tokens.extend_from_slice(part.tokens);
            self.positions
                .extend((part.start..end).map(|position| position as u32));
            let stop = self.tokens.len() as u32;
            self.rows.extend(stop - part.rows as u32..stop);
        }
        let vocab = self.ready.fit.limits.vocab;
        self.logits.resize(self.rows.len() * vocab, 0.0);
        let step = StepInput {
            tokens: &self.tokens,
            positions: &self.positions,
            sequences: &self.sequences,
            pages: &self.pages,
            rows: &self.rows,
        };
        let run = self
            .ready
            .backend
            .run(&mut self.ready.program, &step, &mut self.logits);
        run.map_err(|error| CliError::Failed(error.to_string()))?;
        Ok(&self.logits)
    }
}
