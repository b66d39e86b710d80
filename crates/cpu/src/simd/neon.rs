//! The sixteen lanes in four 128-bit registers (NEON, which every 64-bit Arm processor has), with the dot-product
//! instructions of Armv8.2 or without them.
//!
//! Instructions whose Rust names are newer than the compiler this workspace asks for (`sdot`, the conversions of half
//! floats, `prfm`) are written as assembly of one instruction each.

#![allow(
    unused_unsafe,
    reason = "which intrinsics are safe to call where NEON is the baseline differs between compilers"
)]

use std::arch::aarch64::*;
use std::arch::asm;

use super::Simd;
use crate::pack::BLOCK;
use crate::quantise::{ActTile, scale_and_inverse, write_planes};

/// Four 128-bit registers; `DOT`: with `sdot`.
#[derive(Clone, Copy)]
pub struct Registers<const DOT: bool>;

/// NEON alone.
pub type Neon = Registers<false>;
/// NEON with the dot-product instructions.
pub type NeonDot = Registers<true>;

type B = [uint8x16_t; 4];
type I = [int32x4_t; 4];
type F = [float32x4_t; 4];

/// Applies an intrinsic to each of the four registers.
macro_rules! each {
    ($f:expr, $($v:expr),+) => {
        // SAFETY: NEON is this architecture's baseline.
        unsafe { [$f($($v[0]),+), $f($($v[1]),+), $f($($v[2]),+), $f($($v[3]),+)] }
    };
}

/// Four half floats, widened exactly.
#[inline(always)]
pub(crate) fn widen_half(half: uint16x4_t) -> float32x4_t {
    let out: float32x4_t;
    // SAFETY: an instruction of the baseline on registers.
    unsafe {
        asm!("fcvtl {out:v}.4s, {half:v}.4h", out = out(vreg) out, half = in(vreg) half,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// Four numbers to half floats, to nearest even.
#[inline(always)]
pub(crate) fn narrow_half(x: float32x4_t) -> uint16x4_t {
    let out: uint16x4_t;
    // SAFETY: an instruction of the baseline on registers.
    unsafe {
        asm!("fcvtn {out:v}.4h, {x:v}.4s", out = out(vreg) out, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    out
}

/// Each lane: `acc + sum of 4 a * b`, bytes with sign.
///
/// # Safety
/// The machine has the dot-product instructions, and the function this ends in is compiled for them.
#[inline(always)]
unsafe fn sdot(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the caller's contract; registers only.
    unsafe {
        asm!("sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b", acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// [`sdot`] by NEON alone. Two products next to each other fit in 16 bits: codes are -128 ..= 127, activations
/// -127 ..= 127 (those of numbers that are not finite may wrap: their scale decides).
#[inline(always)]
fn sdot_plain(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: NEON is this architecture's baseline.
    unsafe {
        let low = vmull_s8(vget_low_s8(a), vget_low_s8(b));
        vpadalq_s16(acc, vpaddq_s16(low, vmull_high_s8(a, b)))
    }
}

impl<const DOT: bool> Registers<DOT> {
    /// Each lane: `acc + sum of 4 codes (with sign) * the 4 bytes at act`.
    ///
    /// # Safety
    /// The contract of [`Simd`]; 4 bytes at `act`.
    #[inline(always)]
    unsafe fn dot_signed(acc: I, codes: [int8x16_t; 4], act: *const i8) -> I {
        // SAFETY: the caller's contract.
        unsafe {
            let act = vreinterpretq_s8_s32(vdupq_n_s32(act.cast::<i32>().read_unaligned()));
            let act = [act; 4];
            if DOT {
                each!(sdot, acc, codes, act)
            } else {
                each!(sdot_plain, acc, codes, act)
            }
        }
    }
}

/// The 16 bytes at `p`, each as 32 bits.
///
/// # Safety
/// 16 bytes at `p`.
#[inline(always)]
unsafe fn widen_u8(p: *const u8) -> [uint32x4_t; 4] {
    // SAFETY: the caller's contract.
    unsafe {
        let bytes = vld1q_u8(p);
        let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
        [
            vmovl_u16(vget_low_u16(low)),
            vmovl_high_u16(low),
            vmovl_u16(vget_low_u16(high)),
            vmovl_high_u16(high),
        ]
    }
}

/// Four groups of four half floats.
///
/// # Safety
/// 32 bytes at `p`.
#[inline(always)]
unsafe fn load_halves(p: *const u8) -> [uint16x4_t; 4] {
    // SAFETY: the caller's contract; bytes need no alignment.
    unsafe {
        let low = vreinterpretq_u16_u8(vld1q_u8(p));
        let high = vreinterpretq_u16_u8(vld1q_u8(p.add(16)));
        [
            vget_low_u16(low),
            vget_high_u16(low),
            vget_low_u16(high),
            vget_high_u16(high),
        ]
    }
}

/// `a < b ? a : b`.
#[inline(always)]
fn smaller(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: NEON is this architecture's baseline.
    unsafe { vbslq_f32(vcltq_f32(a, b), a, b) }
}

/// `a > b ? a : b`.
#[inline(always)]
fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    // SAFETY: NEON is this architecture's baseline.
    unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
}

// SAFETY of all methods: the trait's contract gives the instructions and valid pointers; loads and stores need no more
// alignment than the pointers' types.
#[allow(
    clippy::undocumented_unsafe_blocks,
    reason = "one reason for all, stated above"
)]
impl<const DOT: bool> Simd for Registers<DOT> {
    type B = B;
    type I = I;
    type F = F;

    // A block's codes fill all 32 registers, so each group of them is read again for each row: four rows side by side
    // read it once. Their sums take 16 registers.
    const ROWS_TOGETHER: usize = 4;

    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> B {
        unsafe {
            [
                vld1q_u8(p),
                vld1q_u8(p.add(16)),
                vld1q_u8(p.add(32)),
                vld1q_u8(p.add(48)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut u8, v: B) {
        unsafe {
            vst1q_u8(p, v[0]);
            vst1q_u8(p.add(16), v[1]);
            vst1q_u8(p.add(32), v[2]);
            vst1q_u8(p.add(48), v[3]);
        }
    }
    #[inline(always)]
    unsafe fn splat(byte: u8) -> B {
        unsafe { [vdupq_n_u8(byte); 4] }
    }
    #[inline(always)]
    unsafe fn and(a: B, b: B) -> B {
        each!(vandq_u8, a, b)
    }
    #[inline(always)]
    unsafe fn or_masked(a: B, b: B, mask: B) -> B {
        let b = each!(vandq_u8, b, mask);
        each!(vorrq_u8, a, b)
    }
    #[inline(always)]
    unsafe fn xor(a: B, b: B) -> B {
        each!(veorq_u8, a, b)
    }
    #[inline(always)]
    unsafe fn sub(a: B, b: B) -> B {
        each!(vsubq_u8, a, b)
    }
    #[inline(always)]
    unsafe fn shr(v: B, by: u32) -> B {
        unsafe {
            // A shift by a register goes left; a negative one goes right.
            let by = [vdupq_n_s32(-(by as i32)); 4];
            let v = each!(vreinterpretq_u32_u8, v);
            let moved = each!(vshlq_u32, v, by);
            each!(vreinterpretq_u8_u32, moved)
        }
    }
    #[inline(always)]
    unsafe fn shl(v: B, by: u32) -> B {
        unsafe {
            let by = [vdupq_n_s32(by as i32); 4];
            let v = each!(vreinterpretq_u32_u8, v);
            let moved = each!(vshlq_u32, v, by);
            each!(vreinterpretq_u8_u32, moved)
        }
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], index: B) -> B {
        unsafe {
            let table = [vld1q_u8(table.as_ptr()); 4];
            each!(vqtbl1q_u8, table, index)
        }
    }
    #[inline(always)]
    unsafe fn zero_i() -> I {
        unsafe { [vdupq_n_s32(0); 4] }
    }
    #[inline(always)]
    unsafe fn dot(acc: I, codes: B, act: *const i8) -> I {
        // Codes below 128 are the same numbers with a sign.
        unsafe { Self::dot_signed(acc, each!(vreinterpretq_s8_u8, codes), act) }
    }
    #[inline(always)]
    unsafe fn dot_wide(acc: I, codes: B, act: *const i8) -> I {
        unsafe {
            // Codes less 128, and 128 of each activation: twice 64.
            let most = Self::dot(acc, Self::xor(codes, Self::splat(0x80)), act);
            let rest = Self::dot_signed(Self::zero_i(), [vdupq_n_s8(64); 4], act)[0];
            let rest = [vshlq_n_s32::<1>(rest); 4];
            each!(vaddq_s32, most, rest)
        }
    }
    #[inline(always)]
    unsafe fn splat_shl(p: *const i32, by: u32) -> I {
        unsafe { [vdupq_n_s32(*p << by); 4] }
    }
    #[inline(always)]
    unsafe fn to_f32(v: I) -> F {
        each!(vcvtq_f32_s32, v)
    }
    #[inline(always)]
    unsafe fn round_i(v: F) -> I {
        each!(vcvtnq_s32_f32, v)
    }
    #[inline(always)]
    unsafe fn exp2_i(n: I) -> F {
        unsafe {
            let bias = [vdupq_n_s32(127); 4];
            let biased = each!(vaddq_s32, n, bias);
            let bits = each!(vshlq_n_s32::<23>, biased);
            each!(vreinterpretq_f32_s32, bits)
        }
    }
    #[inline(always)]
    unsafe fn f16(p: *const u8) -> F {
        unsafe {
            let halves = load_halves(p);
            each!(widen_half, halves)
        }
    }
    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> F {
        unsafe {
            let halves = load_halves(p);
            let bits = each!(vshll_n_u16::<16>, halves);
            each!(vreinterpretq_f32_u32, bits)
        }
    }
    #[inline(always)]
    unsafe fn u8_f32(p: *const u8) -> F {
        unsafe {
            let words = widen_u8(p);
            each!(vcvtq_f32_u32, words)
        }
    }
    #[inline(always)]
    unsafe fn i8_f32(p: *const u8) -> F {
        unsafe {
            let bytes = vld1q_s8(p.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            Self::to_f32([
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            ])
        }
    }
    #[inline(always)]
    unsafe fn e4m3(p: *const u8) -> F {
        // Moved to f16's places the number is 2^8 too small (bias 15 where 7 is meant).
        unsafe {
            let bytes = vld1q_u8(p);
            let low = vshll_n_u8::<7>(vget_low_u8(bytes));
            let high = vshll_high_n_u8::<7>(bytes);
            let halves = [
                vget_low_u16(low),
                vget_high_u16(low),
                vget_low_u16(high),
                vget_high_u16(high),
            ];
            Self::mul(each!(widen_half, halves), Self::splat_f(256.0))
        }
    }
    #[inline(always)]
    unsafe fn e8m0_half(p: *const u8) -> F {
        unsafe {
            let e = widen_u8(p);
            let (one, two, tiny) = (vdupq_n_u32(1), vdupq_n_u32(2), vdupq_n_u32(0x0020_0000));
            let half = |e: uint32x4_t| {
                let normal = vshlq_n_u32::<23>(vsubq_u32(e, one));
                let subnormal = vshlq_u32(tiny, vreinterpretq_s32_u32(e));
                vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e, two), subnormal, normal))
            };
            each!(half, e)
        }
    }
    #[inline(always)]
    unsafe fn nibble_f32(p: *const u8, shift: u32) -> F {
        unsafe {
            let (by, mask) = ([vdupq_n_s32(-(shift as i32)); 4], [vdupq_n_u32(15); 4]);
            let words = widen_u8(p);
            let moved = each!(vshlq_u32, words, by);
            let nibbles = each!(vandq_u32, moved, mask);
            each!(vcvtq_f32_u32, nibbles)
        }
    }
    #[inline(always)]
    unsafe fn load_f(p: *const f32) -> F {
        unsafe {
            [
                vld1q_f32(p),
                vld1q_f32(p.add(4)),
                vld1q_f32(p.add(8)),
                vld1q_f32(p.add(12)),
            ]
        }
    }
    #[inline(always)]
    unsafe fn store_f(p: *mut f32, v: F) {
        unsafe {
            vst1q_f32(p, v[0]);
            vst1q_f32(p.add(4), v[1]);
            vst1q_f32(p.add(8), v[2]);
            vst1q_f32(p.add(12), v[3]);
        }
    }
    #[inline(always)]
    unsafe fn splat_f(x: f32) -> F {
        unsafe { [vdupq_n_f32(x); 4] }
    }
    #[inline(always)]
    unsafe fn splat_at(p: *const f32) -> F {
        unsafe { [vld1q_dup_f32(p); 4] }
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        each!(vaddq_f32, a, b)
    }
    #[inline(always)]
    unsafe fn sub_f(a: F, b: F) -> F {
        each!(vsubq_f32, a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        each!(vmulq_f32, a, b)
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        each!(vdivq_f32, a, b)
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        each!(vfmaq_f32, c, a, b)
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        each!(smaller, a, b)
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        each!(larger, a, b)
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(nomem, nostack, preserves_flags)) }
    }
}

/// Quantises the 32 numbers at `x` into element `element`; the same bits as the portable way.
///
/// # Safety
/// 32 numbers at `x`; the element exists and is the caller's to write.
pub(crate) unsafe fn quantise(x: *const f32, tile: &ActTile, element: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        let x = [Neon::load_f(x), Neon::load_f(x.add(16))];
        let mut largest = vdupq_n_u32(0);
        for v in x.as_flattened() {
            let bits = vbicq_u32(vreinterpretq_u32_f32(*v), vdupq_n_u32(0x8000_0000));
            largest = vmaxq_u32(largest, bits);
        }
        let (scale, inverse) = scale_and_inverse(f32::from_bits(vmaxvq_u32(largest)));
        let mut halves = [0; 2];
        for (half, x) in x.into_iter().enumerate() {
            let codes = Neon::round_i(Neon::mul(x, Neon::splat_f(inverse)));
            let low = vqmovn_high_s32(vqmovn_s32(codes[0]), codes[1]);
            let high = vqmovn_high_s32(vqmovn_s32(codes[2]), codes[3]);
            let codes = vqmovn_high_s16(vqmovn_s16(low), high);
            vst1q_s8(tile.codes.cast_mut().add(BLOCK * element + 16 * half), codes);
            halves[half] = i32::from(vaddlvq_s8(codes));
        }
        write_planes(tile, element, scale, halves);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lanes of a dot product, by plain loops and by both kinds of registers.
    fn check<const DOT: bool>(code: impl Fn(usize) -> u8, act: [i8; 4], wide: bool) {
        if DOT && !std::arch::is_aarch64_feature_detected!("dotprod") {
            return;
        }
        #[target_feature(enable = "dotprod")]
        unsafe fn with_dot(codes: &[u8; 64], act: &[i8; 4], wide: bool) -> I {
            // SAFETY: the caller has checked for the instructions.
            unsafe { dot::<true>(codes, act, wide) }
        }
        #[inline(always)]
        unsafe fn dot<const DOT: bool>(codes: &[u8; 64], act: &[i8; 4], wide: bool) -> I {
            // SAFETY: the caller has checked for the instructions; 64 and 4 bytes.
            unsafe {
                let (acc, codes) = ([vdupq_n_s32(-7); 4], Registers::<DOT>::load(codes.as_ptr()));
                if wide {
                    Registers::<DOT>::dot_wide(acc, codes, act.as_ptr())
                } else {
                    Registers::<DOT>::dot(acc, codes, act.as_ptr())
                }
            }
        }
        let codes: [u8; 64] = std::array::from_fn(code);
        // SAFETY: checked above.
        let got = unsafe {
            if DOT {
                with_dot(&codes, &act, wide)
            } else {
                dot::<false>(&codes, &act, wide)
            }
        };
        // SAFETY: both are 64 bytes of plain numbers.
        let got: [i32; 16] = unsafe { std::mem::transmute(got) };
        let product = |lane: usize, i: usize| i32::from(codes[4 * lane + i]) * i32::from(act[i]);
        let wanted = std::array::from_fn(|lane| (0..4).fold(-7, |sum, i| sum + product(lane, i)));
        assert_eq!(got, wanted, "codes {codes:?} act {act:?} dot {DOT} wide {wide}");
    }

    #[test]
    fn dot_products_are_exact_up_to_the_largest_codes() {
        let acts = [[127; 4], [-127; 4], [127, -127, 1, 0], [-3, 64, -65, 127]];
        for act in acts {
            for (code, wide) in [(127, false), (0, false), (255, true), (128, true), (0, true)] {
                check::<false>(|_| code, act, wide);
                check::<true>(|_| code, act, wide);
            }
            check::<false>(|i| (i * 2) as u8, act, false);
            check::<true>(|i| (i * 2) as u8, act, false);
            check::<false>(|i| (i * 37) as u8, act, true);
            check::<true>(|i| (i * 37) as u8, act, true);
        }
    }

    #[test]
    fn every_half_float_widens_and_narrows_exactly() {
        for bits in (0..=u16::MAX).step_by(4) {
            let bits: [u16; 4] = std::array::from_fn(|i| bits + i as u16);
            // SAFETY: four numbers each.
            let (wide, back) = unsafe {
                let wide = widen_half(vld1_u16(bits.as_ptr()));
                let back = narrow_half(wide);
                (
                    std::mem::transmute::<float32x4_t, [f32; 4]>(wide),
                    std::mem::transmute::<uint16x4_t, [u16; 4]>(back),
                )
            };
            for ((&bits, wide), back) in bits.iter().zip(wide).zip(back) {
                let wanted = half::f16::from_bits(bits).to_f32();
                let same = wide.to_bits() == wanted.to_bits() && back == bits;
                assert!(
                    same || (wide.is_nan() && wanted.is_nan()),
                    "{bits:#06x}: {wide} {back:#06x}"
                );
            }
        }
    }
}
