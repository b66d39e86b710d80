//! The vocabulary of the kernels: sixteen lanes of 32 bits (64 bytes), whatever registers hold them.
//!
//! Kernels and format files are written once over [`Simd`]. Every method is `unsafe` for one reason: it may only run on
//! a machine with the implementation's instructions, inside a function compiled for them (all are `inline(always)`, the
//! outermost kernel carries the `target_feature`). Pointers must be valid for what the method's comment says it reads.

#![allow(clippy::missing_safety_doc, reason = "one contract for all, stated above")]

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
pub mod lanes;
pub mod math;
#[cfg(target_arch = "aarch64")]
pub mod neon;

/// One implementation of the sixteen lanes.
pub trait Simd: Copy {
    /// 64 bytes.
    type B: Copy;
    /// 16 x i32.
    type I: Copy;
    /// 16 x f32.
    type F: Copy;

    /// Rows whose integer products run side by side: as many as the registers hold beside codes and sums. Each product
    /// is a chain of dependent instructions, too long for out-of-order execution to overlap with the next row's.
    const ROWS_TOGETHER: usize;

    /// Whether [`Simd::dot`] reads codes as bytes with a sign, which below 128 is the same. Codes that are all to be
    /// lessened by 128 may then be given to it with their top bit turned.
    const SIGNED: bool = false;

    /// 64 bytes at `p`.
    unsafe fn load(p: *const u8) -> Self::B;
    /// Writes 64 bytes.
    unsafe fn store(p: *mut u8, v: Self::B);
    /// The same byte everywhere.
    unsafe fn splat(byte: u8) -> Self::B;
    /// Bitwise and.
    unsafe fn and(a: Self::B, b: Self::B) -> Self::B;
    /// `a | (b & mask)`.
    unsafe fn or_masked(a: Self::B, b: Self::B, mask: Self::B) -> Self::B;
    /// Bitwise exclusive or.
    unsafe fn xor(a: Self::B, b: Self::B) -> Self::B;
    /// Bytes a - b, wrapping.
    unsafe fn sub(a: Self::B, b: Self::B) -> Self::B;
    /// Each 32-bit lane shifted right; bits that cross bytes are the caller's to mask.
    unsafe fn shr(v: Self::B, by: u32) -> Self::B;
    /// Each 32-bit lane shifted left.
    unsafe fn shl(v: Self::B, by: u32) -> Self::B;
    /// `table[index]` for each byte; indices below 16.
    unsafe fn lookup(table: &[u8; 16], index: Self::B) -> Self::B;

    /// Zero lanes.
    unsafe fn zero_i() -> Self::I;
    /// Each lane: `acc + sum of 4 (codes as u8) * (the 4 bytes at act as i8)`. Codes below 128.
    unsafe fn dot(acc: Self::I, codes: Self::B, act: *const i8) -> Self::I;
    /// [`Simd::dot`] for codes of any value.
    unsafe fn dot_wide(acc: Self::I, codes: Self::B, act: *const i8) -> Self::I;
    /// The i32 at `p`, shifted left, in all lanes.
    unsafe fn splat_shl(p: *const i32, by: u32) -> Self::I;
    /// To f32 (rounds to nearest even where a number needs more than 24 bits).
    unsafe fn to_f32(v: Self::I) -> Self::F;
    /// To i32, rounding to nearest even.
    unsafe fn round_i(v: Self::F) -> Self::I;
    /// `2^n` for n in -126 ..= 127.
    unsafe fn exp2_i(n: Self::I) -> Self::F;

    /// 16 f16 at `p`.
    unsafe fn f16(p: *const u8) -> Self::F;
    /// 16 bf16 at `p`.
    unsafe fn bf16(p: *const u8) -> Self::F;
    /// 16 unsigned bytes at `p`.
    unsafe fn u8_f32(p: *const u8) -> Self::F;
    /// 16 signed bytes at `p`.
    unsafe fn i8_f32(p: *const u8) -> Self::F;
    /// 16 bytes e4m3 without sign at `p`; 0x7f counts as the number 480.
    unsafe fn e4m3(p: *const u8) -> Self::F;
    /// 16 bytes e8m0 at `p`: half of `2^(e - 127)`.
    unsafe fn e8m0_half(p: *const u8) -> Self::F;
    /// 16 unsigned bytes at `p`, `(byte >> shift) & 15`.
    unsafe fn nibble_f32(p: *const u8, shift: u32) -> Self::F;

    /// 16 f32 at `p`.
    unsafe fn load_f(p: *const f32) -> Self::F;
    /// Writes 16 f32.
    unsafe fn store_f(p: *mut f32, v: Self::F);
    /// The same number in all lanes.
    unsafe fn splat_f(x: f32) -> Self::F;
    /// The number at `p` in all lanes.
    unsafe fn splat_at(p: *const f32) -> Self::F;
    /// a + b.
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    /// a - b.
    unsafe fn sub_f(a: Self::F, b: Self::F) -> Self::F;
    /// a * b.
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    /// a / b.
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    /// a * b + c, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The smaller; b where either is not a number.
    unsafe fn min(a: Self::F, b: Self::F) -> Self::F;
    /// The larger; b where either is not a number.
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;

    /// Asks for the cache line at `p`, which may lie outside any buffer.
    unsafe fn prefetch(p: *const u8);
}
