//! One tile of 16 weight rows against chunks of activation rows.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::act::{CHUNK, Chunk, ChunkInput};
use super::table::{self, FloatFn, RowsFn};
use crate::dot::{BlockFormat, Codes};
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
    pub fn uninit() -> MaybeUninit<Self> {
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

/// Memory for an unpacked tile.
pub(super) struct Panel(pub *mut u8);

/// Bytes of a panel.
pub(super) fn panel_bytes(matrix: &PackedMatrix) -> usize {
    let floats = TILE_ROWS * matrix.k() * 4;
    #[cfg(target_arch = "x86_64")]
    let floats = floats.max(super::amx::panel_bytes(matrix.blocks()));
    floats.next_multiple_of(64)
}

/// Rows from which unpacking a tile for AMX costs less than it saves.
#[cfg(target_arch = "x86_64")]
const AMX_ROWS_MIN: usize = 9;

/// A tile made ready for any number of chunks.
pub(super) enum Prepared {
    /// Read as it is packed.
    Packed {
        tile: *const u8,
        units: usize,
        run: RowsFn,
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
                Prepared::Packed {
                    tile: at,
                    units: count,
                    run: table::rows_fn(matrix.isa, matrix.format()),
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
                (Prepared::Packed { tile, units, run }, ChunkInput::Int8(act)) => {
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
        let code_step = act.height * BLOCK;
        let mut codes_at = act.codes;
        let mut planes_at = act.planes;
        for unit in 0..units {
            let at = tile.add(unit * F::UNIT_BYTES);
            for block in 0..F::UNIT_BLOCKS {
                let codes = F::codes::<S>(at, block);
                let scales = F::scales::<S>(at, block);
                let mins = F::mins::<S>(at, block);
                for r in 0..R {
                    let x = RowBlock {
                        codes: codes_at.add(BLOCK * r),
                        planes: planes_at.add(r),
                        plane: act.plane,
                    };
                    acc[r] = row_block::<S, F>(acc[r], &codes, &scales, &mins, &x);
                }
                codes_at = codes_at.add(code_step);
                planes_at = planes_at.add(act.height);
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            S::store_f(out.add(r).cast(), *acc);
        }
    }
}

struct RowBlock {
    codes: *const i8,
    planes: *const f32,
    plane: usize,
}

/// One block of one row: the sequence of rounded steps that every kernel keeps to.
///
/// # Safety
/// As [`rows`].
#[inline(always)]
unsafe fn row_block<S: Simd, F: BlockFormat>(
    acc: S::F,
    codes: &Codes<S>,
    scales: &[S::F; 2],
    mins: &[S::F; 2],
    x: &RowBlock,
) -> S::F {
    let shift = if F::OFFSET == 0 {
        0
    } else {
        F::OFFSET.trailing_zeros()
    };
    let groups = 8 / F::SCALES;
    let mut acc = acc;
    // SAFETY: the caller's contract.
    unsafe {
        let plane = |index: usize| x.planes.add(index * x.plane);
        for half in 0..F::SCALES {
            let minus_sum = if F::SCALES == 2 {
                MINUS_HALVES[half]
            } else {
                MINUS_SUM
            };
            let mut dot = if F::OFFSET == 0 {
                S::zero_i()
            } else {
                S::splat_shl(plane(minus_sum).cast(), shift)
            };
            for g in half * groups..(half + 1) * groups {
                let act = x.codes.add(4 * g);
                dot = if F::WIDE {
                    S::dot_wide(dot, codes[g], act)
                } else {
                    S::dot(dot, codes[g], act)
                };
            }
            let scale = S::mul(scales[half], S::splat_at(plane(SCALE)));
            acc = S::fma(S::to_f32(dot), scale, acc);
            if F::MIN {
                let sum = if F::SCALES == 2 {
                    let minus = S::to_f32(S::splat_shl(plane(minus_sum).cast(), 0));
                    S::mul(minus, S::mul(S::splat_at(plane(SCALE)), S::splat_f(-1.0)))
                } else {
                    S::splat_at(plane(SCALED_SUM))
                };
                acc = S::fma(mins[half], sum, acc);
            }
        }
    }
    acc
}
