//! Passes over a whole row of logits: written over fixed lanes so that the compiler vectorises them, and instantiated
//! for AVX2 where the machine has it. No operation is reordered or contracted between the two, so their bits are equal.

const LANES: usize = 32;
/// Numbers whose maximum is found before anybody looks which it is.
const BLOCK: usize = 2048;

/// A logit that is NaN or infinite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NotFinite {
    /// Its token.
    pub token: usize,
    /// Its value.
    pub value: f32,
}

/// The largest number of the row and the lowest token that has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Peak {
    /// The number.
    pub value: f32,
    /// The token.
    pub token: usize,
}

macro_rules! per_isa {
    ($(#[$doc:meta])* $name:ident = $body:ident($($arg:ident: $ty:ty),*) -> $out:ty) => {
        $(#[$doc])*
        pub fn $name($($arg: $ty),*) -> $out {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn wide($($arg: $ty),*) -> $out {
                    $body($($arg),*)
                }
                if std::arch::is_x86_feature_detected!("avx2") {
                    // SAFETY: the only demand of `wide` is AVX2, which was just detected.
                    return unsafe { wide($($arg),*) };
                }
            }
            $body($($arg),*)
        }
    };
}

per_isa! {
    /// Finds the peak of a row as a model gives it. Ties go to the lower token.
    ///
    /// # Errors
    /// Names the first number that is not finite.
    peak_checked = peak_checked_body(row: &[f32]) -> Result<Peak, NotFinite>
}

per_isa! {
    /// Finds the peak of a row in which minus infinity marks what may not be chosen. Ties go to the lower token.
    peak = peak_body(row: &[f32]) -> Peak
}

per_isa! {
    /// Sum of `exp((x - max) / temperature)` over the row.
    sum_exp = sum_exp_body(row: &[f32], max: f32, temperature: f32) -> f64
}

per_isa! {
    /// Writes `exp((x - max) / temperature)` for each number of the row, and appends each block's sum to `sums`.
    weigh = weigh_body(row: &[f32], max: f32, temperature: f32, weights: &mut [f32], sums: &mut Vec<f64>) -> ()
}

per_isa! {
    /// Number of the first block of [`SEARCH_BLOCK`] numbers, from `block_first` on, with one above `floor`; beyond the last
    /// block when there is none.
    next_block_above = next_block_above_body(row: &[f32], block_first: usize, floor: f32) -> usize
}

/// Numbers in a block of [`next_block_above`].
pub const SEARCH_BLOCK: usize = 64;

/// Numbers in a block of [`weigh`].
pub const WEIGH_BLOCK: usize = 1024;

#[inline(always)]
fn peak_checked_body(row: &[f32]) -> Result<Peak, NotFinite> {
    // 0 * x is 0 for every finite x and NaN for every other, and NaN stays in a sum.
    let mut doubt = [0.0f32; LANES];
    let mut best = Peak {
        value: f32::NEG_INFINITY,
        token: 0,
    };
    for (number, block) in row.chunks(BLOCK).enumerate() {
        let (chunks, rest) = block.as_chunks::<LANES>();
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for chunk in chunks {
            for lane in 0..LANES {
                lanes[lane] = if chunk[lane] > lanes[lane] {
                    chunk[lane]
                } else {
                    lanes[lane]
                };
                doubt[lane] += chunk[lane] * 0.0;
            }
        }
        for (lane, x) in rest.iter().enumerate() {
            lanes[lane] = if *x > lanes[lane] { *x } else { lanes[lane] };
            doubt[lane] += x * 0.0;
        }
        let value = lanes
            .iter()
            .fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
        if value > best.value {
            best = Peak {
                value,
                token: number * BLOCK,
            };
        }
    }
    if doubt.iter().any(|x| x.is_nan()) {
        let token = row.iter().position(|x| !x.is_finite()).unwrap_or(0);
        return Err(NotFinite {
            token,
            value: row[token],
        });
    }
    Ok(refine(row, best))
}

#[inline(always)]
fn peak_body(row: &[f32]) -> Peak {
    let mut best = Peak {
        value: f32::NEG_INFINITY,
        token: 0,
    };
    for (number, block) in row.chunks(BLOCK).enumerate() {
        let (chunks, rest) = block.as_chunks::<LANES>();
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for chunk in chunks {
            for lane in 0..LANES {
                lanes[lane] = if chunk[lane] > lanes[lane] {
                    chunk[lane]
                } else {
                    lanes[lane]
                };
            }
        }
        for (lane, x) in rest.iter().enumerate() {
            lanes[lane] = if *x > lanes[lane] { *x } else { lanes[lane] };
        }
        let value = lanes
            .iter()
            .fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
        if value > best.value {
            best = Peak {
                value,
                token: number * BLOCK,
            };
        }
    }
    refine(row, best)
}

/// From the start of the block with the peak to the peak itself.
fn refine(row: &[f32], best: Peak) -> Peak {
    let inside = row[best.token..]
        .iter()
        .position(|x| *x == best.value)
        .unwrap_or(0);
    Peak {
        value: best.value,
        token: best.token + inside,
    }
}

#[inline(always)]
fn sum_exp_body(row: &[f32], max: f32, temperature: f32) -> f64 {
    let mut total = 0.0f64;
    for block in row.chunks(WEIGH_BLOCK) {
        let mut lanes = [0.0f32; LANES];
        let (chunks, rest) = block.as_chunks::<LANES>();
        for chunk in chunks {
            for lane in 0..LANES {
                lanes[lane] += exp((chunk[lane] - max) / temperature);
            }
        }
        for (lane, x) in rest.iter().enumerate() {
            lanes[lane] += exp((x - max) / temperature);
        }
        total += lanes.iter().map(|x| f64::from(*x)).sum::<f64>();
    }
    total
}

#[inline(always)]
fn weigh_body(row: &[f32], max: f32, temperature: f32, weights: &mut [f32], sums: &mut Vec<f64>) {
    for (block, out) in row.chunks(WEIGH_BLOCK).zip(weights.chunks_mut(WEIGH_BLOCK)) {
        let mut lanes = [0.0f32; LANES];
        let (chunks, rest) = block.as_chunks::<LANES>();
        let (out_chunks, out_rest) = out.as_chunks_mut::<LANES>();
        for (chunk, out) in chunks.iter().zip(out_chunks) {
            for lane in 0..LANES {
                out[lane] = exp((chunk[lane] - max) / temperature);
                lanes[lane] += out[lane];
            }
        }
        for (lane, (x, out)) in rest.iter().zip(out_rest).enumerate() {
            *out = exp((x - max) / temperature);
            lanes[lane] += *out;
        }
        sums.push(lanes.iter().map(|x| f64::from(*x)).sum());
    }
}

#[inline(always)]
fn next_block_above_body(row: &[f32], block_first: usize, floor: f32) -> usize {
    let (blocks, rest) = row.as_chunks::<SEARCH_BLOCK>();
    for (number, block) in blocks.iter().enumerate().skip(block_first) {
        let mut above = 0;
        for x in block {
            above |= u32::from(*x > floor);
        }
        if above != 0 {
            return number;
        }
    }
    let rest_is_left = block_first <= blocks.len() && rest.iter().any(|x| *x > floor);
    blocks.len() + usize::from(!rest_is_left)
}

/// Exponential of a number of at most 0, within 3e-7 of its value; below -87 it is 0.
///
/// exp(x) = 2^k exp(r) with k the integer nearest to x / ln 2, and a polynomial (Taylor, degree 6) for |r| <= ln 2 / 2.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to an integer, which then sits in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let k = shifted - ROUND;
    let r = (x - k * LN_2_HIGH) - k * LN_2_LOW;
    let p = 1.0 / 720.0;
    let p = p * r + 1.0 / 120.0;
    let p = p * r + 1.0 / 24.0;
    let p = p * r + 1.0 / 6.0;
    let p = p * r + 0.5;
    let p = p * r + 1.0;
    let p = p * r + 1.0;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000));
    if x < -87.0 { 0.0 } else { p * power }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close_everywhere() {
        let mut worst = 0.0f64;
        for step in 0..870_000 {
            let x = -(step as f32) * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 3e-7, "relative error {worst:e}");
        for (x, wanted) in [(0.0, 1.0), (-87.5, 0.0), (-1e30, 0.0), (f32::NEG_INFINITY, 0.0)] {
            assert_eq!(exp(x), wanted, "exp({x})");
        }
    }

    #[test]
    fn peaks_across_block_edges_and_ties() {
        for len in [1, 2, 15, 16, 17, 2047, 2048, 2049, 5000] {
            for at in [0, len / 2, len - 1] {
                let mut row: Vec<f32> = (0..len).map(|i| -((i % 7) as f32) - 1.0).collect();
                row[at] = 3.5;
                let wanted = Peak {
                    value: 3.5,
                    token: at,
                };
                assert_eq!(
                    (peak_checked(&row), peak(&row)),
                    (Ok(wanted), wanted),
                    "{len} {at}"
                );
                row[len - 1] = 3.5;
                assert_eq!(peak(&row).token, at, "ties go to the lower token: {len} {at}");
            }
        }
    }

    #[test]
    fn every_kind_of_not_finite_is_found_anywhere() {
        for len in [1, 16, 33, 3000] {
            for at in [0, len / 3, len - 1] {
                for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut row = vec![1.0; len];
                    row[at] = value;
                    let fault = peak_checked(&row).unwrap_err();
                    assert_eq!((fault.token, fault.value.to_bits()), (at, value.to_bits()));
                }
            }
        }
    }

    #[test]
    fn sums_agree() {
        let row: Vec<f32> = (0..3001).map(|i| ((i * 37) % 101) as f32 * 0.1).collect();
        for temperature in [0.5, 1.0, 3.0] {
            let exact: f64 = row
                .iter()
                .map(|x| f64::from((x - 10.0) / temperature).exp())
                .sum();
            let (mut weights, mut sums) = (vec![0.0; row.len()], Vec::new());
            weigh(&row, 10.0, temperature, &mut weights, &mut sums);
            let by_blocks: f64 = sums.iter().sum();
            assert_eq!(sums.len(), 3);
            for got in [sum_exp(&row, 10.0, temperature), by_blocks] {
                assert!((got / exact - 1.0).abs() < 1e-6, "{got} {exact}");
            }
        }
    }

    #[test]
    fn the_next_block_above_is_found() {
        for len in [1, 63, 64, 65, 128, 200] {
            for at in [0, len / 2, len - 1] {
                let mut row = vec![0.0; len];
                row[at] = 2.0;
                let blocks = len.div_ceil(SEARCH_BLOCK);
                let wanted = at / SEARCH_BLOCK;
                assert_eq!(next_block_above(&row, 0, 1.0), wanted, "{len} {at}");
                assert_eq!(next_block_above(&row, wanted, 1.0), wanted, "{len} {at}");
                assert!(next_block_above(&row, wanted + 1, 1.0) >= blocks, "{len} {at}");
                assert!(next_block_above(&row, 0, 2.0) >= blocks, "{len} {at}");
            }
        }
    }
}
