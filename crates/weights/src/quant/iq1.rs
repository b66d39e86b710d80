//! IQ1_S, IQ1_M: groups of eight values of -1, 0, 1 from a codebook, moved by an eighth.
//!
//! w = d (2 s + 1) (value ± 1/8), with s three bits.

use super::grids::IQ1_S;
use super::{f16_at, u16_at};

const VALUES: [f32; 4] = [-1.0, 0.0, 1.0, f32::NAN];

/// Eight numbers from a codebook's point. Code 3 does not occur there.
fn group(index: usize, scale: f32, shift_down: bool, out: &mut [f32; 8]) {
    let shift = if shift_down { -0.125 } else { 0.125 };
    for (i, out) in out.iter_mut().enumerate() {
        *out = scale * (VALUES[usize::from(IQ1_S[index] >> (2 * i) & 3)] + shift);
    }
}

/// `d, qs[32], qh u16[8]`: a word of `qh` has four times three high bits of an index, the scale of 32 numbers, and the
/// direction of the shift on top.
pub(super) fn iq1_s(block: &[u8; 50], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let word = u16_at(block, 34 + 2 * (i / 4));
        let scale = d * f32::from(2 * (word >> 12 & 7) + 1);
        let high = word >> (3 * (i % 4)) & 7;
        let index = usize::from(block[2 + i]) | usize::from(high) << 8;
        group(index, scale, word & 0x8000 != 0, out);
    }
}

/// `qs[32], qh[16], scales u16[4]`: the top nibbles of `scales` make up d, the rest are scales of 16 numbers; a nibble
/// of `qh` has three high bits of an index and the direction of the shift.
pub(super) fn iq1_m(block: &[u8; 56], out: &mut [f32; 256]) {
    let words: [u16; 4] = std::array::from_fn(|i| u16_at(block, 48 + 2 * i));
    let bits = words[0] >> 12 | words[1] >> 12 << 4 | words[2] >> 12 << 8 | words[3] >> 12 << 12;
    let d = half::f16::from_bits(bits).to_f32();
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let s = i / 2;
        let scale = d * f32::from(2 * (words[s / 4] >> (3 * (s % 4)) & 7) + 1);
        let high = super::nibble(&block[32..48], i);
        let index = usize::from(block[i]) | usize::from(high & 7) << 8;
        group(index, scale, high & 8 != 0, out);
    }
}
