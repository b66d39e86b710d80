//! Choosing one token from a row by the filters of the request.

use super::random::unit;
use super::scan::{self, SEARCH_BLOCK, WEIGH_BLOCK};
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
    kept: Vec<Candidate>,
    border: Vec<(u64, Candidate)>,
    masses: Vec<f64>,
    weights: Vec<f32>,
    sums: Vec<f64>,
}

/// As many of the likeliest tokens nearly always hold the wanted share of the probability.
const NUCLEUS_GUESS: usize = 256;
/// Up to here sorting is cheaper than a histogram.
const SORT_MAX: usize = 512;
/// A histogram's bucket is the upper 14 bits of a key: 5 bits of the mantissa.
const BUCKET_SHIFT: u32 = 18;
const BUCKETS: usize = (f32::INFINITY.to_bits() >> BUCKET_SHIFT) as usize + 1;

/// Draws a token from `row`, in which minus infinity marks what may not be chosen. `max` is the row's largest number; the
/// temperature is above 0. The filters come in the order top-k, typical-p, top-p, min-p, each on what the one before left.
pub fn draw(params: &SamplingParams, row: &[f32], max: f32, index: u64, buffers: &mut Buffers) -> u32 {
    let random = unit(params.seed, index);
    let temperature = params.temperature;
    let typical = params.typical_p < 1.0;
    let mut nucleus = params.top_p < 1.0;
    buffers.candidates.clear();
    if params.top_k > 0 && params.top_k < row.len() {
        largest(row, params.top_k, &mut buffers.top);
        buffers
            .candidates
            .extend(buffers.top.iter().map(|(x, token)| Candidate {
                token: *token,
                weight: scan::exp((x - max) / temperature),
            }));
    } else {
        buffers.weights.resize(row.len(), 0.0);
        buffers.sums.clear();
        scan::weigh(row, max, temperature, &mut buffers.weights, &mut buffers.sums);
        if !typical && !nucleus && params.min_p <= 0.0 {
            return pick_from_row(&buffers.weights, &buffers.sums, random);
        }
        let easy = !typical && nucleus && easy_nucleus(buffers, params.top_p);
        if easy {
            nucleus = false;
        } else {
            // What min-p drops at the end may go at once, unless another filter counts it.
            let floor = if typical || nucleus { 0.0 } else { params.min_p };
            let weights = buffers.weights.iter().zip(0u32..);
            let kept = weights.filter(|(weight, _)| **weight > 0.0 && **weight >= floor);
            buffers.candidates.extend(kept.map(|(weight, token)| Candidate {
                token,
                weight: *weight,
            }));
        }
    }
    if typical {
        keep_typical(buffers, params.typical_p, |token| {
            (max - row[token as usize]) / temperature
        });
    }
    if nucleus {
        let wanted = total_weight(&buffers.candidates) * f64::from(params.top_p);
        // Weights are at most 1, and the bits of positive floats are in their order.
        keep_mass(buffers, wanted, |candidate| {
            1.0f32.to_bits().saturating_sub(candidate.weight.to_bits())
        });
    }
    keep_likely(&mut buffers.candidates, params.min_p);
    pick(&buffers.candidates, random)
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
    let mut number = 0;
    loop {
        number = scan::next_block_above(row, number, floor);
        let Some(block) = row.chunks(SEARCH_BLOCK).nth(number) else {
            break;
        };
        for (x, token) in block.iter().zip((number * SEARCH_BLOCK) as u32..) {
            if *x > floor {
                out.push((*x, token));
                if out.len() >= full {
                    cut(out, count);
                    floor = out[count - 1].0;
                }
            }
        }
        number += 1;
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

/// Fills the candidates with the fewest tokens that reach the share `top_p` of the row, if these are as few as usual.
fn easy_nucleus(buffers: &mut Buffers, top_p: f32) -> bool {
    let wanted = buffers.sums.iter().sum::<f64>() * f64::from(top_p);
    largest(&buffers.weights, NUCLEUS_GUESS, &mut buffers.top);
    let mut mass = 0.0;
    let reached = buffers.top.iter().position(|(weight, _)| {
        mass += f64::from(*weight);
        mass >= wanted
    });
    let Some(last) = reached else {
        return false;
    };
    let kept = buffers.top[..=last].iter();
    buffers.candidates.extend(kept.map(|(weight, token)| Candidate {
        token: *token,
        weight: *weight,
    }));
    true
}

fn total_weight(candidates: &[Candidate]) -> f64 {
    candidates
        .iter()
        .map(|candidate| f64::from(candidate.weight))
        .sum()
}

/// Keeps the fewest candidates, in ascending order of `key` (bits of a float that is not negative; ties by the lower
/// token), that reach the weight `wanted`. A histogram over the keys finds the bucket that holds the border; only
/// that one is sorted.
fn keep_mass(buffers: &mut Buffers, wanted: f64, key: impl Fn(&Candidate) -> u32) {
    let Buffers {
        candidates,
        kept,
        border,
        masses,
        ..
    } = buffers;
    let bucket = |key: u32| ((key >> BUCKET_SHIFT) as usize).min(BUCKETS - 1);
    kept.clear();
    border.clear();
    let (mut at, mut mass) = (0, 0.0);
    let small = candidates.len() <= SORT_MAX;
    if !small {
        masses.clear();
        masses.resize(BUCKETS, 0.0);
        for candidate in &*candidates {
            masses[bucket(key(candidate))] += f64::from(candidate.weight);
        }
        while at + 1 < BUCKETS && mass + masses[at] < wanted {
            mass += masses[at];
            at += 1;
        }
    }
    for candidate in &*candidates {
        let key = key(candidate);
        if small || bucket(key) == at {
            border.push((u64::from(key) << 32 | u64::from(candidate.token), *candidate));
        } else if bucket(key) < at {
            kept.push(*candidate);
        }
    }
    border.sort_unstable_by_key(|(key, _)| *key);
    for (_, candidate) in border {
        kept.push(*candidate);
        mass += f64::from(candidate.weight);
        if mass >= wanted {
            break;
        }
    }
    std::mem::swap(candidates, kept);
}

/// Locally typical sampling: the fewest tokens whose surprise is nearest to the expected one. `distance` of a token is
/// its surprise less that of the likeliest, which cancels out.
fn keep_typical(buffers: &mut Buffers, share: f32, distance: impl Fn(u32) -> f32) {
    let total = total_weight(&buffers.candidates);
    let weighted = |candidate: &Candidate| f64::from(candidate.weight) * f64::from(distance(candidate.token));
    let expected = (buffers.candidates.iter().map(weighted).sum::<f64>() / total) as f32;
    let key = |candidate: &Candidate| (distance(candidate.token) - expected).abs().to_bits();
    keep_mass(buffers, total * f64::from(share), key);
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
