//! MXFP4 (OCP Microscaling, 2023): blocks of 32 e2m1 numbers with an e8m0 scale. Unit of two blocks:
//! `[2][16] e8m0, [2][4 groups]`. Codes are twice the number plus 16; the scale is halved.

use galvani_graph::Format;

use super::{BlockFormat, Codes, lookup, nibbles};
use crate::pack::{GROUP_BYTES, UnitRows, bytes, words};
use crate::simd::Simd;

/// The format.
pub struct Mxfp4;

const RAW: usize = 17;

/// Twice the values of e2m1 (0, 1/2, 1, 3/2, 2, 3, 4, 6, then their negatives) plus 16.
pub(super) const TABLE: [u8; 16] = [16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4];

impl BlockFormat for Mxfp4 {
    const FORMAT: Format = Format::Mxfp4;
    const UNIT_BLOCKS: usize = 2;
    const UNIT_BYTES: usize = 32 + 8 * GROUP_BYTES;
    const OFFSET: u8 = 16;
    const SCALES: usize = 1;
    const MIN: bool = false;
    const WIDE: bool = false;

    fn pack(rows: &UnitRows<'_>, out: &mut [u8]) {
        for block in 0..2 {
            bytes(rows, &mut out[16 * block..], |row| row[block * RAW]);
            words(rows, block * RAW + 1, 4, &mut out[32 + 256 * block..]);
        }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(unit: *const u8, block: usize) -> Codes<S> {
        // SAFETY: the caller's contract.
        unsafe { lookup::<S>(&TABLE, nibbles::<S>(unit.add(32 + 256 * block))) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2] {
        // SAFETY: the caller's contract.
        unsafe { [S::e8m0_half(unit.add(16 * block)); 2] }
    }
}
