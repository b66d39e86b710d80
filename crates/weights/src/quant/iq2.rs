//! IQ2_XXS, IQ2_XS, IQ2_S: groups of eight magnitudes from a codebook, with signs.
//!
//! w = d (s + 1/2) / 4 * magnitude * sign, with s four bits.

use super::grids::{IQ2_S, IQ2_XS, IQ2_XXS};
use super::{even_signs, f16_at, nibble, sign, u16_at, u32_at};

const MAGNITUDES: [f32; 4] = [8.0, 25.0, 43.0, f32::NAN];

fn scale(d: f32, bits: u8) -> f32 {
    d * (0.5 + f32::from(bits)) * 0.25
}

/// Eight numbers from a codebook's point. Code 3 does not occur there.
fn group(point: u16, scale: f32, signs: u8, out: &mut [f32; 8]) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = scale * MAGNITUDES[usize::from(point >> (2 * i) & 3)] * sign(signs, i);
    }
}

/// `d`, then for each 32 numbers four bytes of codebook indices and a u32 of 4 x 7 sign bits and the scale on top.
pub(super) fn iq2_xxs(block: &[u8; 66], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let place = 2 + 8 * (i / 4);
        let point = IQ2_XXS[usize::from(block[place + i % 4])];
        let word = u32_at(block, place + 4);
        group(
            point,
            scale(d, (word >> 28) as u8),
            even_signs(word >> (7 * (i % 4))),
            out,
        );
    }
}

/// `d, qs u16[32], scales[8]`: nine bits of index and seven of signs a group; a scale for 16 numbers.
pub(super) fn iq2_xs(block: &[u8; 74], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let q = u16_at(block, 2 + 2 * i);
        let scale = scale(d, nibble(&block[66..], i / 2));
        group(
            IQ2_XS[usize::from(q & 511)],
            scale,
            even_signs(u32::from(q >> 9)),
            out,
        );
    }
}

/// `d, qs[32], signs[32], qh[8], scales[8]`: ten bits of index, eight of signs; a scale for 16 numbers.
pub(super) fn iq2_s(block: &[u8; 82], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let high = block[66 + i / 4] >> (2 * (i % 4)) & 3;
        let index = usize::from(block[2 + i]) | usize::from(high) << 8;
        let scale = scale(d, nibble(&block[74..], i / 2));
        group(IQ2_S[index], scale, block[34 + i], out);
    }
}
