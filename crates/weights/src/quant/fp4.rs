//! MXFP4, NVFP4: four-bit floats (e2m1) under a small float scale.
//!
//! The codes stand for twice their value, and the scales for half, so that the codes are integers.

/// Twice the value of each code. Code 8 is plain zero, not minus zero.
const CODES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

fn code(bits: u8) -> f32 {
    f32::from(CODES[usize::from(bits & 15)])
}

/// 2^(e - 128), below the range of normal numbers too.
fn half_e8m0(e: u8) -> f32 {
    f32::from_bits(match e {
        0 | 1 => 0x0020_0000 << e,
        _ => (u32::from(e) - 1) << 23,
    })
}

/// Half of an e4m3 without sign. The byte that would be NaN is zero; a set sign bit is ignored, as it is published.
fn half_ue4m3(byte: u8) -> f32 {
    if byte == 0x7f {
        return 0.0;
    }
    let (exponent, mantissa) = (u32::from((byte >> 3) & 15), f32::from(byte & 7));
    let value = match exponent {
        0 => mantissa / 512.0,
        _ => (1.0 + mantissa / 8.0) * f32::from_bits((exponent + 120) << 23),
    };
    value * 0.5
}

/// `e, qs[16]`: e8m0 scale; byte j has number j low and j + 16 high.
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let scale = half_e8m0(block[0]);
    for j in 0..16 {
        out[j] = scale * code(block[1 + j]);
        out[j + 16] = scale * code(block[1 + j] >> 4);
    }
}

/// `d[4], qs[32]`: four sub-blocks of 16 with an e4m3 scale each; byte j of a sub-block has number j low and j + 8 high.
pub(super) fn nvfp4(block: &[u8; 36], out: &mut [f32; 64]) {
    for (s, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = half_ue4m3(block[s]);
        for j in 0..8 {
            let byte = block[4 + 8 * s + j];
            out[j] = scale * code(byte);
            out[j + 8] = scale * code(byte >> 4);
        }
    }
}
