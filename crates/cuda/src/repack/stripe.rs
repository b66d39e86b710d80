//! One column's part of a stripe: where its cells and sides are read and written.

use crate::layout::{FormatRow, cell_offset, unit_bytes};

/// A slot of a stripe, to be written.
pub struct SlotMut<'a> {
    row: &'static FormatRow,
    bytes: &'a mut [u8],
    stripe: usize,
    slot: usize,
}

/// A slot of a stripe.
#[derive(Clone, Copy)]
pub struct Slot<'a> {
    row: &'static FormatRow,
    bytes: &'a [u8],
    stripe: usize,
    slot: usize,
}

fn cell_at(row: &FormatRow, stripe: usize, slot: usize, plane: usize, cell: usize) -> usize {
    let (bits, unit) = (row.planes[plane], cell / 4);
    let group = row.bank_group(stripe, unit);
    row.plane_offset(plane) + unit * unit_bytes(bits) + cell_offset(bits, group, slot, cell % 4)
}

impl<'a> SlotMut<'a> {
    /// The slot of the tile's stripe with number `stripe`, whose bytes are `bytes`.
    pub fn new(row: &'static FormatRow, bytes: &'a mut [u8], stripe: usize, slot: usize) -> Self {
        assert_eq!(bytes.len(), row.stripe_bytes());
        Self {
            row,
            bytes,
            stripe,
            slot,
        }
    }

    /// Writes a cell: octet `cell` of the stripe.
    pub fn cell<const N: usize>(&mut self, plane: usize, cell: usize, value: [u8; N]) {
        assert_eq!(N, self.row.planes[plane]);
        let at = cell_at(self.row, self.stripe, self.slot, plane, cell);
        self.bytes[at..at + N].copy_from_slice(&value);
    }

    /// Writes `value` at byte `at` of a side.
    pub fn side(&mut self, side: usize, at: usize, value: &[u8]) {
        let width = self.row.sides[side];
        assert!(at + value.len() <= width);
        let at = self.row.side_offset(side) + self.slot * width + at;
        self.bytes[at..at + value.len()].copy_from_slice(value);
    }

    /// Writes the half with number `index` of a side of halves.
    pub fn side_half(&mut self, side: usize, index: usize, bits: u16) {
        self.side(side, 2 * index, &bits.to_le_bytes());
    }
}

impl<'a> Slot<'a> {
    /// The slot of the tile's stripe with number `stripe`, whose bytes are `bytes`.
    pub fn new(row: &'static FormatRow, bytes: &'a [u8], stripe: usize, slot: usize) -> Self {
        assert_eq!(bytes.len(), row.stripe_bytes());
        Self {
            row,
            bytes,
            stripe,
            slot,
        }
    }

    /// Reads a cell: octet `cell` of the stripe.
    pub fn cell<const N: usize>(&self, plane: usize, cell: usize) -> [u8; N] {
        assert_eq!(N, self.row.planes[plane]);
        let at = cell_at(self.row, self.stripe, self.slot, plane, cell);
        self.bytes[at..at + N].try_into().expect("N bytes")
    }

    /// Reads a side.
    pub fn side(&self, side: usize) -> &'a [u8] {
        let width = self.row.sides[side];
        &self.bytes[self.row.side_offset(side) + self.slot * width..][..width]
    }

    /// Reads the half with number `index` of a side of halves.
    pub fn side_half(&self, side: usize, index: usize) -> f64 {
        let bytes = &self.side(side)[2 * index..];
        super::half::value(u16::from_le_bytes([bytes[0], bytes[1]]))
    }
}
