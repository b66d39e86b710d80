//! What a program consists of.

use galvani_graph::{Activation, Dim};

use crate::ops::attention::Shape;
use crate::ops::route::RouteRule;
use crate::ops::rows::Pointwise;

/// One operation, ready to run.
pub(super) struct Stage {
    pub kernel: Kernel,
    /// Whether all workers must have finished what lies before.
    pub barrier: bool,
    /// Kind, for timing.
    pub op: &'static str,
}

/// Where rows of numbers lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub memory: Memory,
    /// Which buffer of the memory: places with the same number are parts of the same rows.
    pub buffer: usize,
    /// Numbers from the start of the memory to row 0.
    pub offset: usize,
    /// Numbers from one row to the next.
    pub stride: usize,
    /// Numbers of a row that are used.
    pub len: usize,
    /// How many rows there are.
    pub outer: Dim,
}

/// Which memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    Arena,
    /// What the caller of `run` gave.
    Logits,
}

/// Index into [`super::CpuProgram::matrices`].
pub(super) type MatrixId = usize;
/// Index into [`super::CpuProgram::vectors`].
pub(super) type VectorId = usize;

/// One matrix of a product.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part {
    pub matrix: MatrixId,
    pub bias: Option<VectorId>,
    pub column: usize,
}

/// An input of products: f32 rows, and where they are quantised.
#[derive(Debug, Clone, Copy)]
pub(super) struct Input {
    pub place: Place,
    /// Rows for each row of `place` (top_k for the slots of experts).
    pub rows_each: usize,
    /// Index into [`super::CpuProgram::acts`], when a matrix reads int8.
    pub acts: Option<usize>,
}

/// The operations. Those marked (rows) are split by rows of their outermost dimension, each worker taking the same rows
/// in all of them; the others are split in their own way.
pub(super) enum Kernel {
    /// Cosines and sines of the step's positions (rows).
    Angles { rope: usize, table: Place },
    /// (rows)
    Embed { table: MatrixId, scale: f32, out: Place },
    /// (rows)
    RmsNorm {
        x: Place,
        weight: VectorId,
        out: Place,
        len: usize,
        eps: f32,
    },
    /// Rows of f32 to int8 (rows).
    Quantise {
        place: Place,
        rows_each: usize,
        acts: usize,
    },
    Linear {
        input: Input,
        parts: Vec<Part>,
        out: Place,
    },
    LinearAdd {
        input: Input,
        matrix: MatrixId,
        residual: Place,
        scale: f32,
        out: Place,
    },
    LinearGated {
        input: Input,
        gate: MatrixId,
        up: MatrixId,
        activation: Activation,
        out: Place,
    },
    /// (rows), or split by columns.
    Pointwise {
        op: Pointwise,
        a: Place,
        b: Place,
        out: Place,
        by_columns: bool,
    },
    /// (rows)
    Rope {
        x: Place,
        table: Place,
        out: Place,
        head: usize,
        half: usize,
    },
    /// Keys and values into the pool (rows).
    Store { cache: usize, k: Place, v: Place },
    Attend {
        cache: usize,
        shape: Shape,
        work: usize,
        counter: usize,
        q: Place,
        out: Place,
    },
    /// (rows)
    TakeRows { x: Place, out: Place },
    /// (rows)
    Route {
        rule: RouteRule,
        bias: Option<VectorId>,
        logits: Place,
        out: Place,
    },
    /// Worker 0 sorts the slots by expert.
    Group { routes: Place, top_k: usize },
    ExpertsGated {
        input: Input,
        gate: MatrixId,
        up: MatrixId,
        activation: Activation,
        out: Place,
        top_k: usize,
    },
    /// `D_e x` of each slot.
    ExpertsDown {
        input: Input,
        down: MatrixId,
        slots: Place,
        top_k: usize,
    },
    /// The slots' weighted sum (rows).
    Combine {
        slots: Place,
        routes: Place,
        out: Place,
        top_k: usize,
    },
    /// Logits that are a view, to where the caller wants them (rows).
    CopyOut { x: Place, out: Place },
}

/// What a stage touches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    pub resource: Resource,
    pub write: bool,
    /// The dimension by whose rows the workers share the access; `None` when shared in another way.
    pub rows: Option<Dim>,
}

/// What can be touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resource {
    /// Numbers of the arena, by start and end over the largest step, in one buffer.
    Arena {
        start: usize,
        end: usize,
        buffer: usize,
    },
    Logits,
    Acts(usize),
    Groups,
    Cache(usize),
}
