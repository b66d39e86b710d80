//! IQ4_NL: blocks of 32 indices into a fixed table of 16 values, with an f16 scale. Unit as in Q4_0.

use galvani_graph::Format;

use super::{BlockFormat, Codes, lookup, nibbles};
use crate::pack::{GROUP_BYTES, UnitRows, halves, words};
use crate::simd::Simd;

/// The format.
pub struct Iq4Nl;

const RAW: usize = 18;

/// The table's values (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113) plus 128.
pub(super) const TABLE: [u8; 16] = [
    1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241,
];

impl BlockFormat for Iq4Nl {
    const FORMAT: Format = Format::Iq4Nl;
    const UNIT_BLOCKS: usize = 2;
    const UNIT_BYTES: usize = 64 + 8 * GROUP_BYTES;
    const OFFSET: u8 = 128;
    const SCALES: usize = 1;
    const MIN: bool = false;
    const WIDE: bool = true;

    fn pack(rows: &UnitRows<'_>, out: &mut [u8]) {
        for block in 0..2 {
            halves(rows, block * RAW, &mut out[32 * block..]);
            words(rows, block * RAW + 2, 4, &mut out[64 + 256 * block..]);
        }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(unit: *const u8, block: usize) -> Codes<S> {
        // SAFETY: the caller's contract.
        unsafe { lookup::<S>(&TABLE, nibbles::<S>(unit.add(64 + 256 * block))) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2] {
        // SAFETY: the caller's contract.
        unsafe { [S::f16(unit.add(32 * block)); 2] }
    }
}
