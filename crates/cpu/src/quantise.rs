//! Activations as int8: each 32 numbers of a row share an f32 scale and keep the sum of their codes.
//!
//! Rows are made once per input and read by all kernels. Rows are interleaved by block in groups of `height` (1, 4 or
//! 16, chosen by the number of rows): block b of row r is element `r / height * blocks * height + b * height + r % height`
//! of every array. With one row that is the plain row; with 16, the block of 16 rows is an AMX tile.

use galvani_graph::BackendError;

use crate::isa::Isa;
use crate::linear::InView;
use crate::pack::{AlignedBytes, BLOCK};
use crate::pool::Worker;

/// Planes of 4-byte elements beside the codes.
pub(crate) const PLANES: usize = 5;
/// Plane of the scales, f32.
pub(crate) const SCALE: usize = 0;
/// Plane of scale times sum of codes, f32.
pub(crate) const SCALED_SUM: usize = 1;
/// Plane of the negated sum of codes, i32.
pub(crate) const MINUS_SUM: usize = 2;
/// Planes of the negated sums of the first and last 16 codes, i32.
pub(crate) const MINUS_HALVES: [usize; 2] = [3, 4];

/// Quantised rows; room for a fixed most.
pub struct ActRows {
    isa: Isa,
    k: usize,
    blocks: usize,
    rows_max: usize,
    memory: AlignedBytes,
}

/// Where a group of rows lies: pointers to block 0 of its first row. The next row is one element on, the next block
/// `height` elements.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ActTile {
    /// Codes, 32 an element.
    pub codes: *const i8,
    /// First plane of the 4-byte arrays.
    pub planes: *const f32,
    /// Elements from plane to plane.
    pub plane: usize,
    /// Elements from block to block.
    pub height: usize,
}

/// Interleave of `rows` rows.
pub(crate) fn height(rows: usize) -> usize {
    match rows {
        0..=1 => 1,
        2..=4 => 4,
        _ => 16,
    }
}

/// Bytes of `rows` rows of `blocks` blocks.
pub(crate) fn act_bytes(rows: usize, blocks: usize) -> usize {
    rows.next_multiple_of(16) * blocks * (BLOCK + 4 * PLANES)
}

impl ActRows {
    /// Room for `rows_max` rows of `k` numbers.
    ///
    /// # Errors
    /// When memory is short.
    pub fn new(isa: Isa, rows_max: usize, k: usize) -> Result<Self, BackendError> {
        let blocks = k.div_ceil(2 * BLOCK) * 2;
        Ok(ActRows {
            isa,
            k,
            blocks,
            rows_max,
            memory: AlignedBytes::zeroed(act_bytes(rows_max, blocks), "int8 activations")?,
        })
    }

    /// Numbers in a row.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.memory.len()
    }

    /// Blocks of a row: `k` padded to a multiple of 64.
    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    /// Where row `row` of `rows` begins.
    pub(crate) fn tile(&self, row: usize, rows: usize) -> ActTile {
        assert!(row < rows && rows <= self.rows_max);
        let elements = self.rows_max.next_multiple_of(16) * self.blocks;
        // SAFETY: the codes come first, `32 * elements` bytes; the row lies within.
        unsafe { ActTile::at(self.memory.as_mut_ptr(), elements, height(rows)).row(row, self.blocks) }
    }

    /// Quantises `rows` rows of `x`, all workers together: each takes its share of the rows, or, with fewer rows than
    /// workers, of the blocks of each row. A barrier must follow before anyone reads.
    ///
    /// # Safety
    /// `x` is valid for `rows` rows of `k` numbers and not written meanwhile; every worker of the run makes the same
    /// call; nobody reads the old rows.
    pub unsafe fn quantise_part(&self, worker: &Worker<'_>, x: InView, rows: usize) {
        if rows >= worker.count {
            for row in worker.share(rows, 1) {
                // SAFETY: this worker's own rows.
                unsafe { self.quantise_blocks(x, row, rows, 0, self.blocks) };
            }
            return;
        }
        let share = worker.share(self.blocks, 2);
        for row in 0..rows {
            // SAFETY: this worker's own blocks.
            unsafe { self.quantise_blocks(x, row, rows, share.start, share.end) };
        }
    }

    /// Quantises rows `rows` of the `total` rows of `x`.
    ///
    /// # Safety
    /// `x` is valid for these rows of `k` numbers and not written meanwhile; nobody else writes these rows, and nobody
    /// reads the buffer before a barrier.
    pub unsafe fn quantise_rows(&self, x: InView, rows: std::ops::Range<usize>, total: usize) {
        for row in rows {
            // SAFETY: the caller's contract.
            unsafe { self.quantise_blocks(x, row, total, 0, self.blocks) };
        }
    }

    /// Quantises `rows` rows of `x`, alone. For a few rows this is cheaper than the barrier after
    /// [`ActRows::quantise_part`]: each worker then keeps its own `ActRows`.
    ///
    /// # Safety
    /// `x` is valid for `rows` rows of `k` numbers and not written meanwhile; nobody else uses this `ActRows`.
    pub unsafe fn quantise_alone(&self, x: InView, rows: usize) {
        for row in 0..rows {
            // SAFETY: the caller's contract.
            unsafe { self.quantise_blocks(x, row, rows, 0, self.blocks) };
        }
    }

    /// # Safety
    /// `x` has row `row`; nobody else writes these blocks.
    unsafe fn quantise_blocks(&self, x: InView, row: usize, rows: usize, from: usize, to: usize) {
        let tile = self.tile(row, rows);
        // SAFETY: the caller's `x`.
        let x = unsafe { x.row(row) };
        for block in from..to {
            let start = block * BLOCK;
            let element = block * tile.height;
            // SAFETY: the row's blocks lie within the memory; numbers beyond `k` are not read. `isa` was checked for
            // this machine when it was chosen.
            unsafe {
                if start + BLOCK <= self.k {
                    quantise(self.isa, x.add(start), &tile, element);
                } else {
                    let mut padded = [0f32; BLOCK];
                    if start < self.k {
                        std::ptr::copy_nonoverlapping(x.add(start), padded.as_mut_ptr(), self.k - start);
                    }
                    quantise(self.isa, padded.as_ptr(), &tile, element);
                }
            }
        }
    }
}

impl ActTile {
    /// Tile 0 of memory that holds `elements` elements in each array.
    ///
    /// # Safety
    /// `memory` has `elements * (32 + 4 * PLANES)` bytes.
    pub(crate) unsafe fn at(memory: *mut u8, elements: usize, height: usize) -> ActTile {
        ActTile {
            codes: memory.cast(),
            // SAFETY: the planes come behind the codes.
            planes: unsafe { memory.add(BLOCK * elements).cast() },
            plane: elements,
            height,
        }
    }

    /// Where row `row` begins, this being row 0 of rows of `blocks` blocks.
    ///
    /// # Safety
    /// The memory has that row.
    pub(crate) unsafe fn row(&self, row: usize, blocks: usize) -> ActTile {
        let element = row / self.height * blocks * self.height + row % self.height;
        // SAFETY: the caller's contract.
        unsafe {
            ActTile {
                codes: self.codes.add(BLOCK * element),
                planes: self.planes.add(element),
                ..*self
            }
        }
    }

    /// Copies row 0 of `from`, `blocks` blocks, to row 0 here.
    ///
    /// # Safety
    /// Both have that many blocks; nobody else uses this one.
    pub(crate) unsafe fn copy_row(&self, from: &ActTile, blocks: usize) {
        for block in 0..blocks {
            let (source, target) = (block * from.height, block * self.height);
            // SAFETY: the caller's contract.
            unsafe {
                let codes = from.codes.add(BLOCK * source).cast::<[u8; BLOCK]>().read();
                self.codes
                    .cast_mut()
                    .add(BLOCK * target)
                    .cast::<[u8; BLOCK]>()
                    .write(codes);
                for plane in 0..PLANES {
                    let value = from.planes.add(plane * from.plane + source).read();
                    self.planes
                        .cast_mut()
                        .add(plane * self.plane + target)
                        .write(value);
                }
            }
        }
    }
}

/// Quantises the 32 numbers at `x` into element `element`.
///
/// # Safety
/// 32 numbers at `x`; the element exists; the machine has `isa`.
#[inline]
unsafe fn quantise(isa: Isa, x: *const f32, tile: &ActTile, element: usize) {
    // SAFETY: the caller's contract.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::AmxInt8 | Isa::Avx512Vnni => crate::simd::avx512::quantise(x, tile, element),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot | Isa::Neon => crate::simd::neon::quantise(x, tile, element),
            _ => quantise_plainly(x, tile, element),
        }
    }
}

/// The scale is the largest magnitude over 127; codes are rounded to nearest even. The magnitude is found by comparing
/// bits as integers, where not-a-number and infinity are largest: they end in the scale, and so in every product.
///
/// # Safety
/// 32 numbers at `x`; the element exists.
#[inline(always)]
unsafe fn quantise_plainly(x: *const f32, tile: &ActTile, element: usize) {
    // SAFETY: the caller's contract.
    let x = unsafe { x.cast::<[f32; BLOCK]>().read_unaligned() };
    let largest = f32::from_bits(x.iter().map(|v| v.to_bits() & 0x7fff_ffff).max().unwrap_or(0));
    let (scale, inverse) = scale_and_inverse(largest);
    let codes: [i8; BLOCK] = x.map(|v| (v * inverse).round_ties_even() as i8);
    // SAFETY: the caller's contract.
    unsafe { write_block(tile, element, scale, &codes) }
}

/// Numbers below 1e-30 count as zero, so that the inverse stays finite.
#[inline(always)]
pub(crate) fn scale_and_inverse(largest: f32) -> (f32, f32) {
    if largest <= 1e-30 {
        return (0.0, 0.0);
    }
    (largest / 127.0, 127.0 / largest)
}

/// # Safety
/// The element exists and is the caller's to write.
#[inline(always)]
pub(crate) unsafe fn write_block(tile: &ActTile, element: usize, scale: f32, codes: &[i8; BLOCK]) {
    let sum = |part: &[i8]| part.iter().map(|&c| i32::from(c)).sum::<i32>();
    let halves = [sum(&codes[..16]), sum(&codes[16..])];
    // SAFETY: the caller's contract.
    unsafe {
        tile.codes
            .cast_mut()
            .add(BLOCK * element)
            .cast::<[i8; BLOCK]>()
            .write(*codes);
        write_planes(tile, element, scale, halves);
    }
}

/// # Safety
/// The element exists and is the caller's to write.
#[inline(always)]
pub(crate) unsafe fn write_planes(tile: &ActTile, element: usize, scale: f32, halves: [i32; 2]) {
    // Codes of numbers that are not finite may be anything; their scale is not finite either, and decides.
    let sum = halves[0].wrapping_add(halves[1]);
    // SAFETY: the caller's contract.
    unsafe {
        let plane = |index: usize| tile.planes.cast_mut().add(index * tile.plane + element);
        *plane(SCALE) = scale;
        *plane(SCALED_SUM) = scale * sum as f32;
        *plane(MINUS_SUM).cast::<i32>() = sum.wrapping_neg();
        *plane(MINUS_HALVES[0]).cast::<i32>() = halves[0].wrapping_neg();
        *plane(MINUS_HALVES[1]).cast::<i32>() = halves[1].wrapping_neg();
    }
}
