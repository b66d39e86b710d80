//! F16, and BF16 and F32 brought to it: a power of two a column moves their range to that of halves.

use galvani_graph::Format;

use super::stripe::{Slot, SlotMut};
use super::{Census, Column, Pack, bad, half};
use crate::error::CudaError;
use crate::source::{Source, Weight};

pub(super) struct Floats<'a> {
    format: Format,
    bytes: &'a [u8],
    k: usize,
}

impl<'a> Floats<'a> {
    pub fn new(weight: &Weight<'a>) -> Self {
        let Source::Rows { format, bytes } = *weight.source() else {
            unreachable!("floats are rows");
        };
        Self {
            format,
            bytes,
            k: weight.k(),
        }
    }

    fn number(&self, row: usize, position: usize) -> f64 {
        let width = self.format.block_bytes();
        let bytes = &self.bytes[(row * self.k + position) * width..][..width];
        if let [a, b, c, d] = *bytes {
            return f64::from(f32::from_le_bytes([a, b, c, d]));
        }
        let [a, b] = *bytes else {
            unreachable!("floats have 2 or 4 bytes");
        };
        if self.format == Format::F16 {
            half::value(u16::from_le_bytes([a, b]))
        } else {
            f64::from(f32::from_le_bytes([0, 0, a, b]))
        }
    }
}

impl Pack for Floats<'_> {
    /// Halves stay as they are.
    fn column(&self, row: usize) -> Result<Column, CudaError> {
        let mut max = 0f64;
        for position in 0..self.k {
            let number = self.number(row, position);
            if !number.is_finite() {
                return Err(bad(row, position, format!("{number}")));
            }
            max = max.max(number.abs());
        }
        if self.format == Format::F16 {
            Column::of(row, 0, 1.0)
        } else {
            Column::new(row, max, 15, 1.0)
        }
    }

    fn stripe(
        &self,
        row: usize,
        stripe: usize,
        column: &Column,
        out: &mut SlotMut<'_>,
        census: &mut Census,
    ) -> Result<(), CudaError> {
        let first = stripe * 64;
        for cell in 0..8 {
            let mut bytes = [0; 16];
            for (i, bytes) in bytes.chunks_exact_mut(2).enumerate() {
                let position = first + 8 * cell + i;
                if position < self.k {
                    let stored = column.half(census, (row, position), self.number(row, position));
                    bytes.copy_from_slice(&half::bits(stored).to_le_bytes());
                }
            }
            out.cell(0, cell, bytes);
        }
        Ok(())
    }
}

/// The halves as they are.
pub(super) fn expand(slot: &Slot<'_>, cell: usize) -> [f64; 8] {
    let bytes = slot.cell::<16>(0, cell);
    std::array::from_fn(|i| half::value(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])))
}
