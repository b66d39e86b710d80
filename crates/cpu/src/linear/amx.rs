//! Many rows on AMX: a weight tile is unpacked once to signed bytes, then every chunk of 16 activation rows is multiplied
//! by it in tiles of 16 x 16 x 32 (or 16, where scales cover 16 numbers).
//!
//! The tile unit sums in exact integers, so block after block is scaled and added in f32 with the very steps of the
//! vector kernels ([`super::tile`]): results are the same bits. Two products are always in flight: while the tile unit
//! works on one pair of blocks, the vector unit scales the pair before it.
//!
//! A panel is one record a block: `[8 groups][64] i8`, then 16 f32 scales for each half that has its own, then as many
//! constants.

use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

use super::act::CHUNK;
use super::tile::{TileOut, prefetch_block};
use crate::dot::BlockFormat;
use crate::pack::{GROUP_BYTES, TILE_ROWS};
use crate::quantise::{ActTile, MINUS_HALVES, SCALE, SCALED_SUM};
use crate::simd::Simd;
use crate::simd::avx512::Avx512;

/// Unpacks (tile, units) into a panel, and readies this thread's tile unit for [`ChunkFn`].
pub(super) type UnpackFn = unsafe fn(*const u8, usize, *mut u8);
/// (panel, blocks, rows, how many, results)
pub(super) type ChunkFn = unsafe fn(*const u8, usize, &ActTile, usize, *mut TileOut);

/// Bytes of the codes in a record.
const CODE_BYTES: usize = 8 * GROUP_BYTES;
/// Bytes of 16 f32.
const LINE: usize = 64;

/// The kernels of one format.
#[derive(Clone, Copy)]
pub(super) struct Kernel {
    pub unpack: UnpackFn,
    pub chunk: ChunkFn,
}

impl Kernel {
    /// For format `F`.
    pub fn of<F: BlockFormat>() -> Kernel {
        Kernel {
            unpack: unpack::<F>,
            chunk: match (F::SCALES, F::MIN) {
                (1, false) => chunk::<1, false>,
                (1, true) => chunk::<1, true>,
                (_, false) => chunk::<2, false>,
                (_, true) => chunk::<2, true>,
            },
        }
    }
}

const fn record_bytes(scales: usize, min: bool) -> usize {
    CODE_BYTES + LINE * scales * if min { 2 } else { 1 }
}

/// Bytes of a panel of `blocks` blocks, whatever the format.
pub(super) const fn panel_bytes(blocks: usize) -> usize {
    blocks * record_bytes(2, true)
}

/// # Safety
/// The machine has AMX and this process may use it; the tile has `units` units; the panel has room for their blocks.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn unpack<F: BlockFormat>(tile: *const u8, units: usize, panel: *mut u8) {
    // SAFETY: a valid configuration; no other code of the process uses tiles, so it lasts as long as this thread.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, preserves_flags, readonly)) };
    let mut record = panel;
    for unit in 0..units {
        for block in 0..F::UNIT_BLOCKS {
            // SAFETY: the caller's contract.
            unsafe {
                let at = tile.add(unit * F::UNIT_BYTES);
                prefetch_block::<Avx512, F>(at, block);
                let codes = F::codes::<Avx512>(at, block);
                let offset = Avx512::splat(F::OFFSET);
                for (g, code) in codes.iter().enumerate() {
                    let signed = if F::OFFSET == 0 {
                        *code
                    } else {
                        Avx512::sub(*code, offset)
                    };
                    Avx512::store(record.add(g * GROUP_BYTES), signed);
                }
                let scales = F::scales::<Avx512>(at, block);
                let mins = F::mins::<Avx512>(at, block);
                for half in 0..F::SCALES {
                    Avx512::store_f(record.add(CODE_BYTES + LINE * half).cast(), scales[half]);
                    if F::MIN {
                        let place = CODE_BYTES + LINE * (F::SCALES + half);
                        Avx512::store_f(record.add(place).cast(), mins[half]);
                    }
                }
                record = record.add(record_bytes(F::SCALES, F::MIN));
            }
        }
    }
}

/// What `ldtilecfg` reads: shapes of the eight tiles.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Tiles 0, 1: results. Where a scale covers 32 numbers 4, 5 are activations and 6, 7 weights; where it covers 16, 2 and 3
/// are. One configuration for all: loading one takes longer than five products.
static CONFIG: TileConfig = {
    let mut config = TileConfig {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    let shapes = [
        (16, 64),
        (16, 64),
        (16, 16),
        (4, 64),
        (16, 32),
        (16, 32),
        (8, 64),
        (8, 64),
    ];
    let mut i = 0;
    while i < shapes.len() {
        (config.rows[i], config.row_bytes[i]) = shapes[i];
        i += 1;
    }
    config
};

/// Two products of the tile unit, `16 x 16` i32 each.
#[repr(C, align(64))]
struct Pair([[[i32; TILE_ROWS]; CHUNK]; 2]);

/// # Safety
/// `act` is interleaved by 16 and has `blocks` blocks, as the panel, which [`unpack`] has made on this thread.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn chunk<const SCALES: usize, const MIN: bool>(
    panel: *const u8,
    blocks: usize,
    act: &ActTile,
    count: usize,
    out: *mut TileOut,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if count <= 8 {
            rows::<SCALES, MIN, 8>(panel, blocks, act, out);
        } else {
            rows::<SCALES, MIN, 16>(panel, blocks, act, out);
        }
    }
}

/// # Safety
/// As [`chunk`].
#[inline(always)]
unsafe fn rows<const SCALES: usize, const MIN: bool, const R: usize>(
    panel: *const u8,
    blocks: usize,
    act: &ActTile,
    out: *mut TileOut,
) {
    let record = record_bytes(SCALES, MIN);
    // A pair is two blocks, or the two halves of one.
    let (pairs, blocks_per_pair) = if SCALES == 1 { (blocks / 2, 2) } else { (blocks, 1) };
    // SAFETY: the caller's contract.
    unsafe {
        let mut acc = [_mm512_setzero_ps(); R];
        let mut buffers = [const { MaybeUninit::<Pair>::uninit() }; 2];
        let multiply = |pair: usize, buffer: *mut Pair| {
            let codes = act.codes.add(pair * blocks_per_pair * 512);
            let weights = panel.add(pair * blocks_per_pair * record);
            if SCALES == 1 {
                multiply_blocks(codes, weights, weights.add(record), buffer);
            } else {
                multiply_halves(codes, weights, weights.add(CODE_BYTES / 2), buffer);
            }
        };
        let buffers: *mut Pair = buffers.as_mut_ptr().cast();
        multiply(0, buffers);
        for pair in 0..pairs {
            if pair + 1 < pairs {
                multiply(pair + 1, buffers.add((pair + 1) % 2));
            }
            let products = buffers.add(pair % 2).cast::<[[i32; TILE_ROWS]; CHUNK]>();
            let first = pair * blocks_per_pair;
            let scales = panel.add(first * record + CODE_BYTES);
            let planes = act.planes.add(first * 16);
            if SCALES == 1 {
                scale_block::<MIN, R>(&mut acc, products.cast(), scales, planes, act.plane);
                let (scales, planes) = (scales.add(record), planes.add(16));
                scale_block::<MIN, R>(&mut acc, products.add(1).cast(), scales, planes, act.plane);
            } else {
                scale_halves::<MIN, R>(&mut acc, products, scales, planes, act.plane);
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            _mm512_store_ps(out.cast::<f32>().add(TILE_ROWS * r), *acc);
        }
    }
}

/// Two blocks of 32 numbers: `weights` with the codes at `codes`, `next` with those of the block after.
///
/// # Safety
/// As [`chunk`].
#[inline(always)]
unsafe fn multiply_blocks(codes: *const i8, weights: *const u8, next: *const u8, buffer: *mut Pair) {
    // SAFETY: reads two tiles of activations and of weights, writes two tiles of results.
    unsafe {
        asm!(
            "tileloadd tmm6, [{w} + {s64}*1]",
            "tileloadd tmm4, [{a} + {s}*1]",
            "tilezero tmm0",
            "tdpbssd tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{w1} + {s64}*1]",
            "tileloadd tmm5, [{a1} + {s}*1]",
            "tilezero tmm1",
            "tdpbssd tmm1, tmm5, tmm7",
            "tilestored [{c} + {s64}*1], tmm0",
            "tilestored [{c1} + {s64}*1], tmm1",
            a = in(reg) codes,
            a1 = in(reg) codes.add(512),
            w = in(reg) weights,
            w1 = in(reg) next,
            c = in(reg) buffer,
            c1 = in(reg) buffer.cast::<u8>().add(size_of::<Pair>() / 2),
            s64 = in(reg) 64usize,
            s = in(reg) 32usize,
            options(nostack, preserves_flags),
        );
    }
}

/// The halves of one block: `weights` with the first 16 codes of each row at `codes`, `next` with the last.
///
/// # Safety
/// As [`chunk`].
#[inline(always)]
unsafe fn multiply_halves(codes: *const i8, weights: *const u8, next: *const u8, buffer: *mut Pair) {
    // SAFETY: reads two tiles of activations and of weights, writes two tiles of results.
    unsafe {
        asm!(
            "tileloadd tmm3, [{w} + {s64}*1]",
            "tileloadd tmm2, [{a} + {s}*1]",
            "tilezero tmm0",
            "tdpbssd tmm0, tmm2, tmm3",
            "tileloadd tmm3, [{w1} + {s64}*1]",
            "tileloadd tmm2, [{a1} + {s}*1]",
            "tilezero tmm1",
            "tdpbssd tmm1, tmm2, tmm3",
            "tilestored [{c} + {s64}*1], tmm0",
            "tilestored [{c1} + {s64}*1], tmm1",
            a = in(reg) codes,
            a1 = in(reg) codes.add(16),
            w = in(reg) weights,
            w1 = in(reg) next,
            c = in(reg) buffer,
            c1 = in(reg) buffer.cast::<u8>().add(size_of::<Pair>() / 2),
            s64 = in(reg) 64usize,
            s = in(reg) 32usize,
            options(nostack, preserves_flags),
        );
    }
}

/// The steps of the vector kernels for `R` rows of one block with one scale.
///
/// # Safety
/// As [`chunk`].
#[inline(always)]
unsafe fn scale_block<const MIN: bool, const R: usize>(
    acc: &mut [__m512; R],
    products: *const i32,
    scales: *const u8,
    planes: *const f32,
    plane: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let scale = _mm512_load_ps(scales.cast());
        let min = if MIN {
            _mm512_load_ps(scales.add(LINE).cast())
        } else {
            scale
        };
        for (r, acc) in acc.iter_mut().enumerate() {
            let dot = _mm512_cvtepi32_ps(_mm512_load_si512(products.add(16 * r).cast()));
            let scale_x = Avx512::splat_at(planes.add(SCALE * plane + r));
            *acc = _mm512_fmadd_ps(dot, _mm512_mul_ps(scale, scale_x), *acc);
            if MIN {
                let sum = Avx512::splat_at(planes.add(SCALED_SUM * plane + r));
                *acc = _mm512_fmadd_ps(min, sum, *acc);
            }
        }
    }
}

/// The same for a block with two scales.
///
/// # Safety
/// As [`chunk`].
#[inline(always)]
unsafe fn scale_halves<const MIN: bool, const R: usize>(
    acc: &mut [__m512; R],
    products: *const [[i32; TILE_ROWS]; CHUNK],
    scales: *const u8,
    planes: *const f32,
    plane: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let scales: *const f32 = scales.cast();
        let scale = [_mm512_load_ps(scales), _mm512_load_ps(scales.add(16))];
        let product = |half: usize, r: usize| {
            let at: *const i32 = products.add(half).cast();
            _mm512_cvtepi32_ps(_mm512_load_si512(at.add(16 * r).cast()))
        };
        for (r, acc) in acc.iter_mut().enumerate() {
            let first = _mm512_mul_ps(product(0, r), scale[0]);
            let both = _mm512_fmadd_ps(product(1, r), scale[1], first);
            let scale_x = Avx512::splat_at(planes.add(SCALE * plane + r));
            *acc = _mm512_fmadd_ps(both, scale_x, *acc);
            if MIN {
                for (half, index) in MINUS_HALVES.into_iter().enumerate() {
                    let minus_sum = planes.add(index * plane + r).cast();
                    let minus_sum = _mm512_cvtepi32_ps(Avx512::splat_shl(minus_sum, 0));
                    let sum = _mm512_mul_ps(minus_sum, _mm512_mul_ps(scale_x, _mm512_set1_ps(-1.0)));
                    *acc = _mm512_fmadd_ps(_mm512_load_ps(scales.add(32 + 16 * half)), sum, *acc);
                }
            }
        }
    }
}
