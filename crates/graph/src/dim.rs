//! Dimensions: fixed numbers, and the two that only a step knows.

use std::fmt;

/// One dimension of an activation. Only the outermost dimension may be symbolic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dim {
    /// Tokens in the step, over all sequences.
    Tokens,
    /// Rows of the step whose logits are wanted.
    Rows,
    /// A number known when the graph is built.
    Fixed(usize),
}

/// The values of the symbolic dimensions for one step, or the largest ones for a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Extent {
    /// Value of [`Dim::Tokens`].
    pub tokens: usize,
    /// Value of [`Dim::Rows`].
    pub rows: usize,
}

impl Dim {
    /// The number this dimension stands for.
    pub fn resolve(self, extent: Extent) -> usize {
        match self {
            Dim::Tokens => extent.tokens,
            Dim::Rows => extent.rows,
            Dim::Fixed(n) => n,
        }
    }

    /// The number, when it does not depend on the step.
    pub fn fixed(self) -> Option<usize> {
        match self {
            Dim::Fixed(n) => Some(n),
            Dim::Tokens | Dim::Rows => None,
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dim::Tokens => f.write_str("tokens"),
            Dim::Rows => f.write_str("rows"),
            Dim::Fixed(n) => write!(f, "{n}"),
        }
    }
}
