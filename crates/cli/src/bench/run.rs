//! The measurements: steps of random tokens, timed one by one. Tokenising and sampling are not in the times.

use std::time::Instant;

use super::report::{Row, Spread};
use crate::direct::{Direct, Part};
use crate::error::CliError;
use crate::load::Opened;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Prompt lengths.
    pub prefill: Vec<usize>,
    /// Tokens decoded.
    pub decode: Vec<usize>,
    /// Sequences decoding at once.
    pub streams: Vec<usize>,
    /// Positions there before decoding.
    pub depth: usize,
    /// Times each.
    pub repetitions: usize,
}

impl Plan {
    /// Longest sequence that the plan needs.
    pub fn context(&self) -> usize {
        let prefill = self.prefill.iter().copied().max().unwrap_or(0);
        let decode = self.decode.iter().copied().max().unwrap_or(0);
        (prefill).max(self.depth + decode + 1).max(2)
    }

    /// Most sequences at once.
    pub fn sequences(&self) -> usize {
        self.streams.iter().copied().max().unwrap_or(1).max(1)
    }
}

/// Runs the plan.
///
/// # Errors
/// When a step fails.
pub fn measure(direct: &mut Direct, opened: &Opened, plan: &Plan) -> Result<Vec<Row>, CliError> {
    let mut rows = Vec::new();
    let vocab = opened.info.vocab;
    for &count in plan.prefill.iter().filter(|count| **count > 0) {
        prefill(direct, count, vocab)?;
        let mut rates = Vec::new();
        for _ in 0..plan.repetitions {
            let start = Instant::now();
            prefill(direct, count, vocab)?;
            rates.push(count as f64 / start.elapsed().as_secs_f64());
        }
        // Each weight takes part in one multiplication and one addition a token.
        let operations = 2.0 * opened.info.active_parameter_count as f64;
        let rate = Spread::of(&rates);
        rows.push(Row {
            test: format!("pp{count}"),
            gops: operations * rate.median / 1e9,
            bytes_per_second: 0.0,
            rate,
        });
    }
    for &streams in &plan.streams {
        for &count in plan.decode.iter().filter(|count| **count > 0) {
            rows.push(decode_row(direct, opened, plan, streams, count)?);
        }
    }
    Ok(rows)
}

fn decode_row(
    direct: &mut Direct,
    opened: &Opened,
    plan: &Plan,
    streams: usize,
    count: usize,
) -> Result<Row, CliError> {
    let vocab = opened.info.vocab;
    for sequence in 0..streams {
        fill(direct, sequence, plan.depth.max(1), vocab)?;
    }
    let mut rates = Vec::new();
    decode(direct, streams, plan.depth.max(1), 2.min(count), vocab)?;
    for _ in 0..plan.repetitions {
        let start = Instant::now();
        decode(direct, streams, plan.depth.max(1), count, vocab)?;
        rates.push((count * streams) as f64 / start.elapsed().as_secs_f64());
    }
    let rate = Spread::of(&rates);
    let steps = rate.median / streams as f64;
    let middle = plan.depth as f64 + count as f64 / 2.0;
    let cache = opened.info.kv_bytes_per_token as f64 * middle * streams as f64;
    let bytes_per_second = steps * (step_weight_bytes(opened, streams) + cache);
    let operations = 2.0 * opened.info.active_parameter_count as f64;
    let suffix = if streams > 1 {
        format!(" x{streams}")
    } else {
        String::new()
    };
    let depth = if plan.depth > 0 {
        format!(" @ d{}", plan.depth)
    } else {
        String::new()
    };
    Ok(Row {
        test: format!("tg{count}{suffix}{depth}"),
        gops: operations * rate.median / 1e9,
        bytes_per_second,
        rate,
    })
}

/// Bytes of weights that one step reads, as stored: all, less the experts that no stream chose (on average, if each stream
/// chooses independently) and less an embedding table of its own, of which only a few rows are read.
fn step_weight_bytes(opened: &Opened, streams: usize) -> f64 {
    let info = &opened.info;
    let share_idle = if info.experts > 0 {
        (1.0 - info.experts_per_token as f64 / info.experts as f64).powi(streams as i32)
    } else {
        0.0
    };
    opened
        .checkpoint
        .tensors()
        .iter()
        .filter(|tensor| info.tied || tensor.name != "embed_tokens.weight")
        .map(|tensor| {
            let size = tensor.byte_count() as f64;
            if tensor.dims.len() == 3 {
                size * (1.0 - share_idle)
            } else {
                size
            }
        })
        .sum()
}

fn prefill(direct: &mut Direct, count: usize, vocab: usize) -> Result<(), CliError> {
    fill(direct, 0, count, vocab)
}

/// Puts `count` tokens into a sequence, from its start, with the logits of the last.
fn fill(direct: &mut Direct, sequence: usize, count: usize, vocab: usize) -> Result<(), CliError> {
    let tokens: Vec<u32> = (0..count).map(|i| token(sequence, i, vocab)).collect();
    let width = direct.width();
    for (index, chunk) in tokens.chunks(width).enumerate() {
        let start = index * width;
        let last = start + chunk.len() == count;
        direct.step(&[Part {
            sequence,
            start,
            tokens: chunk,
            rows: usize::from(last),
        }])?;
    }
    Ok(())
}

fn decode(
    direct: &mut Direct,
    streams: usize,
    depth: usize,
    count: usize,
    vocab: usize,
) -> Result<(), CliError> {
    let mut tokens = vec![[0u32]; streams];
    for i in 0..count {
        for (sequence, token_of) in tokens.iter_mut().enumerate() {
            token_of[0] = token(sequence, depth + i, vocab);
        }
        let parts: Vec<Part<'_>> = tokens
            .iter()
            .enumerate()
            .map(|(sequence, tokens)| Part {
                sequence,
                start: depth + i,
                tokens,
                rows: 1,
            })
            .collect();
        direct.step(&parts)?;
    }
    Ok(())
}

/// A token that looks random and is the same every time (Knuth's multiplicative hash).
fn token(sequence: usize, index: usize, vocab: usize) -> u32 {
    let mixed = (sequence as u64 * 7919 + index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
    (mixed % vocab as u64) as u32
}
