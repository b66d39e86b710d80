//! Small matrix products out of caches, for attention: `C[rows, 16 * vectors] (+)= A[rows, k] B[k, 16 * vectors]`.
//!
//! Each number of C is one chain of fused multiply-adds in ascending k, whatever the tile: results do not depend on how
//! rows and columns are grouped.

use std::ops::Range;

use crate::lanes::{LANES, Lanes};

/// Rows in the largest tile: with the set's [`Lanes::TILE_VECTORS`] this fills the registers.
pub(crate) const TILE_ROWS: usize = 6;

/// Matrices of one product; strides in numbers.
#[derive(Clone, Copy)]
pub(crate) struct Operands {
    pub a: *const f32,
    pub a_stride: usize,
    pub b: *const f32,
    pub b_stride: usize,
    pub c: *mut f32,
    pub c_stride: usize,
    /// One factor a row, applied to C before the product is added; null means C starts from zero.
    pub keep: *const f32,
}

/// `rows` (at most [`TILE_ROWS`]) rows, columns of vectors `vectors`, over `k`.
///
/// # Safety
/// The operands hold these rows, columns and k; C overlaps neither A nor B; the set of `S` is available.
#[inline(always)]
pub(crate) unsafe fn product<S: Lanes>(
    operands: Operands,
    rows: usize,
    vectors: Range<usize>,
    k: Range<usize>,
) {
    // SAFETY: passed on from the caller; each arm's row count is the one asked for.
    unsafe {
        match rows {
            1 => columns::<S, 1>(operands, vectors, k),
            2 => columns::<S, 2>(operands, vectors, k),
            3 => columns::<S, 3>(operands, vectors, k),
            4 => columns::<S, 4>(operands, vectors, k),
            5 => columns::<S, 5>(operands, vectors, k),
            TILE_ROWS => columns::<S, TILE_ROWS>(operands, vectors, k),
            _ => unreachable!("tiles have 1 to {TILE_ROWS} rows"),
        }
    }
}

#[inline(always)]
unsafe fn columns<S: Lanes, const ROWS: usize>(operands: Operands, vectors: Range<usize>, k: Range<usize>) {
    let mut at = vectors.start;
    // SAFETY: passed on from the caller; `at` stays inside `vectors`.
    unsafe {
        if S::TILE_VECTORS >= 4 {
            while at + 4 <= vectors.end {
                tile::<S, ROWS, 4>(operands, at, k.clone());
                at += 4;
            }
            if at + 2 <= vectors.end {
                tile::<S, ROWS, 2>(operands, at, k.clone());
                at += 2;
            }
        }
        while at < vectors.end {
            tile::<S, ROWS, 1>(operands, at, k.clone());
            at += 1;
        }
    }
}

#[inline(always)]
unsafe fn tile<S: Lanes, const ROWS: usize, const VECTORS: usize>(
    operands: Operands,
    first: usize,
    k: Range<usize>,
) {
    let Operands {
        a,
        a_stride,
        b,
        b_stride,
        c,
        c_stride,
        keep,
    } = operands;
    // SAFETY: the caller's operands hold all rows, columns and k touched here.
    unsafe {
        let b = b.add(first * LANES);
        let c = c.add(first * LANES);
        let mut sums = [[S::splat(0.0); VECTORS]; ROWS];
        if !keep.is_null() {
            for (r, sums) in sums.iter_mut().enumerate() {
                let factor = S::splat(*keep.add(r));
                for (v, sum) in sums.iter_mut().enumerate() {
                    *sum = S::mul(S::load(c.add(r * c_stride + v * LANES)), factor);
                }
            }
        }
        for k in k {
            let mut row = [S::splat(0.0); VECTORS];
            for (v, row) in row.iter_mut().enumerate() {
                *row = S::load(b.add(k * b_stride + v * LANES));
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = S::splat(*a.add(r * a_stride + k));
                for (sum, row) in sums.iter_mut().zip(row) {
                    *sum = S::fma(x, row, *sum);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                S::store(c.add(r * c_stride + v * LANES), sum);
            }
        }
    }
}
