//! Q6_K: 256 6-bit codes less 32; each 16 have an int8 scale, times an f16 factor. Unit:
//! `[16] f16, [16][16] i8 scales, [2][8 groups] of upper two bits, [4][8 groups] of lower four`.
//!
//! Of each 128 numbers, block j (of four) has its lower bits in nibble j / 2 of vectors `8 (j % 2) ..` and its upper ones
//! at bit 2 j.

use galvani_graph::Format;

use super::{BlockFormat, Codes, nibble_rows};
use crate::pack::{GROUP_BYTES, UnitRows, bytes, halves, words};
use crate::simd::Simd;

/// The format.
pub struct Q6K;

const SCALES_AT: usize = 32;
const HIGH_AT: usize = SCALES_AT + 16 * 16;
const LOW_AT: usize = HIGH_AT + 16 * GROUP_BYTES;

impl BlockFormat for Q6K {
    const FORMAT: Format = Format::Q6K;
    const UNIT_BLOCKS: usize = 8;
    const UNIT_BYTES: usize = LOW_AT + 32 * GROUP_BYTES;
    const OFFSET: u8 = 32;
    const SCALES: usize = 2;
    const MIN: bool = false;
    const WIDE: bool = false;

    fn pack(rows: &UnitRows<'_>, out: &mut [u8]) {
        halves(rows, 208, out);
        for s in 0..16 {
            bytes(rows, &mut out[SCALES_AT + 16 * s..], |row| row[192 + s]);
        }
        words(rows, 128, 16, &mut out[HIGH_AT..]);
        words(rows, 0, 32, &mut out[LOW_AT..]);
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(unit: *const u8, block: usize) -> Codes<S> {
        let (half, j) = (block / 4, block % 4);
        // SAFETY: the caller's contract.
        unsafe {
            let at = unit.add(LOW_AT + (2 * half + j % 2) * 512);
            let mut codes = nibble_rows::<S>(at, 4 * (j / 2) as u32);
            let mask = S::splat(0x30);
            for (g, code) in codes.iter_mut().enumerate() {
                let bits = S::load(unit.add(HIGH_AT + (8 * half + g) * GROUP_BYTES));
                let moved = if j < 2 {
                    S::shl(bits, 4 - 2 * j as u32)
                } else {
                    S::shr(bits, 2 * j as u32 - 4)
                };
                *code = S::or_masked(*code, moved, mask);
            }
            codes
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let d = S::f16(unit);
            let at = unit.add(SCALES_AT + 32 * block);
            [S::mul(d, S::i8_f32(at)), S::mul(d, S::i8_f32(at.add(16)))]
        }
    }
}
