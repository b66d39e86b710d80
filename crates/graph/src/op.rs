//! The closed set of operations. Every backend and every pass matches on [`Op`] without a wildcard.

use crate::{CacheId, RopeId};

/// One operation. Operands are in [`crate::Node::inputs`] and [`crate::Node::weights`]; shapes are written
/// `[outer, .., inner]`, T = tokens, R = rows.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// ids `[T]` u32, table `[V, H]` -> `[T, H]`; each number times `scale`.
    Embed {
        /// Multiplier (1 for most families).
        scale: f32,
    },
    /// x `[.., D]`, weight `[D]` -> same shape: `x / sqrt(mean(x^2) + eps) * weight` over the last dimension, in f32
    /// (Zhang & Sennrich, 2019).
    RmsNorm {
        /// Added to the mean square.
        eps: f32,
    },
    /// x `[T, K]`, weights `[N_i, K]` -> `[T, sum N_i]`: one product for each weight, their outputs side by side.
    /// With `bias`, the weight list is all matrices, then one bias `[N_i]` for each matrix.
    Linear {
        /// Whether each matrix has a bias.
        bias: bool,
    },
    /// x `[T, K]`, residual `[T, N]`, weight `[N, K]` -> `[T, N]`: `residual + scale * (W x)`. Made by `fuse`.
    LinearAdd {
        /// Multiplier of the product.
        scale: f32,
    },
    /// x `[T, K]`, gate `[I, K]`, up `[I, K]` -> `[T, I]`: `act(G x) * (U x)`. Made by `fuse`.
    LinearGated {
        /// The function on the gate.
        activation: Activation,
    },
    /// gate `[T, I]`, up `[T, I]` -> `[T, I]`: `act(gate) * up`.
    Gated {
        /// The function on the gate.
        activation: Activation,
    },
    /// a, b of one shape -> `a + scale * b`.
    Add {
        /// Multiplier of `b`.
        scale: f32,
    },
    /// x -> `x * by`.
    Scale {
        /// Multiplier.
        by: f32,
    },
    /// x -> `cap * tanh(x / cap)`.
    Softcap {
        /// The bound.
        cap: f32,
    },
    /// x `[T, heads, D]`, positions `[T]` u32 -> same shape, the first `dims` of each head rotated; pairs (i, i + dims/2).
    Rope {
        /// Which frequencies.
        rope: RopeId,
    },
    /// q `[T, heads, D]`, k `[T, kv_heads, D]`, v `[T, kv_heads, Dv]` -> `[T, heads, Dv]`.
    ///
    /// First k and v are stored in the paged cache at their positions, rounded to its type; then each query attends to
    /// the positions `p` of its own sequence with `p <= own` and, with a window w, `p > own - w`. Softmax in f32.
    Attention {
        /// Where keys and values live.
        cache: CacheId,
        /// Multiplier of the scores.
        scale: f32,
        /// Sliding window in tokens, the own position included.
        window: Option<usize>,
        /// Bound of the scores, `cap * tanh(score / cap)`.
        softcap: Option<f32>,
    },
    /// x `[T, H]`, rows `[R]` u32 -> `[R, H]`: the rows whose logits are wanted.
    TakeRows,
    /// router logits `[T, E]` (, correction bias `[E]`) -> `[T, 2 * top_k]`: for each token the ids of its experts (bits
    /// of a u32 in an f32 slot), best first, lower id on ties, then their weights.
    Route {
        /// Experts a token.
        top_k: usize,
        /// How logits become scores.
        score: RouterScore,
        /// Whether the chosen weights are divided by their sum.
        renormalise: bool,
        /// Multiplier of the weights.
        scale: f32,
    },
    /// x `[T, K]`, routes, gate `[E, I, K]`, up `[E, I, K]` -> `[T, top_k, I]`: `act(G_e x) * (U_e x)` for each slot.
    ExpertsGated {
        /// The function on the gate.
        activation: Activation,
    },
    /// x `[T, top_k, I]`, routes, down `[E, H, I]` -> `[T, H]`: `sum_slot weight * (D_e x_slot)`, slots in order.
    ExpertsDown,
    /// x of any shape -> the sum over all ranks, in rank order. Made by `shard`.
    AllReduce,
}

/// Functions on a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    GeluTanh,
}

/// How router logits become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RouterScore {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
}

impl Op {
    /// Short name, as the text printer and the census show it.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embed { .. } => "embed",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Linear { .. } => "linear",
            Op::LinearAdd { .. } => "linear_add",
            Op::LinearGated { .. } => "linear_gated",
            Op::Gated { .. } => "gated",
            Op::Add { .. } => "add",
            Op::Scale { .. } => "scale",
            Op::Softcap { .. } => "softcap",
            Op::Rope { .. } => "rope",
            Op::Attention { .. } => "attention",
            Op::TakeRows => "take_rows",
            Op::Route { .. } => "route",
            Op::ExpertsGated { .. } => "experts_gated",
            Op::ExpertsDown => "experts_down",
            Op::AllReduce => "all_reduce",
        }
    }
}
