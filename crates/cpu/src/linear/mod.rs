//! Products of packed weights and activation rows.
//!
//! The functions here are *parts*: every worker of a [`crate::pool::Pool::run`] makes the same call, computes its share
//! of the output columns (whole tiles of 16), and returns without a barrier. Products that read the same input need no
//! barrier between them; one is needed before anybody reads the output.
//!
//! **Each output row is a bitwise function of its input row alone**: not of the number of rows, the list it is in, the
//! threads, or the instruction set. Integer dot products are exact; f32 sums run over blocks in ascending order with
//! one sequence of rounded steps: `acc = fma(dot, scale_w * scale_x, acc)`, or, with two scales a block,
//! `acc = fma(fma(dot_1, scale_1, dot_0 * scale_0), scale_x, acc)`; then, in formats with a constant,
//! `acc = fma(min_w, scale_x * sum_x, acc)` for each scale.

mod act;
#[cfg(target_arch = "x86_64")]
mod amx;
mod epilogue;
mod float;
mod table;
#[cfg(test)]
mod tests;
mod tile;

use std::ops::Range;

use galvani_graph::Activation;

use crate::isa::Isa;
use crate::pack::{CpuMath, PackedMatrix, TILE_ROWS};
use crate::pool::Worker;
use crate::quantise::ActRows;

use act::{Rows, gather_bytes};
use epilogue::Target;
use tile::{Prepared, STREAMS, Scratch, SideBySide, TileOut};

/// f32 rows to read: row r is at `ptr + r * row_stride`.
#[derive(Debug, Clone, Copy)]
pub struct InView {
    /// First number.
    pub ptr: *const f32,
    /// Numbers from one row to the next.
    pub row_stride: usize,
}

/// f32 rows to write.
#[derive(Debug, Clone, Copy)]
pub struct OutView {
    /// First number.
    pub ptr: *mut f32,
    /// Numbers from one row to the next.
    pub row_stride: usize,
}

// SAFETY: plain pointers; the kernels' contracts say who reads and writes what.
unsafe impl Send for InView {}
// SAFETY: as above.
unsafe impl Sync for InView {}
// SAFETY: as above.
unsafe impl Send for OutView {}
// SAFETY: as above.
unsafe impl Sync for OutView {}

/// An input in the forms that kernels may want. [`PackedMatrix::wants_int8`] says which one a matrix reads.
#[derive(Clone, Copy)]
pub struct Activations<'a> {
    /// As f32.
    pub float: InView,
    /// As int8; may be `None` if no matrix wants it. Must hold exactly the rows of this step.
    pub int8: Option<&'a ActRows>,
    /// Rows there are, in both forms.
    pub rows: usize,
}

/// Which rows a product computes.
#[derive(Debug, Clone, Copy)]
pub enum RowSelect<'a> {
    /// All: output row r from input row r.
    All,
    /// Output row `output[i]` from input row `input[i]`. Output rows are distinct.
    List {
        /// Rows of the input.
        input: &'a [u32],
        /// Rows of the output.
        output: &'a [u32],
    },
}

/// One matrix of a product.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    /// The weight.
    pub matrix: &'a PackedMatrix,
    /// Which part of it (expert).
    pub part: usize,
    /// First column of the output.
    pub column: usize,
    /// Added to each row before the epilogue.
    pub bias: Option<&'a [f32]>,
}

/// What happens to a result.
#[derive(Debug, Clone, Copy)]
pub enum Epilogue {
    /// `out = y`.
    Store,
    /// `out = residual + scale * y`; residual and output may be the same memory.
    AddScaled {
        /// Rows like the output's.
        residual: InView,
        /// Multiplier.
        scale: f32,
    },
}

/// A kernel's name and why it was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelChoice {
    /// Such as `linear_q4_0_amx-int8`.
    pub name: String,
    /// Why.
    pub reason: String,
    /// Whether a faster kernel exists in principle for this weight, and is missing here.
    pub fallback: bool,
}

impl InView {
    /// Row `row`.
    ///
    /// # Safety
    /// The view has that row.
    #[inline]
    pub unsafe fn row(&self, row: usize) -> *const f32 {
        // SAFETY: the caller's contract.
        unsafe { self.ptr.add(row * self.row_stride) }
    }
}

impl OutView {
    /// Row `row`.
    ///
    /// # Safety
    /// The view has that row.
    #[inline]
    pub unsafe fn row(&self, row: usize) -> *mut f32 {
        // SAFETY: the caller's contract.
        unsafe { self.ptr.add(row * self.row_stride) }
    }
}

impl PackedMatrix {
    /// Whether its kernel reads [`Activations::int8`] (else [`Activations::float`]).
    pub fn wants_int8(&self) -> bool {
        self.math == CpuMath::Fast && self.has_units()
    }

    /// The kernel its products take.
    pub fn kernel(&self) -> KernelChoice {
        let format = self.format().name().to_lowercase();
        let isa = self.isa;
        let (name, reason, fallback) = if self.format().is_float() {
            (
                format!("linear_{format}_{isa}"),
                "float weight: f32 products",
                false,
            )
        } else if self.wants_int8() {
            (
                format!("linear_{format}_{isa}"),
                "int8 activations, integer dot products",
                false,
            )
        } else if self.has_units() {
            (
                format!("linear_{format}_exact_{isa}"),
                "exact arithmetic was asked for",
                false,
            )
        } else {
            let reason = "no packed form of this format: each tile is dequantised to f32 when used";
            (format!("linear_{format}_dequant_{isa}"), reason, true)
        };
        KernelChoice {
            name,
            reason: reason.to_owned(),
            fallback,
        }
    }

    /// Bytes of worker scratch that products of this matrix (and another, in a gated product) need with up to `rows`
    /// rows: give the largest to [`crate::pool::Pool::reserve_scratch`].
    pub fn scratch_bytes(&self, rows: usize) -> usize {
        GROUP * tile::panel_bytes(self) + gather_bytes(rows, self.k())
    }
}

/// This worker's part of `products` of one input. `out` columns are `column ..` of each product.
///
/// # Safety
/// All views are valid for the rows selected and the columns of each product; the input is complete (a barrier lies
/// behind its making) and is not written meanwhile; every worker of the run makes the same call; nobody else touches
/// these outputs; scratch of [`PackedMatrix::scratch_bytes`] is reserved.
pub unsafe fn linear_part(
    worker: &Worker<'_>,
    products: &[Product<'_>],
    input: &Activations<'_>,
    rows: RowSelect<'_>,
    out: OutView,
    epilogue: Epilogue,
) {
    let mut scratch = Scratch::of(worker);
    let rows_float = Rows::float(input, rows);
    let any_int8 = products.iter().any(|p| p.matrix.wants_int8());
    // SAFETY: the caller's contract.
    let rows_int8 = any_int8.then(|| unsafe { Rows::int8(input, rows, &mut scratch) });
    let largest = products.iter().map(|p| tile::panel_bytes(p.matrix)).max();
    let panels = [(); GROUP].map(|()| scratch.panel(largest.unwrap_or(0)));
    for product in products {
        let matrix = product.matrix;
        let target = Target {
            out,
            column: product.column,
            bias: product.bias,
            epilogue,
            put: table::put_fn(matrix.isa),
        };
        let rows = match &rows_int8 {
            Some(rows) if matrix.wants_int8() => rows,
            _ => &rows_float,
        };
        let claims = claims(matrix.isa, rows.count());
        for tiles in groups(worker.share(matrix.tiles_per_part(), 1), GROUP) {
            // SAFETY: the caller's contract.
            unsafe {
                let prepare = |i: usize| {
                    let tile = tiles.start + i;
                    let new = || Prepared::new(matrix, product.part, tile, rows.count(), &panels[i]);
                    (tile < tiles.end).then(new)
                };
                let prepared: [Option<Prepared>; GROUP] = std::array::from_fn(prepare);
                let together = SideBySide::of(prepared.iter().flatten(), matrix.isa, rows.count());
                for chunk in rows.chunks() {
                    if let Some(together) = &together {
                        let mut values = [const { TileOut::uninit() }; STREAMS];
                        together.compute(&chunk, values.as_mut_ptr().cast());
                        for (tile, values) in tiles.clone().zip(&values) {
                            target.put(values.as_ptr(), &chunk, columns(matrix, tile));
                        }
                        continue;
                    }
                    for (tile, prepared) in tiles.clone().zip(prepared.iter().flatten()) {
                        let mut values = TileOut::uninit();
                        if claims {
                            target.claim(&chunk, columns(matrix, tile));
                        }
                        prepared.compute(&chunk, values.as_mut_ptr());
                        target.put(values.as_ptr(), &chunk, columns(matrix, tile));
                    }
                }
            }
        }
    }
}

/// Tiles that go through the rows together: the rows then stay in the nearest cache, and results are written in long
/// pieces.
const GROUP: usize = STREAMS;

fn groups(tiles: Range<usize>, size: usize) -> impl Iterator<Item = Range<usize>> {
    let end = tiles.end;
    tiles
        .step_by(size)
        .map(move |start| start..(start + size).min(end))
}

/// Whether results are asked for before they are computed: with many rows they are no longer in the caches.
fn claims(isa: Isa, rows: usize) -> bool {
    isa == Isa::AmxInt8 && rows > act::CHUNK
}

fn columns(matrix: &PackedMatrix, tile: usize) -> Range<usize> {
    tile * TILE_ROWS..((tile + 1) * TILE_ROWS).min(matrix.rows())
}

/// This worker's part of `out = act(G x) * (U x)`; gate and up have the same shape.
///
/// # Safety
/// As [`linear_part`].
#[allow(
    clippy::too_many_arguments,
    reason = "two matrices, one input, one output: all are needed"
)]
pub unsafe fn gated_part(
    worker: &Worker<'_>,
    gate: &PackedMatrix,
    up: &PackedMatrix,
    part: usize,
    activation: Activation,
    input: &Activations<'_>,
    rows: RowSelect<'_>,
    out: OutView,
) {
    assert!(
        gate.rows() == up.rows() && gate.k() == up.k(),
        "gate and up have one shape"
    );
    let mut scratch = Scratch::of(worker);
    // SAFETY: the caller's contract.
    let int8 =
        (gate.wants_int8() || up.wants_int8()).then(|| unsafe { Rows::int8(input, rows, &mut scratch) });
    let float = Rows::float(input, rows);
    let rows_of = |matrix: &PackedMatrix| match &int8 {
        Some(rows) if matrix.wants_int8() => rows,
        _ => &float,
    };
    let panels = [(); GROUP / 2].map(|()| [gate, up].map(|m| scratch.panel(tile::panel_bytes(m))));
    let target = Target {
        out,
        column: 0,
        bias: None,
        epilogue: Epilogue::Store,
        put: table::put_fn(gate.isa),
    };
    let claims = claims(gate.isa, float.count());
    for tiles in groups(worker.share(gate.tiles_per_part(), 1), GROUP / 2) {
        // SAFETY: the caller's contract.
        unsafe {
            let prepare = |i: usize| {
                let tile = tiles.start + i;
                let new = |matrix, panel| Prepared::new(matrix, part, tile, float.count(), panel);
                (tile < tiles.end).then(|| [new(gate, &panels[i][0]), new(up, &panels[i][1])])
            };
            let prepared: [Option<[Prepared; 2]>; GROUP / 2] = std::array::from_fn(prepare);
            let together = SideBySide::of(prepared.iter().flatten().flatten(), gate.isa, float.count());
            for (chunk_gate, chunk_up) in rows_of(gate).chunks().zip(rows_of(up).chunks()) {
                if let Some(together) = &together {
                    let mut values = [const { TileOut::uninit() }; STREAMS];
                    together.compute(&chunk_gate, values.as_mut_ptr().cast());
                    for (tile, [g, u]) in tiles.clone().zip(values.as_chunks_mut::<2>().0) {
                        table::gate(gate.isa, activation, g.as_mut_ptr(), u.as_ptr(), chunk_gate.count);
                        target.put(g.as_ptr(), &chunk_gate, columns(gate, tile));
                    }
                    continue;
                }
                for (tile, [prepared_gate, prepared_up]) in tiles.clone().zip(prepared.iter().flatten()) {
                    let (mut g, mut u) = (TileOut::uninit(), TileOut::uninit());
                    if claims {
                        target.claim(&chunk_gate, columns(gate, tile));
                    }
                    prepared_gate.compute(&chunk_gate, g.as_mut_ptr());
                    prepared_up.compute(&chunk_up, u.as_mut_ptr());
                    table::gate(gate.isa, activation, g.as_mut_ptr(), u.as_ptr(), chunk_gate.count);
                    target.put(g.as_ptr(), &chunk_gate, columns(gate, tile));
                }
            }
        }
    }
}
