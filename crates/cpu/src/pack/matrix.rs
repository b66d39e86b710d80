//! One packed weight.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use galvani_graph::{BackendError, Format};
use galvani_weights::quant;

use super::{AlignedBytes, BLOCK, TILE_ROWS};
use crate::dot::{BlockFormat, for_block_format, unit_len, unit_raw_bytes};
use crate::isa::Isa;
use crate::pool::Pool;
use crate::simd::Simd;
use crate::simd::lanes::Lanes;

/// How products with quantised weights are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CpuMath {
    /// Weights dequantised, everything in f32.
    Exact,
    /// Activations rounded to int8 with a scale for each 32 numbers; integer dot products.
    Fast,
}

/// What to pack, and for which kernels.
#[derive(Debug, Clone, Copy)]
pub struct PackSpec<'a> {
    /// Kernels that will read it.
    pub isa: Isa,
    /// Arithmetic of those kernels.
    pub math: CpuMath,
    /// Name, for errors.
    pub name: &'a str,
    /// Encoding of the rows.
    pub format: Format,
    /// Matrices in the weight (experts), each padded to whole tiles.
    pub parts: usize,
    /// Rows of one part.
    pub rows: usize,
    /// Numbers in a row.
    pub k: usize,
}

/// A weight `[parts, rows, k]` in the kernels' layout.
pub struct PackedMatrix {
    pub(crate) isa: Isa,
    pub(crate) math: CpuMath,
    format: Format,
    parts: usize,
    rows: usize,
    k: usize,
    pub(crate) layout: TileLayout,
    data: AlignedBytes,
}

/// What a tile consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TileLayout {
    /// Units of a format in [`crate::dot`], one after the other.
    Units { count: usize, bytes: usize },
    /// `[k][16]` floats in their own encoding.
    Floats,
    /// 16 raw rows, one after the other.
    Raw { row_bytes: usize },
}

/// Raw bytes that one thread asks for at a time: enough for long reads, little beside the weight.
const CHUNK_BYTES: usize = 1 << 18;

impl PackedMatrix {
    /// Packs a weight on all threads. `source(rows)` gives the raw rows (parts flattened), one after the other.
    ///
    /// # Errors
    /// When the source fails or gives the wrong number of bytes, when `k` is not a whole number of blocks, or when
    /// memory is short.
    pub fn pack<'s>(
        pool: &Pool,
        spec: &PackSpec<'_>,
        source: &(dyn Fn(Range<usize>) -> Result<Cow<'s, [u8]>, BackendError> + Sync),
    ) -> Result<Self, BackendError> {
        let bad = |reason: String| BackendError::Weight {
            name: spec.name.to_owned(),
            reason,
        };
        let row_bytes = spec.format.row_bytes(spec.k).map_err(|e| bad(e.to_string()))?;
        let layout = TileLayout::of(spec.format, spec.k, row_bytes);
        let tiles = spec.parts * spec.rows.div_ceil(TILE_ROWS);
        let bytes = tiles
            .checked_mul(layout.tile_bytes(spec.format, spec.k))
            .ok_or_else(|| {
                bad(format!(
                    "[{}, {}, {}] is too large",
                    spec.parts, spec.rows, spec.k
                ))
            })?;
        let matrix = PackedMatrix {
            isa: spec.isa,
            math: spec.math,
            format: spec.format,
            parts: spec.parts,
            rows: spec.rows,
            k: spec.k,
            layout,
            data: AlignedBytes::zeroed(bytes, "a packed weight")?,
        };
        let error = Mutex::new(None);
        let next = AtomicUsize::new(0);
        let chunk_tiles = (CHUNK_BYTES / (TILE_ROWS * row_bytes).max(1)).max(1);
        let chunks_per_part = matrix.tiles_per_part().div_ceil(chunk_tiles);
        pool.run(|_| {
            loop {
                let chunk = next.fetch_add(1, Ordering::Relaxed);
                if chunk >= spec.parts * chunks_per_part {
                    return;
                }
                let first = chunk % chunks_per_part * chunk_tiles;
                let tiles = first..(first + chunk_tiles).min(matrix.tiles_per_part());
                let result = matrix.pack_chunk(spec.name, chunk / chunks_per_part, tiles, row_bytes, source);
                if let Err(reason) = result {
                    next.store(spec.parts * chunks_per_part, Ordering::Relaxed);
                    error
                        .lock()
                        .unwrap_or_else(PoisonError::into_inner)
                        .get_or_insert(reason);
                    return;
                }
            }
        });
        match error.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error),
            None => Ok(matrix),
        }
    }

    /// Bytes of the packed form.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// Encoding.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Rows of one part.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Parts.
    pub fn parts(&self) -> usize {
        self.parts
    }

    /// Numbers in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Tiles of one part.
    pub fn tiles_per_part(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    /// Blocks of a row, padding included; zero if not packed in units.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn blocks(&self) -> usize {
        macro_rules! blocks {
            ($f:ty) => {
                <$f>::UNIT_BLOCKS
            };
        }
        match self.layout {
            TileLayout::Units { count, .. } => count * for_block_format!(self.format, blocks, 0),
            TileLayout::Floats | TileLayout::Raw { .. } => 0,
        }
    }

    /// Whether it is packed in units of codes and scales.
    pub(crate) fn has_units(&self) -> bool {
        matches!(self.layout, TileLayout::Units { .. })
    }

    /// Bytes of one tile.
    pub(crate) fn tile_bytes(&self) -> usize {
        self.layout.tile_bytes(self.format, self.k)
    }

    /// Start of a tile.
    pub(crate) fn tile(&self, part: usize, tile: usize) -> *const u8 {
        assert!(part < self.parts && tile < self.tiles_per_part());
        let index = part * self.tiles_per_part() + tile;
        // SAFETY: the tile lies within the data by the assertion.
        unsafe { self.data.as_ptr().add(index * self.tile_bytes()) }
    }

    /// The numbers of one row (parts flattened), as the format defines them, into `out` of length `k`.
    pub fn unpack_row(&self, row: usize, out: &mut [f32]) {
        assert_eq!(
            out.len(),
            self.k,
            "a row of {} has {} numbers",
            self.format,
            self.k
        );
        let (part, row) = (row / self.rows, row % self.rows);
        let tile = self.tile(part, row / TILE_ROWS);
        let lane = row % TILE_ROWS;
        let sink = |k: usize, values: &[f32; TILE_ROWS]| {
            if let Some(out) = out.get_mut(k) {
                *out = values[lane];
            }
        };
        match self.layout {
            TileLayout::Raw { row_bytes } => {
                // SAFETY: raw tiles hold 16 rows of `row_bytes`.
                let raw = unsafe { std::slice::from_raw_parts(tile.add(lane * row_bytes), row_bytes) };
                quant::dequantize(self.format, raw, out).expect("row length was checked when packing");
            }
            TileLayout::Units { .. } | TileLayout::Floats => self.each_k(tile, sink),
        }
    }

    /// Dequantises a tile to `[k][16]` f32 at `panel`.
    ///
    /// # Safety
    /// `tile` comes from [`PackedMatrix::tile`]; `panel` has `16 * k` numbers.
    pub(crate) unsafe fn unpack_tile(&self, tile: *const u8, panel: *mut f32) {
        // SAFETY: the caller's panel.
        let panel = unsafe { std::slice::from_raw_parts_mut(panel, TILE_ROWS * self.k) };
        match self.layout {
            TileLayout::Raw { row_bytes } => {
                let mut values = [0f32; 256];
                let (len, bytes) = (self.format.block_len(), self.format.block_bytes());
                for lane in 0..TILE_ROWS {
                    for block in 0..self.k / len {
                        // SAFETY: raw tiles hold 16 rows of `row_bytes`.
                        let raw = unsafe {
                            std::slice::from_raw_parts(tile.add(lane * row_bytes + block * bytes), bytes)
                        };
                        let values = &mut values[..len];
                        quant::dequantize(self.format, raw, values).expect("a whole block");
                        for (i, value) in values.iter().enumerate() {
                            panel[(block * len + i) * TILE_ROWS + lane] = *value;
                        }
                    }
                }
            }
            TileLayout::Units { .. } | TileLayout::Floats => self.each_k(tile, |k, values| {
                if k < self.k {
                    panel[k * TILE_ROWS..(k + 1) * TILE_ROWS].copy_from_slice(values);
                }
            }),
        }
    }

    /// Gives the numbers of 16 rows for each k, in order; block formats may give more than `k`.
    fn each_k(&self, tile: *const u8, mut sink: impl FnMut(usize, &[f32; TILE_ROWS])) {
        // SAFETY: `tile` is a whole tile of this layout; `Lanes` runs anywhere.
        unsafe {
            match self.layout {
                TileLayout::Units { count, .. } => {
                    macro_rules! run {
                        ($f:ty) => {
                            each_k_of_units::<$f>(tile, count, &mut sink)
                        };
                    }
                    for_block_format!(self.format, run, unreachable!("units have a block format"));
                }
                TileLayout::Floats => {
                    for k in 0..self.k {
                        let values = if self.format == Format::F16 {
                            Lanes::f16(tile.add(32 * k))
                        } else if self.format == Format::BF16 {
                            Lanes::bf16(tile.add(32 * k))
                        } else {
                            Lanes::load_f(tile.add(64 * k).cast())
                        };
                        sink(k, &values);
                    }
                }
                TileLayout::Raw { .. } => unreachable!("raw rows are dequantised by row"),
            }
        }
    }

    fn pack_chunk<'s>(
        &self,
        name: &str,
        part: usize,
        tiles: Range<usize>,
        row_bytes: usize,
        source: &(dyn Fn(Range<usize>) -> Result<Cow<'s, [u8]>, BackendError> + Sync),
    ) -> Result<(), BackendError> {
        let rows = tiles.start * TILE_ROWS..(tiles.end * TILE_ROWS).min(self.rows);
        let raw = source(part * self.rows + rows.start..part * self.rows + rows.end)?;
        if raw.len() != rows.len() * row_bytes {
            return Err(BackendError::Weight {
                name: name.to_owned(),
                reason: format!(
                    "{} rows of {} bytes were wanted, the source gave {} bytes",
                    rows.len(),
                    row_bytes,
                    raw.len()
                ),
            });
        }
        let none = vec![0u8; row_bytes];
        for tile in tiles.clone() {
            let row = |lane: usize| {
                let at = (tile - tiles.start) * TILE_ROWS + lane;
                raw.get(at * row_bytes..(at + 1) * row_bytes).unwrap_or(&none)
            };
            let lanes: [&[u8]; TILE_ROWS] = std::array::from_fn(row);
            // SAFETY: chunks are claimed once each, so no other thread touches this tile.
            let out = unsafe {
                std::slice::from_raw_parts_mut(self.tile(part, tile).cast_mut(), self.tile_bytes())
            };
            self.pack_tile(&lanes, out);
        }
        Ok(())
    }

    fn pack_tile(&self, lanes: &[&[u8]; TILE_ROWS], out: &mut [u8]) {
        match self.layout {
            TileLayout::Units { bytes, .. } => {
                macro_rules! run {
                    ($f:ty) => {
                        pack_units::<$f>(lanes, bytes, out)
                    };
                }
                for_block_format!(self.format, run, unreachable!("units have a block format"));
            }
            TileLayout::Floats => {
                let size = self.format.block_bytes();
                for (lane, row) in lanes.iter().enumerate() {
                    for (k, value) in row.chunks_exact(size).enumerate() {
                        let at = (k * TILE_ROWS + lane) * size;
                        out[at..at + size].copy_from_slice(value);
                    }
                }
            }
            TileLayout::Raw { row_bytes } => {
                for (row, out) in lanes.iter().zip(out.chunks_exact_mut(row_bytes)) {
                    out.copy_from_slice(row);
                }
            }
        }
    }
}

impl TileLayout {
    fn of(format: Format, k: usize, row_bytes: usize) -> Self {
        macro_rules! units {
            ($f:ty) => {
                TileLayout::Units {
                    count: k.div_ceil(unit_len::<$f>()),
                    bytes: <$f>::UNIT_BYTES,
                }
            };
        }
        if format.is_float() {
            return TileLayout::Floats;
        }
        for_block_format!(format, units, TileLayout::Raw { row_bytes })
    }

    fn tile_bytes(self, format: Format, k: usize) -> usize {
        match self {
            TileLayout::Units { count, bytes } => count * bytes,
            TileLayout::Floats => k * TILE_ROWS * format.block_bytes(),
            TileLayout::Raw { row_bytes } => TILE_ROWS * row_bytes,
        }
    }
}

fn pack_units<F: BlockFormat>(lanes: &[&[u8]; TILE_ROWS], unit_bytes: usize, out: &mut [u8]) {
    let raw = unit_raw_bytes::<F>();
    for (unit, out) in out.chunks_exact_mut(unit_bytes).enumerate() {
        let range = unit * raw..(unit + 1) * raw;
        if range.end <= lanes[0].len() {
            F::pack(&std::array::from_fn(|lane| &lanes[lane][range.clone()]), out);
            continue;
        }
        // The row ends within the unit: the rest is zero blocks, which decode to zero numbers.
        let padded: [Vec<u8>; TILE_ROWS] = std::array::from_fn(|lane| {
            let mut bytes = lanes[lane][range.start..].to_vec();
            bytes.resize(raw, 0);
            bytes
        });
        F::pack(&std::array::from_fn(|lane| padded[lane].as_slice()), out);
    }
}

/// # Safety
/// `tile` has `units` units of the format.
unsafe fn each_k_of_units<F: BlockFormat>(
    tile: *const u8,
    units: usize,
    sink: &mut impl FnMut(usize, &[f32; TILE_ROWS]),
) {
    for unit in 0..units {
        for block in 0..F::UNIT_BLOCKS {
            // SAFETY: within the tile; `Lanes` runs anywhere.
            let (codes, scales, mins) = unsafe {
                let at = tile.add(unit * F::UNIT_BYTES);
                (
                    F::codes::<Lanes>(at, block),
                    F::scales::<Lanes>(at, block),
                    F::mins::<Lanes>(at, block),
                )
            };
            for i in 0..BLOCK {
                let half = if F::SCALES == 2 { i / 16 } else { 0 };
                let values = std::array::from_fn(|lane| {
                    let code = i32::from(codes[i / 4][4 * lane + i % 4]) - i32::from(F::OFFSET);
                    let value = scales[half][lane] * code as f32;
                    if F::MIN { value + mins[half][lane] } else { value }
                });
                sink((unit * F::UNIT_BLOCKS + block) * BLOCK + i, &values);
            }
        }
    }
}
