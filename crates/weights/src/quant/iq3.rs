//! IQ3_XXS, IQ3_S: groups of four magnitudes from a codebook, with signs.

use super::grids::{IQ3_S, IQ3_XXS};
use super::{even_signs, f16_at, nibble, sign, u32_at};

/// Magnitudes of IQ3_XXS by code.
const MAGNITUDES_XXS: [f32; 8] = [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0];
/// Magnitudes of IQ3_S by code.
const MAGNITUDES_S: [f32; 8] = [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0];

/// Four numbers from a codebook's point; their signs start at bit `sign_start`.
fn group(point: u16, magnitudes: &[f32; 8], scale: f32, signs: u8, sign_start: usize, out: &mut [f32; 4]) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = scale * magnitudes[usize::from(point >> (4 * i) & 7)] * sign(signs, sign_start + i);
    }
}

/// `d, qs[64], words u32[8]`: a word has 4 x 7 sign bits and the scale s on top; w = d (s + 1/2) / 2 * magnitude * sign.
pub(super) fn iq3_xxs(block: &[u8; 98], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let word = u32_at(block, 66 + 4 * (i / 8));
        let scale = d * (0.5 + (word >> 28) as f32) * 0.5;
        let signs = even_signs(word >> (7 * (i / 2 % 4)));
        let point = IQ3_XXS[usize::from(block[2 + i])];
        group(point, &MAGNITUDES_XXS, scale, signs, 4 * (i % 2), out);
    }
}

/// `d, qs[64], qh[8], signs[32], scales[4]`: nine bits of index, four of scale s for 32 numbers; w = d (2 s + 1) *
/// magnitude * sign.
pub(super) fn iq3_s(block: &[u8; 110], out: &mut [f32; 256]) {
    let d = f16_at(block, 0);
    for (i, out) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let high = block[66 + i / 8] >> (i % 8) & 1;
        let index = usize::from(block[2 + i]) | usize::from(high) << 8;
        let scale = d * f32::from(1 + 2 * nibble(&block[106..], i / 8));
        group(
            IQ3_S[index],
            &MAGNITUDES_S,
            scale,
            block[74 + i / 2],
            4 * (i % 2),
            out,
        );
    }
}
