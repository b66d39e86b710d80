//! Q5_0: blocks of 32 5-bit codes less 16, with an f16 scale. Unit of two blocks:
//! `[2][16] f16, [2] (fifth bits [16][4], [4 groups])`.
//!
//! The fifth bits of a row's block are permuted: bit g of byte i belongs to number 4 g + i, so that one shift brings the
//! bits of group g to their codes.

use galvani_graph::Format;

use super::{BlockFormat, Codes, add_bit, nibbles};
use crate::pack::{GROUP_BYTES, UnitRows, halves, words};
use crate::simd::Simd;

/// The format.
pub struct Q5_0;

const RAW: usize = 22;
/// Bytes of a block's bits and codes.
pub(super) const BLOCK_BYTES: usize = 5 * GROUP_BYTES;

impl BlockFormat for Q5_0 {
    const FORMAT: Format = Format::Q5_0;
    const UNIT_BLOCKS: usize = 2;
    const UNIT_BYTES: usize = 64 + 2 * BLOCK_BYTES;
    const OFFSET: u8 = 16;
    const SCALES: usize = 1;
    const MIN: bool = false;
    const WIDE: bool = false;

    fn pack(rows: &UnitRows<'_>, out: &mut [u8]) {
        for block in 0..2 {
            halves(rows, block * RAW, &mut out[32 * block..]);
            pack_codes(rows, block * RAW + 2, &mut out[64 + block * BLOCK_BYTES..]);
        }
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(unit: *const u8, block: usize) -> Codes<S> {
        // SAFETY: the caller's contract.
        unsafe { codes::<S>(unit.add(64 + block * BLOCK_BYTES)) }
    }

    #[inline(always)]
    unsafe fn scales<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2] {
        // SAFETY: the caller's contract.
        unsafe { [S::f16(unit.add(32 * block)); 2] }
    }
}

/// Packs the u32 of fifth bits at `from` and the 16 bytes of low nibbles behind it.
pub(super) fn pack_codes(rows: &UnitRows<'_>, from: usize, out: &mut [u8]) {
    for (r, row) in rows.iter().enumerate() {
        let bits = u32::from_le_bytes([row[from], row[from + 1], row[from + 2], row[from + 3]]);
        let mut permuted = [0u8; 4];
        for e in 0..32 {
            permuted[e % 4] |= ((bits >> e & 1) as u8) << (e / 4);
        }
        out[4 * r..4 * r + 4].copy_from_slice(&permuted);
    }
    words(rows, from + 4, 4, &mut out[GROUP_BYTES..]);
}

/// The codes of a block packed by [`pack_codes`].
///
/// # Safety
/// The contract of [`Simd`]; 320 bytes at `p`.
#[inline(always)]
pub(super) unsafe fn codes<S: Simd>(p: *const u8) -> Codes<S> {
    // SAFETY: the caller's contract.
    unsafe {
        let bits = S::load(p);
        let mut codes = nibbles::<S>(p.add(GROUP_BYTES));
        for (g, code) in codes.iter_mut().enumerate() {
            *code = add_bit::<S>(*code, bits, g as u32, 4);
        }
        codes
    }
}
