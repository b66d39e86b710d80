//! The contract between a graph and what runs it.

use std::borrow::Cow;
use std::ops::Range;

use crate::{Graph, Weight};

/// Index of a page of the key/value cache. All caches of a program share one page numbering: page p of each layer belongs
/// to the same tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// One sequence's part of a step: `token_count` consecutive tokens starting at `token_start` of the step, at positions
/// `position_start ..` of the sequence. Its page table is `pages[page_start ..][.. page_count]` and covers every position
/// up to the last of this step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct StepSequence {
    pub token_start: u32,
    pub token_count: u32,
    pub position_start: u32,
    pub page_start: u32,
    pub page_count: u32,
}

/// What one step works on.
#[derive(Debug, Clone, Copy)]
pub struct StepInput<'a> {
    /// Token ids, all sequences one after the other.
    pub tokens: &'a [u32],
    /// Position of each token in its sequence.
    pub positions: &'a [u32],
    /// The sequences, in the order of their tokens.
    pub sequences: &'a [StepSequence],
    /// Page tables, one after the other.
    pub pages: &'a [PageId],
    /// Indices into `tokens` whose logits are wanted, ascending.
    pub rows: &'a [u32],
}

/// Sizes that a program is compiled for. Nothing is allocated after compilation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitsSpec {
    /// Most tokens in a step.
    pub step_tokens_max: usize,
    /// Most rows with logits in a step.
    pub step_rows_max: usize,
    /// Most sequences in a step.
    pub step_sequences_max: usize,
    /// Positions in a page; a power of two of at least 16.
    pub page_tokens: usize,
    /// Pages in the pool.
    pub page_count: usize,
    /// Longest sequence, tokens (for rotary tables).
    pub context_max: usize,
}

/// Gives the bytes of canonical weights.
pub trait WeightSource: Sync {
    /// Rows `rows` of `weight` (experts flattened), encoded in `weight.format`, one after the other without gaps. The
    /// weight's own row and column ranges are applied by the implementation; `rows` counts within them.
    ///
    /// # Errors
    /// When the file cannot be read.
    fn rows(&self, weight: &Weight, rows: Range<usize>) -> Result<Cow<'_, [u8]>, BackendError>;
}

/// Which kernel a node takes, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CensusRow {
    /// Label of the node.
    pub label: String,
    /// Operation.
    pub op: &'static str,
    /// Format of its main weight, or empty.
    pub format: String,
    /// Kernel, such as `linear_q4_0_avx512vnni`.
    pub kernel: String,
    /// Why this one.
    pub reason: String,
    /// Whether a faster kernel exists in principle but is not used here (an error under `--strict`).
    pub fallback: bool,
}

/// What a backend cannot do.
#[derive(Debug, thiserror::Error)]
pub enum BackendError {
    /// No kernel for this operation.
    #[error("{backend}: no kernel for {op} `{label}`: {reason}")]
    Unsupported {
        /// Name of the backend.
        backend: &'static str,
        /// Operation.
        op: &'static str,
        /// Node.
        label: String,
        /// The constraint that failed.
        reason: String,
    },
    /// A weight could not be read or is not what the graph says.
    #[error("weight `{name}`: {reason}")]
    Weight {
        /// Canonical name.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// Memory could not be had.
    #[error("{what} needs {bytes} bytes, which could not be allocated")]
    Memory {
        /// What for.
        what: &'static str,
        /// How much.
        bytes: usize,
    },
    /// A logit was not a number: the step's results must not be used for this row.
    #[error("row {row} of the step has a logit that is not finite")]
    NotFinite {
        /// Index into [`StepInput::rows`].
        row: usize,
    },
    /// The step breaks a limit of the program (a scheduler's mistake).
    #[error("step input: {0}")]
    Step(String),
}

/// A compiled program's own account of itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Compiled {
    /// One row a node.
    pub census: Vec<CensusRow>,
    /// Bytes of packed weights.
    pub weight_bytes: usize,
    /// Bytes of the activation arena.
    pub arena_bytes: usize,
    /// Bytes of the key/value pool.
    pub cache_bytes: usize,
}

/// What runs graphs. `compile` does all choosing and allocating; `run` only computes.
pub trait Backend: Send + Sync + 'static {
    /// The compiled form.
    type Program: Send;

    /// Packs the weights, plans the buffers, chooses the kernels.
    ///
    /// # Errors
    /// When an operation has no kernel here, a weight cannot be read, or memory is short.
    fn compile(
        &self,
        graph: &Graph,
        weights: &dyn WeightSource,
        limits: LimitsSpec,
    ) -> Result<Self::Program, BackendError>;

    /// The program's account: kernels and bytes.
    fn compiled<'p>(&self, program: &'p Self::Program) -> &'p Compiled;

    /// Runs one step; `logits` receives `[rows, vocab]` f32, row after row.
    ///
    /// # Errors
    /// When the step breaks a limit. Rows that are not finite are reported by the engine, which looks at each.
    fn run(
        &self,
        program: &mut Self::Program,
        step: &StepInput<'_>,
        logits: &mut [f32],
    ) -> Result<(), BackendError>;
}
