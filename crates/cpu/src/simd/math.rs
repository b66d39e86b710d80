//! Functions of whole vectors. They are the same sequence of rounded steps on every implementation, so that all give
//! the same bits.

use galvani_graph::Activation;

use super::Simd;

/// `e^x`, within 2 units in the last place for x in -87 ..= 88; 0-ish below, `e^88` above; not a number stays so.
///
/// `e^x = 2^n e^r` with `n = round(x / ln 2)`, `|r| <= ln 2 / 2`; `e^r` by its Taylor series to the seventh power
/// (remainder below 2^-27 on that interval).
///
/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
pub unsafe fn exp<S: Simd>(x: S::F) -> S::F {
    // ln 2 in two parts, the first with few enough bits that n * HIGH is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const COEFFICIENTS: [f32; 6] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5];
    // SAFETY: the caller's contract.
    unsafe {
        // `max` and `min` give their second operand when one is not a number: x goes second.
        let x = S::min(S::splat_f(88.0), S::max(S::splat_f(-87.0), x));
        let n = S::round_i(S::mul(x, S::splat_f(std::f32::consts::LOG2_E)));
        let nf = S::to_f32(n);
        let r = S::fma(nf, S::splat_f(-LN2_HIGH), x);
        let r = S::fma(nf, S::splat_f(-LN2_LOW), r);
        let mut p = S::splat_f(COEFFICIENTS[0]);
        for c in &COEFFICIENTS[1..] {
            p = S::fma(p, r, S::splat_f(*c));
        }
        p = S::fma(p, r, S::splat_f(1.0));
        p = S::fma(p, r, S::splat_f(1.0));
        S::mul(p, S::exp2_i(n))
    }
}

/// An activation function.
///
/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
pub unsafe fn activate<S: Simd>(activation: Activation, x: S::F) -> S::F {
    // SAFETY: the caller's contract.
    unsafe {
        // Both are x * sigmoid(y) = x / (1 + e^-y).
        let y = match activation {
            Activation::Silu => x,
            // 0.5 (1 + tanh u) = sigmoid(2 u).
            Activation::GeluTanh => {
                let cube = S::mul(S::mul(x, x), x);
                let u = S::fma(S::splat_f(0.044_715), cube, x);
                S::mul(S::splat_f(2.0 * 0.797_884_6), u)
            }
        };
        let e = exp::<S>(S::sub_f(S::splat_f(0.0), y));
        S::div(x, S::add(S::splat_f(1.0), e))
    }
}
