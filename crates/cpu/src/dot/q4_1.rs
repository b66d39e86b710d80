//! Q4_1: blocks of 32 4-bit codes with an f16 scale and an f16 constant. Unit of two blocks:
//! `[2] ([16] f16 scale, [16] f16 constant), [2][4 groups]`.

use galvani_graph::Format;

use super::{BlockFormat, Codes, nibbles};
use crate::pack::{GROUP_BYTES, UnitRows, halves, words};
use crate::simd::Simd;

/// The format.
pub struct Q4_1;

const RAW: usize = 20;

impl BlockFormat for Q4_1 {
    const FORMAT: Format = Format::Q4_1;
    const UNIT_BLOCKS: usize = 2;
    const UNIT_BYTES: usize = 128 + 8 * GROUP_BYTES;
    const OFFSET: u8 = 0;
    const SCALES: usize = 1;
    const MIN: bool = true;
    const WIDE: bool = false;

    fn pack(rows: &UnitRows<'_>, out: &mut [u8]) {
        for block in 0..2 {
            halves(rows, block * RAW, &mut out[64 * block..]);
            halves(rows, block * RAW + 2, &mut out[64 * block + 32..]);
            words(rows, block * RAW + 4, 4, &mut out[128 + 256 * block..]);
        }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(unit: *const u8, block: usize) -> Codes<S> {
        // SAFETY: the caller's contract.
        unsafe { nibbles::<S>(unit.add(128 + 256 * block)) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2] {
        // SAFETY: the caller's contract.
        unsafe { [S::f16(unit.add(64 * block)); 2] }
    }

    #[inline(always)]
    unsafe fn mins<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2] {
        // SAFETY: the caller's contract.
        unsafe { [S::f16(unit.add(64 * block + 32)); 2] }
    }
}
