//! Q2_K to Q6_K: 256 numbers in sub-blocks of 16 or 32, whose scales (and minima) are small integers times one f16.
//!
//! Numbers e = 128 h + 32 j + l of the two-bit planes share byte 32 h + l, j picking the bits.

use super::{f16_at, u16_at};

/// `scales[16], qs[64], d, dmin`: w = d (s & 15) q - dmin (s >> 4).
pub(super) fn q2_k(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scales, qs) = (&block[..16], &block[16..80]);
    let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
    for (e, out) in out.iter_mut().enumerate() {
        let scale = scales[e / 16];
        let q = two_bits(qs, e);
        *out = (d * f32::from(scale & 15)) * f32::from(q) - dmin * f32::from(scale >> 4);
    }
}

/// Two bits of number `e`.
fn two_bits(plane: &[u8], e: usize) -> u8 {
    (plane[32 * (e / 128) + e % 32] >> (2 * (e / 32 % 4))) & 3
}

/// `hmask[32], qs[64], scales[12], d`: w = d s q, with q in -4..=3 and s six bits signed.
pub(super) fn q3_k(block: &[u8; 110], out: &mut [f32; 256]) {
    let (hmask, qs, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let d = f16_at(block, 108);
    for (e, out) in out.iter_mut().enumerate() {
        let i = e / 16;
        let low = (scales[i % 8] >> (4 * (i / 8))) & 15;
        let high = (scales[8 + i % 4] >> (2 * (i / 4))) & 3;
        let scale = (low | high << 4) as i8 - 32;
        // A set bit means that nothing is taken off.
        let bit = hmask[e % 32] >> (e / 32) & 1;
        let q = two_bits(qs, e) as i8 - if bit == 0 { 4 } else { 0 };
        *out = (d * f32::from(scale)) * f32::from(q);
    }
}

/// Scale and minimum of sub-block `s` of Q4_K and Q5_K, six bits each out of twelve bytes.
fn scale_min(scales: &[u8], s: usize) -> (u8, u8) {
    if s < 4 {
        (scales[s] & 63, scales[s + 4] & 63)
    } else {
        (
            (scales[s + 4] & 15) | (scales[s - 4] >> 6) << 4,
            (scales[s + 4] >> 4) | (scales[s] >> 6) << 4,
        )
    }
}

/// `d, dmin, scales[12], qs[128]`: w = d s q - dmin m; sub-block s is a nibble of 32 bytes.
pub(super) fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let (scales, qs) = (&block[4..16], &block[16..]);
    for (s, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_min(scales, s);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (out, &byte) in out.iter_mut().zip(&qs[32 * (s / 2)..]) {
            *out = scale * f32::from((byte >> (4 * (s % 2))) & 15) - min;
        }
    }
}

/// `d, dmin, scales[12], qh[32], qs[128]`: as Q4_K, the fifth bit of sub-block s being bit s of `qh`.
pub(super) fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
    let (scales, qh, qs) = (&block[4..16], &block[16..48], &block[48..]);
    for (s, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = scale_min(scales, s);
        let (scale, min) = (d * f32::from(scale), dmin * f32::from(min));
        for (l, out) in out.iter_mut().enumerate() {
            let low = (qs[32 * (s / 2) + l] >> (4 * (s % 2))) & 15;
            let q = low | (qh[l] >> s & 1) << 4;
            *out = scale * f32::from(q) - min;
        }
    }
}

/// `ql[128], qh[64], scales[16]` signed, `d`: w = d s (q - 32).
pub(super) fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let (ql, qh, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half::f16::from_bits(u16_at(block, 208)).to_f32();
    for (e, out) in out.iter_mut().enumerate() {
        let (h, j, l) = (e / 128, e / 32 % 4, e % 32);
        let low = (ql[64 * h + 32 * (j % 2) + l] >> (4 * (j / 2))) & 15;
        let q = (low | two_bits(qh, e) << 4) as i8 - 32;
        *out = (d * f32::from(scales[e / 16] as i8)) * f32::from(q);
    }
}
