//! What the numbers of a weight are, from the formats' definitions alone: nothing here knows the packed layout.

use galvani_cuda::source::{Codes, Fp8Scale, IntBits, Source, Weight};
use galvani_weights::{LoadError, quant};

/// Halves of the e2m1 numbers 0 to 7.
const E2M1: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The numbers [n, k].
///
/// # Errors
/// Blocks that cannot be decoded.
pub fn numbers(weight: &Weight<'_>) -> Result<Vec<f64>, LoadError> {
    let (n, k) = (weight.n(), weight.k());
    let each = |number: &dyn Fn(usize, usize) -> f64| {
        let places = (0..n).flat_map(|row| (0..k).map(move |at| (row, at)));
        places.map(|(row, at)| number(row, at)).collect()
    };
    Ok(match *weight.source() {
        Source::Rows { format, bytes } => {
            let mut out = vec![0f32; n * k];
            quant::dequantize(format, bytes, &mut out)?;
            out.into_iter().map(f64::from).collect()
        }
        Source::GroupInt {
            bits,
            group,
            codes,
            scales,
            zeros,
        } => each(&|row, at| {
            let place = row * (k / group.len()) + at / group.len();
            let middle = match bits {
                IntBits::Four => 8,
                IntBits::Eight => 128,
            };
            let zero = zeros.map_or(middle, |zeros| zeros[place]);
            let code = match codes {
                Codes::Bytes(codes) => codes[row * k + at],
                Codes::Nibbles(codes) => nibble(codes, row * k + at),
            };
            (f64::from(code) - f64::from(zero)) * f64::from(scales[place])
        }),
        Source::Fp8 { codes, scale } => each(&|row, at| {
            let scale = match scale {
                Fp8Scale::Tensor(scale) => scale,
                Fp8Scale::Channel(scales) => scales[row],
                Fp8Scale::Block128(scales) => scales[row / 128 * k.div_ceil(128) + at / 128],
            };
            e4m3(codes[row * k + at]) * f64::from(scale)
        }),
        Source::Nvfp4 {
            codes,
            scales,
            globals,
        } => each(&|row, at| {
            let mut end = 0;
            let part = globals.iter().find(|part| {
                end += part.0;
                row < end
            });
            let global = part.map_or(0.0, |part| f64::from(part.1));
            e2m1(nibble(codes, row * k + at)) * e4m3(scales[row * (k / 16) + at / 16]) * global
        }),
        Source::Mxfp4 { codes, scales } => each(&|row, at| {
            let scale = 2f64.powi(i32::from(scales[row * (k / 32) + at / 32]) - 127);
            e2m1(nibble(codes, row * k + at)) * scale
        }),
    })
}

fn nibble(codes: &[u8], at: usize) -> u8 {
    codes[at / 2] >> (4 * (at % 2)) & 15
}

fn e2m1(code: u8) -> f64 {
    let magnitude = E2M1[usize::from(code & 7)];
    if code & 8 == 0 { magnitude } else { -magnitude }
}

fn e4m3(code: u8) -> f64 {
    let (exponent, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7));
    let magnitude = match exponent {
        0 => fraction / 512.0,
        _ => (1.0 + fraction / 8.0) * 2f64.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_have_their_published_values() {
        for (code, want) in [(0, 0.0), (1, 0.5), (7, 6.0), (8, 0.0), (9, -0.5), (15, -6.0)] {
            assert_eq!(e2m1(code), want, "{code}");
        }
        for (code, want) in [
            (0x00, 0.0),
            (0x01, 1.0 / 512.0),
            (0x08, 1.0 / 64.0),
            (0x38, 1.0),
            (0x7e, 448.0),
            (0xb8, -1.0),
        ] {
            assert_eq!(e4m3(code), want, "{code:#x}");
        }
    }
}
