//! IEEE half precision: conversions without branches, so that 32 lanes go side by side, and arithmetic through f32.

use crate::rounding::{NAN16, NAN32};

/// Exact. Every NaN becomes the canonical one.
#[inline(always)]
pub(crate) fn to_f32(half: u32) -> u32 {
    let sign = (half & 0x8000) << 16;
    let rest = half & 0x7fff;
    // A mantissa with the exponent of 2^-14 counts units of 2^-24 above 2^-14: the subtraction leaves a subnormal's value.
    let small = (f32::from_bits((rest & 0x3ff) << 13 | 0x3880_0000) - f32::from_bits(0x3880_0000)).to_bits();
    let normal = (rest << 13) + (112 << 23);
    let value = if rest < 0x400 { small } else { normal };
    let value = if rest >= 0x7c00 { 0x7f80_0000 } else { value };
    if rest > 0x7c00 { NAN32 } else { value | sign }
}

/// To nearest, ties to even. NaN becomes 0x7fff.
#[inline(always)]
pub(crate) fn from_f32(bits: u32) -> u32 {
    let sign = bits >> 16 & 0x8000;
    let size = bits & 0x7fff_ffff;
    let normal = (size
        .wrapping_sub(112 << 23)
        .wrapping_add(0xfff + (size >> 13 & 1))
        >> 13)
        .min(0x7c00);
    // One half has its last bit at 2^-24, the last of a subnormal half: the addition rounds there.
    let small = (f32::from_bits(size) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let value = if size < 0x3880_0000 { small } else { normal };
    if size > 0x7f80_0000 {
        u32::from(NAN16)
    } else {
        value | sign
    }
}

/// Sum, difference, product: f32 has more than twice a half's bits and two, so rounding twice is rounding once.
#[inline(always)]
pub(crate) fn through(a: u32, b: u32, op: impl Fn(f32, f32) -> f32) -> u32 {
    from_f32(op(f32::from_bits(to_f32(a)), f32::from_bits(to_f32(b))).to_bits())
}

/// a x b + c, rounded once: the product is exact in f32, and the sum is rounded to odd before it is rounded to half.
#[inline(always)]
pub(crate) fn fma(a: u32, b: u32, c: u32) -> u32 {
    let product = f32::from_bits(to_f32(a)) * f32::from_bits(to_f32(b));
    let c = f32::from_bits(to_f32(c));
    let sum = product + c;
    let of_c = sum - product;
    let error = (product - (sum - of_c)) + (c - of_c);
    let bits = sum.to_bits();
    // Past f32's last bit lies an error: the odd neighbour towards it stands for every value in between.
    let inexact = error != 0.0 && !error.is_nan();
    let outward = (error < 0.0) == (bits >> 31 != 0);
    let odd = if outward {
        bits.wrapping_add(1)
    } else {
        bits.wrapping_sub(1)
    };
    from_f32(if inexact && bits & 1 == 0 { odd } else { bits })
}

/// The smaller (or larger) of two; -0 is below +0, a number wins over NaN unless `strict`.
#[inline(always)]
pub(crate) fn extreme(a: u32, b: u32, larger: bool, strict: bool) -> u32 {
    let (a_nan, b_nan) = (a & 0x7fff > 0x7c00, b & 0x7fff > 0x7c00);
    if a_nan && b_nan || strict && (a_nan || b_nan) {
        return u32::from(NAN16);
    }
    // Sign and magnitude to an order of integers.
    let order = |half: u32| {
        if half & 0x8000 != 0 {
            !half & 0xffff
        } else {
            half | 0x8000
        }
    };
    let take_a = b_nan || !a_nan && ((order(a) > order(b)) == larger);
    if take_a { a } else { b }
}

/// Subnormals to zero with their sign.
#[inline(always)]
pub(crate) fn flush(half: u32) -> u32 {
    if half & 0x7c00 == 0 { half & 0x8000 } else { half }
}

/// To [0, 1]; NaN becomes +0.
#[inline(always)]
pub(crate) fn saturate(half: u32) -> u32 {
    if half & 0x8000 != 0 || half & 0x7fff > 0x7c00 {
        0
    } else {
        half.min(0x3c00)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounding::{self, F16, Round};

    /// By way of the general rounding.
    fn from_f32_in(bits: u32, round: Round) -> u32 {
        rounding::from_f64(f64::from(f32::from_bits(bits)), F16, round) as u32
    }

    /// A half's value by its definition.
    fn value(half: u16) -> f64 {
        let (exponent, fraction) = (i32::from(half >> 10 & 31), f64::from(half & 0x3ff));
        let size = match exponent {
            0 => fraction * 2_f64.powi(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1024.0 + fraction) * 2_f64.powi(exponent - 25),
        };
        if half & 0x8000 != 0 { -size } else { size }
    }

    #[test]
    fn every_half_to_f32_and_back() {
        for half in 0..=u16::MAX {
            let bits = to_f32(u32::from(half));
            let exact = value(half);
            if exact.is_nan() {
                assert_eq!(bits, NAN32);
                assert_eq!(from_f32(bits), 0x7fff);
                continue;
            }
            assert_eq!(
                f64::from(f32::from_bits(bits)).to_bits(),
                exact.to_bits(),
                "{half:04x}"
            );
            assert_eq!(from_f32(bits), u32::from(half));
            for round in [Round::Nearest, Round::Zero, Round::Down, Round::Up] {
                assert_eq!(from_f32_in(bits, round), u32::from(half));
            }
        }
    }

    /// Around each midpoint between neighbours, in every direction, against the definition.
    #[test]
    fn every_boundary_rounds_right() {
        for low in 0..0x7c00_u16 {
            let (a, b) = (value(low), if low == 0x7bff { 65536.0 } else { value(low + 1) });
            let middle = ((a + b) / 2.0) as f32;
            assert_eq!(f64::from(middle), (a + b) / 2.0);
            let even = if low & 1 == 0 { low } else { low + 1 };
            for (x, nearest) in [
                (middle.next_down(), low),
                (middle, even),
                (middle.next_up(), low + 1),
            ] {
                let (bits, minus) = (x.to_bits(), (-x).to_bits());
                let got = (from_f32(bits), from_f32_in(bits, Round::Nearest));
                assert_eq!(got, (u32::from(nearest), u32::from(nearest)), "{x:e}");
                assert_eq!(from_f32(minus), u32::from(nearest) | 0x8000);
                assert_eq!(from_f32_in(bits, Round::Zero), u32::from(low));
                assert_eq!(from_f32_in(bits, Round::Down), u32::from(low));
                assert_eq!(from_f32_in(bits, Round::Up), u32::from(low + 1));
                assert_eq!(from_f32_in(minus, Round::Down), u32::from(low + 1) | 0x8000);
                assert_eq!(from_f32_in(minus, Round::Up), u32::from(low) | 0x8000);
            }
        }
    }

    /// All 2^32 floats would take minutes; every exponent with mantissas that straddle what is kept takes none.
    #[test]
    fn fast_and_exact_paths_agree() {
        for top in 0..1_u32 << 20 {
            for low in [0, 1, 0x7ff, 0x800, 0x801, 0xfff] {
                let bits = top << 12 | low;
                assert_eq!(from_f32(bits), from_f32_in(bits, Round::Nearest), "{bits:08x}");
            }
        }
    }

    #[test]
    fn arithmetic_is_rounded_once() {
        let mut seed = 3_u64;
        let mut next = || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 40) as u32 & 0xffff
        };
        for _ in 0..300_000 {
            let (a, b, c) = (next(), next(), next());
            let [x, y, z] = [a, b, c].map(|half| value(half as u16));
            // Sums and products of halves are exact in f64.
            let once = |exact: f64| rounding::from_f64(exact, F16, Round::Nearest) as u32;
            assert_eq!(through(a, b, |a, b| a + b), once(x + y));
            assert_eq!(through(a, b, |a, b| a - b), once(x - y));
            assert_eq!(through(a, b, |a, b| a * b), once(x * y));
            // The fused sum spans more than f64: its error decides.
            let (sum, error) = rounding::two_sum(x * y, z);
            let want = if sum.is_finite() && sum != 0.0 {
                let (negative, mantissa, exponent) = rounding::parts(sum);
                let inward = error != 0.0 && (error < 0.0) != negative;
                let mantissa = (mantissa << 2) - u64::from(inward);
                rounding::assemble(
                    negative,
                    mantissa,
                    exponent - 2,
                    error != 0.0,
                    F16,
                    Round::Nearest,
                ) as u32
            } else {
                once(sum)
            };
            assert_eq!(fma(a, b, c), want, "{x:e} {y:e} {z:e}");
        }
        // A tie that the third term breaks: 1 + 2^-11 is halfway, 2^-24 more decides.
        assert_eq!(fma(0x3c01, 0x3c00, 0x0001), 0x3c01);
        assert_eq!(fma(0x1000, 0x3c00, 0x3c00), 0x3c00);
        assert_eq!(fma(0x1001, 0x3c00, 0x3c00), 0x3c01);
    }

    #[test]
    fn extremes() {
        for (a, b, least, most) in [
            (0x0000, 0x8000, 0x8000, 0x0000),
            (0x3c00, 0x7e00, 0x3c00, 0x3c00),
            (0xbc00, 0x3c00, 0xbc00, 0x3c00),
            (0xfc00, 0xbc00, 0xfc00, 0xbc00),
            (0x7e00, 0x7e01, 0x7fff, 0x7fff),
        ] {
            assert_eq!(extreme(a, b, false, false), least);
            assert_eq!(extreme(b, a, true, false), most);
        }
        assert_eq!(extreme(0x3c00, 0x7e00, true, true), 0x7fff);
        assert_eq!(
            (flush(0x83ff), flush(0x0400), saturate(0x4000), saturate(0x7e00)),
            (0x8000, 0x0400, 0x3c00, 0)
        );
    }
}
