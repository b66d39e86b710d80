//! IQ4_NL, IQ4_XS: four bits that pick one of 16 uneven steps.

use super::{f16_at, nibble, u16_at};

/// The steps.
const STEPS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// 32 numbers out of 16 bytes, low nibbles first.
fn steps(qs: &[u8], scale: f32, out: &mut [f32; 32]) {
    for j in 0..16 {
        out[j] = scale * f32::from(STEPS[usize::from(qs[j] & 15)]);
        out[j + 16] = scale * f32::from(STEPS[usize::from(qs[j] >> 4)]);
    }
}

/// `d, qs[16]`: w = d step(q).
pub(super) fn iq4_nl(block: &[u8; 18], out: &mut [f32; 32]) {
    steps(&block[2..], f16_at(block, 0), out);
}

/// `d, scales_h u16, scales_l[4], qs[128]`: eight sub-blocks of 32 with scales of six bits, w = d (s - 32) step(q).
pub(super) fn iq4_xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let (d, high) = (f16_at(block, 0), u16_at(block, 2));
    for (s, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let scale = nibble(&block[4..8], s) | ((high >> (2 * s) & 3) as u8) << 4;
        steps(&block[8 + 16 * s..], d * f32::from(scale as i8 - 32), out);
    }
}
