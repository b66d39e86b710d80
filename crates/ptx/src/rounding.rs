//! Rounding of exact values to a float format, in every mode, and float arithmetic with a mode of its own.
//!
//! A value is a sign, a 64-bit mantissa, a power of two and a sticky bit for what lies below. All conversions and all
//! directed arithmetic come down to [`assemble`]; the nearest mode of f32 and f64 is the processor's own.

/// IEEE 754's directions, PTX's rn, rz, rm and rp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Round {
    Nearest,
    Zero,
    Down,
    Up,
}

/// A binary format by its stored mantissa bits and its smallest normal exponent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    pub mantissa: u32,
    pub least: i32,
    pub infinity: u64,
    pub sign: u32,
}

pub(crate) const F16: Format = Format {
    mantissa: 10,
    least: -14,
    infinity: 0x7c00,
    sign: 15,
};
pub(crate) const F32: Format = Format {
    mantissa: 23,
    least: -126,
    infinity: 0x7f80_0000,
    sign: 31,
};
pub(crate) const F64: Format = Format {
    mantissa: 52,
    least: -1022,
    infinity: 0x7ff0_0000_0000_0000,
    sign: 63,
};

/// What the hardware gives for every f32 result that is not a number.
pub(crate) const NAN32: u32 = 0x7fff_ffff;
/// The same for f16.
pub(crate) const NAN16: u16 = 0x7fff;
/// The same for f64.
pub(crate) const NAN64: u64 = 0xfff8_0000_0000_0000;

/// (-1)^negative x mantissa x 2^exponent, a little more in magnitude if `sticky`, rounded once.
pub(crate) fn assemble(
    negative: bool,
    mantissa: u64,
    exponent: i32,
    sticky: bool,
    to: Format,
    round: Round,
) -> u64 {
    let sign = u64::from(negative) << to.sign;
    if mantissa == 0 {
        let away = sticky && (round == Round::Up && !negative || round == Round::Down && negative);
        return sign | u64::from(away);
    }
    let top = 63 - mantissa.leading_zeros() as i32 + exponent;
    let shift = top.max(to.least) - to.mantissa as i32 - exponent;
    let (kept, half, below) = match shift {
        ..=0 => (mantissa << shift.unsigned_abs().min(63), false, sticky),
        1..=63 => {
            let low = mantissa & ((1 << (shift - 1)) - 1);
            (
                mantissa >> shift,
                mantissa >> (shift - 1) & 1 != 0,
                sticky || low != 0,
            )
        }
        64 => (0, mantissa >> 63 != 0, sticky || mantissa << 1 != 0),
        _ => (0, false, true),
    };
    let more = match round {
        Round::Nearest => half && (below || kept & 1 != 0),
        Round::Zero => false,
        Round::Down => negative && (half || below),
        Round::Up => !negative && (half || below),
    };
    let kept = kept + u64::from(more);
    // A carry out of the mantissa moves into the exponent by itself.
    let bits = if top < to.least {
        kept
    } else {
        (((top - to.least) as u64) << to.mantissa).saturating_add(kept)
    };
    if bits < to.infinity {
        return sign | bits;
    }
    let infinite = match round {
        Round::Nearest => true,
        Round::Zero => false,
        Round::Down => negative,
        Round::Up => !negative,
    };
    sign | (to.infinity - u64::from(!infinite))
}

/// A finite f64 as (negative, mantissa, exponent).
pub(crate) fn parts(value: f64) -> (bool, u64, i32) {
    let bits = value.to_bits();
    let (stored, fraction) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
    let mantissa = if stored == 0 { fraction } else { fraction | 1 << 52 };
    (value.is_sign_negative(), mantissa, stored.max(1) - 1075)
}

/// An f64 in another format; infinities stay, NaN becomes the format's canonical one.
pub(crate) fn from_f64(value: f64, to: Format, round: Round) -> u64 {
    if value.is_nan() {
        return nan(to);
    }
    let sign = u64::from(value.is_sign_negative()) << to.sign;
    if value.is_infinite() {
        return sign | to.infinity;
    }
    let (negative, mantissa, exponent) = parts(value);
    assemble(negative, mantissa, exponent, false, to, round)
}

fn nan(of: Format) -> u64 {
    match of.sign {
        15 => u64::from(NAN16),
        31 => u64::from(NAN32),
        _ => NAN64,
    }
}

/// a x b + c of f32 values, rounded once in the direction asked for. The product is exact in f64, and so are the sum
/// and its rounding error together.
pub(crate) fn fma32(a: f32, b: f32, c: f32, round: Round) -> u32 {
    if round == Round::Nearest {
        return canonical32(a.mul_add(b, c));
    }
    let product = f64::from(a) * f64::from(b);
    let (sum, error) = two_sum(product, f64::from(c));
    if !sum.is_finite() {
        return from_f64(sum, F32, round) as u32;
    }
    if sum == 0.0 {
        let same = product.is_sign_negative() == c.is_sign_negative();
        let negative = if same {
            c.is_sign_negative()
        } else {
            round == Round::Down
        };
        return u32::from(negative) << 31;
    }
    let (negative, mantissa, exponent) = parts(sum);
    // Two more bits hold on which side of the sum the exact value lies.
    let inward = error != 0.0 && (error < 0.0) != negative;
    let mantissa = (mantissa << 2) - u64::from(inward);
    assemble(negative, mantissa, exponent - 2, error != 0.0, F32, round) as u32
}

/// a + b in a direction.
pub(crate) fn add32(a: f32, b: f32, round: Round) -> u32 {
    if round == Round::Nearest {
        canonical32(a + b)
    } else {
        fma32(a, 1.0, b, round)
    }
}

/// a x b in a direction; exact in f64 before it is rounded.
pub(crate) fn mul32(a: f32, b: f32, round: Round) -> u32 {
    if round == Round::Nearest {
        canonical32(a * b)
    } else {
        from_f64(f64::from(a) * f64::from(b), F32, round) as u32
    }
}

/// Knuth's sum: the rounded sum and its exact error.
pub(crate) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let of_b = sum - a;
    (sum, (a - (sum - of_b)) + (b - of_b))
}

#[inline(always)]
pub(crate) fn canonical32(value: f32) -> u32 {
    if value.is_nan() { NAN32 } else { value.to_bits() }
}

#[inline(always)]
pub(crate) fn canonical64(value: f64) -> u64 {
    if value.is_nan() { NAN64 } else { value.to_bits() }
}

/// Subnormals to zero with their sign, as `.ftz` has it.
#[inline(always)]
pub(crate) fn flush32(bits: u32) -> u32 {
    if bits & 0x7f80_0000 == 0 {
        bits & 1 << 31
    } else {
        bits
    }
}

/// To [0, 1]; NaN becomes +0.
#[inline(always)]
pub(crate) fn saturate32(bits: u32) -> u32 {
    let value = f32::from_bits(bits);
    if value > 0.0 { value.min(1.0).to_bits() } else { 0 }
}

/// A float to the nearest integer in a direction, as a float.
pub(crate) fn integral(value: f64, round: Round) -> f64 {
    match round {
        Round::Nearest => value.round_ties_even(),
        Round::Zero => value.trunc(),
        Round::Down => value.floor(),
        Round::Up => value.ceil(),
    }
}

/// A float to an integer of `bits` bits, held to its range. NaN is 0, or the top bit alone in 64 bits.
pub(crate) fn to_integer(value: f64, bits: u32, signed: bool, round: Round) -> u64 {
    if value.is_nan() {
        return if bits == 64 { 1 << 63 } else { 0 };
    }
    let whole = integral(value, round);
    if signed {
        let most = i64::MAX >> (64 - bits);
        (whole as i64).clamp(-most - 1, most) as u64
    } else {
        (whole as u64).min(u64::MAX >> (64 - bits))
    }
}

/// A 64-bit integer, or its magnitude with a sign, as a float.
pub(crate) fn from_integer(value: u64, signed: bool, to: Format, round: Round) -> u64 {
    let negative = signed && (value as i64) < 0;
    let magnitude = if negative {
        (value as i64).unsigned_abs()
    } else {
        value
    };
    assemble(negative, magnitude, 0, false, to, round)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Random(u64);
    impl Random {
        fn next(&mut self) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0
        }
        /// Floats of like exponents, so that sums cancel and round.
        fn near(&mut self) -> f32 {
            let bits = self.next() as u32;
            f32::from_bits(bits & 0x807f_ffff | (0x3f80_0000 + (((bits >> 8) % 60) << 23) - (30 << 23)))
        }
    }

    #[test]
    fn f64_to_f32_and_integers_to_floats_match_the_processor() {
        let mut random = Random(7);
        for round in 0..200_000 {
            let bits = random.next();
            let value = if round & 1 == 0 {
                f64::from_bits(bits)
            } else {
                f64::from(f32::from_bits(bits as u32)) * 1.000_000_03
            };
            assert_eq!(
                from_f64(value, F32, Round::Nearest) as u32,
                canonical32(value as f32),
                "{value:e}"
            );
            let integer = bits >> (bits & 63);
            assert_eq!(
                from_integer(integer, false, F32, Round::Nearest) as u32,
                (integer as f32).to_bits()
            );
            assert_eq!(
                from_integer(integer, true, F64, Round::Nearest),
                (integer as i64 as f64).to_bits()
            );
        }
    }

    /// A directed result brackets the exact value: down <= nearest <= up, at most one step apart, and equal when exact.
    #[test]
    fn directed_fma_brackets_the_nearest() {
        let mut random = Random(11);
        for _ in 0..200_000 {
            let (a, b, c) = (random.near(), random.near(), random.near());
            let at = |round| f32::from_bits(fma32(a, b, c, round));
            let (down, near, up) = (at(Round::Down), at(Round::Nearest), at(Round::Up));
            assert!(down <= near && near <= up, "{a:e} {b:e} {c:e}");
            assert!(down == up || down.next_up() == up, "{a:e} {b:e} {c:e}");
            // The exact value lies between, as f64 with its error says.
            let (sum, error) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
            assert!(f64::from(down) < sum || (f64::from(down) == sum && error >= 0.0));
            assert!(f64::from(up) > sum || (f64::from(up) == sum && error <= 0.0));
            let zero = at(Round::Zero);
            assert_eq!(zero, if sum < 0.0 { up } else { down });
        }
    }

    #[test]
    fn edges() {
        assert_eq!(add32(f32::MAX, f32::MAX, Round::Zero), f32::MAX.to_bits());
        assert_eq!(add32(f32::MAX, f32::MAX, Round::Up), f32::INFINITY.to_bits());
        assert_eq!(add32(1.0, -1.0, Round::Down), (-0.0_f32).to_bits());
        assert_eq!(add32(1.0, -1.0, Round::Up), 0);
        assert_eq!(add32(f32::INFINITY, f32::NEG_INFINITY, Round::Nearest), NAN32);
        assert_eq!(mul32(f32::MIN_POSITIVE, 2e-8, Round::Up), 1);
        assert_eq!(mul32(f32::MIN_POSITIVE, 2e-8, Round::Nearest), 0);
        assert_eq!(to_integer(3e10, 32, true, Round::Zero), 0x7fff_ffff);
        assert_eq!(to_integer(-1.5, 32, false, Round::Nearest), 0);
        assert_eq!(to_integer(-2.5, 32, true, Round::Nearest) as i64, -2);
        assert_eq!(to_integer(f64::NAN, 32, true, Round::Zero), 0);
        assert_eq!(
            from_integer(u64::MAX, true, F32, Round::Zero) as u32,
            (-1.0_f32).to_bits()
        );
        assert_eq!(from_integer(70_000, false, F16, Round::Nearest), 0x7c00);
        assert_eq!(from_integer(70_000, false, F16, Round::Zero), 0x7bff);
    }
}
