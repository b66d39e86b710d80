//! Routing: which experts a token takes, and which tokens an expert gets.

use std::ops::Range;

use galvani_graph::RouterScore;

use super::rows::Matrix;

/// The numbers of one route node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RouteRule {
    pub experts: usize,
    pub top_k: usize,
    pub score: RouterScore,
    pub renormalise: bool,
    pub scale: f32,
}

/// Writes `[top_k ids, top_k weights]` of `rows`. `scratch` holds `2 * experts` numbers. The bias moves the choice only.
///
/// # Safety
/// The matrices hold these rows (`experts` and `2 * top_k` numbers), and nobody else touches the outputs or the scratch.
pub(crate) unsafe fn route(
    rule: RouteRule,
    logits: Matrix,
    bias: Option<&[f32]>,
    out: Matrix,
    rows: Range<usize>,
    scratch: &mut [f32],
) {
    let (scores, ranks) = scratch.split_at_mut(rule.experts);
    for row in rows {
        // SAFETY: passed on from the caller.
        let (logits, out) = unsafe {
            (
                std::slice::from_raw_parts(logits.row(row), rule.experts),
                std::slice::from_raw_parts_mut(out.row(row), 2 * rule.top_k),
            )
        };
        score(rule.score, logits, scores);
        for (expert, rank) in ranks[..rule.experts].iter_mut().enumerate() {
            *rank = scores[expert] + bias.map_or(0.0, |bias| bias[expert]);
        }
        let (ids, weights) = out.split_at_mut(rule.top_k);
        let mut sum = 0.0;
        for slot in 0..rule.top_k {
            let expert = best(&ranks[..rule.experts], &ids[..slot]);
            ids[slot] = f32::from_bits(expert as u32);
            weights[slot] = scores[expert];
            sum += scores[expert];
        }
        let divisor = if rule.renormalise { sum } else { 1.0 };
        weights
            .iter_mut()
            .for_each(|weight| *weight = *weight / divisor * rule.scale);
    }
}

/// The best expert not among `taken`; the lower id on ties. Not-a-numbers lose to all but each other.
fn best(ranks: &[f32], taken: &[f32]) -> usize {
    let mut best: Option<usize> = None;
    for (expert, &rank) in ranks.iter().enumerate() {
        let better = best.is_none_or(|best| rank > ranks[best] || (ranks[best].is_nan() && !rank.is_nan()));
        if better && !taken.iter().any(|id| id.to_bits() == expert as u32) {
            best = Some(expert);
        }
    }
    best.expect("top_k is at most the number of experts")
}

fn score(kind: RouterScore, logits: &[f32], out: &mut [f32]) {
    match kind {
        RouterScore::Sigmoid => {
            for (out, &x) in out.iter_mut().zip(logits) {
                *out = (1.0 / (1.0 + (-f64::from(x)).exp())) as f32;
            }
        }
        RouterScore::Softmax => {
            let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut sum = 0.0;
            for (out, &x) in out.iter_mut().zip(logits) {
                let power = (x - top).exp();
                sum += f64::from(power);
                *out = power;
            }
            let by = (1.0 / sum) as f32;
            out[..logits.len()].iter_mut().for_each(|x| *x *= by);
        }
    }
}

/// The rows of each expert: row `token * top_k + slot` of the slots, in ascending order.
pub(crate) struct Groups {
    /// By expert, where its rows begin in `rows`; one more at the end.
    pub starts: Vec<u32>,
    /// Slot rows, expert by expert.
    pub rows: Vec<u32>,
    /// The token of each.
    pub tokens: Vec<u32>,
}

impl Groups {
    pub(crate) fn new(experts: usize, tokens_max: usize, top_k: usize) -> Self {
        Groups {
            starts: vec![0; experts + 1],
            rows: vec![0; tokens_max * top_k],
            tokens: vec![0; tokens_max * top_k],
        }
    }

    /// Sorts the step's slots by expert (a counting sort).
    ///
    /// # Safety
    /// `routes` holds `tokens` rows that [`route`] wrote.
    pub(crate) unsafe fn fill(&mut self, routes: Matrix, tokens: usize, top_k: usize) {
        self.starts.fill(0);
        let experts = self.starts.len() - 1;
        // SAFETY: passed on from the caller.
        let id = |slot: usize| unsafe { (*routes.row(slot / top_k).add(slot % top_k)).to_bits() as usize };
        for slot in 0..tokens * top_k {
            self.starts[id(slot) + 1] += 1;
        }
        for expert in 0..experts {
            self.starts[expert + 1] += self.starts[expert];
        }
        for slot in 0..tokens * top_k {
            let place = &mut self.starts[id(slot)];
            self.rows[*place as usize] = slot as u32;
            self.tokens[*place as usize] = (slot / top_k) as u32;
            *place += 1;
        }
        // Each start has moved to its end, which is the next one's start.
        self.starts.copy_within(0..experts, 1);
        self.starts[0] = 0;
    }

    /// Places of `expert` in `rows` and `tokens`.
    pub(crate) fn of(&self, expert: usize) -> Range<usize> {
        self.starts[expert] as usize..self.starts[expert + 1] as usize
    }
}
