//! Few rows: keys and values are widened in registers, right before their use. The same chains of multiply-adds as with
//! the scratch, so the same bits.

use std::ops::Range;

use galvani_graph::PageId;

use super::{BLOCK, Scratch, Span, Task, place, tiles};
use crate::lanes::{LANES, Lanes};
use crate::ops::cache::Stored;
use crate::ops::tile::TILE_ROWS;

/// Up to this many rows, widening once for each tile of six costs less than a detour over the scratch.
pub(super) const ROWS_MAX: usize = 2 * TILE_ROWS;

/// Calls `$body::<S, ROWS>(args)` for the rows of a tile.
macro_rules! with_rows {
    ($rows:expr, $body:ident($($arg:expr),* $(,)?)) => {
        match $rows {
            1 => $body::<S, 1>($($arg),*),
            2 => $body::<S, 2>($($arg),*),
            3 => $body::<S, 3>($($arg),*),
            4 => $body::<S, 4>($($arg),*),
            5 => $body::<S, 5>($($arg),*),
            TILE_ROWS => $body::<S, TILE_ROWS>($($arg),*),
            _ => unreachable!("tiles have 1 to {TILE_ROWS} rows"),
        }
    };
}

/// As [`super::score`], from the cache.
///
/// # Safety
/// As [`super::attend`].
#[inline(always)]
pub(super) unsafe fn score<S: Lanes>(
    task: &Task<'_>,
    table: &[PageId],
    head: usize,
    span: &Span,
    rows: Range<usize>,
    base: usize,
    scratch: &Scratch,
) {
    let key_dim = task.shape.key_dim;
    for tile in tiles(rows) {
        let columns = span.columns_of(&tile, base);
        let groups = columns.start / LANES..columns.end.div_ceil(LANES);
        let keys = |group: usize| {
            let (page, offset) = place(task, table, base + group * LANES);
            task.pool.keys(page, head, offset)
        };
        // SAFETY: passed on from the caller; rows and columns are inside the scratch.
        unsafe {
            let queries = scratch.queries.add(tile.start * key_dim);
            let scores = scratch.scores.add(tile.start * BLOCK);
            let mut group = groups.start;
            while S::TILE_VECTORS >= 4 && group + 4 <= groups.end {
                let keys = [keys(group), keys(group + 1), keys(group + 2), keys(group + 3)];
                with_rows!(
                    tile.len(),
                    score_four(queries, key_dim, keys, scores.add(group * LANES))
                );
                group += 4;
            }
            while group < groups.end {
                with_rows!(
                    tile.len(),
                    score_one(queries, key_dim, [keys(group)], scores.add(group * LANES))
                );
                group += 1;
            }
        }
    }
}

#[inline(always)]
unsafe fn score_four<S: Lanes, const ROWS: usize>(
    q: *const f32,
    dim: usize,
    keys: [Stored; 4],
    to: *mut f32,
) {
    // SAFETY: passed on from the caller.
    unsafe { score_tile::<S, ROWS, 4>(q, dim, keys, to) }
}

#[inline(always)]
unsafe fn score_one<S: Lanes, const ROWS: usize>(q: *const f32, dim: usize, keys: [Stored; 1], to: *mut f32) {
    // SAFETY: passed on from the caller.
    unsafe { score_tile::<S, ROWS, 1>(q, dim, keys, to) }
}

/// # Safety
/// `q` holds ROWS rows of `dim`, each of `keys` a group, `to` ROWS rows of [`BLOCK`] numbers apart.
#[inline(always)]
unsafe fn score_tile<S: Lanes, const ROWS: usize, const GROUPS: usize>(
    q: *const f32,
    dim: usize,
    keys: [Stored; GROUPS],
    to: *mut f32,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let mut sums = [[S::splat(0.0); GROUPS]; ROWS];
        for i in 0..dim {
            let mut row = [S::splat(0.0); GROUPS];
            for (row, keys) in row.iter_mut().zip(keys) {
                *row = keys.load::<S>(i * LANES);
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let x = S::splat(*q.add(r * dim + i));
                for (sum, row) in sums.iter_mut().zip(row) {
                    *sum = S::fma(x, row, *sum);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (g, sum) in sums.into_iter().enumerate() {
                S::store(to.add(r * BLOCK + g * LANES), sum);
            }
        }
    }
}

/// As [`super::gather`], from the cache.
///
/// # Safety
/// As [`super::attend`].
#[inline(always)]
pub(super) unsafe fn gather<S: Lanes>(
    task: &Task<'_>,
    table: &[PageId],
    head: usize,
    span: &Span,
    rows: Range<usize>,
    base: usize,
    scratch: &Scratch,
) {
    for tile in tiles(rows) {
        let columns = span.columns_of(&tile, base);
        // SAFETY: passed on from the caller; each group of positions lies in one page.
        unsafe {
            let out = scratch.out.add(tile.start * scratch.value_stride);
            for r in 0..tile.len() {
                let keep = S::splat(*scratch.keep.add(tile.start + r));
                for i in (0..scratch.value_stride).step_by(LANES) {
                    let at = out.add(r * scratch.value_stride + i);
                    S::store(at, S::mul(S::load(at), keep));
                }
            }
            for group in columns.start / LANES..columns.end.div_ceil(LANES) {
                let positions = columns.start.max(group * LANES)..columns.end.min((group + 1) * LANES);
                let (page, offset) = place(task, table, base + positions.start);
                let values = task.pool.values(page, head, offset);
                let weights = scratch.scores.add(tile.start * BLOCK + positions.start);
                let dim = task.shape.value_dim;
                with_rows!(
                    tile.len(),
                    gather_tile(weights, positions.len(), values, dim, out, scratch.value_stride)
                );
            }
        }
    }
}

/// # Safety
/// `weights` holds ROWS rows [`BLOCK`] apart of `count` numbers, `values` `count` rows of `dim`, `out` ROWS rows of
/// `stride`.
#[inline(always)]
unsafe fn gather_tile<S: Lanes, const ROWS: usize>(
    weights: *const f32,
    count: usize,
    values: Stored,
    dim: usize,
    out: *mut f32,
    stride: usize,
) {
    let mut column = 0;
    // SAFETY: passed on from the caller.
    unsafe {
        while S::TILE_VECTORS >= 4 && column + 4 * LANES <= dim {
            gather_columns::<S, ROWS, 4>(weights, count, values, dim, column, out, stride);
            column += 4 * LANES;
        }
        while column < dim {
            gather_columns::<S, ROWS, 1>(weights, count, values, dim, column, out, stride);
            column += LANES;
        }
    }
}

#[inline(always)]
unsafe fn gather_columns<S: Lanes, const ROWS: usize, const VECTORS: usize>(
    weights: *const f32,
    count: usize,
    values: Stored,
    dim: usize,
    column: usize,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: passed on from the caller.
    unsafe {
        let out = out.add(column);
        let mut sums = [[S::splat(0.0); VECTORS]; ROWS];
        for (r, sums) in sums.iter_mut().enumerate() {
            for (v, sum) in sums.iter_mut().enumerate() {
                *sum = S::load(out.add(r * stride + v * LANES));
            }
        }
        for position in 0..count {
            let mut row = [S::splat(0.0); VECTORS];
            for (v, row) in row.iter_mut().enumerate() {
                *row = values.load::<S>(position * dim + column + v * LANES);
            }
            for (r, sums) in sums.iter_mut().enumerate() {
                let weight = S::splat(*weights.add(r * BLOCK + position));
                for (sum, row) in sums.iter_mut().zip(row) {
                    *sum = S::fma(weight, row, *sum);
                }
            }
        }
        for (r, sums) in sums.into_iter().enumerate() {
            for (v, sum) in sums.into_iter().enumerate() {
                S::store(out.add(r * stride + v * LANES), sum);
            }
        }
    }
}
