//! Attention with a running softmax over blocks of the cache (Milakov & Gimelshein, 2018; Dao et al., 2022).
//!
//! A *row* is one query head of one token; rows of one sequence that share a key head are numbered token by token. An
//! [`Item`] is up to [`ROWS_MAX`] neighbouring rows; threads take items from a counter. For each block of
//! [`BLOCK`] positions, aligned to absolute positions, keys and values are widened once into scratch and used by all
//! rows; a few rows ([`direct`]) read them from the cache as they go.
//!
//! A row's result is a function of its query and the cache alone: blocks are fixed, positions a row does not see get
//! weight zero, which adds nothing, and a block it does not see at all is skipped. So chunking, batching, threads and
//! tile sizes change no bit.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use galvani_graph::{PageId, StepInput, StepSequence};

mod direct;

use super::cache::KvPool;
use super::rows::Matrix;
use super::tile::{Operands, TILE_ROWS, product};
use crate::lanes::{self, LANES, Lanes};

/// Positions in a block.
pub(crate) const BLOCK: usize = 64;
/// Rows in an item.
pub(crate) const ROWS_MAX: usize = 96;
const BLOCK_VECTORS: usize = BLOCK / LANES;

/// The numbers of one attention node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Query heads for each key head.
    pub group: usize,
    pub kv_heads: usize,
    pub key_dim: usize,
    pub value_dim: usize,
    pub scale: f32,
    pub window: Option<usize>,
    pub softcap: Option<f32>,
}

/// Rows `row_start .. row_end` of one key head of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Item {
    pub sequence: u32,
    pub kv_head: u32,
    pub row_start: u32,
    pub row_end: u32,
}

/// Fills `items` with the step's work, the longest first. Capacity: [`item_count_max`].
pub(crate) fn list_items(
    step: &StepInput<'_>,
    group: usize,
    kv_heads: usize,
    workers: usize,
    items: &mut Vec<Item>,
) {
    items.clear();
    // With fewer heads than threads, a head's rows are shared out too: its keys are then read by several threads.
    let scarce = step.sequences.len() * kv_heads < workers;
    for (index, sequence) in step.sequences.iter().enumerate() {
        let rows = sequence.token_count as usize * group;
        let chunk = if scarce {
            rows.div_ceil(workers).min(ROWS_MAX)
        } else {
            ROWS_MAX
        };
        for start in (0..rows).step_by(chunk).rev() {
            for kv_head in 0..kv_heads {
                items.push(Item {
                    sequence: index as u32,
                    kv_head: kv_head as u32,
                    row_start: start as u32,
                    row_end: (start + chunk).min(rows) as u32,
                });
            }
        }
    }
}

/// Most items [`list_items`] makes.
pub(crate) fn item_count_max(
    tokens: usize,
    sequences: usize,
    group: usize,
    kv_heads: usize,
    workers: usize,
) -> usize {
    kv_heads * (tokens * group / ROWS_MAX + sequences) + workers * workers
}

/// Bytes of scratch a worker needs.
pub(crate) fn scratch_bytes(shape: &Shape) -> usize {
    Scratch::layout(shape).total * size_of::<f32>()
}

/// Offsets into a worker's scratch, in numbers; each a multiple of 16.
struct Layout {
    scores: usize,
    out: usize,
    keys: usize,
    values: usize,
    tops: usize,
    sums: usize,
    keep: usize,
    total: usize,
}

struct Scratch {
    /// `[ROWS_MAX, key_dim]`, scaled.
    queries: *mut f32,
    /// `[ROWS_MAX, BLOCK]`
    scores: *mut f32,
    /// `[ROWS_MAX, value_stride]`
    out: *mut f32,
    /// `[key_dim, BLOCK]`
    keys: *mut f32,
    /// `[BLOCK, value_stride]`
    values: *mut f32,
    /// By row: largest score, sum of weights, factor for what came before.
    tops: *mut f32,
    sums: *mut f32,
    keep: *mut f32,
    value_stride: usize,
}

impl Scratch {
    fn layout(shape: &Shape) -> Layout {
        let value_stride = shape.value_dim.next_multiple_of(LANES);
        let scores = (ROWS_MAX * shape.key_dim).next_multiple_of(LANES);
        let out = scores + ROWS_MAX * BLOCK;
        let keys = out + ROWS_MAX * value_stride;
        let values = keys + shape.key_dim * BLOCK;
        let tops = values + BLOCK * value_stride;
        let (sums, keep, total) = (tops + ROWS_MAX, tops + 2 * ROWS_MAX, tops + 3 * ROWS_MAX);
        Layout {
            scores,
            out,
            keys,
            values,
            tops,
            sums,
            keep,
            total,
        }
    }

    unsafe fn new(base: *mut f32, shape: &Shape) -> Self {
        let at = Self::layout(shape);
        // SAFETY: the caller's scratch holds `layout.total` numbers.
        unsafe {
            Scratch {
                queries: base,
                scores: base.add(at.scores),
                out: base.add(at.out),
                keys: base.add(at.keys),
                values: base.add(at.values),
                tops: base.add(at.tops),
                sums: base.add(at.sums),
                keep: base.add(at.keep),
                value_stride: shape.value_dim.next_multiple_of(LANES),
            }
        }
    }
}

/// What the threads of one attention node share.
#[derive(Clone, Copy)]
pub(crate) struct Task<'a> {
    pub shape: Shape,
    pub pool: &'a KvPool,
    pub sequences: &'a [StepSequence],
    pub pages: &'a [PageId],
    pub items: &'a [Item],
    /// Index of the next item nobody has taken.
    pub next: &'a AtomicUsize,
    /// `[tokens, heads * key_dim]`
    pub q: Matrix,
    /// `[tokens, heads * value_dim]`
    pub out: Matrix,
}

/// Takes items until none is left.
///
/// # Safety
/// The task's matrices hold the step's tokens, its cache holds the step's keys and values, page tables were checked,
/// `scratch` has [`scratch_bytes`], only this worker uses it, and the set of `S` is available.
#[inline(always)]
pub(crate) unsafe fn attend<S: Lanes>(task: Task<'_>, scratch: *mut f32) {
    // SAFETY: passed on from the caller; each item is taken once, and its output rows are its own.
    unsafe {
        let scratch = Scratch::new(scratch, &task.shape);
        loop {
            let index = task.next.fetch_add(1, Ordering::Relaxed);
            let Some(&item) = task.items.get(index) else {
                return;
            };
            attend_item::<S>(&task, item, &scratch);
        }
    }
}

/// The rows of an item as positions: row r of the sequence belongs to token `r / group`.
struct Span {
    /// First row of the item.
    start: usize,
    count: usize,
    group: usize,
    /// Position of the sequence's first token in this step.
    origin: usize,
    window: Option<usize>,
}

impl Span {
    /// Position of item row `row`.
    fn own(&self, row: usize) -> usize {
        self.origin + (self.start + row) / self.group
    }

    /// First position that `row` sees.
    fn low(&self, row: usize) -> usize {
        self.window
            .map_or(0, |window| (self.own(row) + 1).saturating_sub(window))
    }

    /// Item rows that see any position of the block at `base`.
    fn seeing(&self, base: usize) -> Range<usize> {
        let row_of = |position: usize| {
            (position.saturating_sub(self.origin) * self.group)
                .saturating_sub(self.start)
                .min(self.count)
        };
        // low(row) < base + BLOCK means own(row) < base + BLOCK - 1 + window.
        let end = self
            .window
            .map_or(self.count, |window| row_of(base + BLOCK - 1 + window));
        row_of(base)..end
    }

    /// Columns of the block at `base` that item row `row` sees.
    fn columns(&self, row: usize, base: usize) -> Range<usize> {
        self.low(row).saturating_sub(base)..(self.own(row) + 1 - base).min(BLOCK)
    }

    /// Columns that any of `rows` sees.
    fn columns_of(&self, rows: &Range<usize>, base: usize) -> Range<usize> {
        self.columns(rows.start, base).start..self.columns(rows.end - 1, base).end
    }
}

#[inline(always)]
unsafe fn attend_item<S: Lanes>(task: &Task<'_>, item: Item, scratch: &Scratch) {
    let shape = &task.shape;
    let sequence = &task.sequences[item.sequence as usize];
    let span = Span {
        start: item.row_start as usize,
        count: (item.row_end - item.row_start) as usize,
        group: shape.group,
        origin: sequence.position_start as usize,
        window: shape.window,
    };
    let table = &task.pages[sequence.page_start as usize..][..sequence.page_count as usize];
    let head = item.kv_head as usize;
    // SAFETY: the item's rows are inside the step, all places inside the scratch (at most ROWS_MAX rows, BLOCK columns).
    unsafe {
        load_queries::<S>(task, &span, sequence, head, scratch);
        for block in span.low(0) / BLOCK..=span.own(span.count - 1) / BLOCK {
            let base = block * BLOCK;
            let rows = span.seeing(base);
            if rows.is_empty() {
                continue;
            }
            if span.count <= direct::ROWS_MAX {
                direct::score::<S>(task, table, head, &span, rows.clone(), base, scratch);
            } else {
                load_keys::<S>(task, table, head, base, span.columns_of(&rows, base), scratch);
                score::<S>(shape, &span, rows.clone(), base, scratch);
            }
            for row in rows.clone() {
                weigh::<S>(shape, span.columns(row, base), row, scratch);
            }
            if span.count <= direct::ROWS_MAX {
                direct::gather::<S>(task, table, head, &span, rows, base, scratch);
            } else {
                load_values::<S>(task, table, head, base, span.columns_of(&rows, base), scratch);
                gather::<S>(&span, rows, base, scratch);
            }
        }
        store_rows::<S>(task, &span, sequence, head, scratch);
    }
}

/// Copies the item's queries, times the scale, and clears the running state.
#[inline(always)]
unsafe fn load_queries<S: Lanes>(
    task: &Task<'_>,
    span: &Span,
    sequence: &StepSequence,
    head: usize,
    scratch: &Scratch,
) {
    let Shape {
        group,
        key_dim,
        scale,
        ..
    } = task.shape;
    // SAFETY: see `attend_item`.
    unsafe {
        for row in 0..span.count {
            let at = span.start + row;
            let token = sequence.token_start as usize + at / group;
            let from = task.q.row(token).add((head * group + at % group) * key_dim);
            let to = scratch.queries.add(row * key_dim);
            for i in 0..key_dim {
                *to.add(i) = *from.add(i) * scale;
            }
            *scratch.tops.add(row) = f32::NEG_INFINITY;
            *scratch.sums.add(row) = 0.0;
        }
        scratch.out.write_bytes(0, span.count * scratch.value_stride);
    }
}

/// Where position `position` lives: page and offset.
fn place(task: &Task<'_>, table: &[PageId], position: usize) -> (usize, usize) {
    let page_tokens = task.pool.page_tokens;
    (table[position / page_tokens].0 as usize, position % page_tokens)
}

/// Widens the keys of the block's `columns`, in whole groups of 16.
#[inline(always)]
unsafe fn load_keys<S: Lanes>(
    task: &Task<'_>,
    table: &[PageId],
    head: usize,
    base: usize,
    columns: Range<usize>,
    scratch: &Scratch,
) {
    for group in columns.start / LANES..columns.end.div_ceil(LANES) {
        let column = group * LANES;
        let (page, offset) = place(task, table, base + column);
        // SAFETY: pages are a multiple of 16 positions, so a group lies in one page; scratch has BLOCK columns.
        unsafe {
            task.pool
                .load_keys::<S>(page, offset, head, scratch.keys.add(column), BLOCK)
        };
    }
}

/// Widens the values of the block's `columns`.
#[inline(always)]
unsafe fn load_values<S: Lanes>(
    task: &Task<'_>,
    table: &[PageId],
    head: usize,
    base: usize,
    columns: Range<usize>,
    scratch: &Scratch,
) {
    for group in columns.start / LANES..columns.end.div_ceil(LANES) {
        // Rows past the sequence's end were never written for it, and nobody gives them weight.
        let rows = columns.start.max(group * LANES)..columns.end.min((group + 1) * LANES);
        let (page, offset) = place(task, table, base + rows.start);
        // SAFETY: pages are a multiple of 16 positions, so the rows lie in one page; scratch has BLOCK rows.
        unsafe {
            let to = scratch.values.add(rows.start * scratch.value_stride);
            task.pool
                .load_values::<S>(page, offset, rows.len(), head, to, scratch.value_stride);
        }
    }
}

/// Scores of `rows` against the columns they may see.
#[inline(always)]
unsafe fn score<S: Lanes>(shape: &Shape, span: &Span, rows: Range<usize>, base: usize, scratch: &Scratch) {
    for tile in tiles(rows) {
        let columns = span.columns_of(&tile, base);
        // SAFETY: see `attend_item`.
        unsafe {
            let operands = Operands {
                a: scratch.queries.add(tile.start * shape.key_dim),
                a_stride: shape.key_dim,
                b: scratch.keys,
                b_stride: BLOCK,
                c: scratch.scores.add(tile.start * BLOCK),
                c_stride: BLOCK,
                keep: std::ptr::null(),
            };
            let vectors = columns.start / LANES..columns.end.div_ceil(LANES);
            product::<S>(operands, tile.len(), vectors, 0..shape.key_dim);
        }
    }
}

/// Turns a row's scores into weights and moves its running maximum and sum.
#[inline(always)]
unsafe fn weigh<S: Lanes>(shape: &Shape, columns: Range<usize>, row: usize, scratch: &Scratch) {
    // SAFETY: a row of scores has BLOCK_VECTORS vectors; the row's state is inside the scratch.
    unsafe {
        let scores = scratch.scores.add(row * BLOCK);
        let nothing = S::splat(f32::NEG_INFINITY);
        let mut v = [nothing; BLOCK_VECTORS];
        let mut top = nothing;
        for (i, v) in v.iter_mut().enumerate() {
            let (first, end) = (
                columns.start.saturating_sub(i * LANES),
                columns.end.saturating_sub(i * LANES),
            );
            if first < LANES && end > 0 {
                let mut score = S::load(scores.add(i * LANES));
                if let Some(cap) = shape.softcap {
                    score = lanes::softcap::<S>(score, cap);
                }
                *v = S::keep_between(score, first, end, nothing);
                top = S::max(top, *v);
            }
        }
        let before = *scratch.tops.add(row);
        let largest = S::largest(top);
        let top = if largest > before { largest } else { before };
        let mut sum = S::splat(0.0);
        for (i, v) in v.into_iter().enumerate() {
            let weight = lanes::exp::<S>(S::sub(v, S::splat(top)));
            sum = S::add(sum, weight);
            S::store(scores.add(i * LANES), weight);
        }
        let mut keep = [0.0_f32; LANES];
        S::store(keep.as_mut_ptr(), lanes::exp::<S>(S::splat(before - top)));
        *scratch.tops.add(row) = top;
        *scratch.sums.add(row) = *scratch.sums.add(row) * keep[0] + S::sum(sum);
        *scratch.keep.add(row) = keep[0];
    }
}

/// Adds the weighted values to the rows' outputs.
#[inline(always)]
unsafe fn gather<S: Lanes>(span: &Span, rows: Range<usize>, base: usize, scratch: &Scratch) {
    let vectors = scratch.value_stride / LANES;
    for tile in tiles(rows) {
        let columns = span.columns_of(&tile, base);
        // SAFETY: see `attend_item`; `columns` lies inside what `load_block` widened.
        unsafe {
            let operands = Operands {
                a: scratch.scores.add(tile.start * BLOCK),
                a_stride: BLOCK,
                b: scratch.values,
                b_stride: scratch.value_stride,
                c: scratch.out.add(tile.start * scratch.value_stride),
                c_stride: scratch.value_stride,
                keep: scratch.keep.add(tile.start),
            };
            product::<S>(operands, tile.len(), 0..vectors, columns);
        }
    }
}

#[inline(always)]
unsafe fn store_rows<S: Lanes>(
    task: &Task<'_>,
    span: &Span,
    sequence: &StepSequence,
    head: usize,
    scratch: &Scratch,
) {
    let Shape { group, value_dim, .. } = task.shape;
    // SAFETY: see `attend_item`.
    unsafe {
        for row in 0..span.count {
            let at = span.start + row;
            let token = sequence.token_start as usize + at / group;
            let to = task.out.row(token).add((head * group + at % group) * value_dim);
            let from = scratch.out.add(row * scratch.value_stride);
            let sum = *scratch.sums.add(row);
            for i in 0..value_dim {
                *to.add(i) = *from.add(i) / sum;
            }
        }
    }
}

/// `rows` in tiles of [`TILE_ROWS`].
fn tiles(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    rows.clone()
        .step_by(TILE_ROWS)
        .map(move |start| start..(start + TILE_ROWS).min(rows.end))
}
