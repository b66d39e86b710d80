//! Q8_0: blocks of 32 int8 with an f16 scale. Unit of two blocks: `[2][16] f16, [2][8 groups]`, codes plus 128.

use galvani_graph::Format;

use super::{BlockFormat, Codes};
use crate::pack::{GROUP_BYTES, UnitRows, halves, words};
use crate::simd::Simd;

/// The format.
pub struct Q8_0;

const RAW: usize = 34;

impl BlockFormat for Q8_0 {
    const FORMAT: Format = Format::Q8_0;
    const UNIT_BLOCKS: usize = 2;
    const UNIT_BYTES: usize = 64 + 16 * GROUP_BYTES;
    const OFFSET: u8 = 128;
    const SCALES: usize = 1;
    const MIN: bool = false;
    const WIDE: bool = true;

    fn pack(rows: &UnitRows<'_>, out: &mut [u8]) {
        let (scales, codes) = out.split_at_mut(64);
        for block in 0..2 {
            halves(rows, block * RAW, &mut scales[32 * block..]);
            words(rows, block * RAW + 2, 8, &mut codes[512 * block..]);
        }
        for code in codes {
            *code ^= 0x80;
        }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(unit: *const u8, block: usize) -> Codes<S> {
        // SAFETY: the caller's contract.
        unsafe {
            let mut codes = [S::splat(0); 8];
            for (g, code) in codes.iter_mut().enumerate() {
                *code = S::load(unit.add(64 + block * 512 + g * GROUP_BYTES));
            }
            codes
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2] {
        // SAFETY: the caller's contract.
        unsafe { [S::f16(unit.add(32 * block)); 2] }
    }
}
