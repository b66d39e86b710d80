//! Q3_K: 256 3-bit codes less 4; each 16 have a 6-bit scale less 32, times an f16 factor. Unit:
//! `[16] f16, [16][16] i8 scales, [8 groups] of third bits, [2][8 groups] of lower two`.
//!
//! Of each 128 numbers, block j (of four) has its lower bits at bit 2 j; block b of all eight has its third bit at bit b.

use galvani_graph::Format;

use super::{BlockFormat, Codes, add_bit};
use crate::pack::{GROUP_BYTES, UnitRows, bytes, halves, words};
use crate::simd::Simd;

/// The format.
pub struct Q3K;

const SCALES_AT: usize = 32;
const HIGH_AT: usize = SCALES_AT + 16 * 16;
const LOW_AT: usize = HIGH_AT + 8 * GROUP_BYTES;

impl BlockFormat for Q3K {
    const FORMAT: Format = Format::Q3K;
    const UNIT_BLOCKS: usize = 8;
    const UNIT_BYTES: usize = LOW_AT + 16 * GROUP_BYTES;
    const OFFSET: u8 = 4;
    const SCALES: usize = 2;
    const MIN: bool = false;
    const WIDE: bool = false;

    fn pack(rows: &UnitRows<'_>, out: &mut [u8]) {
        halves(rows, 108, out);
        for s in 0..16 {
            bytes(rows, &mut out[SCALES_AT + 16 * s..], |row| {
                let low = (row[96 + s % 8] >> (4 * (s / 8))) & 15;
                let high = (row[104 + s % 4] >> (2 * (s / 4))) & 3;
                (low | high << 4).wrapping_sub(32)
            });
        }
        words(rows, 0, 8, &mut out[HIGH_AT..]);
        words(rows, 32, 16, &mut out[LOW_AT..]);
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(unit: *const u8, block: usize) -> Codes<S> {
        let (half, j) = (block / 4, block % 4);
        // SAFETY: the caller's contract.
        unsafe {
            let mask = S::splat(3);
            let mut codes = [mask; 8];
            for (g, code) in codes.iter_mut().enumerate() {
                let low = S::load(unit.add(LOW_AT + (8 * half + g) * GROUP_BYTES));
                let low = S::and(S::shr(low, 2 * j as u32), mask);
                let bits = S::load(unit.add(HIGH_AT + g * GROUP_BYTES));
                *code = add_bit::<S>(low, bits, block as u32, 2);
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
