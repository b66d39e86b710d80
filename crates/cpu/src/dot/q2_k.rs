//! Q2_K: 256 2-bit codes; each 16 have a 4-bit scale and a 4-bit constant, times an f16 factor each. Unit:
//! `[16] f16 d, [16] f16 dmin, [16][16] bytes (scale low, constant high), [2][8 groups]`; of each 128 numbers, block j
//! (of four) is at bit 2 j.

use galvani_graph::Format;

use super::{BlockFormat, Codes};
use crate::pack::{GROUP_BYTES, UnitRows, bytes, halves, words};
use crate::simd::Simd;

/// The format.
pub struct Q2K;

const SCALES_AT: usize = 64;
const CODES_AT: usize = SCALES_AT + 16 * 16;

impl BlockFormat for Q2K {
    const FORMAT: Format = Format::Q2K;
    const UNIT_BLOCKS: usize = 8;
    const UNIT_BYTES: usize = CODES_AT + 16 * GROUP_BYTES;
    const OFFSET: u8 = 0;
    const SCALES: usize = 2;
    const MIN: bool = true;
    const WIDE: bool = false;

    fn pack(rows: &UnitRows<'_>, out: &mut [u8]) {
        halves(rows, 80, out);
        halves(rows, 82, &mut out[32..]);
        for s in 0..16 {
            bytes(rows, &mut out[SCALES_AT + 16 * s..], |row| row[s]);
        }
        words(rows, 16, 16, &mut out[CODES_AT..]);
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(unit: *const u8, block: usize) -> Codes<S> {
        let (half, j) = (block / 4, block % 4);
        // SAFETY: the caller's contract.
        unsafe {
            let mask = S::splat(3);
            let mut codes = [mask; 8];
            for (g, code) in codes.iter_mut().enumerate() {
                let raw = S::load(unit.add(CODES_AT + (8 * half + g) * GROUP_BYTES));
                *code = S::and(S::shr(raw, 2 * j as u32), mask);
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
            [
                S::mul(d, S::nibble_f32(at, 0)),
                S::mul(d, S::nibble_f32(at.add(16), 0)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn mins<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let d = S::mul(S::f16(unit.add(32)), S::splat_f(-1.0));
            let at = unit.add(SCALES_AT + 32 * block);
            [
                S::mul(d, S::nibble_f32(at, 4)),
                S::mul(d, S::nibble_f32(at.add(16), 4)),
            ]
        }
    }
}
