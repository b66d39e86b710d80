//! Plain arrays, for the compiler to vectorise as the target's baseline allows.

use half::f16;

use super::{LANES, Lanes};

/// No special instructions. Products and sums are rounded separately.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portable;

type V = [f32; LANES];

#[inline(always)]
fn map2(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// A half float as f32: exponent and fraction moved into place and rebiased by a product, which is exact and also right
/// for subnormals; infinities and not-a-numbers get their exponent back. No branch, so that it vectorises.
#[inline(always)]
fn widen(half: u16) -> f32 {
    let bits = u32::from(half);
    let rebias = f32::from_bits((127 + 112) << 23);
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * rebias;
    let special = if bits & 0x7c00 == 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | special | (bits & 0x8000) << 16)
}

impl Lanes for Portable {
    type V = V;
    const TILE_VECTORS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> V {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> V {
        // SAFETY: the caller gives 16 numbers.
        unsafe { from.cast::<V>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: V) {
        // SAFETY: the caller gives room for 16 numbers.
        unsafe { to.cast::<V>().write_unaligned(v) }
    }

    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> V {
        // SAFETY: the caller gives 16 numbers.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(widen)
    }

    #[inline(always)]
    unsafe fn store_half(to: *mut u16, v: V) {
        let bits = v.map(|x| f16::from_f32(x).to_bits());
        // SAFETY: the caller gives room for 16 numbers.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(bits) }
    }

    #[inline(always)]
    unsafe fn add(a: V, b: V) -> V {
        map2(a, b, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(a: V, b: V) -> V {
        map2(a, b, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(a: V, b: V) -> V {
        map2(a, b, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn div(a: V, b: V) -> V {
        map2(a, b, |a, b| a / b)
    }

    #[inline(always)]
    unsafe fn fma(a: V, b: V, c: V) -> V {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }

    #[inline(always)]
    unsafe fn max(a: V, b: V) -> V {
        map2(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn min(a: V, b: V) -> V {
        map2(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    unsafe fn round(v: V) -> V {
        // Adding and taking away 1.5 * 2^23 rounds |x| < 2^22 to the nearest integer; all callers are far inside.
        let magic = 12_582_912.0_f32;
        v.map(|x| (x + magic) - magic)
    }

    #[inline(always)]
    unsafe fn scale_by_power(v: V, n: V) -> V {
        map2(v, n, |v, n| v * f32::from_bits(((n as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    unsafe fn zero_where_less(x: V, bound: V, v: V) -> V {
        std::array::from_fn(|i| if x[i] < bound[i] { 0.0 } else { v[i] })
    }

    #[inline(always)]
    unsafe fn keep_between(v: V, first: usize, end: usize, other: V) -> V {
        std::array::from_fn(|i| if i >= first && i < end { v[i] } else { other[i] })
    }

    #[inline(always)]
    unsafe fn sum(v: V) -> f32 {
        let a: [f32; 8] = std::array::from_fn(|i| v[i] + v[i + 8]);
        let b: [f32; 4] = std::array::from_fn(|i| a[i] + a[i + 4]);
        (b[0] + b[2]) + (b[1] + b[3])
    }

    #[inline(always)]
    unsafe fn largest(v: V) -> f32 {
        v.iter()
            .copied()
            .fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_float_widens_exactly() {
        for bits in 0..=u16::MAX {
            let (got, wanted) = (widen(bits), f16::from_bits(bits).to_f32());
            let same = got.to_bits() == wanted.to_bits() || (got.is_nan() && wanted.is_nan());
            assert!(same, "{bits:#06x}: {got} instead of {wanted}");
        }
    }
}
