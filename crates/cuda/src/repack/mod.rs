//! From a file's weights to the packed copy and back: see `layout` for where the bytes go.
//!
//! Every format is packed column by column in two steps: the column's power of two (and its `column_scale`), then its stripes.
//! `device/repack.cu` takes the same steps on the device ([`device`]) and leaves the same bytes.
//!
//! What the kernels make of the packed bytes is in each file's `expand`, operation by operation with the device's roundings.
//! The most that it differs from the file's own numbers, with w the weight and s = 2^-25 column_scale, half a step of the
//! smallest halves (for codes of four bits 2^-18 of the column's largest number or less, for eight bits 2^-22; more only
//! where a K-quant's largest block scale has small integer scales):
//!
//! | form | difference at most |
//! |---|---|
//! | F16 from F16; FP8 with a scale a tensor or a row; NVFP4 | none |
//! | F16 from BF16, F32 | s; w 2^-11 + s |
//! | MXFP4 | none; 4 s where a scale is 2^-25 of the column's largest or less |
//! | integers, Q8_0, Q4_0, IQ4_NL | w 2^-11 + 2 s; with f32 scales w 2^-10 + 2 s |
//! | FP8 with a scale a block | w 2^-10 + s |
//! | Q6_K, Q3_K, IQ4_XS | w 2^-10 + 2 s |
//! | Q4_K, Q5_K, Q2_K (w = a - b) | (a + b + w) 2^-11 + 2 s |

mod cell;
pub mod device;
mod float;
mod fp4;
mod fp8;
mod group_int;
mod half;
mod k_quants;
mod stripe;

use std::ops::Range;

use crate::error::CudaError;
use crate::layout::{Layout, PackedFormat, TILE, column_of_slot};
use crate::source::Weight;
use stripe::{Slot, SlotMut};

/// What became less exact than the table of this module says, because a half is too small for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Numbers (weights or scales) that lost bits below 2^-14 of their column's scale.
    pub subnormal: u64,
    /// Numbers that became zero.
    pub flushed: u64,
    /// (row, position in the row) of the first of either.
    pub first: Option<(usize, usize)>,
}

impl Census {
    /// Both together.
    pub fn merge(&mut self, other: &Self) {
        self.subnormal += other.subnormal;
        self.flushed += other.flushed;
        self.first = [self.first, other.first].into_iter().flatten().min();
    }

    /// Takes note of a number `exact` that is stored as the half `stored`.
    fn note(&mut self, place: (usize, usize), exact: f64, stored: f64) {
        if stored.abs() >= half::power(-14) || stored == exact {
            return;
        }
        match stored == 0.0 {
            true => self.flushed += 1,
            false => self.subnormal += 1,
        }
        self.first = Some(self.first.map_or(place, |first| first.min(place)));
    }
}

/// What is constant along a column.
#[derive(Clone, Copy, Debug)]
struct Column {
    /// The block scales are multiplied by 2^exponent.
    exponent: i32,
    /// What the kernels multiply a column's sums by.
    scale: f32,
}

impl Column {
    /// A column whose largest scale `max` is to lie below 2^top; `factor` times 2^-exponent is left for the sums.
    fn new(row: usize, max: f64, top: i32, factor: f64) -> Result<Self, CudaError> {
        let exponent = half::exponent(max).map_or(0, |e| top - 1 - e);
        Self::of(row, exponent, factor)
    }

    fn of(row: usize, exponent: i32, factor: f64) -> Result<Self, CudaError> {
        // The bound keeps the column scale a normal number; scales that small stay below the top.
        let exponent = exponent.min(120);
        let scale = (factor * half::power(-exponent)) as f32;
        if !scale.is_finite() {
            return Err(bad(row, 0, format!("its scale {scale}")));
        }
        Ok(Self { exponent, scale })
    }

    /// A block scale as a half.
    fn half(&self, census: &mut Census, place: (usize, usize), scale: f64) -> f64 {
        let exact = scale * half::power(self.exponent);
        let stored = half::round(exact);
        census.note(place, exact, stored);
        stored
    }
}

fn bad(row: usize, position: usize, what: String) -> CudaError {
    CudaError::BadWeight { row, position, what }
}

/// One format's way to the packed bytes.
trait Pack {
    /// What is constant along row `row`.
    fn column(&self, row: usize) -> Result<Column, CudaError>;

    /// Fills the row's part of stripe `stripe`; what lies past k stays zero.
    fn stripe(
        &self,
        row: usize,
        stripe: usize,
        column: &Column,
        out: &mut SlotMut<'_>,
        census: &mut Census,
    ) -> Result<(), CudaError>;
}

fn packer<'a>(weight: &'a Weight<'a>, format: PackedFormat) -> Box<dyn Pack + 'a> {
    use PackedFormat as F;
    match format {
        F::F16 => Box::new(float::Floats::new(weight)),
        F::Int4G32
        | F::Int4G64
        | F::Int4G128
        | F::Int4G32Zero
        | F::Int4G64Zero
        | F::Int4G128Zero
        | F::Iq4Nl => Box::new(group_int::Ints::new(weight, format)),
        F::Int8G32 | F::Int8G64 | F::Int8G128 | F::Int8G32Zero | F::Int8G64Zero | F::Int8G128Zero => {
            Box::new(group_int::Ints::new(weight, format))
        }
        F::Nvfp4 => Box::new(fp4::Nvfp4(weight)),
        F::Mxfp4 => Box::new(fp4::Mxfp4(weight)),
        F::Fp8 | F::Fp8Block => Box::new(fp8::Fp8::new(weight)),
        F::Iq4Xs | F::Q2K | F::Q3K | F::Q4K | F::Q5K | F::Q6K => {
            Box::new(k_quants::KQuants::new(weight, format))
        }
    }
}

/// Packs the tiles `tiles` of `weight`: `out` takes their bytes, `column_scales` 32 numbers a tile. Tiles are independent, so
/// that a caller may share them among threads.
///
/// # Errors
/// A number that is not finite, or a code that stands for none, named by row and position.
///
/// # Panics
/// When the tiles are not the weight's, or the slices not of their size.
pub fn repack_tiles(
    weight: &Weight<'_>,
    tiles: Range<usize>,
    out: &mut [u8],
    column_scales: &mut [f32],
) -> Result<Census, CudaError> {
    let layout = weight.layout()?;
    assert!(tiles.start <= tiles.end && tiles.end <= layout.tiles());
    assert!(out.len() == tiles.len() * layout.tile_bytes() && column_scales.len() == tiles.len() * TILE);
    let format = layout.format().row();
    let packer = packer(weight, layout.format());
    let mut census = Census::default();
    out.fill(0);
    column_scales.fill(0.0);
    let tiles_out = out
        .chunks_exact_mut(layout.tile_bytes())
        .zip(column_scales.chunks_exact_mut(TILE));
    for (tile, (out, scales)) in tiles.zip(tiles_out) {
        for slot in 0..TILE {
            let row = tile * TILE + column_of_slot(slot);
            if row >= layout.n() {
                continue;
            }
            let column = packer.column(row)?;
            scales[row % TILE] = column.scale;
            for (stripe, bytes) in out.chunks_exact_mut(format.stripe_bytes()).enumerate() {
                let mut slot = SlotMut::new(format, bytes, stripe, slot);
                packer.stripe(row, stripe, &column, &mut slot, &mut census)?;
            }
        }
    }
    Ok(census)
}

/// A packed weight.
#[derive(Clone, Debug)]
pub struct Packed {
    /// Its sizes.
    pub layout: Layout,
    /// Its tiles.
    pub bytes: Vec<u8>,
    /// One a column, padded ones too.
    pub column_scales: Vec<f32>,
    /// What was lost.
    pub census: Census,
}

/// Packs a whole weight.
///
/// # Errors
/// As [`repack_tiles`].
pub fn repack(weight: &Weight<'_>) -> Result<Packed, CudaError> {
    let layout = weight.layout()?;
    let mut bytes = vec![0; layout.bytes()];
    let mut column_scales = vec![0.0; layout.column_scales()];
    let census = repack_tiles(weight, 0..layout.tiles(), &mut bytes, &mut column_scales)?;
    Ok(Packed {
        layout,
        bytes,
        column_scales,
        census,
    })
}

/// The numbers [n, k] that the kernels multiply by: expanded as the device does, times the column scale in f32.
pub fn unpack(packed: &Packed) -> Vec<f32> {
    let layout = &packed.layout;
    let format = layout.format().row();
    let mut out = vec![0.0; layout.n() * layout.k()];
    for (tile, bytes) in packed.bytes.chunks_exact(layout.tile_bytes()).enumerate() {
        for slot in 0..TILE {
            let row = tile * TILE + column_of_slot(slot);
            if row >= layout.n() {
                continue;
            }
            let scale = packed.column_scales[row];
            let row = &mut out[row * layout.k()..][..layout.k()];
            for (octet, out) in row.chunks_mut(8).enumerate() {
                let (stripe, cell) = (octet / (format.stripe / 8), octet % (format.stripe / 8));
                let inside = &bytes[stripe * format.stripe_bytes()..][..format.stripe_bytes()];
                let slot = Slot::new(format, inside, stripe, slot);
                let numbers = expand(layout.format(), &slot, cell);
                for (out, number) in out.iter_mut().zip(numbers) {
                    *out = number as f32 * scale;
                }
            }
        }
    }
    out
}

/// The halves that the device makes of a cell.
fn expand(format: PackedFormat, slot: &Slot<'_>, cell: usize) -> [f64; 8] {
    use PackedFormat as F;
    match format {
        F::F16 => float::expand(slot, cell),
        F::Int4G32
        | F::Int4G64
        | F::Int4G128
        | F::Int4G32Zero
        | F::Int4G64Zero
        | F::Int4G128Zero
        | F::Iq4Nl => group_int::expand(format, slot, cell),
        F::Int8G32 | F::Int8G64 | F::Int8G128 | F::Int8G32Zero | F::Int8G64Zero | F::Int8G128Zero => {
            group_int::expand(format, slot, cell)
        }
        F::Nvfp4 => fp4::expand_nvfp4(slot, cell),
        F::Mxfp4 => fp4::expand_mxfp4(slot, cell),
        F::Fp8 | F::Fp8Block => fp8::expand(format, slot, cell),
        F::Iq4Xs | F::Q2K | F::Q3K | F::Q4K | F::Q5K | F::Q6K => k_quants::expand(format, slot, cell),
    }
}

#[cfg(test)]
mod tests;
