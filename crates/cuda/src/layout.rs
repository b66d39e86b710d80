//! The packed layout of quantised weights: one copy, in the order in which the tensor cores take it.
//!
//! A weight [N, K] is cut into *tiles* of 32 columns (rows of the matrix, columns of the product), N padded. A tile is one
//! run of bytes: *stripes* of some numbers of k, K padded with weights of zero. A stripe holds *planes* of code bits, then
//! *sides* (scales, zero points) by slot.
//!
//! In a plane a *cell* is eight consecutive k of one column, a *unit* 32 columns x 32 k, `slot` a place of a column in its
//! tile (Volta's lane). A plane of b bits: b <= 4 `[unit][slot][octet][b bytes]`, b = 8 `[unit][octet / 2][slot][octet % 2][8
//! bytes]`, b = 16 `[unit][octet][slot][16 bytes]`, the groups of 32 bytes of each 128 in an order of the unit's
//! ([`FormatRow::bank_group`]). A side is `[slot][bytes]`. Where the bits of a cell lie is the format's
//! own (`repack/cell.rs`). Zero bytes are weights of zero in every format.

use crate::error::CudaError;

/// Columns of a tile.
pub const TILE: usize = 32;

/// A packed form of weights: which kernel reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum PackedFormat {
    F16,
    Fp8,
    Fp8Block,
    Int4G32,
    Int4G64,
    Int4G128,
    Int4G32Zero,
    Int4G64Zero,
    Int4G128Zero,
    Int8G32,
    Int8G64,
    Int8G128,
    Int8G32Zero,
    Int8G64Zero,
    Int8G128Zero,
    Nvfp4,
    Mxfp4,
    Iq4Nl,
    Iq4Xs,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
}

/// What a packed form is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatRow {
    /// The form.
    pub format: PackedFormat,
    /// Its name in symbols.
    pub name: &'static str,
    /// Its type in device code.
    pub type_name: &'static str,
    /// The header that has it.
    pub header: &'static str,
    /// Numbers of k in a stripe.
    pub stripe: usize,
    /// Numbers of k that a warp handles at once (`kPiece`): a divisor of the stripe.
    pub piece: usize,
    /// Bits a code in each plane.
    pub planes: &'static [usize],
    /// Bytes a slot in each side of a stripe.
    pub sides: &'static [usize],
    /// K is a multiple of this.
    pub k_multiple: usize,
}

/// All forms, in the order of [`PackedFormat`].
pub const FORMATS: [FormatRow; 24] = {
    use PackedFormat as F;
    const fn row(
        format: PackedFormat,
        names: [&'static str; 3],
        [stripe, piece, k_multiple]: [usize; 3],
        planes: &'static [usize],
        sides: &'static [usize],
    ) -> FormatRow {
        FormatRow {
            format,
            name: names[0],
            type_name: names[1],
            header: names[2],
            stripe,
            piece,
            planes,
            sides,
            k_multiple,
        }
    }
    const GROUP: &str = "quant/group_int.cuh";
    const FP8: &str = "quant/fp8.cuh";
    const FP4: &str = "quant/mxfp4.cuh";
    const IQ4: &str = "quant/iq4.cuh";
    [
        row(F::F16, ["f16", "F16", "quant/f16.cuh"], [64, 64, 1], &[16], &[]),
        row(F::Fp8, ["fp8", "Fp8", FP8], [64, 64, 1], &[8], &[]),
        row(
            F::Fp8Block,
            ["fp8_block", "Fp8Block", FP8],
            [128, 64, 1],
            &[8],
            &[2],
        ),
        row(
            F::Int4G32,
            ["int4_g32", "Int4G32", GROUP],
            [64, 64, 32],
            &[4],
            &[4],
        ),
        row(
            F::Int4G64,
            ["int4_g64", "Int4G64", GROUP],
            [64, 64, 64],
            &[4],
            &[2],
        ),
        row(
            F::Int4G128,
            ["int4_g128", "Int4G128", GROUP],
            [128, 64, 128],
            &[4],
            &[2],
        ),
        row(
            F::Int4G32Zero,
            ["int4_g32_zero", "Int4G32Zero", GROUP],
            [64, 64, 32],
            &[4],
            &[4, 2],
        ),
        row(
            F::Int4G64Zero,
            ["int4_g64_zero", "Int4G64Zero", GROUP],
            [64, 64, 64],
            &[4],
            &[2, 1],
        ),
        row(
            F::Int4G128Zero,
            ["int4_g128_zero", "Int4G128Zero", GROUP],
            [128, 64, 128],
            &[4],
            &[2, 1],
        ),
        row(
            F::Int8G32,
            ["int8_g32", "Int8G32", GROUP],
            [64, 64, 32],
            &[8],
            &[4],
        ),
        row(
            F::Int8G64,
            ["int8_g64", "Int8G64", GROUP],
            [64, 64, 64],
            &[8],
            &[2],
        ),
        row(
            F::Int8G128,
            ["int8_g128", "Int8G128", GROUP],
            [128, 64, 128],
            &[8],
            &[2],
        ),
        row(
            F::Int8G32Zero,
            ["int8_g32_zero", "Int8G32Zero", GROUP],
            [64, 64, 32],
            &[8],
            &[4, 2],
        ),
        row(
            F::Int8G64Zero,
            ["int8_g64_zero", "Int8G64Zero", GROUP],
            [64, 64, 64],
            &[8],
            &[2, 1],
        ),
        row(
            F::Int8G128Zero,
            ["int8_g128_zero", "Int8G128Zero", GROUP],
            [128, 64, 128],
            &[8],
            &[2, 1],
        ),
        row(
            F::Nvfp4,
            ["nvfp4", "Nvfp4", "quant/nvfp4.cuh"],
            [64, 64, 16],
            &[4],
            &[4],
        ),
        row(F::Mxfp4, ["mxfp4", "Mxfp4", FP4], [64, 64, 32], &[4], &[2]),
        row(F::Iq4Nl, ["iq4_nl", "Iq4Nl", IQ4], [64, 64, 32], &[4], &[4]),
        row(F::Iq4Xs, ["iq4_xs", "Iq4Xs", IQ4], [256, 64, 256], &[4], &[8]),
        row(
            F::Q2K,
            ["q2_k", "Q2K", "quant/q2_k.cuh"],
            [256, 64, 256],
            &[2],
            &[16, 4],
        ),
        row(
            F::Q3K,
            ["q3_k", "Q3K", "quant/q3_k.cuh"],
            [256, 64, 256],
            &[2, 1],
            &[4, 4, 4, 2],
        ),
        row(
            F::Q4K,
            ["q4_k", "Q4K", "quant/q4_k.cuh"],
            [256, 64, 256],
            &[4],
            &[16],
        ),
        row(
            F::Q5K,
            ["q5_k", "Q5K", "quant/q5_k.cuh"],
            [256, 64, 256],
            &[4, 1],
            &[16],
        ),
        row(
            F::Q6K,
            ["q6_k", "Q6K", "quant/q6_k.cuh"],
            [256, 64, 256],
            &[4, 2],
            &[16, 2],
        ),
    ]
};

impl PackedFormat {
    /// Its row of [`FORMATS`].
    pub const fn row(self) -> &'static FormatRow {
        &FORMATS[self as usize]
    }
}

/// Bytes of a unit in a plane of so many bits.
pub const fn unit_bytes(bits: usize) -> usize {
    128 * bits
}

/// First byte of a cell in its unit, whose groups of 32 bytes change places by `group`, 0 to 3: those of planes of four bits and more; of two
/// bits, by its lowest bit; of one, not at all. Eight slots further on is so always as many bytes further on.
pub const fn cell_offset(bits: usize, group: usize, slot: usize, octet: usize) -> usize {
    let run = if bits < 4 { 4 * bits } else { 16 };
    let place = (run * slot) ^ (32 * (group & (run / 4 - 1)));
    match bits {
        8 => (octet / 2) * 512 + place + (octet % 2) * 8,
        16 => octet * 512 + place,
        _ => place + octet * bits,
    }
}

/// The column of a tile (0..32) that a slot holds.
pub const fn column_of_slot(slot: usize) -> usize {
    8 * ((slot >> 2) & 3) + (slot & 3) + 4 * (slot >> 4)
}

impl FormatRow {
    /// First byte of a plane in its stripe.
    pub const fn plane_offset(&self, plane: usize) -> usize {
        let (mut at, mut i) = (0, 0);
        while i < plane {
            at += unit_bytes(self.planes[i]) * (self.stripe / 32);
            i += 1;
        }
        at
    }

    /// First byte of a side in its stripe.
    pub const fn side_offset(&self, side: usize) -> usize {
        let (mut at, mut i) = (self.plane_offset(self.planes.len()), 0);
        while i < side {
            at += TILE * self.sides[i];
            i += 1;
        }
        at
    }

    /// Bytes of a stripe of 32 columns: a multiple of 32, which keeps every load aligned.
    pub const fn stripe_bytes(&self) -> usize {
        self.side_offset(self.sides.len())
    }

    /// How the groups of 32 bytes of unit `unit` of stripe `stripe` change places: the four units of 128 k, which a warp of later tensor
    /// cores loads together, have different ones, so that no two of them wait for the same banks. Pieces that are a stripe
    /// whose size moves every other one by half of the banks need only two.
    pub const fn bank_group(&self, stripe: usize, unit: usize) -> usize {
        let pieces = self.stripe / 64;
        let moved = pieces == 1 && self.stripe_bytes() % 128 == 64;
        let first = if moved { 0 } else { 2 * stripe * pieces };
        (first + unit) % 4
    }

    /// Bits that a weight takes, sides included.
    pub const fn bits(&self) -> f64 {
        (self.stripe_bytes() * 8) as f64 / (TILE * self.stripe) as f64
    }
}

/// The packed sizes of one weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    format: PackedFormat,
    n: usize,
    k: usize,
    tiles: usize,
    stripes: usize,
    tile_bytes: usize,
    bytes: usize,
}

impl Layout {
    /// The layout of `n` rows of `k` numbers.
    ///
    /// # Errors
    /// A size of zero, a `k` that the format does not hold, or one that the kernels' 32-bit arguments do not.
    pub fn new(format: PackedFormat, n: usize, k: usize) -> Result<Self, CudaError> {
        let row = format.row();
        let fault = |what, value, allowed: String| CudaError::Shape { what, value, allowed };
        let largest = i32::MAX as usize / 64;
        if n == 0 || n > largest {
            return Err(fault("rows", n, format!("1 to {largest}")));
        }
        if k == 0 || k > largest || !k.is_multiple_of(row.k_multiple) {
            let allowed = format!("multiples of {} up to {largest} for {}", row.k_multiple, row.name);
            return Err(fault("columns", k, allowed));
        }
        let (tiles, stripes) = (n.div_ceil(TILE), k.div_ceil(row.stripe));
        let tile_bytes = stripes
            .checked_mul(row.stripe_bytes())
            .filter(|&bytes| bytes <= u32::MAX as usize)
            .ok_or_else(|| fault("columns", k, format!("tiles of up to {} bytes", u32::MAX)))?;
        let bytes = tiles
            .checked_mul(tile_bytes)
            .ok_or_else(|| fault("rows", n, "an addressable size".to_owned()))?;
        Ok(Self {
            format,
            n,
            k,
            tiles,
            stripes,
            tile_bytes,
            bytes,
        })
    }

    /// The packed form.
    pub const fn format(&self) -> PackedFormat {
        self.format
    }
    /// Rows of the weight.
    pub const fn n(&self) -> usize {
        self.n
    }
    /// Numbers in a row.
    pub const fn k(&self) -> usize {
        self.k
    }
    /// Tiles of 32 columns.
    pub const fn tiles(&self) -> usize {
        self.tiles
    }
    /// Stripes of a tile.
    pub const fn stripes(&self) -> usize {
        self.stripes
    }
    /// Bytes of a tile.
    pub const fn tile_bytes(&self) -> usize {
        self.tile_bytes
    }
    /// Bytes of all tiles.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }
    /// Column scales, one a column, padded ones included.
    pub const fn column_scales(&self) -> usize {
        self.tiles * TILE
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::sources;

    #[test]
    fn rows_are_whole() {
        for (index, row) in FORMATS.iter().enumerate() {
            let name = row.name;
            assert_eq!(row.format as usize, index, "{name}");
            let header = sources::find(row.header).expect("headers are embedded");
            assert!(header.contains(row.type_name), "{name}");
            assert!(row.stripe.is_multiple_of(row.piece) && row.piece == 64, "{name}");
            assert!(row.k_multiple <= row.stripe, "{name}");
            assert!(row.stripe_bytes().is_multiple_of(32), "{name}");
            for side in 0..row.sides.len() {
                let width = row.sides[side].min(16);
                assert!(
                    row.side_offset(side).is_multiple_of(width),
                    "{name}: side {side} is aligned"
                );
            }
        }
        let names: BTreeSet<_> = FORMATS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), FORMATS.len());
    }

    /// A weight takes as many bits as in its file.
    #[test]
    fn bits_stay_the_files_own() {
        use galvani_graph::Format;
        for (packed, format) in [
            (PackedFormat::F16, Format::F16),
            (PackedFormat::Int8G32, Format::Q8_0),
            (PackedFormat::Int4G32, Format::Q4_0),
            (PackedFormat::Iq4Nl, Format::Iq4Nl),
            (PackedFormat::Iq4Xs, Format::Iq4Xs),
            (PackedFormat::Nvfp4, Format::Nvfp4),
            (PackedFormat::Mxfp4, Format::Mxfp4),
            (PackedFormat::Q2K, Format::Q2K),
            (PackedFormat::Q3K, Format::Q3K),
            (PackedFormat::Q4K, Format::Q4K),
            (PackedFormat::Q5K, Format::Q5K),
            (PackedFormat::Q6K, Format::Q6K),
        ] {
            let file = (format.block_bytes() * 8) as f64 / format.block_len() as f64;
            assert_eq!(packed.row().bits(), file, "{format}");
        }
    }

    #[test]
    fn cells_fill_a_unit_once() {
        for bits in [1, 2, 4, 8, 16] {
            for group in 0..4 {
                let mut seen = vec![false; unit_bytes(bits)];
                for (slot, octet) in (0..TILE).flat_map(|slot| (0..4).map(move |octet| (slot, octet))) {
                    let at = cell_offset(bits, group, slot, octet);
                    for seen in &mut seen[at..at + bits] {
                        assert!(!std::mem::replace(seen, true), "{bits} {slot} {octet}");
                    }
                }
                assert!(seen.iter().all(|&seen| seen));
                for slot in 0..TILE - 8 {
                    let [at, next] = [slot, slot + 8].map(|slot| cell_offset(bits, group, slot, 0));
                    assert_eq!(next - at, if bits < 4 { 32 * bits } else { 128 });
                }
            }
        }
        let columns: BTreeSet<_> = (0..TILE).map(column_of_slot).collect();
        assert!(columns.into_iter().eq(0..TILE));
    }

    /// What eight lanes of a later tensor core load together, two slots of four units, is in different banks, unless a stripe's odd size
    /// moves its units by a quarter of them.
    #[test]
    fn units_of_a_span_are_in_different_banks() {
        for row in &FORMATS {
            for (plane, bits) in row.planes.iter().enumerate().filter(|(_, bits)| **bits >= 4) {
                for slot in (0..TILE).step_by(2) {
                    let starts = (0..4).map(|unit| {
                        let (stripe, inside) = (unit * 32 / row.stripe, unit % (row.stripe / 32));
                        let group = row.bank_group(stripe, inside);
                        let unit = row.plane_offset(plane) + inside * unit_bytes(*bits);
                        stripe * row.stripe_bytes() + unit + cell_offset(*bits, group, slot, 0)
                    });
                    let banks: BTreeSet<_> = starts.map(|at| at % 128 / 32).collect();
                    let odd = row.stripe == 64 && !row.stripe_bytes().is_multiple_of(64);
                    assert_eq!(banks.len(), if odd { 3 } else { 4 }, "{} {slot}", row.name);
                }
            }
        }
    }

    #[test]
    fn shapes_are_checked() {
        let bytes =
            |format, n, k| Layout::new(format, n, k).map(|layout| (layout.tile_bytes(), layout.bytes()));
        assert_eq!(
            bytes(PackedFormat::Nvfp4, 33, 80).expect("fits"),
            (2 * 1152, 4 * 1152)
        );
        assert_eq!(bytes(PackedFormat::F16, 1, 1).expect("fits"), (4096, 4096));
        for (format, n, k) in [
            (PackedFormat::Nvfp4, 0, 16),
            (PackedFormat::Nvfp4, 1, 0),
            (PackedFormat::Nvfp4, 1, 24),
            (PackedFormat::Q4K, 1, 128),
            (PackedFormat::F16, usize::MAX, 1),
            (PackedFormat::F16, 1, usize::MAX),
        ] {
            assert!(bytes(format, n, k).is_err(), "{format:?} {n} {k}");
        }
    }
}
