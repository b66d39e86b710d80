//! The sixteen lanes in two 256-bit registers (AVX2, FMA, F16C).

use std::arch::x86_64::*;

use super::Simd;

/// Pairs of 256-bit registers.
#[derive(Clone, Copy)]
pub struct Avx2;

type B = [__m256i; 2];
type F = [__m256; 2];

// SAFETY of all methods: the trait's contract gives the instructions and valid pointers; loads and stores are unaligned.
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one reason for all, stated above"
)]
impl Simd for Avx2 {
    type B = B;
    type I = B;
    type F = F;

    const ROWS_TOGETHER: usize = 1;

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
        unsafe { [_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn or_masked(a: B, b: B, mask: B) -> B {
        unsafe {
            let b = Self::and(b, mask);
            [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])]
        }
    }
    #[inline(always)]
    unsafe fn xor(a: B, b: B) -> B {
        unsafe { [_mm256_xor_si256(a[0], b[0]), _mm256_xor_si256(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn sub(a: B, b: B) -> B {
        unsafe { [_mm256_sub_epi8(a[0], b[0]), _mm256_sub_epi8(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn shr(v: B, by: u32) -> B {
        unsafe {
            let by = _mm256_set1_epi32(by as i32);
            [_mm256_srlv_epi32(v[0], by), _mm256_srlv_epi32(v[1], by)]
        }
    }
    #[inline(always)]
    unsafe fn shl(v: B, by: u32) -> B {
        unsafe {
            let by = _mm256_set1_epi32(by as i32);
            [_mm256_sllv_epi32(v[0], by), _mm256_sllv_epi32(v[1], by)]
        }
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], index: B) -> B {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            [
                _mm256_shuffle_epi8(table, index[0]),
                _mm256_shuffle_epi8(table, index[1]),
            ]
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
            let low = _mm256_madd_epi16(_mm256_maddubs_epi16(codes[0], act), ones);
            let high = _mm256_madd_epi16(_mm256_maddubs_epi16(codes[1], act), ones);
            [_mm256_add_epi32(acc[0], low), _mm256_add_epi32(acc[1], high)]
        }
    }
    #[inline(always)]
    unsafe fn dot_wide(acc: B, codes: B, act: *const i8) -> B {
        // The eighth bit apart, so that pairs fit in 16 bits: 2 * 128 * 127 < 2^15.
        unsafe {
            let top = Self::splat(0x80);
            let low = [
                _mm256_andnot_si256(top[0], codes[0]),
                _mm256_andnot_si256(top[1], codes[1]),
            ];
            Self::dot(Self::dot(acc, low, act), Self::and(codes, top), act)
        }
    }
    #[inline(always)]
    unsafe fn splat_shl(p: *const i32, by: u32) -> B {
        unsafe { [_mm256_set1_epi32(*p << by); 2] }
    }
    #[inline(always)]
    unsafe fn to_f32(v: B) -> F {
        unsafe { [_mm256_cvtepi32_ps(v[0]), _mm256_cvtepi32_ps(v[1])] }
    }
    #[inline(always)]
    unsafe fn round_i(v: F) -> B {
        // The default rounding mode, which nobody changes here, is to nearest even.
        unsafe { [_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1])] }
    }
    #[inline(always)]
    unsafe fn exp2_i(n: B) -> F {
        unsafe {
            let bias = _mm256_set1_epi32(127);
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n[0], bias))),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n[1], bias))),
            ]
        }
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
        unsafe {
            let mut out = [_mm256_setzero_ps(); 2];
            for (i, out) in out.iter_mut().enumerate() {
                let at = 16 * i;
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(at).cast()));
                *out = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn u8_f32(p: *const u8) -> F {
        unsafe {
            let mut out = [_mm256_setzero_ps(); 2];
            for (i, out) in out.iter_mut().enumerate() {
                *out = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(8 * i).cast())));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn i8_f32(p: *const u8) -> F {
        unsafe {
            let mut out = [_mm256_setzero_ps(); 2];
            for (i, out) in out.iter_mut().enumerate() {
                *out = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.add(8 * i).cast())));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn e4m3(p: *const u8) -> F {
        // Moved to f16's places the number is 2^8 too small (bias 15 where 7 is meant).
        unsafe {
            let mut out = [_mm256_setzero_ps(); 2];
            for (i, out) in out.iter_mut().enumerate() {
                let at = 8 * i;
                let bits = _mm_slli_epi16::<7>(_mm_cvtepu8_epi16(_mm_loadl_epi64(p.add(at).cast())));
                *out = _mm256_mul_ps(_mm256_cvtph_ps(bits), _mm256_set1_ps(256.0));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn e8m0_half(p: *const u8) -> F {
        unsafe {
            let mut out = [_mm256_setzero_ps(); 2];
            for (i, out) in out.iter_mut().enumerate() {
                let at = 8 * i;
                let e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(at).cast()));
                let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, _mm256_set1_epi32(1)));
                let small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
                let subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
                *out = _mm256_castsi256_ps(_mm256_blendv_epi8(normal, subnormal, small));
            }
            out
        }
    }
    #[inline(always)]
    unsafe fn nibble_f32(p: *const u8, shift: u32) -> F {
        unsafe {
            let mut out = [_mm256_setzero_ps(); 2];
            for (i, out) in out.iter_mut().enumerate() {
                let at = 8 * i;
                let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(at).cast()));
                let moved = _mm256_srlv_epi32(bytes, _mm256_set1_epi32(shift as i32));
                *out = _mm256_cvtepi32_ps(_mm256_and_si256(moved, _mm256_set1_epi32(15)));
            }
            out
        }
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
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn sub_f(a: F, b: F) -> F {
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
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
        unsafe { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}
