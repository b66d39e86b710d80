//! Half precision as the device has it: numbers are f64 that a half holds exactly, each operation rounds once.

/// 2^e, exactly.
pub fn power(e: i32) -> f64 {
    assert!((-1022..=1023).contains(&e));
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// floor(log2 |x|) of a finite number; `None` for zero.
pub fn exponent(x: f64) -> Option<i32> {
    // f32s and sums of halves are normal numbers here.
    (x != 0.0).then(|| ((x.to_bits() >> 52) & 0x7FF) as i32 - 1023)
}

/// The nearest half, ties to even; infinite beyond the range.
pub fn round(x: f64) -> f64 {
    let Some(e) = exponent(x) else { return x };
    let unit = power(e.clamp(-14, 16) - 10);
    let rounded = (x / unit).round_ties_even() * unit;
    if rounded.abs() > 65504.0 {
        f64::INFINITY.copysign(x)
    } else {
        rounded
    }
}

/// The bits of a number that a half holds exactly.
pub fn bits(x: f64) -> u16 {
    let half = half::f16::from_f64(x);
    debug_assert!(half.to_f64() == x, "{x} is a half");
    half.to_bits()
}

/// What the bits stand for.
pub fn value(bits: u16) -> f64 {
    half::f16::from_bits(bits).to_f64()
}

/// a b
pub fn mul(a: f64, b: f64) -> f64 {
    round(a * b)
}

/// a + b
pub fn add(a: f64, b: f64) -> f64 {
    round(a + b)
}

/// a b + c, rounded once. In f64 the sum is exact: the formats' terms span fewer than 53 bits.
pub fn fma(a: f64, b: f64, c: f64) -> f64 {
    round(a * b + c)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_the_nearest_half() {
        for bits in 0..=0x7BFFu16 {
            let here = value(bits);
            assert_eq!((round(here), super::bits(here)), (here, bits));
            if bits < 0x7BFF {
                let next = value(bits + 1);
                let middle = (here + next) / 2.0;
                let even = if bits & 1 == 0 { here } else { next };
                assert_eq!(round(middle), even, "{bits:#x}");
                assert_eq!(round(-(middle + (next - middle) / 8.0)), -next, "{bits:#x}");
            }
        }
        assert_eq!(round(65519.9), 65504.0);
        assert_eq!(round(65520.0), f64::INFINITY);
        assert_eq!(round(-1e9), f64::NEG_INFINITY);
    }

    #[test]
    fn exponents() {
        for (x, e) in [
            (1.0, 0),
            (1.99, 0),
            (0.5, -1),
            (f64::from(f32::from_bits(1)), -149),
            (65504.0, 15),
        ] {
            assert_eq!(exponent(x), Some(e), "{x}");
            assert_eq!(exponent(-x), Some(e), "{x}");
        }
        assert_eq!(exponent(0.0), None);
    }
}
