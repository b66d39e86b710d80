//! NEON: four 128-bit registers.

#![allow(
    unused_unsafe,
    reason = "which intrinsics are safe to call where NEON is the baseline differs between compilers"
)]

use std::arch::aarch64::*;

use super::Lanes;
use crate::simd::neon::{narrow_half, widen_half};

/// NEON with fused products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Neon;

type V = [float32x4_t; 4];

// SAFETY of every block in this file: NEON is this architecture's baseline; pointers hold 16 numbers by the trait's
// contract, and loads and stores need no more than their types' alignment.

/// Applies an intrinsic to each of the four registers.
macro_rules! each {
    ($f:expr, $($v:expr),+) => {
        // SAFETY: see the top of this file.
        unsafe { [$f($($v[0]),+), $f($($v[1]),+), $f($($v[2]),+), $f($($v[3]),+)] }
    };
}

impl Lanes for Neon {
    type V = V;
    // Six rows of one vector: 24 registers of sums, four of the other operand.
    const TILE_VECTORS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> V {
        // SAFETY: see above.
        unsafe { [vdupq_n_f32(x); 4] }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> V {
        // SAFETY: see above.
        unsafe {
            [
                vld1q_f32(from),
                vld1q_f32(from.add(4)),
                vld1q_f32(from.add(8)),
                vld1q_f32(from.add(12)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: V) {
        // SAFETY: see above.
        unsafe {
            vst1q_f32(to, v[0]);
            vst1q_f32(to.add(4), v[1]);
            vst1q_f32(to.add(8), v[2]);
            vst1q_f32(to.add(12), v[3]);
        }
    }

    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> V {
        // SAFETY: see above.
        unsafe {
            let (low, high) = (vld1q_u16(from), vld1q_u16(from.add(8)));
            [
                widen_half(vget_low_u16(low)),
                widen_half(vget_high_u16(low)),
                widen_half(vget_low_u16(high)),
                widen_half(vget_high_u16(high)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn store_half(to: *mut u16, v: V) {
        let halves = each!(narrow_half, v);
        // SAFETY: see above.
        unsafe {
            vst1q_u16(to, vcombine_u16(halves[0], halves[1]));
            vst1q_u16(to.add(8), vcombine_u16(halves[2], halves[3]));
        }
    }

    #[inline(always)]
    unsafe fn add(a: V, b: V) -> V {
        each!(vaddq_f32, a, b)
    }

    #[inline(always)]
    unsafe fn sub(a: V, b: V) -> V {
        each!(vsubq_f32, a, b)
    }

    #[inline(always)]
    unsafe fn mul(a: V, b: V) -> V {
        each!(vmulq_f32, a, b)
    }

    #[inline(always)]
    unsafe fn div(a: V, b: V) -> V {
        each!(vdivq_f32, a, b)
    }

    #[inline(always)]
    unsafe fn fma(a: V, b: V, c: V) -> V {
        each!(vfmaq_f32, c, a, b)
    }

    #[inline(always)]
    unsafe fn max(a: V, b: V) -> V {
        // Not `fmax`, which prefers a NaN on either side.
        let first = each!(vcgtq_f32, a, b);
        each!(vbslq_f32, first, a, b)
    }

    #[inline(always)]
    unsafe fn min(a: V, b: V) -> V {
        let first = each!(vcltq_f32, a, b);
        each!(vbslq_f32, first, a, b)
    }

    #[inline(always)]
    unsafe fn round(v: V) -> V {
        each!(vrndnq_f32, v)
    }

    #[inline(always)]
    unsafe fn scale_by_power(v: V, n: V) -> V {
        // SAFETY: see above.
        let bias = unsafe { [vdupq_n_s32(127); 4] };
        let n = each!(vcvtq_s32_f32, n);
        let biased = each!(vaddq_s32, n, bias);
        let bits = each!(vshlq_n_s32::<23>, biased);
        let power = each!(vreinterpretq_f32_s32, bits);
        each!(vmulq_f32, v, power)
    }

    #[inline(always)]
    unsafe fn zero_where_less(x: V, bound: V, v: V) -> V {
        let less = each!(vcltq_f32, x, bound);
        let bits = each!(vreinterpretq_u32_f32, v);
        let kept = each!(vbicq_u32, bits, less);
        each!(vreinterpretq_f32_u32, kept)
    }

    #[inline(always)]
    unsafe fn keep_between(v: V, first: usize, end: usize, other: V) -> V {
        const LANE: [[u32; 4]; 4] = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]];
        // SAFETY: see above.
        unsafe {
            let first = vdupq_n_u32(first as u32);
            let end = vdupq_n_u32(end as u32);
            let piece = |i: usize| {
                let lane = vld1q_u32(LANE[i].as_ptr());
                let keep = vandq_u32(vcgeq_u32(lane, first), vcltq_u32(lane, end));
                vbslq_f32(keep, v[i], other[i])
            };
            [piece(0), piece(1), piece(2), piece(3)]
        }
    }

    #[inline(always)]
    unsafe fn sum(v: V) -> f32 {
        // SAFETY: see above.
        unsafe {
            let four = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }

    #[inline(always)]
    unsafe fn largest(v: V) -> f32 {
        // SAFETY: see above.
        unsafe { vmaxnmvq_f32(vmaxnmq_f32(vmaxnmq_f32(v[0], v[1]), vmaxnmq_f32(v[2], v[3]))) }
    }
}
