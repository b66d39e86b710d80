//! The sixteen lanes in one 512-bit register (AVX-512 F, BW, VL, DQ, VNNI).

use std::arch::x86_64::*;

use super::Simd;
use crate::pack::BLOCK;
use crate::quantise::{ActTile, scale_and_inverse, write_planes};

/// 512-bit registers.
#[derive(Clone, Copy)]
pub struct Avx512;

// SAFETY of all methods: the trait's contract gives the instructions and valid pointers; loads and stores are unaligned.
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one reason for all, stated above"
)]
impl Simd for Avx512 {
    type B = __m512i;
    type I = __m512i;
    type F = __m512;

    const ROWS_TOGETHER: usize = 4;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut u8, v: __m512i) {
        unsafe { _mm512_storeu_si512(p.cast(), v) }
    }
    #[inline(always)]
    unsafe fn splat(byte: u8) -> __m512i {
        unsafe { _mm512_set1_epi8(byte as i8) }
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn or_masked(a: __m512i, b: __m512i, mask: __m512i) -> __m512i {
        // a | (b & mask) as a truth table of (a, b, mask).
        unsafe { _mm512_ternarylogic_epi32::<0xf8>(a, b, mask) }
    }
    #[inline(always)]
    unsafe fn xor(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_xor_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_sub_epi8(a, b) }
    }
    #[inline(always)]
    unsafe fn shr(v: __m512i, by: u32) -> __m512i {
        unsafe { _mm512_srlv_epi32(v, _mm512_set1_epi32(by as i32)) }
    }
    #[inline(always)]
    unsafe fn shl(v: __m512i, by: u32) -> __m512i {
        unsafe { _mm512_sllv_epi32(v, _mm512_set1_epi32(by as i32)) }
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], index: __m512i) -> __m512i {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, index)
        }
    }
    #[inline(always)]
    unsafe fn zero_i() -> __m512i {
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn dot(acc: __m512i, codes: __m512i, act: *const i8) -> __m512i {
        unsafe { _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(act.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn dot_wide(acc: __m512i, codes: __m512i, act: *const i8) -> __m512i {
        unsafe { Self::dot(acc, codes, act) }
    }
    #[inline(always)]
    unsafe fn splat_shl(p: *const i32, by: u32) -> __m512i {
        unsafe { _mm512_sllv_epi32(_mm512_set1_epi32(*p), _mm512_set1_epi32(by as i32)) }
    }
    #[inline(always)]
    unsafe fn to_f32(v: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(v) }
    }
    #[inline(always)]
    unsafe fn round_i(v: __m512) -> __m512i {
        unsafe { _mm512_cvt_roundps_epi32::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v) }
    }
    #[inline(always)]
    unsafe fn exp2_i(n: __m512i) -> __m512 {
        unsafe {
            let biased = _mm512_add_epi32(n, _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }
    #[inline(always)]
    unsafe fn f16(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> __m512 {
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    unsafe fn u8_f32(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn i8_f32(p: *const u8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn e4m3(p: *const u8) -> __m512 {
        // Moved to f16's places the number is 2^8 too small (bias 15 where 7 is meant).
        unsafe {
            let bits = _mm256_slli_epi16::<7>(_mm256_cvtepu8_epi16(_mm_loadu_si128(p.cast())));
            _mm512_mul_ps(_mm512_cvtph_ps(bits), _mm512_set1_ps(256.0))
        }
    }
    #[inline(always)]
    unsafe fn e8m0_half(p: *const u8) -> __m512 {
        unsafe {
            let e = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            let normal = _mm512_slli_epi32::<23>(_mm512_sub_epi32(e, _mm512_set1_epi32(1)));
            let small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
            let subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x0020_0000), e);
            _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, small, subnormal))
        }
    }
    #[inline(always)]
    unsafe fn nibble_f32(p: *const u8, shift: u32) -> __m512 {
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            let nibbles = _mm512_and_si512(Self::shr(bytes, shift), _mm512_set1_epi32(15));
            _mm512_cvtepi32_ps(nibbles)
        }
    }
    #[inline(always)]
    unsafe fn load_f(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store_f(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn splat_f(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn splat_at(p: *const f32) -> __m512 {
        unsafe { _mm512_set1_ps(*p) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub_f(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}

/// Quantises the 32 numbers at `x` into element `element`; the same bits as the portable way.
///
/// # Safety
/// The machine has AVX-512 (F, BW, VL, DQ); 32 numbers at `x`; the element exists.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
pub(crate) unsafe fn quantise(x: *const f32, tile: &ActTile, element: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let x = [_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(16))];
        let bits = x.map(|v| _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fff_ffff)));
        let largest = f32::from_bits(_mm512_reduce_max_epi32(_mm512_max_epi32(bits[0], bits[1])) as u32);
        let (scale, inverse) = scale_and_inverse(largest);
        let codes = x.map(|v| _mm512_cvtps_epi32(_mm512_mul_ps(v, _mm512_set1_ps(inverse))));
        let out = tile.codes.cast_mut().add(BLOCK * element);
        _mm_storeu_si128(out.cast(), _mm512_cvtsepi32_epi8(codes[0]));
        _mm_storeu_si128(out.add(16).cast(), _mm512_cvtsepi32_epi8(codes[1]));
        let halves = codes.map(|v| _mm512_reduce_add_epi32(v));
        write_planes(tile, element, scale, halves);
    }
}
