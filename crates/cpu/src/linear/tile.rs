//! One tile of 16 weight rows against chunks of activation rows.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use galvani_graph::Format;

use super::act::{CHUNK, Chunk, ChunkInput};
use super::table::{self, FloatFn, RowsFn, StreamsFn};
use crate::dot::{BlockFormat, Codes};
use crate::isa::Isa;
use crate::pack::{BLOCK, CpuMath, PackedMatrix, TILE_ROWS, TileLayout};
use crate::pool::Worker;
use crate::quantise::{ActTile, MINUS_HALVES, MINUS_SUM, SCALE, SCALED_SUM};
use crate::simd::Simd;

/// Results of a chunk: `[row][16 columns]`.
#[repr(align(64))]
pub(super) struct TileOut {
    _rows: [[f32; TILE_ROWS]; CHUNK],
}

impl TileOut {
    /// Room for results.
    #[inline]
    pub const fn uninit() -> MaybeUninit<Self> {
        MaybeUninit::uninit()
    }
}

/// A worker's scratch, taken piece by piece.
pub(super) struct Scratch<'a> {
    start: *mut u8,
    left: usize,
    worker: PhantomData<&'a ()>,
}

impl<'a> Scratch<'a> {
    /// All of it.
    pub fn of(worker: &'a Worker<'_>) -> Self {
        let (start, left) = worker.scratch();
        Scratch {
            start,
            left,
            worker: PhantomData,
        }
    }

    /// `bytes` of it, 64-byte aligned.
    pub fn take(&mut self, bytes: usize) -> *mut u8 {
        let bytes = bytes.next_multiple_of(64);
        assert!(
            bytes <= self.left,
            "{bytes} bytes of scratch are wanted, {} are reserved",
            self.left
        );
        let piece = self.start;
        // SAFETY: within the scratch by the assertion.
        self.start = unsafe { piece.add(bytes) };
        self.left -= bytes;
        piece
    }

    /// Room for an unpacked tile.
    pub fn panel(&mut self, bytes: usize) -> Panel {
        Panel(self.take(bytes))
    }
}

/// Tiles that few rows are multiplied by at the same time. A core that reads one run of bytes gets no further than what
/// its line-fill buffers hold; of several runs the second-level cache's prefetcher brings more (a read loop with one run and four, one
/// core: 12.0 and 14.5 GB/s from small pages, 15.5 and 18.1 from huge ones).
pub(super) const STREAMS: usize = 4;

/// Memory for an unpacked tile.
pub(super) struct Panel(pub *mut u8);

/// Bytes of a panel.
pub(super) fn panel_bytes(matrix: &PackedMatrix) -> usize {
    let floats = TILE_ROWS * matrix.k() * 4;
    #[cfg(target_arch = "x86_64")]
    let floats = floats.max(super::amx::panel_bytes(matrix.blocks()));
    floats.next_multiple_of(64)
}

/// Rows from which unpacking a tile for AMX costs less than it saves (measured: at 16 the vector kernels still win).
#[cfg(target_arch = "x86_64")]
const AMX_ROWS_MIN: usize = 24;

/// A tile made ready for any number of chunks.
pub(super) enum Prepared {
    /// Read as it is packed.
    Packed {
        tile: *const u8,
        units: usize,
        format: Format,
        run: RowsFn,
        streams: StreamsFn,
    },
    /// Unpacked to bytes for the tile unit.
    #[cfg(target_arch = "x86_64")]
    Amx {
        panel: *const u8,
        blocks: usize,
        run: super::amx::ChunkFn,
    },
    /// Floats `[k][16]`, packed so or dequantised to the panel.
    Floats { tile: *const u8, k: usize, run: FloatFn },
}

impl Prepared {
    /// Prepares tile `tile` for `rows` rows in all.
    ///
    /// # Safety
    /// As [`super::linear_part`]; the panel was made for this matrix.
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(unused_variables, reason = "only tiles of AMX depend on the number of rows")
    )]
    pub unsafe fn new(matrix: &PackedMatrix, part: usize, tile: usize, rows: usize, panel: &Panel) -> Self {
        let at = matrix.tile(part, tile);
        match matrix.layout {
            TileLayout::Units { count, .. } if matrix.math == CpuMath::Fast => {
                #[cfg(target_arch = "x86_64")]
                if rows >= AMX_ROWS_MIN
                    && let Some(kernel) = table::amx(matrix.isa, matrix.format())
                {
                    // SAFETY: the panel has room for the tile's blocks; the machine has the instructions.
                    unsafe { (kernel.unpack)(at, count, panel.0) };
                    return Prepared::Amx {
                        panel: panel.0,
                        blocks: matrix.blocks(),
                        run: kernel.chunk,
                    };
                }
                let (run, streams) = table::packed_fns(matrix.isa, matrix.format());
                Prepared::Packed {
                    tile: at,
                    units: count,
                    format: matrix.format(),
                    run,
                    streams,
                }
            }
            TileLayout::Floats => Prepared::Floats {
                tile: at,
                k: matrix.k(),
                run: table::float_fn(matrix.isa, matrix.format()),
            },
            TileLayout::Units { .. } | TileLayout::Raw { .. } => {
                // SAFETY: the panel has room for `16 * k` f32.
                unsafe { matrix.unpack_tile(at, panel.0.cast()) };
                Prepared::Floats {
                    tile: panel.0,
                    k: matrix.k(),
                    run: table::float_fn(matrix.isa, galvani_graph::Format::F32),
                }
            }
        }
    }

    /// Computes a chunk.
    ///
    /// # Safety
    /// As [`super::linear_part`].
    #[inline]
    pub unsafe fn compute(&self, chunk: &Chunk<'_>, out: *mut TileOut) {
        // SAFETY: the caller's contract; the functions were chosen for this machine.
        unsafe {
            match (self, &chunk.input) {
                (Prepared::Packed { tile, units, run, .. }, ChunkInput::Int8(act)) => {
                    run(*tile, *units, act, chunk.count, out);
                }
                #[cfg(target_arch = "x86_64")]
                (Prepared::Amx { panel, blocks, run }, ChunkInput::Int8(act)) => {
                    run(*panel, *blocks, act, chunk.count, out);
                }
                (Prepared::Floats { tile, k, run }, ChunkInput::Float(rows)) => {
                    run(*tile, *k, rows, chunk.count, out);
                }
                (Prepared::Packed { .. }, ChunkInput::Float(_))
                | (Prepared::Floats { .. }, ChunkInput::Int8(_)) => {
                    unreachable!("rows come in the form the matrix wants")
                }
                #[cfg(target_arch = "x86_64")]
                (Prepared::Amx { .. }, ChunkInput::Float(_)) => {
                    unreachable!("rows come in the form the matrix wants")
                }
            }
        }
    }
}

/// Tiles of one shape that few rows are multiplied by side by side.
pub(super) struct SideBySide {
    tiles: [*const u8; STREAMS],
    units: usize,
    run: StreamsFn,
}

impl SideBySide {
    /// The first [`STREAMS`] of these, where all are packed alike and the rows are few.
    pub fn of<'a>(prepared: impl Iterator<Item = &'a Prepared>, isa: Isa, rows: usize) -> Option<Self> {
        if rows > table::stream_rows(isa) {
            return None;
        }
        let (mut tiles, mut shape) = ([std::ptr::null(); STREAMS], None);
        let mut count = 0;
        for (at, prepared) in tiles.iter_mut().zip(prepared) {
            let Prepared::Packed {
                tile,
                units,
                format,
                streams,
                ..
            } = prepared
            else {
                return None;
            };
            let first = *shape.get_or_insert((*units, *format, *streams));
            if (first.0, first.1) != (*units, *format) {
                return None;
            }
            *at = *tile;
            count += 1;
        }
        let (units, _, run) = shape.filter(|_| count == STREAMS)?;
        Some(SideBySide { tiles, units, run })
    }

    /// Computes a chunk: the results of tile t at `out + t`.
    ///
    /// # Safety
    /// As [`super::linear_part`].
    #[inline]
    pub unsafe fn compute(&self, chunk: &Chunk<'_>, out: *mut TileOut) {
        let ChunkInput::Int8(act) = &chunk.input else {
            unreachable!("rows come in the form the matrix wants")
        };
        // SAFETY: the caller's contract.
        unsafe { (self.run)(&self.tiles, self.units, act, chunk.count, out) }
    }
}

/// `count` rows of activations against a packed tile, `R` at a time; memory holds at least `R` rows.
///
/// # Safety
/// The contract of [`Simd`]; the tile has `units` units; the rows have as many blocks.
#[inline(always)]
pub(super) unsafe fn rows<S: Simd, F: BlockFormat, const R: usize>(
    tile: *const u8,
    units: usize,
    act: &ActTile,
    out: *mut [f32; TILE_ROWS],
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc: [S::F; R] = [S::splat_f(0.0); R];
        let mut x = *act;
        for unit in 0..units {
            self::unit::<S, F, R>(&mut acc, tile.add(unit * F::UNIT_BYTES), &mut x);
        }
        for (r, acc) in acc.iter().enumerate() {
            S::store_f(out.add(r).cast(), *acc);
        }
    }
}

/// [`rows`] for [`STREAMS`] tiles side by side; results of tile t at `out + t`, each `[row][16 columns]`.
///
/// # Safety
/// As [`rows`], for each tile.
#[inline(always)]
pub(super) unsafe fn rows_of_streams<S: Simd, F: BlockFormat, const R: usize>(
    tiles: &[*const u8; STREAMS],
    units: usize,
    act: &ActTile,
    out: *mut TileOut,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc: [[S::F; R]; STREAMS] = [[S::splat_f(0.0); R]; STREAMS];
        let mut x = *act;
        for unit in 0..units {
            let from = x;
            // The bound is hidden, so that a unit's code is there once: four copies of a long one leave the cache of
            // decoded instructions.
            for t in 0..std::hint::black_box(STREAMS) {
                x = from;
                let tile = tiles.get_unchecked(t);
                self::unit::<S, F, R>(acc.get_unchecked_mut(t), tile.add(unit * F::UNIT_BYTES), &mut x);
            }
        }
        for (t, acc) in acc.iter().enumerate() {
            let out: *mut [f32; TILE_ROWS] = out.add(t).cast();
            for (r, acc) in acc.iter().enumerate() {
                S::store_f(out.add(r).cast(), *acc);
            }
        }
    }
}

/// One unit for `R` rows; moves `x` on.
///
/// # Safety
/// As [`rows`].
#[inline(always)]
unsafe fn unit<S: Simd, F: BlockFormat, const R: usize>(acc: &mut [S::F; R], at: *const u8, x: &mut ActTile) {
    // SAFETY: the caller's contract.
    unsafe {
        if F::UNIT_BLOCKS == 8 && R <= 2 {
            // Written out, so that shifts by the block's number are constants.
            block::<S, F, R>(acc, at, 0, x);
            block::<S, F, R>(acc, at, 1, x);
            block::<S, F, R>(acc, at, 2, x);
            block::<S, F, R>(acc, at, 3, x);
            block::<S, F, R>(acc, at, 4, x);
            block::<S, F, R>(acc, at, 5, x);
            block::<S, F, R>(acc, at, 6, x);
            block::<S, F, R>(acc, at, 7, x);
        } else {
            for number in 0..F::UNIT_BLOCKS {
                block::<S, F, R>(acc, at, number, x);
            }
        }
    }
}

/// How far ahead weights are asked for, bytes. Hardware prefetchers stop at pages, and few rows leave nothing else to
/// hide the way to memory behind: this took decoding from 75 to 100 % of a plain read loop's speed.
const PREFETCH_AHEAD: usize = 4096;

/// Asks for what lies [`PREFETCH_AHEAD`] beyond block `number` of a unit.
///
/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
pub(super) unsafe fn prefetch_block<S: Simd, F: BlockFormat>(unit: *const u8, number: usize) {
    let bytes = F::UNIT_BYTES / F::UNIT_BLOCKS;
    let from = unit.wrapping_add(number * bytes + PREFETCH_AHEAD);
    for line in 0..bytes.div_ceil(64) {
        // SAFETY: a prefetch may go anywhere.
        unsafe { S::prefetch(from.wrapping_add(64 * line)) };
    }
}

/// Block `number` of the unit at `unit` for `R` rows; moves `x` on.
///
/// # Safety
/// As [`rows`].
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "as in `dot`: iterator chains are not always inlined"
)]
unsafe fn block<S: Simd, F: BlockFormat, const R: usize>(
    acc: &mut [S::F; R],
    unit: *const u8,
    number: usize,
    x: &mut ActTile,
) {
    // SAFETY: the caller's contract.
    unsafe {
        prefetch_block::<S, F>(unit, number);
        let codes = F::codes::<S>(unit, number);
        let scales = F::scales::<S>(unit, number);
        let mins = F::mins::<S>(unit, number);
        let mut r = 0;
        while r < R {
            let x = RowBlock {
                codes: x.codes.add(BLOCK * r),
                planes: x.planes.add(r),
                plane: x.plane,
            };
            let acc = acc.as_mut_ptr().add(r);
            if S::ROWS_TOGETHER == 4 && R.is_multiple_of(4) {
                row_blocks::<S, F, 4>(&mut *acc.cast(), &codes, &scales, &mins, &x);
                r += 4;
            } else {
                row_blocks::<S, F, 1>(&mut *acc.cast(), &codes, &scales, &mins, &x);
                r += 1;
            }
        }
        x.codes = x.codes.add(x.height * BLOCK);
        x.planes = x.planes.add(x.height);
    }
}

struct RowBlock {
    codes: *const i8,
    planes: *const f32,
    plane: usize,
}

/// One block of `N` rows side by side: the sequence of rounded steps that every kernel keeps to.
///
/// # Safety
/// As [`rows`].
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "as in `dots`")]
unsafe fn row_blocks<S: Simd, F: BlockFormat, const N: usize>(
    acc: &mut [S::F; N],
    codes: &Codes<S>,
    scales: &[S::F; 2],
    mins: &[S::F; 2],
    x: &RowBlock,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if F::SCALES == 1 {
            let products = dots::<S, F, N>(codes, 0, 8, x, MINUS_SUM);
            for r in 0..N {
                let scale = S::mul(scales[0], S::splat_at(x.plane(SCALE).add(r)));
                acc[r] = S::fma(S::to_f32(products[r]), scale, acc[r]);
                if F::MIN {
                    acc[r] = S::fma(mins[0], S::splat_at(x.plane(SCALED_SUM).add(r)), acc[r]);
                }
            }
            return;
        }
        let first = dots::<S, F, N>(codes, 0, 4, x, MINUS_HALVES[0]);
        let last = dots::<S, F, N>(codes, 4, 8, x, MINUS_HALVES[1]);
        for r in 0..N {
            let scale_x = S::splat_at(x.plane(SCALE).add(r));
            let first = S::mul(S::to_f32(first[r]), scales[0]);
            let both = S::fma(S::to_f32(last[r]), scales[1], first);
            acc[r] = S::fma(both, scale_x, acc[r]);
            if F::MIN {
                for half in 0..2 {
                    let minus_sum = x.plane(MINUS_HALVES[half]).add(r).cast();
                    let minus_sum = S::to_f32(S::splat_shl(minus_sum, 0));
                    let sum = S::mul(minus_sum, S::mul(scale_x, S::splat_f(-1.0)));
                    acc[r] = S::fma(mins[half], sum, acc[r]);
                }
            }
        }
    }
}

/// The integer products of groups `from .. to` with `N` rows, the codes' offset taken off.
///
/// # Safety
/// As [`rows`].
#[inline(always)]
#[allow(
    clippy::needless_range_loop,
    reason = "iterator chains are not always inlined"
)]
unsafe fn dots<S: Simd, F: BlockFormat, const N: usize>(
    codes: &Codes<S>,
    from: usize,
    to: usize,
    x: &RowBlock,
    minus_sum: usize,
) -> [S::I; N] {
    // SAFETY: the caller's contract.
    unsafe {
        let mut dots = [S::zero_i(); N];
        let centred = S::SIGNED && F::WIDE && F::OFFSET == 128;
        if F::OFFSET != 0 && !centred {
            for r in 0..N {
                let minus_sum = x.plane(minus_sum).add(r).cast();
                dots[r] = S::splat_shl(minus_sum, F::OFFSET.trailing_zeros());
            }
        }
        for g in from..to {
            for r in 0..N {
                let act = x.codes.add(BLOCK * r + 4 * g);
                dots[r] = if centred {
                    S::dot(dots[r], S::xor(codes[g], S::splat(0x80)), act)
                } else if F::WIDE {
                    S::dot_wide(dots[r], codes[g], act)
                } else {
                    S::dot(dots[r], codes[g], act)
                };
            }
        }
        dots
    }
}

impl RowBlock {
    /// This block's element of a plane.
    ///
    /// # Safety
    /// As [`rows`].
    #[inline(always)]
    unsafe fn plane(&self, index: usize) -> *const f32 {
        // SAFETY: the caller's contract.
        unsafe { self.planes.add(index * self.plane) }
    }
}
