//! NVFP4: e2m1 numbers with an unsigned e4m3 scale for each 16. Unit of 64 numbers: `[4][16] e4m3, [2][4 groups]`.
//! Codes are twice the number plus 16; the scale is halved. The byte 0x7f is a
//! scale of zero; otherwise the top bit is ignored.
//!
//! A sub-block of 16 keeps number j in the low and j + 8 in the high nibble of byte j, so vector 2 s holds groups
//! 4 s and 4 s + 2 of its block, vector 2 s + 1 groups 4 s + 1 and 4 s + 3.

use galvani_graph::Format;

use super::mxfp4::TABLE;
use super::{BlockFormat, Codes, lookup, nibbles};
use crate::pack::{GROUP_BYTES, UnitRows, bytes, words};
use crate::simd::Simd;

/// The format.
pub struct Nvfp4;

impl BlockFormat for Nvfp4 {
    const FORMAT: Format = Format::Nvfp4;
    const UNIT_BLOCKS: usize = 2;
    const UNIT_BYTES: usize = 64 + 8 * GROUP_BYTES;
    const OFFSET: u8 = 16;
    const SCALES: usize = 2;
    const MIN: bool = false;
    const WIDE: bool = false;

    fn pack(rows: &UnitRows<'_>, out: &mut [u8]) {
        for sub in 0..4 {
            bytes(rows, &mut out[16 * sub..], |row| match row[sub] {
                0x7f => 0,
                scale => scale & 0x7f,
            });
        }
        words(rows, 4, 8, &mut out[64..]);
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(unit: *const u8, block: usize) -> Codes<S> {
        // SAFETY: the caller's contract.
        unsafe {
            let v = lookup::<S>(&TABLE, nibbles::<S>(unit.add(64 + 256 * block)));
            [v[0], v[1], v[4], v[5], v[2], v[3], v[6], v[7]]
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2] {
        // SAFETY: the caller's contract.
        unsafe {
            let half = S::splat_f(0.5);
            let at = unit.add(32 * block);
            [S::mul(S::e4m3(at), half), S::mul(S::e4m3(at.add(16)), half)]
        }
    }
}
