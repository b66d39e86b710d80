//! The sixteen lanes in plain Rust: loops of fixed length, which the compiler vectorises for the target's baseline.

use half::{bf16, f16};

use super::Simd;

/// Plain arrays.
#[derive(Clone, Copy)]
pub struct Lanes;

type F = [f32; 16];

#[inline(always)]
fn words(v: [u8; 64], op: impl Fn(u32) -> u32) -> [u8; 64] {
    let mut out = v;
    for word in out.as_chunks_mut::<4>().0 {
        *word = op(u32::from_le_bytes(*word)).to_le_bytes();
    }
    out
}

#[inline(always)]
unsafe fn map_bytes(p: *const u8, op: impl Fn(u8) -> f32) -> F {
    // SAFETY: the caller's `p` has 16 bytes.
    let bytes = unsafe { p.cast::<[u8; 16]>().read_unaligned() };
    bytes.map(op)
}

#[inline(always)]
fn zip(a: F, b: F, op: impl Fn(f32, f32) -> f32) -> F {
    std::array::from_fn(|i| op(a[i], b[i]))
}

#[inline(always)]
unsafe fn dot(acc: [i32; 16], codes: [u8; 64], act: *const i8) -> [i32; 16] {
    // SAFETY: the caller's `act` has 4 bytes.
    let act = unsafe { act.cast::<[i8; 4]>().read_unaligned() }.map(i32::from);
    std::array::from_fn(|lane| {
        let code = |i: usize| i32::from(codes[4 * lane + i]);
        acc[lane] + code(0) * act[0] + code(1) * act[1] + code(2) * act[2] + code(3) * act[3]
    })
}

// SAFETY of all methods: plain Rust; pointers are valid by the trait's contract.
impl Simd for Lanes {
    type B = [u8; 64];
    type I = [i32; 16];
    type F = F;

    const ROWS_TOGETHER: usize = 1;

    #[inline(always)]
    unsafe fn load(p: *const u8) -> Self::B {
        // SAFETY: see above.
        unsafe { p.cast::<Self::B>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(p: *mut u8, v: Self::B) {
        // SAFETY: see above.
        unsafe { p.cast::<Self::B>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn splat(byte: u8) -> Self::B {
        [byte; 64]
    }
    #[inline(always)]
    unsafe fn and(a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] & b[i])
    }
    #[inline(always)]
    unsafe fn or_masked(a: Self::B, b: Self::B, mask: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] | (b[i] & mask[i]))
    }
    #[inline(always)]
    unsafe fn xor(a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] ^ b[i])
    }
    #[inline(always)]
    unsafe fn sub(a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i].wrapping_sub(b[i]))
    }
    #[inline(always)]
    unsafe fn shr(v: Self::B, by: u32) -> Self::B {
        words(v, |w| w >> by)
    }
    #[inline(always)]
    unsafe fn shl(v: Self::B, by: u32) -> Self::B {
        words(v, |w| w << by)
    }
    #[inline(always)]
    unsafe fn lookup(table: &[u8; 16], index: Self::B) -> Self::B {
        index.map(|i| table[usize::from(i & 15)])
    }
    #[inline(always)]
    unsafe fn zero_i() -> Self::I {
        [0; 16]
    }
    #[inline(always)]
    unsafe fn dot(acc: Self::I, codes: Self::B, act: *const i8) -> Self::I {
        // SAFETY: see above.
        unsafe { dot(acc, codes, act) }
    }
    #[inline(always)]
    unsafe fn dot_wide(acc: Self::I, codes: Self::B, act: *const i8) -> Self::I {
        // SAFETY: see above.
        unsafe { dot(acc, codes, act) }
    }
    #[inline(always)]
    unsafe fn splat_shl(p: *const i32, by: u32) -> Self::I {
        // SAFETY: see above.
        [unsafe { *p } << by; 16]
    }
    #[inline(always)]
    unsafe fn to_f32(v: Self::I) -> F {
        v.map(|x| x as f32)
    }
    #[inline(always)]
    unsafe fn round_i(v: F) -> Self::I {
        v.map(|x| x.round_ties_even() as i32)
    }
    #[inline(always)]
    unsafe fn exp2_i(n: Self::I) -> F {
        n.map(|n| f32::from_bits(((n + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn f16(p: *const u8) -> F {
        // SAFETY: see above.
        let bits = unsafe { p.cast::<[u16; 16]>().read_unaligned() };
        bits.map(|b| f16::from_bits(u16::from_le(b)).to_f32())
    }
    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> F {
        // SAFETY: see above.
        let bits = unsafe { p.cast::<[u16; 16]>().read_unaligned() };
        bits.map(|b| bf16::from_bits(u16::from_le(b)).to_f32())
    }
    #[inline(always)]
    unsafe fn u8_f32(p: *const u8) -> F {
        // SAFETY: see above.
        unsafe { map_bytes(p, f32::from) }
    }
    #[inline(always)]
    unsafe fn i8_f32(p: *const u8) -> F {
        // SAFETY: see above.
        unsafe { map_bytes(p, |b| f32::from(b as i8)) }
    }
    #[inline(always)]
    unsafe fn e4m3(p: *const u8) -> F {
        // The bits of e4m3 moved to f16's places have f16's bias of 15 where 7 is meant: 2^8 too small.
        // SAFETY: see above.
        unsafe { map_bytes(p, |b| f16::from_bits(u16::from(b) << 7).to_f32() * 256.0) }
    }
    #[inline(always)]
    unsafe fn e8m0_half(p: *const u8) -> F {
        // SAFETY: see above.
        unsafe {
            map_bytes(p, |e| {
                f32::from_bits(if e < 2 {
                    0x0020_0000 << e
                } else {
                    (u32::from(e) - 1) << 23
                })
            })
        }
    }
    #[inline(always)]
    unsafe fn nibble_f32(p: *const u8, shift: u32) -> F {
        // SAFETY: see above.
        unsafe { map_bytes(p, |b| f32::from((b >> shift) & 15)) }
    }
    #[inline(always)]
    unsafe fn load_f(p: *const f32) -> F {
        // SAFETY: see above.
        unsafe { p.cast::<F>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_f(p: *mut f32, v: F) {
        // SAFETY: see above.
        unsafe { p.cast::<F>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn splat_f(x: f32) -> F {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn splat_at(p: *const f32) -> F {
        // SAFETY: see above.
        [unsafe { *p }; 16]
    }
    #[inline(always)]
    unsafe fn add(a: F, b: F) -> F {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub_f(a: F, b: F) -> F {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: F, b: F) -> F {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: F, b: F) -> F {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, c: F) -> F {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn min(a: F, b: F) -> F {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn max(a: F, b: F) -> F {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}
}
