//! Q2_K to Q6_K and IQ4_XS: 256 numbers whose scales (and minima) are small integers times one half.
//!
//! The halves are brought to a range where an integer scale times them stays a half and is as large as can be; the integers
//! are laid out so that a byte permutation makes halves of them.

use super::group_int::{expand_bytes, step_bytes};
use super::stripe::{Slot, SlotMut};
use super::{Census, Column, Pack, bad, cell, half};
use crate::error::CudaError;
use crate::layout::PackedFormat;
use crate::source::{Source, Weight};

/// 2^-24: what a code of one is, read as a half.
const STEP: f64 = 1.0 / (1 << 24) as f64;
/// Order of the pairs in the fifth bits of Q5_K and the high bits of Q6_K: see `two_bits`.
const HIGH: [usize; 4] = [1, 3, 0, 2];
/// Order of the pairs in the two-bit planes of Q2_K and Q3_K.
const LOW: [usize; 4] = [0, 1, 2, 3];
/// Order of the pairs in the top bits of Q3_K: each lies just above its two bits.
const TOP: [usize; 4] = [3, 0, 1, 2];

pub(super) struct KQuants<'a> {
    weight: &'a Weight<'a>,
    format: PackedFormat,
}

/// Where a block's halves are, and the exponent below which the first is brought: its products with integer scales, and what
/// the device adds to make these, stay below 2^16.
struct Halves {
    d: usize,
    dmin: Option<usize>,
    top: i32,
}

fn halves(format: PackedFormat) -> Halves {
    use PackedFormat as F;
    let (d, dmin, top) = match format {
        F::Q2K => (80, Some(82), 10),
        F::Q3K => (108, None, 10),
        F::Q4K | F::Q5K => (0, Some(2), 8),
        F::Q6K => (208, None, 8),
        F::Iq4Xs => (0, None, 10),
        F::F16 | F::Fp8 | F::Fp8Block | F::Nvfp4 | F::Mxfp4 | F::Iq4Nl => {
            unreachable!("{format:?} is no K-quant")
        }
        F::Int4G32 | F::Int4G64 | F::Int4G128 | F::Int8G32 | F::Int8G64 | F::Int8G128 => {
            unreachable!("{format:?} is no K-quant")
        }
        F::Int4G32Zero | F::Int4G64Zero | F::Int4G128Zero => unreachable!("{format:?} is no K-quant"),
        F::Int8G32Zero | F::Int8G64Zero | F::Int8G128Zero => unreachable!("{format:?} is no K-quant"),
    };
    Halves { d, dmin, top }
}

impl<'a> KQuants<'a> {
    pub fn new(weight: &'a Weight<'a>, format: PackedFormat) -> Self {
        Self { weight, format }
    }

    fn block(&self, row: usize, block: usize) -> &'a [u8] {
        let Source::Rows { format, bytes } = *self.weight.source() else {
            unreachable!("K-quants are rows");
        };
        &bytes[self.weight.row_bytes(format, row)][block * format.block_bytes()..][..format.block_bytes()]
    }

    fn half(&self, row: usize, block: usize, at: usize) -> Result<f64, CudaError> {
        let bytes = &self.block(row, block)[at..];
        let value = half::value(u16::from_le_bytes([bytes[0], bytes[1]]));
        match value.is_finite() {
            true => Ok(value),
            false => Err(bad(row, 256 * block, format!("scale {value}"))),
        }
    }
}

impl Pack for KQuants<'_> {
    fn column(&self, row: usize) -> Result<Column, CudaError> {
        let Halves { d, dmin, top } = halves(self.format);
        let (mut d_max, mut dmin_max) = (0f64, 0f64);
        for block in 0..self.weight.k() / 256 {
            d_max = d_max.max(self.half(row, block, d)?.abs());
            if let Some(dmin) = dmin {
                dmin_max = dmin_max.max(self.half(row, block, dmin)?.abs());
            }
        }
        let rooms = [(d_max, top), (dmin_max, 15)];
        let rooms = rooms
            .into_iter()
            .filter_map(|(max, top)| Some(top - 1 - half::exponent(max)?));
        Column::of(row, rooms.min().unwrap_or(0), 1.0 / STEP)
    }

    fn stripe(
        &self,
        row: usize,
        stripe: usize,
        column: &Column,
        out: &mut SlotMut<'_>,
        census: &mut Census,
    ) -> Result<(), CudaError> {
        use PackedFormat as F;
        let place = (row, 256 * stripe);
        let Halves { d, dmin, .. } = halves(self.format);
        let d = half::bits(column.half(census, place, self.half(row, stripe, d)?));
        let dmin = match dmin {
            Some(at) => column.half(census, place, -self.half(row, stripe, at)?),
            None => 0.0,
        };
        let dmin = half::bits(dmin);
        let block = self.block(row, stripe);
        for octet in 0..32 {
            let codes = std::array::from_fn(|i| code(self.format, block, 8 * octet + i));
            put_codes(self.format, out, octet, &codes);
        }
        match self.format {
            F::Q4K | F::Q5K => {
                out.side_half(0, 0, d);
                out.side_half(0, 1, dmin);
                out.side(0, 4, &scales_minima(&block[4..16]));
            }
            F::Q6K => {
                out.side(0, 0, &std::array::from_fn::<u8, 16, _>(|i| block[192 + i] ^ 0x80));
                out.side_half(1, 0, d);
            }
            F::Q3K => {
                let words = q3_scales(&block[96..108]);
                for (side, word) in words.iter().enumerate() {
                    out.side(side, 0, word);
                }
                out.side_half(3, 0, d);
            }
            F::Q2K => {
                // The scale in the high nibble, the minimum in the low one.
                out.side(
                    0,
                    0,
                    &std::array::from_fn::<u8, 16, _>(|i| block[i].rotate_left(4)),
                );
                out.side_half(1, 0, d);
                out.side_half(1, 1, dmin);
            }
            _ => {
                out.side_half(0, 0, d);
                out.side(0, 2, &iq4_scales(&block[2..8]));
            }
        }
        Ok(())
    }
}

/// Code `e` of a block, without sign. The blocks are described in `weights::quant`.
fn code(format: PackedFormat, block: &[u8], e: usize) -> u8 {
    let two_bits = |plane: &[u8]| plane[32 * (e / 128) + e % 32] >> (2 * (e / 32 % 4)) & 3;
    let (s, l) = (e / 32, e % 32);
    let nibble = |qs: &[u8]| qs[32 * (s / 2) + l] >> (4 * (s % 2)) & 15;
    match format {
        PackedFormat::Q2K => two_bits(&block[16..80]),
        PackedFormat::Q3K => two_bits(&block[32..96]) | (block[l] >> s & 1) << 2,
        PackedFormat::Q4K => nibble(&block[16..]),
        PackedFormat::Q5K => nibble(&block[48..]) | (block[16 + l] >> s & 1) << 4,
        PackedFormat::Q6K => {
            let (h, j) = (e / 128, s % 4);
            let low = block[64 * h + 32 * (j % 2) + l] >> (4 * (j / 2)) & 15;
            low | two_bits(&block[128..192]) << 4
        }
        _ => block[8 + 16 * s + l % 16] >> (4 * (l / 16)) & 15,
    }
}

fn put_codes(format: PackedFormat, out: &mut SlotMut<'_>, octet: usize, codes: &cell::Cell) {
    match format {
        PackedFormat::Q2K => out.cell(0, octet, cell::two_bits(codes, LOW)),
        PackedFormat::Q3K => {
            out.cell(0, octet, cell::two_bits(codes, LOW));
            out.cell(1, octet, [cell::one_bit(&codes.map(|code| code >> 2), TOP)]);
        }
        PackedFormat::Q4K => out.cell(0, octet, cell::nibbles(codes)),
        PackedFormat::Q5K => {
            out.cell(0, octet, cell::nibbles(codes));
            out.cell(1, octet, [cell::one_bit(&codes.map(|code| code >> 4), HIGH)]);
        }
        PackedFormat::Q6K => {
            out.cell(0, octet, cell::nibbles(codes));
            out.cell(1, octet, cell::two_bits(&codes.map(|code| code >> 4), HIGH));
        }
        _ => out.cell(0, octet, cell::selectors(codes)),
    }
}

fn take_codes(format: PackedFormat, slot: &Slot<'_>, octet: usize) -> cell::Cell {
    let join =
        |low: cell::Cell, high: cell::Cell, shift: u32| std::array::from_fn(|i| low[i] | high[i] << shift);
    match format {
        PackedFormat::Q2K => cell::from_two_bits(slot.cell(0, octet), LOW),
        PackedFormat::Q3K => {
            let [top] = slot.cell(1, octet);
            join(
                cell::from_two_bits(slot.cell(0, octet), LOW),
                cell::from_one_bit(top, TOP),
                2,
            )
        }
        PackedFormat::Q4K => cell::from_nibbles(slot.cell(0, octet)),
        PackedFormat::Q5K => {
            let [high] = slot.cell(1, octet);
            join(
                cell::from_nibbles(slot.cell(0, octet)),
                cell::from_one_bit(high, HIGH),
                4,
            )
        }
        PackedFormat::Q6K => join(
            cell::from_nibbles(slot.cell(0, octet)),
            cell::from_two_bits(slot.cell(1, octet), HIGH),
            4,
        ),
        _ => cell::from_selectors(slot.cell(0, octet)),
    }
}

/// Eight scales and minima of six bits: two words of four scales (bits 7..2) with the low bits of the minima, then a word of the
/// minima's upper bits: low nibbles for the first four, high ones for the others.
fn scales_minima(packed: &[u8]) -> [u8; 12] {
    let pair = |s: usize| {
        if s < 4 {
            (packed[s] & 63, packed[s + 4] & 63)
        } else {
            (
                (packed[s + 4] & 15) | (packed[s - 4] >> 6) << 4,
                (packed[s + 4] >> 4) | (packed[s] >> 6) << 4,
            )
        }
    };
    let mut out = [0; 12];
    for s in 0..8 {
        let (scale, min) = pair(s);
        out[s] = scale << 2 | min & 3;
        out[8 + s % 4] |= (min >> 2) << (4 * (s / 4));
    }
    out
}

/// Scale `i` of Q3_K, 0..64 for -32..32.
fn q3_scale(packed: &[u8], i: usize) -> u8 {
    (packed[i % 8] >> (4 * (i / 8)) & 15) | (packed[8 + i % 4] >> (2 * (i / 4)) & 3) << 4
}

/// Sixteen scales: a word for each half of the block has its first four (bits 7..2) and the low bits of its last four, whose
/// upper bits are nibbles of the third word.
fn q3_scales(packed: &[u8]) -> [[u8; 4]; 3] {
    let mut out = [[0; 4]; 3];
    for i in 0..8 {
        let (half, j) = (i / 4, i % 4);
        let (first, last) = (q3_scale(packed, 8 * half + j), q3_scale(packed, 8 * half + 4 + j));
        out[half][j] = first << 2 | last & 3;
        out[2][j] |= (last >> 2) << (4 * half);
    }
    out
}

/// Eight scales of IQ4_XS, `scales_h u16, scales_l[4]`: two bytes with two high bits each of a half's four, then four bytes with
/// the low bits, low nibbles for the first half.
fn iq4_scales(packed: &[u8]) -> [u8; 6] {
    let high = u16::from_le_bytes([packed[0], packed[1]]);
    let mut out = [0; 6];
    for s in 0..8 {
        let (half, j) = (s / 4, s % 4);
        out[half] |= ((high >> (2 * s) & 3) as u8) << (2 * j);
        out[2 + j] |= (packed[2 + s / 2] >> (4 * (s % 2)) & 15) << (4 * half);
    }
    out
}

/// The half that a block's scale is multiplied to, and the half that is added (a minimum, or the middle of the codes).
fn scale_and_offset(format: PackedFormat, slot: &Slot<'_>, octet: usize) -> (f64, f64) {
    let (half_block, s) = (octet / 16, octet / 4);
    match format {
        PackedFormat::Q4K | PackedFormat::Q5K => {
            let bytes = &slot.side(0)[4..];
            let (d, minus_dmin) = (slot.side_half(0, 0), slot.side_half(0, 1));
            let min = bytes[s] & 3 | (bytes[8 + s % 4] >> (4 * half_block) & 15) << 2;
            let scale = half::fma(256.0 + f64::from(bytes[s] >> 2), d, half::mul(d, -256.0));
            (scale, half::mul(f64::from(min) * STEP, minus_dmin))
        }
        PackedFormat::Q2K => {
            let byte = slot.side(0)[octet / 2];
            let (d, minus_dmin) = (slot.side_half(1, 0), slot.side_half(1, 1));
            let scale = half::fma(64.0 + f64::from(byte >> 4), d, half::mul(d, -64.0));
            (scale, half::mul(f64::from(byte & 15) * STEP, minus_dmin))
        }
        PackedFormat::Q6K => {
            let integer = f64::from(slot.side(0)[octet / 2]) - 128.0;
            let scale = half::mul(integer, slot.side_half(1, 0));
            (scale, half::mul(scale, -32.0 * STEP))
        }
        PackedFormat::Q3K => {
            let (word, high) = (slot.side(half_block), slot.side(2));
            let (i, j) = (octet / 2 % 8, octet / 2 % 4);
            let integer = match i < 4 {
                true => word[j] >> 2,
                false => word[j] & 3 | (high[j] >> (4 * half_block) & 15) << 2,
            };
            let scale = half::mul(f64::from(integer) - 32.0, slot.side_half(3, 0));
            (scale, half::mul(scale, -4.0 * STEP))
        }
        _ => {
            let bytes = &slot.side(0)[2..];
            let integer =
                (bytes[half_block] >> (2 * (s % 4)) & 3) << 4 | bytes[2 + s % 4] >> (4 * half_block) & 15;
            (half::mul(f64::from(integer) - 32.0, slot.side_half(0, 0)), 0.0)
        }
    }
}

pub(super) fn expand(format: PackedFormat, slot: &Slot<'_>, octet: usize) -> [f64; 8] {
    let codes = take_codes(format, slot, octet);
    let (scale, offset) = scale_and_offset(format, slot, octet);
    if format == PackedFormat::Iq4Xs {
        return expand_bytes(step_bytes(codes), scale);
    }
    std::array::from_fn(|i| {
        let pair = (i / 2) as i32;
        // How far up in its half the code of this pair is read.
        let shift = match format {
            PackedFormat::Q2K | PackedFormat::Q3K => 2 * pair,
            _ => 4 * (pair % 2),
        };
        let (code, scale) = (
            f64::from(codes[i]) * STEP * half::power(shift),
            half::mul(scale, half::power(-shift)),
        );
        half::fma(code, scale, offset)
    })
}
