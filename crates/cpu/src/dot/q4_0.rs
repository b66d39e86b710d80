//! Q4_0: blocks of 32 4-bit codes less 8, with an f16 scale. Unit of two blocks: `[2][16] f16, [2][4 groups]`.

use galvani_graph::Format;

use super::{BlockFormat, Codes, nibbles};
use crate::pack::{GROUP_BYTES, UnitRows, halves, words};
use crate::simd::Simd;

/// The format.
pub struct Q4_0;

const RAW: usize = 18;

impl BlockFormat for Q4_0 {
    const FORMAT: Format = Format::Q4_0;
    const UNIT_BLOCKS: usize = 2;
    const UNIT_BYTES: usize = 64 + 8 * GROUP_BYTES;
    const OFFSET: u8 = 8;
    const SCALES: usize = 1;
    const MIN: bool = false;
    const WIDE: bool = false;

    fn pack(rows: &UnitRows<'_>, out: &mut [u8]) {
        for block in 0..2 {
            halves(rows, block * RAW, &mut out[32 * block..]);
            words(rows, block * RAW + 2, 4, &mut out[64 + 256 * block..]);
        }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(unit: *const u8, block: usize) -> Codes<S> {
        // SAFETY: the caller's contract.
        unsafe { nibbles::<S>(unit.add(64 + 256 * block)) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2] {
        // SAFETY: the caller's contract.
        unsafe { [S::f16(unit.add(32 * block)); 2] }
    }
}
