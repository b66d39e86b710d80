//! Mixture of experts, token by token.

use galvani_graph::{Activation, RouterScore};

use super::Rows;
use super::ops::{activate, dot};

/// The numbers of one route op.
#[derive(Clone, Copy)]
pub(super) struct RouteRule {
    pub top_k: usize,
    pub score: RouterScore,
    pub renormalise: bool,
    pub scale: f32,
}

/// Ids then weights of each token's experts. The bias moves the choice only, not the weights.
pub(super) fn route(rule: RouteRule, logits: Rows<'_>, bias: Option<&[f32]>, out: &mut [f32]) {
    for (row, out) in out.chunks_exact_mut(2 * rule.top_k).enumerate() {
        let scores = scores(rule.score, logits.row(row));
        let mut chosen: Vec<usize> = Vec::with_capacity(rule.top_k);
        for _ in 0..rule.top_k {
            let rank = |expert: usize| scores[expert] + bias.map_or(0.0, |bias| bias[expert]);
            let mut free = (0..scores.len()).filter(|expert| !chosen.contains(expert));
            let first = free.next().expect("top_k is at most the number of experts");
            let best = free.fold(
                first,
                |best, next| if rank(next) > rank(best) { next } else { best },
            );
            chosen.push(best);
        }
        let sum: f32 = chosen.iter().map(|&expert| scores[expert]).sum();
        let divisor = if rule.renormalise { sum } else { 1.0 };
        for (slot, &expert) in chosen.iter().enumerate() {
            out[slot] = f32::from_bits(expert as u32);
            out[rule.top_k + slot] = scores[expert] / divisor * rule.scale;
        }
    }
}

fn scores(score: RouterScore, logits: &[f32]) -> Vec<f32> {
    match score {
        RouterScore::Sigmoid => logits
            .iter()
            .map(|&x| (1.0 / (1.0 + (-f64::from(x)).exp())) as f32)
            .collect(),
        RouterScore::Softmax => {
            let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let powers: Vec<f64> = logits
                .iter()
                .map(|&x| (f64::from(x) - f64::from(top)).exp())
                .collect();
            let sum: f64 = powers.iter().sum();
            powers.iter().map(|&power| (power / sum) as f32).collect()
        }
    }
}

/// `act(G_e x) * (U_e x)` for each slot; an expert's matrices are `[inner, K]`.
pub(super) fn gated(
    activation: Activation,
    x: Rows<'_>,
    routes: Rows<'_>,
    gate: &[f32],
    up: &[f32],
    inner: usize,
    out: &mut [f32],
) {
    let slots = routes.len / 2;
    for (row, out) in out.chunks_exact_mut(slots * inner).enumerate() {
        let x = x.row(row);
        for (slot, out) in out.chunks_exact_mut(inner).enumerate() {
            let expert = routes.row(row)[slot].to_bits() as usize;
            for (i, out) in out.iter_mut().enumerate() {
                let at = (expert * inner + i) * x.len();
                let (g, u) = (dot(x, &gate[at..][..x.len()]), dot(x, &up[at..][..x.len()]));
                *out = activate(activation, g) * u;
            }
        }
    }
}

/// `sum_slot weight * (D_e x_slot)`, slots in order; an expert's matrix is `[width, I]`.
pub(super) fn down(x: Rows<'_>, routes: Rows<'_>, matrix: &[f32], width: usize, out: &mut [f32]) {
    let slots = routes.len / 2;
    let inner = x.len / slots;
    for (row, out) in out.chunks_exact_mut(width).enumerate() {
        let (ids, weights) = routes.row(row).split_at(slots);
        for (slot, x) in x.row(row).chunks_exact(inner).enumerate() {
            let expert = ids[slot].to_bits() as usize;
            for (n, out) in out.iter_mut().enumerate() {
                let product = dot(x, &matrix[(expert * width + n) * inner..][..inner]);
                *out += weights[slot] * product;
            }
        }
    }
}
