//! Q4_0, Q4_1, Q5_0, Q5_1, Q8_0: 32 numbers, one f16 scale `d`, with or without an f16 minimum `m`.
//!
//! Byte j of `qs` holds number j in its low and number j + 16 in its high nibble; `qh` holds fifth bits.

use super::{f16_at, u32_at};

/// `d, qs[16]`: w = d (q - 8).
pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for j in 0..16 {
        let byte = block[2 + j];
        out[j] = d * f32::from((byte & 15) as i8 - 8);
        out[j + 16] = d * f32::from((byte >> 4) as i8 - 8);
    }
}

/// `d, m, qs[16]`: w = d q + m.
pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (d, m) = (f16_at(block, 0), f16_at(block, 2));
    for j in 0..16 {
        let byte = block[4 + j];
        out[j] = d * f32::from(byte & 15) + m;
        out[j + 16] = d * f32::from(byte >> 4) + m;
    }
}

/// Number `index` of a five-bit block: nibbles at `qs`, fifth bits in `qh`.
fn five_bits(qs: &[u8], qh: u32, index: usize) -> u8 {
    let low = (qs[index % 16] >> (4 * (index / 16))) & 15;
    low | ((qh >> index & 1) as u8) << 4
}

/// `d, qh, qs[16]`: w = d (q - 16).
pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let (d, qh) = (f16_at(block, 0), u32_at(block, 2));
    for (index, out) in out.iter_mut().enumerate() {
        *out = d * f32::from(five_bits(&block[6..], qh, index) as i8 - 16);
    }
}

/// `d, m, qh, qs[16]`: w = d q + m.
pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (d, m, qh) = (f16_at(block, 0), f16_at(block, 2), u32_at(block, 4));
    for (index, out) in out.iter_mut().enumerate() {
        *out = d * f32::from(five_bits(&block[8..], qh, index)) + m;
    }
}

/// `d, qs[32]` signed: w = d q.
pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = f16_at(block, 0);
    for (out, &byte) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(byte as i8) * d;
    }
}
