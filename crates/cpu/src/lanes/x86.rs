//! AVX-512 (one register) and AVX2 with FMA and F16C (two registers).

use std::arch::x86_64::*;

use super::Lanes;

/// AVX-512 F, BW, VL, DQ.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx512;

/// AVX2, FMA, F16C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2;

/// Rounding: nearest even, no exceptions.
const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

// SAFETY of every block in this file: the trait's contract (the set is available, pointers hold 16 numbers); all loads
// and stores are of the unaligned kind.

impl Lanes for Avx512 {
    type V = __m512;
    const TILE_VECTORS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: __m512) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(to, v) }
    }

    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store_half(to: *mut u16, v: __m512) {
        // SAFETY: see above.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<NEAREST>(v)) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn round(v: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_roundscale_ps::<NEAREST>(v) }
    }

    #[inline(always)]
    unsafe fn scale_by_power(v: __m512, n: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_scalef_ps(v, n) }
    }

    #[inline(always)]
    unsafe fn zero_where_less(x: __m512, bound: __m512, v: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, bound), v) }
    }

    #[inline(always)]
    unsafe fn keep_between(v: __m512, first: usize, end: usize, other: __m512) -> __m512 {
        let below = |n: usize| if n >= 16 { 0xffff_u16 } else { (1u16 << n) - 1 };
        // SAFETY: see above.
        unsafe { _mm512_mask_mov_ps(other, below(end) & !below(first), v) }
    }

    #[inline(always)]
    unsafe fn sum(v: __m512) -> f32 {
        // SAFETY: see above.
        unsafe {
            let high = _mm512_extractf32x8_ps::<1>(v);
            sum8(_mm256_add_ps(_mm512_castps512_ps256(v), high))
        }
    }

    #[inline(always)]
    unsafe fn largest(v: __m512) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_max_ps(v) }
    }
}

/// Sum of eight lanes, halves to halves.
#[inline(always)]
unsafe fn sum8(v: __m256) -> f32 {
    // SAFETY: both sets of this file have AVX.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
    }
}

/// Applies an intrinsic to both halves.
macro_rules! both {
    ($f:ident, $($v:expr),+) => {
        // SAFETY: see the top of this file.
        unsafe { [$f($($v[0]),+), $f($($v[1]),+)] }
    };
}

impl Lanes for Avx2 {
    type V = [__m256; 2];
    const TILE_VECTORS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        // SAFETY: see above.
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::V {
        // SAFETY: see above.
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::V) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_ps(to, v[0]);
            _mm256_storeu_ps(to.add(8), v[1]);
        }
    }

    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self::V {
        // SAFETY: see above.
        unsafe {
            let low = _mm_loadu_si128(from.cast());
            let high = _mm_loadu_si128(from.add(8).cast());
            [_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)]
        }
    }

    #[inline(always)]
    unsafe fn store_half(to: *mut u16, v: Self::V) {
        // SAFETY: see above.
        unsafe {
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(
                to.add(8).cast(),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]),
            );
        }
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_add_ps, a, b)
    }

    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_sub_ps, a, b)
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_mul_ps, a, b)
    }

    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_div_ps, a, b)
    }

    #[inline(always)]
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        both!(_mm256_fmadd_ps, a, b, c)
    }

    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_max_ps, a, b)
    }

    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        both!(_mm256_min_ps, a, b)
    }

    #[inline(always)]
    unsafe fn round(v: Self::V) -> Self::V {
        // SAFETY: see above.
        unsafe { [_mm256_round_ps::<NEAREST>(v[0]), _mm256_round_ps::<NEAREST>(v[1])] }
    }

    #[inline(always)]
    unsafe fn scale_by_power(v: Self::V, n: Self::V) -> Self::V {
        // SAFETY: see above.
        unsafe {
            let power = |n: __m256| {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
            };
            [_mm256_mul_ps(v[0], power(n[0])), _mm256_mul_ps(v[1], power(n[1]))]
        }
    }

    #[inline(always)]
    unsafe fn zero_where_less(x: Self::V, bound: Self::V, v: Self::V) -> Self::V {
        // SAFETY: see above.
        unsafe {
            let keep = |i: usize| _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x[i], bound[i]), v[i]);
            [keep(0), keep(1)]
        }
    }

    #[inline(always)]
    unsafe fn keep_between(v: Self::V, first: usize, end: usize, other: Self::V) -> Self::V {
        // SAFETY: see above.
        unsafe {
            let half = |i: usize| {
                let lane = _mm256_add_epi32(
                    _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
                    _mm256_set1_epi32(8 * i as i32),
                );
                let from = _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(first as i32 - 1));
                let until = _mm256_cmpgt_epi32(_mm256_set1_epi32(end as i32), lane);
                let keep = _mm256_castsi256_ps(_mm256_and_si256(from, until));
                _mm256_blendv_ps(other[i], v[i], keep)
            };
            [half(0), half(1)]
        }
    }

    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: see above.
        unsafe { sum8(_mm256_add_ps(v[0], v[1])) }
    }

    #[inline(always)]
    unsafe fn largest(v: Self::V) -> f32 {
        // SAFETY: see above.
        unsafe {
            let eight = _mm256_max_ps(v[0], v[1]);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
}
