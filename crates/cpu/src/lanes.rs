//! Sixteen f32 lanes, whatever the machine has: the vocabulary of the non-linear kernels.
//!
//! A kernel is written once, generic over [`Lanes`] and `#[inline(always)]`; [`dispatch!`] makes one copy for each
//! instruction set and enters it with the features enabled. Each set does the same operations in the same order, so a
//! result depends on the set (fused or separate rounding) but never on how work was split.

#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::isa::Isa;

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// Lanes in a vector.
pub(crate) const LANES: usize = 16;

/// Operations on [`LANES`] f32 numbers.
///
/// # Safety
/// All methods need the instruction set of the implementing type; pointers are valid for 16 numbers, any alignment.
pub(crate) trait Lanes: Copy {
    /// Sixteen numbers.
    type V: Copy;
    /// Vectors that a matrix tile of six rows is wide: what the register file holds.
    const TILE_VECTORS: usize;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(from: *const f32) -> Self::V;
    unsafe fn store(to: *mut f32, v: Self::V);
    /// Widens 16 IEEE half floats.
    unsafe fn load_half(from: *const u16) -> Self::V;
    /// Rounds to half floats, to nearest even.
    unsafe fn store_half(to: *mut u16, v: Self::V);
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, fused where the set can.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a > b ? a : b`, so a NaN in `b` stays.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? a : b`, so a NaN in `b` stays.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// To the nearest integer, ties to even.
    unsafe fn round(v: Self::V) -> Self::V;
    /// `v * 2^n` for integral `n` in -126..=127.
    unsafe fn scale_by_power(v: Self::V, n: Self::V) -> Self::V;
    /// `x < bound ? 0 : v`.
    unsafe fn zero_where_less(x: Self::V, bound: Self::V, v: Self::V) -> Self::V;
    /// Lane i is `v` where `first <= i < end`, else `other`.
    unsafe fn keep_between(v: Self::V, first: usize, end: usize, other: Self::V) -> Self::V;
    /// Sum of all lanes: halves added to halves (8, 4, 2, 1).
    unsafe fn sum(v: Self::V) -> f32;
    /// Largest lane; a NaN may or may not show.
    unsafe fn largest(v: Self::V) -> f32;
}

/// e^x within 2 ulp; 0 below -87.3, at most 2.4e38. exp(0) is exactly 1. NaN stays NaN.
///
/// Cody & Waite's reduction to |r| <= ln(2)/2 and the Taylor polynomial of degree 7, whose first left-out term is under
/// 6e-9 relative.
///
/// # Safety
/// The set of `S` is available.
#[inline(always)]
pub(crate) unsafe fn exp<S: Lanes>(x: S::V) -> S::V {
    // SAFETY: the caller vouches for the set.
    unsafe {
        let low = S::splat(-87.3);
        let clamped = S::min(S::splat(88.3), S::max(low, x));
        let n = S::round(S::mul(clamped, S::splat(std::f32::consts::LOG2_E)));
        let r = S::fma(n, S::splat(-0.693_359_4), clamped);
        let r = S::fma(n, S::splat(2.121_944_4e-4), r);
        let mut p = S::splat(1.0 / 5040.0);
        for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
            p = S::fma(p, r, S::splat(c));
        }
        S::zero_where_less(x, low, S::scale_by_power(p, n))
    }
}

/// `x * sigmoid(x)`.
///
/// # Safety
/// The set of `S` is available.
#[inline(always)]
pub(crate) unsafe fn silu<S: Lanes>(x: S::V) -> S::V {
    // SAFETY: the caller vouches for the set.
    unsafe {
        let minus = S::sub(S::splat(0.0), x);
        S::div(x, S::add(S::splat(1.0), exp::<S>(minus)))
    }
}

/// `0.5 x (1 + tanh(u))` with `u = sqrt(2/pi) (x + 0.044715 x^3)`, which is `x * sigmoid(2 u)`.
///
/// # Safety
/// The set of `S` is available.
#[inline(always)]
pub(crate) unsafe fn gelu_tanh<S: Lanes>(x: S::V) -> S::V {
    // SAFETY: the caller vouches for the set.
    unsafe {
        // -2 sqrt(2/pi) and 0.044715 times it.
        let inner = S::fma(S::mul(x, x), S::splat(-0.071_354_814), S::splat(-1.595_769_2));
        S::div(x, S::add(S::splat(1.0), exp::<S>(S::mul(inner, x))))
    }
}

/// `cap * tanh(x / cap)` as `cap - 2 cap / (e^(2 x / cap) + 1)`: the absolute error is that of f32 at `cap`.
///
/// # Safety
/// The set of `S` is available.
#[inline(always)]
pub(crate) unsafe fn softcap<S: Lanes>(x: S::V, cap: f32) -> S::V {
    // SAFETY: the caller vouches for the set.
    unsafe {
        let power = exp::<S>(S::mul(x, S::splat(2.0 / cap)));
        let part = S::div(S::splat(2.0 * cap), S::add(power, S::splat(1.0)));
        S::sub(S::splat(cap), part)
    }
}

/// The lanes of an instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Set {
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "aarch64")]
    Neon,
    Portable,
}

impl Set {
    /// What `isa` uses for everything but products. `isa` is available on this machine.
    pub(crate) fn of(isa: Isa) -> Set {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::AmxInt8 | Isa::Avx512Vnni => Set::Avx512,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Set::Avx2,
            #[cfg(not(target_arch = "x86_64"))]
            Isa::AmxInt8 | Isa::Avx512Vnni | Isa::Avx2 => Set::Portable,
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot | Isa::Neon => Set::Neon,
            #[cfg(not(target_arch = "aarch64"))]
            Isa::NeonDot | Isa::Neon => Set::Portable,
            Isa::Portable => Set::Portable,
        }
    }
}

/// Calls `$body::<S>(args)` for S = the lanes of `$set`, with their features enabled.
///
/// # Safety
/// The set is available on this machine, and `$body`'s own contract holds.
macro_rules! dispatch {
    ($set:expr, $body:ident($($name:ident : $type:ty = $arg:expr),* $(,)?)) => {{
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma,f16c")]
        #[allow(clippy::too_many_arguments)]
        unsafe fn avx512($($name: $type),*) {
            // SAFETY: passed on from the caller.
            unsafe { $body::<$crate::lanes::Avx512>($($name),*) }
        }
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        #[allow(clippy::too_many_arguments)]
        unsafe fn avx2($($name: $type),*) {
            // SAFETY: passed on from the caller.
            unsafe { $body::<$crate::lanes::Avx2>($($name),*) }
        }
        match $set {
            #[cfg(target_arch = "x86_64")]
            $crate::lanes::Set::Avx512 => avx512($($arg),*),
            #[cfg(target_arch = "x86_64")]
            $crate::lanes::Set::Avx2 => avx2($($arg),*),
            // NEON is the architecture's baseline: there is nothing to enable.
            #[cfg(target_arch = "aarch64")]
            $crate::lanes::Set::Neon => $body::<$crate::lanes::Neon>($($arg),*),
            $crate::lanes::Set::Portable => $body::<$crate::lanes::Portable>($($arg),*),
        }
    }};
}
pub(crate) use dispatch;
