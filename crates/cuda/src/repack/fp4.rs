//! NVFP4 and MXFP4: e2m1 codes under small float scales.

use galvani_graph::Format;

use super::stripe::{Slot, SlotMut};
use super::{Census, Column, Pack, bad, cell, half};
use crate::error::CudaError;
use crate::source::{Source, Weight};

pub(super) struct Nvfp4<'a>(pub &'a Weight<'a>);
pub(super) struct Mxfp4<'a>(pub &'a Weight<'a>);

/// Code `position` of a row of GGUF blocks: of `block` numbers after `head` bytes, in runs of `run`, byte j of a run having
/// number j low and j + run / 2 high.
fn block_code(row: &[u8], position: usize, [block, head, run]: [usize; 3]) -> u8 {
    let bytes = &row[position / block * (head + block / 2) + head..];
    let (i, j) = (position % block / run, position % run);
    bytes[i * run / 2 + j % (run / 2)] >> (4 * (j / (run / 2))) & 15
}

fn octet(first: usize, code: impl Fn(usize) -> u8) -> cell::Cell {
    std::array::from_fn(|i| code(first + i))
}

/// Halves of a cell: e2m1 value times 2^-14, times `scale`.
fn expand(bytes: [u8; 4], scale: f64) -> [f64; 8] {
    const VALUES: [f64; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
    cell::from_e2m1(bytes).map(|code| {
        let magnitude = VALUES[usize::from(code & 7)] * half::power(-14);
        half::mul(if code & 8 == 0 { magnitude } else { -magnitude }, scale)
    })
}

impl Nvfp4<'_> {
    /// The scale of sixteen numbers.
    fn scale(&self, row: usize, sixteen: usize) -> Result<f64, CudaError> {
        let place = 16 * sixteen;
        let byte = match *self.0.source() {
            Source::Nvfp4 { scales, .. } => {
                let byte = scales[row * (self.0.k() / 16) + sixteen];
                if byte & 0x7F == 0x7F || (byte > 0x80) {
                    return Err(bad(
                        row,
                        place,
                        format!("scale {byte:#04x} (e4m3: NaN or below zero)"),
                    ));
                }
                byte
            }
            // GGUF's reading: the byte that would be NaN is zero, and the sign bit of any other is ignored.
            Source::Rows { format, bytes } => {
                let byte = bytes[self.0.row_bytes(format, row)][sixteen / 4 * 36 + sixteen % 4];
                if byte == 0x7F { 0 } else { byte }
            }
            Source::GroupInt { .. } | Source::Fp8 { .. } | Source::Mxfp4 { .. } => unreachable!("NVFP4 only"),
        };
        Ok(e4m3(byte & 0x7F))
    }

    fn code(&self, row: usize, position: usize) -> u8 {
        match *self.0.source() {
            Source::Nvfp4 { codes, .. } => {
                codes[(row * self.0.k() + position) / 2] >> (4 * (position % 2)) & 15
            }
            Source::Rows { format, bytes } => {
                block_code(&bytes[self.0.row_bytes(format, row)], position, [64, 4, 16])
            }
            Source::GroupInt { .. } | Source::Fp8 { .. } | Source::Mxfp4 { .. } => unreachable!("NVFP4 only"),
        }
    }
}

/// The value of an e4m3 byte, which is no NaN.
pub(super) fn e4m3(byte: u8) -> f64 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f64::from(byte & 7));
    let magnitude = match exponent {
        0 => mantissa * half::power(-9),
        _ => (8.0 + mantissa) * half::power(exponent - 10),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

impl Pack for Nvfp4<'_> {
    fn column(&self, row: usize) -> Result<Column, CudaError> {
        let global = match *self.0.source() {
            Source::Nvfp4 { globals, .. } => {
                let mut end = 0;
                let part = globals.iter().find(|part| {
                    end += part.0;
                    row < end
                });
                part.expect("the parts' rows are the weight's: checked").1
            }
            _ => 1.0,
        };
        Column::of(row, 0, f64::from(global) * 128.0)
    }

    fn stripe(
        &self,
        row: usize,
        stripe: usize,
        _: &Column,
        out: &mut SlotMut<'_>,
        _: &mut Census,
    ) -> Result<(), CudaError> {
        for i in 0..4 {
            let first = stripe * 64 + i * 16;
            if first >= self.0.k() {
                break;
            }
            // At most four significant bits: the low seven of the half are zero.
            let scale = half::bits(128.0 * self.scale(row, first / 16)?);
            out.side(0, i, &[(scale >> 7) as u8]);
            for octet_in in 0..2 {
                let codes = octet(first + 8 * octet_in, |position| self.code(row, position));
                out.cell(0, 2 * i + octet_in, cell::e2m1(&codes));
            }
        }
        Ok(())
    }
}

pub(super) fn expand_nvfp4(slot: &Slot<'_>, at: usize) -> [f64; 8] {
    let scale = half::value(u16::from(slot.side(0)[at / 2]) << 7);
    expand(slot.cell(0, at), scale)
}

/// Scale exponents are kept relative to the column's largest, which becomes 30: scale 2^15.
const LARGEST: i32 = 30;

impl Mxfp4<'_> {
    fn scale(&self, row: usize, block: usize) -> Result<i32, CudaError> {
        let byte = match *self.0.source() {
            Source::Mxfp4 { scales, .. } => scales[row * (self.0.k() / 32) + block],
            Source::Rows { format, bytes } => bytes[self.0.row_bytes(format, row)][block * 17],
            Source::GroupInt { .. } | Source::Fp8 { .. } | Source::Nvfp4 { .. } => unreachable!("MXFP4 only"),
        };
        match byte {
            0xFF => Err(bad(row, 32 * block, "scale 0xff (e8m0: NaN)".to_owned())),
            _ => Ok(i32::from(byte)),
        }
    }

    fn code(&self, row: usize, position: usize) -> u8 {
        match *self.0.source() {
            Source::Mxfp4 { codes, .. } => {
                codes[(row * self.0.k() + position) / 2] >> (4 * (position % 2)) & 15
            }
            Source::Rows { format, bytes } => {
                debug_assert_eq!(format, Format::Mxfp4);
                block_code(&bytes[self.0.row_bytes(format, row)], position, [32, 1, 32])
            }
            Source::GroupInt { .. } | Source::Fp8 { .. } | Source::Nvfp4 { .. } => unreachable!("MXFP4 only"),
        }
    }
}

impl Pack for Mxfp4<'_> {
    /// The exponent is what the scales' exponents are shifted by.
    fn column(&self, row: usize) -> Result<Column, CudaError> {
        // Below 2 the column scale would not be a normal number.
        let mut largest = 2;
        for block in 0..self.0.k() / 32 {
            largest = largest.max(self.scale(row, block)?);
        }
        Ok(Column {
            exponent: LARGEST - largest,
            scale: half::power(largest - 128) as f32,
        })
    }

    fn stripe(
        &self,
        row: usize,
        stripe: usize,
        column: &Column,
        out: &mut SlotMut<'_>,
        census: &mut Census,
    ) -> Result<(), CudaError> {
        for i in 0..2 {
            let first = stripe * 64 + i * 32;
            if first >= self.0.k() {
                break;
            }
            let relative = self.scale(row, first / 32)? + column.exponent;
            let mut used = 0;
            for octet_in in 0..4 {
                let codes = octet(first + 8 * octet_in, |position| self.code(row, position));
                used |= codes.iter().fold(0, |used, code| used | (code & 7));
                out.cell(0, 4 * i + octet_in, cell::e2m1(&codes));
            }
            if relative <= 0 && used != 0 {
                census.note((row, first), 1.0, 0.0);
            }
            out.side(0, i, &[relative.max(0) as u8]);
        }
        Ok(())
    }
}

pub(super) fn expand_mxfp4(slot: &Slot<'_>, at: usize) -> [f64; 8] {
    let scale = half::value(u16::from(slot.side(0)[at / 4]) << 10);
    expand(slot.cell(0, at), scale)
}
