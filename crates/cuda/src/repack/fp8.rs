//! e4m3 codes with one scale a tensor, a row, or a block of 128 x 128.

use super::fp4::e4m3;
use super::stripe::{Slot, SlotMut};
use super::{Census, Column, Pack, bad, cell, half};
use crate::error::CudaError;
use crate::layout::PackedFormat;
use crate::source::{Fp8Scale, Source, Weight};

pub(super) struct Fp8<'a> {
    codes: &'a [u8],
    scale: Fp8Scale<'a>,
    k: usize,
}

impl<'a> Fp8<'a> {
    pub fn new(weight: &Weight<'a>) -> Self {
        let Source::Fp8 { codes, scale } = *weight.source() else {
            unreachable!("FP8 only");
        };
        Self {
            codes,
            scale,
            k: weight.k(),
        }
    }

    /// The scale of the row's numbers from `128 block` on.
    fn scale(&self, row: usize, block: usize) -> Result<f64, CudaError> {
        let scale = match self.scale {
            Fp8Scale::Tensor(scale) => scale,
            Fp8Scale::Channel(scales) => scales[row],
            Fp8Scale::Block128(scales) => scales[row / 128 * self.k.div_ceil(128) + block],
        };
        match scale.is_finite() {
            true => Ok(f64::from(scale)),
            false => Err(bad(row, 128 * block, format!("scale {scale}"))),
        }
    }

    fn code(&self, row: usize, position: usize) -> Result<u8, CudaError> {
        if position >= self.k {
            return Ok(0);
        }
        let code = self.codes[row * self.k + position];
        match code & 0x7F {
            0x7F => Err(bad(row, position, format!("code {code:#04x} (e4m3: NaN)"))),
            _ => Ok(code),
        }
    }
}

impl Pack for Fp8<'_> {
    /// A code's bits under a half's wider exponent are its value times 2^-8.
    fn column(&self, row: usize) -> Result<Column, CudaError> {
        match self.scale {
            Fp8Scale::Tensor(_) | Fp8Scale::Channel(_) => Column::of(row, 0, self.scale(row, 0)? * 256.0),
            Fp8Scale::Block128(_) => {
                let mut max = 0f64;
                for block in 0..self.k.div_ceil(128) {
                    max = max.max(self.scale(row, block)?.abs());
                }
                // A code is below two, then: products stay below 2^15.
                Column::new(row, max, 14, 256.0)
            }
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
        let mut numbers = 64;
        if let Fp8Scale::Block128(_) = self.scale {
            numbers = 128;
            let scale = column.half(census, (row, 128 * stripe), self.scale(row, stripe)?);
            out.side_half(0, 0, half::bits(scale));
        }
        for octet in 0..numbers / 8 {
            let mut codes = [0; 8];
            for (i, code) in codes.iter_mut().enumerate() {
                *code = self.code(row, stripe * numbers + 8 * octet + i)?;
            }
            out.cell(0, octet, cell::e4m3(&codes));
        }
        Ok(())
    }
}

pub(super) fn expand(format: PackedFormat, slot: &Slot<'_>, at: usize) -> [f64; 8] {
    let codes = cell::from_e4m3(slot.cell(0, at)).map(|code| e4m3(code) * half::power(-8));
    match format {
        PackedFormat::Fp8Block => {
            let scale = slot.side_half(0, 0);
            codes.map(|code| half::mul(code, scale))
        }
        _ => codes,
    }
}
