//! Integers of four or eight bits with a scale a group: the hub's, and GGUF's Q8_0, Q4_0 and IQ4_NL (32 a group).
//!
//! Scales are brought near 2^15 by the column's power of two, so that a code read as a half below 2^-14 (code 2^-24) gives a
//! weight in one fused operation, with the one rounding of its result.

use galvani_graph::Format;

use super::stripe::{Slot, SlotMut};
use super::{Census, Column, Pack, bad, cell, half};
use crate::error::CudaError;
use crate::layout::PackedFormat;
use crate::source::{Codes, IntBits, Source, Weight};

/// 2^-24: what a code of one is, read as a half.
const STEP: f64 = 1.0 / (1 << 24) as f64;
/// The steps of IQ4_NL and IQ4_XS (ggml's published table).
const STEPS: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];
/// A zero point of a four-bit code: some files count from one.
const ZERO_MAX: u8 = 16;

pub(super) struct Ints<'a> {
    weight: &'a Weight<'a>,
    format: PackedFormat,
    group: usize,
}

/// What is particular to a packed form: numbers of k in a group, whether there are zero points.
fn shape(format: PackedFormat) -> (usize, bool) {
    use PackedFormat as F;
    match format {
        F::Int4G32 | F::Int8G32 | F::Iq4Nl => (32, false),
        F::Int4G64 | F::Int8G64 => (64, false),
        F::Int4G128 | F::Int8G128 => (128, false),
        F::Int4G32Zero | F::Int8G32Zero => (32, true),
        F::Int4G64Zero | F::Int8G64Zero => (64, true),
        F::Int4G128Zero | F::Int8G128Zero => (128, true),
        F::F16 | F::Fp8 | F::Fp8Block | F::Nvfp4 | F::Mxfp4 | F::Iq4Xs => {
            unreachable!("{format:?} is no group of integers")
        }
        F::Q2K | F::Q3K | F::Q4K | F::Q5K | F::Q6K => unreachable!("{format:?} is no group of integers"),
    }
}

impl<'a> Ints<'a> {
    pub fn new(weight: &'a Weight<'a>, format: PackedFormat) -> Self {
        Self {
            weight,
            format,
            group: shape(format).0,
        }
    }

    fn block(&self, format: Format, bytes: &'a [u8], row: usize, group: usize) -> &'a [u8] {
        &bytes[self.weight.row_bytes(format, row)][group * format.block_bytes()..][..format.block_bytes()]
    }

    fn scale(&self, row: usize, group: usize) -> Result<f64, CudaError> {
        let scale = match *self.weight.source() {
            Source::Rows { format, bytes } => {
                let block = self.block(format, bytes, row, group);
                half::value(u16::from_le_bytes([block[0], block[1]]))
            }
            Source::GroupInt { scales, .. } => {
                f64::from(scales[row * (self.weight.k() / self.group) + group])
            }
            Source::Fp8 { .. } | Source::Nvfp4 { .. } | Source::Mxfp4 { .. } => unreachable!("integers only"),
        };
        match scale.is_finite() {
            true => Ok(scale),
            false => Err(bad(row, group * self.group, format!("scale {scale}"))),
        }
    }

    /// The zero point; without one, the byte is not stored.
    fn zero(&self, row: usize, group: usize) -> Result<u8, CudaError> {
        match *self.weight.source() {
            Source::GroupInt {
                zeros: Some(zeros),
                bits,
                ..
            } => {
                let zero = zeros[row * (self.weight.k() / self.group) + group];
                if bits == IntBits::Four && zero > ZERO_MAX {
                    return Err(bad(row, group * self.group, format!("zero point {zero}")));
                }
                Ok(zero)
            }
            Source::GroupInt { zeros: None, .. } | Source::Rows { .. } => Ok(0),
            Source::Fp8 { .. } | Source::Nvfp4 { .. } | Source::Mxfp4 { .. } => unreachable!("integers only"),
        }
    }

    /// Code `position` of a row, without sign.
    fn code(&self, row: usize, position: usize) -> Result<u8, CudaError> {
        let k = self.weight.k();
        Ok(match *self.weight.source() {
            Source::Rows { format, bytes } => {
                let block = self.block(format, bytes, row, position / 32);
                let i = position % 32;
                if format == Format::Q8_0 {
                    block[2 + i] ^ 0x80
                } else {
                    block[2 + i % 16] >> (4 * (i / 16)) & 15
                }
            }
            Source::GroupInt { bits, codes, .. } => match codes {
                Codes::Nibbles(codes) => codes[(row * k + position) / 2] >> (4 * (position % 2)) & 15,
                Codes::Bytes(codes) => {
                    let code = codes[row * k + position];
                    if bits == IntBits::Four && code > 15 {
                        return Err(bad(row, position, format!("code {code} of four bits")));
                    }
                    code
                }
            },
            Source::Fp8 { .. } | Source::Nvfp4 { .. } | Source::Mxfp4 { .. } => unreachable!("integers only"),
        })
    }

    fn octet(&self, row: usize, first: usize) -> Result<cell::Cell, CudaError> {
        let mut codes = [0; 8];
        for (i, code) in codes.iter_mut().enumerate() {
            *code = self.code(row, first + i)?;
        }
        Ok(codes)
    }
}

impl Pack for Ints<'_> {
    fn column(&self, row: usize) -> Result<Column, CudaError> {
        let mut max = 0f64;
        for group in 0..self.weight.k() / self.group {
            max = max.max(self.scale(row, group)?.abs());
        }
        Column::new(row, max, 15, 1.0 / STEP)
    }

    fn stripe(
        &self,
        row: usize,
        stripe: usize,
        column: &Column,
        out: &mut SlotMut<'_>,
        census: &mut Census,
    ) -> Result<(), CudaError> {
        let format = self.format.row();
        for index in 0..format.stripe / self.group {
            let first = stripe * format.stripe + index * self.group;
            if first >= self.weight.k() {
                break;
            }
            let group = first / self.group;
            let scale = column.half(census, (row, first), self.scale(row, group)?);
            out.side_half(0, index, half::bits(scale));
            if shape(self.format).1 {
                out.side(1, index, &[self.zero(row, group)?]);
            }
            for octet in 0..self.group / 8 {
                let codes = self.octet(row, first + 8 * octet)?;
                let at = (index * self.group) / 8 + octet;
                match (self.format, format.planes[0]) {
                    (PackedFormat::Iq4Nl, _) => out.cell(0, at, cell::selectors(&codes)),
                    (_, 4) => out.cell(0, at, cell::nibbles(&codes)),
                    _ => out.cell(0, at, cell::bytes(&codes)),
                }
            }
        }
        Ok(())
    }
}

/// A scale's byte of eight steps: sums of codes less 128, times the scale.
pub(super) fn expand_bytes(codes: [u8; 8], scale: f64) -> [f64; 8] {
    let middle = half::mul(scale, -128.0 * STEP);
    codes.map(|code| half::fma(f64::from(code) * STEP, scale, middle))
}

/// The bytes that the table gives for codes: a step and 128.
pub(super) fn step_bytes(codes: [u8; 8]) -> [u8; 8] {
    codes.map(|code| STEPS[usize::from(code)] as u8 ^ 0x80)
}

pub(super) fn expand(format: PackedFormat, slot: &Slot<'_>, at: usize) -> [f64; 8] {
    let (group, has_zero) = shape(format);
    let index = 8 * at / group;
    let scale = slot.side_half(0, index);
    let zero = has_zero.then(|| f64::from(slot.side(1)[index]));
    if format == PackedFormat::Iq4Nl {
        return expand_bytes(step_bytes(cell::from_selectors(slot.cell(0, at))), scale);
    }
    if format.row().planes[0] == 8 {
        let codes = cell::from_bytes(slot.cell(0, at));
        return match zero {
            None => expand_bytes(codes, scale),
            Some(zero) => codes.map(|code| half::mul(half::add(f64::from(code) * STEP, -zero * STEP), scale)),
        };
    }
    let codes = cell::from_nibbles(slot.cell(0, at));
    let middle = half::mul(scale, -8.0 * STEP);
    std::array::from_fn(|i| {
        // Every other pair is read four bits further up.
        let up = if i / 2 % 2 == 1 { 16.0 } else { 1.0 };
        let (code, scale) = (f64::from(codes[i]) * STEP * up, half::mul(scale, 1.0 / up));
        match zero {
            None => half::fma(code, scale, middle),
            Some(zero) => half::mul(half::add(code, -zero * STEP * up), scale),
        }
    })
}
