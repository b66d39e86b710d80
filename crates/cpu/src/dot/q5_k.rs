//! Q5_K: as Q4_K with a fifth bit. Unit: Q4_K's header, `[8 groups]` of fifth bits (bit s of a byte belongs to
//! sub-block s), `[4 pairs][8 groups]`.

use galvani_graph::Format;

use super::q4_k::{HEADER, mins, pack_header, scales};
use super::{BlockFormat, Codes, add_bit, nibble_rows};
use crate::pack::{GROUP_BYTES, UnitRows, words};
use crate::simd::Simd;

/// The format.
pub struct Q5K;

const CODES_AT: usize = HEADER + 8 * GROUP_BYTES;

impl BlockFormat for Q5K {
    const FORMAT: Format = Format::Q5K;
    const UNIT_BLOCKS: usize = 8;
    const UNIT_BYTES: usize = CODES_AT + 32 * GROUP_BYTES;
    const OFFSET: u8 = 0;
    const SCALES: usize = 1;
    const MIN: bool = true;
    const WIDE: bool = false;

    fn pack(rows: &UnitRows<'_>, out: &mut [u8]) {
        pack_header(rows, out);
        words(rows, 16, 8, &mut out[HEADER..]);
        words(rows, 48, 32, &mut out[CODES_AT..]);
    }

    #[inline(always)]
    unsafe fn codes<S: Simd>(unit: *const u8, block: usize) -> Codes<S> {
        // SAFETY: the caller's contract.
        unsafe {
            let at = unit.add(CODES_AT + block / 2 * 512);
            let mut codes = nibble_rows::<S>(at, 4 * (block % 2) as u32);
            for (g, code) in codes.iter_mut().enumerate() {
                let bits = S::load(unit.add(HEADER + g * GROUP_BYTES));
                *code = add_bit::<S>(*code, bits, block as u32, 4);
            }
            codes
        }
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
