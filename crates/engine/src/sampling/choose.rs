//! Choosing one token from a row by the filters of the request.

use super::random::unit;
use super::scan::{self, WEIGH_BLOCK};
use crate::request::SamplingParams;

/// A token that may still be chosen; `weight` is its probability times an unknown constant.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The token.
    pub token: u32,
    /// Its weight.
    pub weight: f32,
}

/// Buffers shared by all choices of a thread.
#[derive(Default)]
pub struct Buffers {
    top: Vec<(f32, u32)>,
    candidates: Vec<Candidate>,
    keyed: Vec<(f32, Candidate)>,
    weights: Vec<f32>,
    sums: Vec<f64>,
}

/// First guess of how many tokens hold the wanted probability; it grows by [`GUESS_GROWTH`] until it is enough.
const GUESS_FIRST: usize = 64;
const GUESS_GROWTH: usize = 8;

/// Draws a token from `row`, in which minus infinity marks what may not be chosen. `max` is the row's largest number; the
/// temperature is above 0. The filters come in the order top-k, typical-p, top-p, min-p, each on what the one before left.
pub fn draw(params: &SamplingParams, row: &[f32], max: f32, index: u64, buffers: &mut Buffers) -> u32 {
    let Buffers {
        top,
        candidates,
        keyed,
        weights,
        sums,
    } = buffers;
    let random = unit(params.seed, index);
    let temperature = params.temperature;
    let limited = params.top_k > 0 && params.top_k < row.len();
    let typical = params.typical_p < 1.0;
    let nucleus = params.top_p < 1.0;
    candidates.clear();
    if limited {
        largest(row, params.top_k, top);
        candidates.extend(top.iter().map(|(x, token)| Candidate {
            token: *token,
            weight: scan::exp((x - max) / temperature),
        }));
    } else {
        weights.resize(row.len(), 0.0);
        sums.clear();
        scan::weigh(row, max, temperature, weights, sums);
        if !typical && !nucleus && params.min_p <= 0.0 {
            return pick_from_row(weights, sums, random);
        }
        let total: f64 = sums.iter().sum();
        if !typical && nucleus {
            // The tokens with the most weight come from thresholds: sorting the vocabulary would take longer.
            nucleus_of_row(weights, total * f64::from(params.top_p), params.min_p, top);
            candidates.extend(top.iter().map(|(weight, token)| Candidate {
                token: *token,
                weight: *weight,
            }));
            keep_likely(candidates, params.min_p);
            return pick(candidates, random);
        }
        let floor = if typical { 0.0 } else { params.min_p };
        let weights = weights.iter().zip(0u32..);
        let kept = weights.filter(|(weight, _)| **weight > 0.0 && **weight >= floor);
        candidates.extend(kept.map(|(weight, token)| Candidate {
            token,
            weight: *weight,
        }));
    }
    if typical {
        keep_typical(candidates, params.typical_p, keyed);
    }
    if nucleus {
        let wanted = total_weight(candidates) * f64::from(params.top_p);
        keep_mass(candidates, wanted, |candidate| -candidate.weight, keyed);
    }
    keep_likely(candidates, params.min_p);
    pick(candidates, random)
}

/// The `count` largest numbers of the row with their tokens, best first, ties by the lower token; minus infinity is left
/// out. One pass, in which a rising threshold turns nearly everything away.
pub fn largest(row: &[f32], count: usize, out: &mut Vec<(f32, u32)>) {
    out.clear();
    if count == 0 {
        return;
    }
    let full = count.saturating_mul(2).max(64);
    let mut floor = f32::NEG_INFINITY;
    for (number, block) in row.chunks(64).enumerate() {
        if !scan::any_above_small(block, floor) {
            continue;
        }
        for (x, token) in block.iter().zip((number * 64) as u32..) {
            if *x > floor {
                out.push((*x, token));
                if out.len() >= full {
                    cut(out, count);
                    floor = out[count - 1].0;
                }
            }
        }
    }
    cut(out, count);
    out.sort_unstable_by(best_first);
}

fn cut(out: &mut Vec<(f32, u32)>, count: usize) {
    if out.len() > count {
        out.select_nth_unstable_by(count - 1, best_first);
        out.truncate(count);
    }
}

fn best_first(a: &(f32, u32), b: &(f32, u32)) -> std::cmp::Ordering {
    b.0.total_cmp(&a.0).then(a.1.cmp(&b.1))
}

/// The fewest tokens that reach the weight `wanted`, best first; may stop early below `min_p` of the best.
fn nucleus_of_row(weights: &[f32], wanted: f64, min_p: f32, top: &mut Vec<(f32, u32)>) {
    let mut guess = GUESS_FIRST;
    loop {
        largest(weights, guess, top);
        let mut mass = 0.0;
        let reached = top.iter().position(|(weight, _)| {
            mass += f64::from(*weight);
            mass >= wanted
        });
        if let Some(last) = reached {
            top.truncate(last + 1);
            return;
        }
        let min_p_binds = top.last().is_some_and(|(weight, _)| *weight < min_p);
        if guess >= weights.len() || min_p_binds {
            return;
        }
        guess = guess.saturating_mul(GUESS_GROWTH);
    }
}

fn total_weight(candidates: &[Candidate]) -> f64 {
    candidates
        .iter()
        .map(|candidate| f64::from(candidate.weight))
        .sum()
}

/// Keeps the fewest candidates, in ascending order of `key` (ties by the lower token), that reach the weight `wanted`.
fn keep_mass(
    candidates: &mut Vec<Candidate>,
    wanted: f64,
    key: impl Fn(&Candidate) -> f32,
    keyed: &mut Vec<(f32, Candidate)>,
) {
    let order =
        |a: &(f32, Candidate), b: &(f32, Candidate)| a.0.total_cmp(&b.0).then(a.1.token.cmp(&b.1.token));
    keyed.clear();
    keyed.extend(candidates.iter().map(|candidate| (key(candidate), *candidate)));
    candidates.clear();
    let (mut sorted, mut guess, mut mass) = (0, GUESS_FIRST, 0.0);
    while sorted < keyed.len() {
        let rest = &mut keyed[sorted..];
        let count = guess.min(rest.len());
        if count < rest.len() {
            rest.select_nth_unstable_by(count, order);
        }
        rest[..count].sort_unstable_by(order);
        for (_, candidate) in &rest[..count] {
            candidates.push(*candidate);
            mass += f64::from(candidate.weight);
            if mass >= wanted {
                return;
            }
        }
        sorted += count;
        guess = guess.saturating_mul(GUESS_GROWTH);
    }
}

/// Locally typical sampling: the fewest tokens whose surprise is nearest to the expected one.
fn keep_typical(candidates: &mut Vec<Candidate>, share: f32, keyed: &mut Vec<(f32, Candidate)>) {
    let total = total_weight(candidates);
    let surprise = |candidate: &Candidate| -(f64::from(candidate.weight) / total).ln();
    let expected: f64 = candidates
        .iter()
        .map(|candidate| f64::from(candidate.weight) / total * surprise(candidate))
        .sum();
    let key = |candidate: &Candidate| (surprise(candidate) - expected).abs() as f32;
    keep_mass(candidates, total * f64::from(share), key, keyed);
}

fn keep_likely(candidates: &mut Vec<Candidate>, min_p: f32) {
    if min_p > 0.0 {
        let best = candidates
            .iter()
            .fold(0.0f32, |best, candidate| best.max(candidate.weight));
        candidates.retain(|candidate| candidate.weight >= best * min_p);
    }
}

/// Inverse of the cumulative distribution over the candidates in their order.
fn pick(candidates: &[Candidate], random: f64) -> u32 {
    let mut left = random * total_weight(candidates);
    for candidate in candidates {
        left -= f64::from(candidate.weight);
        if left < 0.0 {
            return candidate.token;
        }
    }
    candidates
        .last()
        .expect("the peak is always among the candidates")
        .token
}

/// The same over a whole row: first the block, then the token in it.
fn pick_from_row(weights: &[f32], sums: &[f64], random: f64) -> u32 {
    let mut left = random * sums.iter().sum::<f64>();
    let mut last = 0;
    for (number, (block, sum)) in weights.chunks(WEIGH_BLOCK).zip(sums).enumerate() {
        if *sum <= 0.0 {
            continue;
        }
        if left >= *sum {
            left -= sum;
            last = number;
            continue;
        }
        last = number;
        for (weight, token) in block.iter().zip((number * WEIGH_BLOCK) as u32..) {
            left -= f64::from(*weight);
            if left < 0.0 {
                return token;
            }
        }
        break;
    }
    // Rounding left a crumb: it belongs to the last possible token of the block.
    let block = &weights[last * WEIGH_BLOCK..];
    let inside = block[..block.len().min(WEIGH_BLOCK)]
        .iter()
        .rposition(|weight| *weight > 0.0);
    (last * WEIGH_BLOCK + inside.unwrap_or(0)) as u32
}
