//! IQ4_XS: 256 indices into IQ4_NL's table, a 6-bit scale for each 32 less 32, and an f16 factor. Unit:
//! `[16] f16, [8][16] i8 scales, [8][4 groups]`.

use galvani_graph::Format;

use super::iq4_nl::TABLE;
use super::{BlockFormat, Codes, lookup, nibbles};
use crate::pack::{GROUP_BYTES, UnitRows, bytes, halves, words};
use crate::simd::Simd;

/// The format.
pub struct Iq4Xs;

const SCALES_AT: usize = 32;
const CODES_AT: usize = SCALES_AT + 8 * 16;

impl BlockFormat for Iq4Xs {
    const FORMAT: Format = Format::Iq4Xs;
    const UNIT_BLOCKS: usize = 8;
    const UNIT_BYTES: usize = CODES_AT + 32 * GROUP_BYTES;
    const OFFSET: u8 = 128;
    const SCALES: usize = 1;
    const MIN: bool = false;
    const WIDE: bool = true;

    fn pack(rows: &UnitRows<'_>, out: &mut [u8]) {
        halves(rows, 0, out);
        for s in 0..8 {
            bytes(rows, &mut out[SCALES_AT + 16 * s..], |row| {
                let low = (row[4 + s / 2] >> (4 * (s % 2))) & 15;
                let high = (u16::from_le_bytes([row[2], row[3]]) >> (2 * s)) as u8 & 3;
                (low | high << 4).wrapping_sub(32)
            });
        }
        words(rows, 8, 32, &mut out[CODES_AT..]);
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(unit: *const u8, block: usize) -> Codes<S> {
        // SAFETY: the caller's contract.
        unsafe { lookup::<S>(&TABLE, nibbles::<S>(unit.add(CODES_AT + 256 * block))) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2] {
        // SAFETY: the caller's contract.
        unsafe { [S::mul(S::f16(unit), S::i8_f32(unit.add(SCALES_AT + 16 * block))); 2] }
    }
}
