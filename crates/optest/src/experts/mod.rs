//! The experts' kernels against plain loops and the reference backend, on anything that launches.
//!
//! A [`Case`] is a stack, a bucket of tokens and how they choose; [`Data`] its random operands; [`run`] what a plan gives on
//! a launcher; [`oracle::wanted`] what it should give, and how far off each number may be; [`check::check`] holds the two together.

pub mod bench;
pub mod cases;
pub mod check;
pub mod command;
pub mod count;
mod data;
pub mod families;
pub mod oracle;
#[cfg(test)]
mod reference;
mod run;

pub use data::{Data, POISON};
pub use run::{Run, run};

use crate::device::random::{Kind, RandomWeight};
use galvani_cuda::ops::experts::{ExpertStack, Router, RouterInput, Score};
use galvani_cuda::ops::linear::{FORMATS, LinearFormat};

/// Who is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Whoever the random router says.
    Random,
    /// One expert is among the choices of every token.
    OneForAll,
    /// Experts 2i and 2i + 1 always have equal logits.
    Ties,
}

/// What is added to the experts' sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// Nothing.
    Nothing,
    /// A residual in its own buffer.
    Residual,
    /// A residual in the output's buffer, and a shared expert.
    SharedInPlace,
}

/// One stack and one bucket.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The stack.
    pub stack: ExpertStack,
    /// How the weights of gate and up, and of down come.
    pub kinds: [Kind; 2],
    /// Tokens of the bucket.
    pub tokens: u32,
    /// How many of them exist, if the device is to know.
    pub live: Option<u32>,
    /// Who is chosen.
    pub choice: Choice,
    /// What is added.
    pub added: Added,
    /// Whether the experts' products have biases.
    pub expert_bias: bool,
    /// Seed of all numbers.
    pub seed: u64,
}

/// A router without extras.
pub const fn router(score: Score) -> Router {
    Router::plain(RouterInput::F32, score)
}

impl Case {
    /// A case of `[experts, top_k, hidden, inner]`, SwiGLU, a softmax router, nothing added.
    pub fn new(sizes: [u32; 4], tokens: u32, kind: Kind) -> Self {
        let packed = linear_format(kind);
        Self {
            stack: ExpertStack::plain(packed, sizes, router(Score::Softmax)),
            kinds: [kind; 2],
            tokens,
            live: None,
            choice: Choice::Random,
            added: Added::Nothing,
            expert_bias: false,
            seed: 1,
        }
    }

    /// Tokens that exist.
    pub fn live(&self) -> usize {
        self.live.unwrap_or(self.tokens).min(self.tokens) as usize
    }

    /// What tells it from others.
    pub fn name(&self) -> String {
        let Self { stack, .. } = self;
        format!(
            "{} of {} experts {}x{} tokens {} ({}) {:?} {:?} {:?} {:?} {:?} bias {}",
            stack.top_k,
            stack.experts,
            stack.hidden,
            stack.inner,
            self.tokens,
            self.live(),
            self.kinds,
            stack.activation,
            stack.router,
            self.choice,
            self.added,
            self.expert_bias,
        )
    }
}

/// The packed form of a kind of weights.
///
/// # Panics
/// When there is none: a case that cannot be.
fn linear_format(kind: Kind) -> LinearFormat {
    let source = RandomWeight::new(kind, 1, 256, 1);
    let packed = source.weight().and_then(|weight| weight.packed_format());
    let packed = packed.expect("every kind has a packed form");
    let found = FORMATS.iter().copied().find(|known| known.packed == packed);
    found.expect("every packed form has kernels")
}
