//! The sixteen lanes in two 256-bit registers (AVX2, FMA, F16C).

use std::arch::x86_64::*;

use super::Simd;

/// Pairs of 256-bit registers.
#[derive(Clone, Copy)]
pub struct Avx2;

type B = [__m256i; 2];
type F = [__m256; 2];

#[inline(always)]
fn map<A: Copy, Z>(v: [A; 2], op: impl Fn(A) -> Z) -> [Z; 2] {
    [op(v[0]), op(v[1])]
}

#[inline(always)]
fn zip<A: Copy, Z>(a: [A; 2], b: [A; 2], op: impl Fn(A, A) -> Z) -> [Z; 2] {
    [op(a[0], b[0]), op(a[1], b[1])]
}

// SAFETY of all methods: the trait's contract gives the instructions and valid pointers; loads and stores are unaligned.
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one reason for all, stated above"
)]
impl Simd for Avx2 {
    type B = B;
    type I = B;
    type F = F;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> B {
        unsafe { [_mm256_loadu_si256(p.cast()), _mm256_loadu_si256(p.add(32).cast())] }
    }
    #[inline(always)]
    unsafe fn store(p: *mut u8, v: B) {
        unsafe {
            _mm256_storeu_si256(p.cast(), v[0]);
            _mm256_storeu_si256(p.add(32).cast(), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn splat(byte: u8) -> B {
        unsafe { [_mm256_set1_epi8(byte as i8); 2] }
    }
    #[inline(always)]
    unsafe fn and(a: B, b: B) -> B {
        zip(a, b, |a, b| unsafe { _mm256_and_si256(a, b) })
    }
    #[inline(always)]
    unsafe fn or_masked(a: B, b: B, mask: B) -> B {
        unsafe { zip(a, Self::and(b, mask), |a, b| _mm256_or_si256(a, b)) }
    }
    #[inline(always)]
    unsafe fn xor(a: B, b: B) -> B {
        zip(a, b, |a, b| unsafe { _mm256_xor_si256(a, b) })
    }
    #[inline(always)]
    unsafe fn sub(a: B, b: B) -> B {
        zip(a, b, |a, b| unsafe { _mm256_sub_epi8(a, b) })
    }
    #[inline(always)]
    unsafe fn shr(v: B, by: u32) -> B {
        map(v, |v| unsafe {
            _mm256_srlv_epi32(v, _mm256_set1_epi32(by as i32))
        })
    }
    #[inline(always)]
    unsafe fn shl(v: B, by: u32) -> B {
        map(v, |v| unsafe {
            _mm256_sllv_epi32(v, _mm256_set1_epi32(by as i32))
        })
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], index: B) -> B {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            map(index, |i| _mm256_shuffle_epi8(table, i))
        }
    }
    #[inline(always)]
    unsafe fn zero_i() -> B {
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn dot(acc: B, codes: B, act: *const i8) -> B {
        // Pairs of products are at most 2 * 127 * 127 in magnitude: they fit in 16 bits.
        unsafe {
            let act = _mm256_set1_epi32(act.cast::<i32>().read_unaligned());
            let ones = _mm256_set1_epi16(1);
            zip(acc, codes, |acc, codes| {
                _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, act), ones))
            })
        }
    }
    #[inline(always)]
    unsafe fn dot_wide(acc: B, codes: B, act: *const i8) -> B {
        // The eighth bit apart, so that pairs fit in 16 bits: 2 * 128 * 127 < 2^15.
        unsafe {
            let top = Self::splat(0x80);
            let low = zip(codes, top, |c, t| _mm256_andnot_si256(t, c));
            Self::dot(Self::dot(acc, low, act), Self::and(codes, top), act)
        }
    }
    #[inline(always)]
    unsafe fn splat_shl(p: *const i32, by: u32) -> B {
        unsafe { [_mm256_set1_epi32(*p << by); 2] }
    }
    #[inline(always)]
    unsafe fn to_f32(v: B) -> F {
        map(v, |v| unsafe { _mm256_cvtepi32_ps(v) })
    }
    #[inline(always)]
    unsafe fn round_i(v: F) -> B {
        map(v, |v| unsafe {
            _mm256_cvtps_epi32(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v))
        })
    }
    #[inline(always)]
    unsafe fn exp2_i(n: B) -> F {
        map(n, |n| unsafe {
            let biased = _mm256_add_epi32(n, _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        })
    }
    #[inline(always)]
    unsafe fn f16(p: *const u8) -> F {
        unsafe {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(p.cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(p.add(16).cast())),
            ]
        }
    }
    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> F {
        [0, 16].map(|at| unsafe {
            let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(at).cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits))
        })
    }
    #[inline(always)]
    unsafe fn u8_f32(p: *const u8) -> F {
        [0, 8]
            .map(|at| unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(at).cast()))) })
    }
    #[inline(always)]
    unsafe fn i8_f32(p: *const u8) -> F {
        [0, 8]
            .map(|at| unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(at).cast()))) })
    }
    #[inline(always)]
    unsafe fn e4m3(p: *const u8) -> F {
        // Moved to f16's places the number is 2^8 too small (bias 15 where 7 is meant).
        [0, 8].map(|at| unsafe {
            let bits = _mm_slli_epi16::<7>(_mm_cvtepu8_epi16(_mm_loadl_epi64(p.add(at).cast())));
            _mm256_mul_ps(_mm256_cvtph_ps(bits), _mm256_set1_ps(256.0))
        })
    }
    #[inline(always)]
    unsafe fn e8m0_half(p: *const u8) -> F {
        [0, 8].map(|at| unsafe {
            let e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(at).cast()));
            let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
            let small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
            let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
            _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, small))
        })
    }
    #[inline(always)]
    unsafe fn nibble_f32(p: *const u8, shift: u32) -> F {
        [0, 8].map(|at| unsafe {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(at).cast()));
            let moved = _mm256_srlv_epi32(bytes, _mm256_set1_epi32(shift as i32));
            _mm256_cvtepi32_ps(_mm256_and_si256(moved, _mm256_set1_epi32(15)))
        })
    }
    #[inline(always)]
    unsafe fn load_f(p: *const f32) -> F {
        unsafe { [_mm256_loadu_ps(p), _mm256_loadu_ps(p.add(8))] }
    }
    #[inline(always)]
    unsafe fn store_f(p: *mut f32, v: F) {
        unsafe {
            _mm256_storeu_ps(p, v[0]);
            _mm256_storeu_ps(p.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn splat_f(x: f32) -> F {
        unsafe { [_mm256_set1_ps(x); 2] }
    }
    #[inline(always)]
    unsafe fn splat_at(p: *const f32) -> F {
        unsafe { [_mm256_set1_ps(*p); 2] }
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        zip(a, b, |a, b| unsafe { _mm256_add_ps(a, b) })
    }
    #[inline(always)]
    unsafe fn sub_f(a: F, b: F) -> F {
        zip(a, b, |a, b| unsafe { _mm256_sub_ps(a, b) })
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        zip(a, b, |a, b| unsafe { _mm256_mul_ps(a, b) })
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        zip(a, b, |a, b| unsafe { _mm256_div_ps(a, b) })
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        unsafe {
            [
                _mm256_fmadd_ps(a[0], b[0], c[0]),
                _mm256_fmadd_ps(a[1], b[1], c[1]),
            ]
        }
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        zip(a, b, |a, b| unsafe { _mm256_min_ps(a, b) })
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        zip(a, b, |a, b| unsafe { _mm256_max_ps(a, b) })
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}
