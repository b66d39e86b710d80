//! Helpers that interleave rows into tiles.

use super::{GROUP_BYTES, TILE_ROWS};

/// The raw blocks of one unit, row by row of a tile.
pub type UnitRows<'a> = [&'a [u8]; TILE_ROWS];

/// Interleaves `words` 4-byte words of each row, found at byte `from`, into `out`: `[word][row][4]`.
#[inline]
pub fn words(rows: &UnitRows<'_>, from: usize, words: usize, out: &mut [u8]) {
    for (r, row) in rows.iter().enumerate() {
        let source = &row[from..from + 4 * words];
        for (w, word) in source.as_chunks::<4>().0.iter().enumerate() {
            let at = w * GROUP_BYTES + 4 * r;
            out[at..at + 4].copy_from_slice(word);
        }
    }
}

/// Copies two bytes of each row, found at byte `from`, into `out`: `[row][2]`.
#[inline]
pub fn halves(rows: &UnitRows<'_>, from: usize, out: &mut [u8]) {
    for (r, row) in rows.iter().enumerate() {
        out[2 * r..2 * r + 2].copy_from_slice(&row[from..from + 2]);
    }
}

/// Puts `value(row)` of each row into `out`: `[row]`.
#[inline]
pub fn bytes(rows: &UnitRows<'_>, out: &mut [u8], value: impl Fn(&[u8]) -> u8) {
    for (out, row) in out[..TILE_ROWS].iter_mut().zip(rows) {
        *out = value(row);
    }
}
