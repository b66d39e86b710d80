//! Encoding, for tests and tools: round to nearest as the `gguf` Python package does, bit for bit.

use galvani_graph::Format;
use half::{bf16, f16};

use super::check;
use crate::LoadError;

/// Encodes whole blocks: `numbers` into `out` in `format`, one of F32, F16, BF16, Q8_0, Q4_0, Q4_1.
///
/// # Errors
/// For other formats, and when `out` is not just the length that the numbers take.
pub fn encode(format: Format, numbers: &[f32], out: &mut [u8]) -> Result<(), LoadError> {
    check(format, out.len(), numbers.len())?;
    match format {
        Format::F32 => blocks(numbers, out, |x: &[f32; 1], out| *out = x[0].to_le_bytes()),
        Format::F16 => blocks(numbers, out, |x: &[f32; 1], out| {
            *out = f16::from_f32(x[0]).to_le_bytes()
        }),
        Format::BF16 => blocks(numbers, out, |x: &[f32; 1], out| {
            *out = bf16::from_f32(x[0]).to_le_bytes()
        }),
        Format::Q8_0 => blocks(numbers, out, q8_0),
        Format::Q4_0 => blocks(numbers, out, q4_0),
        Format::Q4_1 => blocks(numbers, out, q4_1),
        Format::Q5_0 | Format::Q5_1 | Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K => {
            return Err(unsupported(format, numbers, out));
        }
        Format::Iq1S | Format::Iq1M | Format::Iq2Xxs | Format::Iq2Xs | Format::Iq2S => {
            return Err(unsupported(format, numbers, out));
        }
        Format::Iq3Xxs | Format::Iq3S | Format::Iq4Nl | Format::Iq4Xs => {
            return Err(unsupported(format, numbers, out));
        }
        Format::Tq1_0 | Format::Tq2_0 | Format::Mxfp4 | Format::Nvfp4 => {
            return Err(unsupported(format, numbers, out));
        }
    }
    Ok(())
}

fn unsupported(format: Format, numbers: &[f32], out: &[u8]) -> LoadError {
    LoadError::Blocks {
        format,
        byte_count: out.len(),
        number_count: numbers.len(),
        reason: "this format is only read; written are F32, F16, BF16, Q8_0, Q4_0, Q4_1".to_owned(),
    }
}

fn blocks<const LEN: usize, const BYTES: usize>(
    numbers: &[f32],
    out: &mut [u8],
    encode: impl Fn(&[f32; LEN], &mut [u8; BYTES]),
) {
    let (blocks, numbers_left) = numbers.as_chunks::<LEN>();
    let (outs, out_left) = out.as_chunks_mut::<BYTES>();
    assert!(numbers_left.is_empty() && out_left.is_empty() && blocks.len() == outs.len());
    for (block, out) in blocks.iter().zip(outs) {
        encode(block, out);
    }
}

/// 1 / d, and 0 for an empty block.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The largest magnitude becomes 127 steps; halves round away from zero.
fn q8_0(x: &[f32; 32], out: &mut [u8; 34]) {
    let d = x.iter().fold(0f32, |max, x| max.max(x.abs())) / 127.0;
    let id = inverse(d);
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    for (out, x) in out[2..].iter_mut().zip(x) {
        *out = (x * id).round() as i8 as u8;
    }
}

/// Packs numbers j and j + 16 into byte j.
fn pack_nibbles(x: &[f32; 32], out: &mut [u8], quantise: impl Fn(f32) -> u8) {
    for (j, out) in out.iter_mut().enumerate() {
        *out = quantise(x[j]) | quantise(x[j + 16]) << 4;
    }
}

/// The number of largest magnitude (the first, among equals) becomes code 0, -8 steps.
fn q4_0(x: &[f32; 32], out: &mut [u8; 18]) {
    let mut extreme = x[0];
    for &x in &x[1..] {
        if x.abs() > extreme.abs() {
            extreme = x;
        }
    }
    let d = extreme / -8.0;
    let id = inverse(d);
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    pack_nibbles(x, &mut out[2..], |x| ((x * id + 8.5) as u8).min(15));
}

/// From the smallest to the largest in 15 steps.
fn q4_1(x: &[f32; 32], out: &mut [u8; 20]) {
    let min = x.iter().fold(f32::INFINITY, |min, &x| min.min(x));
    let max = x.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
    let d = (max - min) / 15.0;
    let id = inverse(d);
    out[..2].copy_from_slice(&f16::from_f32(d).to_le_bytes());
    out[2..4].copy_from_slice(&f16::from_f32(min).to_le_bytes());
    pack_nibbles(x, &mut out[4..], |x| (((x - min) * id + 0.5) as u8).min(15));
}
