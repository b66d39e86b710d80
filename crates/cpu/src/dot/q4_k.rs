//! Q4_K: 256 4-bit codes; each 32 have a 6-bit scale and a 6-bit constant, times an f16 factor each. Unit:
//! `[16] f16 d, [16] f16 dmin, [8][16] u8 scales, [8][16] u8 constants, [4 pairs][8 groups]`, a pair being 32 numbers in
//! the low and the next 32 in the high nibbles.

use galvani_graph::Format;

use super::{BlockFormat, Codes, nibble_rows};
use crate::pack::{GROUP_BYTES, UnitRows, bytes, halves, words};
use crate::simd::Simd;

/// The format.
pub struct Q4K;

const SCALES_AT: usize = 64;
const MINS_AT: usize = SCALES_AT + 8 * 16;
/// Bytes before the codes, the same in Q5_K.
pub(super) const HEADER: usize = MINS_AT + 8 * 16;

impl BlockFormat for Q4K {
    const FORMAT: Format = Format::Q4K;
    const UNIT_BLOCKS: usize = 8;
    const UNIT_BYTES: usize = HEADER + 32 * GROUP_BYTES;
    const OFFSET: u8 = 0;
    const SCALES: usize = 1;
    const MIN: bool = true;
    const WIDE: bool = false;

    fn pack(rows: &UnitRows<'_>, out: &mut [u8]) {
        pack_header(rows, out);
        words(rows, 16, 32, &mut out[HEADER..]);
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(unit: *const u8, block: usize) -> Codes<S> {
        // SAFETY: the caller's contract.
        unsafe { nibble_rows::<S>(unit.add(HEADER + block / 2 * 512), 4 * (block % 2) as u32) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2] {
        // SAFETY: the caller's contract.
        unsafe { scales::<S>(unit, block) }
    }

    #[inline(always)]
    unsafe fn mins<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2] {
        // SAFETY: the caller's contract.
        unsafe { mins::<S>(unit, block) }
    }
}

/// Packs the 16 bytes of factors and 6-bit scales that begin a Q4_K or Q5_K block.
pub(super) fn pack_header(rows: &UnitRows<'_>, out: &mut [u8]) {
    halves(rows, 0, out);
    halves(rows, 2, &mut out[32..]);
    for s in 0..8 {
        bytes(rows, &mut out[SCALES_AT + 16 * s..], |row| {
            six_bits(&row[4..16], s).0
        });
        bytes(rows, &mut out[MINS_AT + 16 * s..], |row| {
            six_bits(&row[4..16], s).1
        });
    }
}

/// Scale and constant of sub-block `s` from the 12 packed bytes.
fn six_bits(packed: &[u8], s: usize) -> (u8, u8) {
    if s < 4 {
        return (packed[s] & 63, packed[s + 4] & 63);
    }
    (
        (packed[s + 4] & 15) | (packed[s - 4] >> 6) << 4,
        (packed[s + 4] >> 4) | (packed[s] >> 6) << 4,
    )
}

/// Scales of a unit with this header.
///
/// # Safety
/// See [`BlockFormat::codes`].
#[inline(always)]
pub(super) unsafe fn scales<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2] {
    // SAFETY: the caller's contract.
    unsafe { [S::mul(S::f16(unit), S::u8_f32(unit.add(SCALES_AT + 16 * block))); 2] }
}

/// Constants of a unit with this header; the format subtracts them.
///
/// # Safety
/// See [`BlockFormat::codes`].
#[inline(always)]
pub(super) unsafe fn mins<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2] {
    // SAFETY: the caller's contract.
    unsafe {
        let d = S::mul(S::f16(unit.add(32)), S::splat_f(-1.0));
        [S::mul(d, S::u8_f32(unit.add(MINS_AT + 16 * block))); 2]
    }
}
