//! Products of packed weights and activation rows.
//!
//! The functions here are *parts*: every worker of a [`crate::pool::Pool::run`] makes the same call, computes its share
//! of the output columns (whole tiles of 16), and returns without a barrier. Products that read the same input need no
//! barrier between them; one is needed before anybody reads the output.
//!
//! **Each output row is a bitwise function of its input row alone**: not of the number of rows, the list it is in, the
//! threads, or the instruction set. Integer dot products are exact; f32 sums run over blocks in ascending order with
//! one sequence of rounded steps: `acc = fma(dot, scale_w * scale_x, acc)`, then, in formats with a constant,
//! `acc = fma(min_w, scale_x * sum_x, acc)`.

mod act;
mod epilogue;
mod float;
mod table;
#[cfg(test)]
mod tests;
mod tile;

use galvani_graph::Activation;

use crate::pack::{CpuMath, PackedMatrix, TILE_ROWS};
use crate::pool::Worker;
use crate::quantise::ActRows;

use act::{Rows, gather_bytes};
use epilogue::Target;
use tile::{Prepared, TileOut};

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
        2 * tile::panel_bytes(self) + gather_bytes(rows, self.k())
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
    let mut scratch = tile::Scratch::of(worker);
    let mut rows_int8 = None;
    let rows_float = Rows::float(input, rows);
    for product in products {
        let matrix = product.matrix;
        let target = Target {
            out,
            column: product.column,
            bias: product.bias,
            epilogue,
        };
        let rows = if matrix.wants_int8() {
            // SAFETY: the caller's contract.
            rows_int8.get_or_insert_with(|| unsafe { Rows::int8(input, rows, &mut scratch) })
        } else {
            &rows_float
        };
        let mut panel = scratch.panel(matrix);
        for tile in worker.share(matrix.tiles_per_part(), 1) {
            // SAFETY: the caller's contract.
            unsafe {
                let prepared = Prepared::new(matrix, product.part, tile, rows.count(), &mut panel);
                let columns = tile * TILE_ROWS..((tile + 1) * TILE_ROWS).min(matrix.rows());
                for chunk in rows.chunks() {
                    let mut values = TileOut::new();
                    prepared.compute(&chunk, &mut values);
                    target.put(&values, &chunk, columns.clone());
                }
            }
        }
    }
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
    let mut scratch = tile::Scratch::of(worker);
    // SAFETY: the caller's contract.
    let int8 =
        (gate.wants_int8() || up.wants_int8()).then(|| unsafe { Rows::int8(input, rows, &mut scratch) });
    let float = Rows::float(input, rows);
    let rows_of = |matrix: &PackedMatrix| match &int8 {
        Some(rows) if matrix.wants_int8() => rows,
        _ => &float,
    };
    let mut panels = [scratch.take_panel(gate), scratch.take_panel(up)];
    let target = Target {
        out,
        column: 0,
        bias: None,
        epilogue: Epilogue::Store,
    };
    for tile in worker.share(gate.tiles_per_part(), 1) {
        let columns = tile * TILE_ROWS..((tile + 1) * TILE_ROWS).min(gate.rows());
        // SAFETY: the caller's contract.
        unsafe {
            let [panel_gate, panel_up] = &mut panels;
            let prepared_gate = Prepared::new(gate, part, tile, float.count(), panel_gate);
            let prepared_up = Prepared::new(up, part, tile, float.count(), panel_up);
            for (chunk_gate, chunk_up) in rows_of(gate).chunks().zip(rows_of(up).chunks()) {
                let (mut g, mut u) = (TileOut::new(), TileOut::new());
                prepared_gate.compute(&chunk_gate, &mut g);
                prepared_up.compute(&chunk_up, &mut u);
                table::gate(gate.isa, activation, &mut g, &u, chunk_gate.count);
                target.put(&g, &chunk_gate, columns.clone());
            }
        }
    }
}
