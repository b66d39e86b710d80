//! Mixture of experts: tokens are grouped by expert, each expert's rows go through its matrices together, and the slots
//! of a token are summed in order. Each row is the same function of its input however it is grouped.

use super::run::Scene;
use super::stage::{Kernel, Place};
use crate::linear::{self, Epilogue, Product, RowSelect};
use crate::pool::Worker;

impl Scene<'_> {
    /// Worker 0 sorts the step's slots by expert.
    pub(super) fn group(&self, worker: &Worker<'_>, routes: Place, top_k: usize) {
        if worker.index != 0 {
            return;
        }
        let groups = self
            .program
            .groups
            .as_ref()
            .expect("made with the first route node");
        // SAFETY: barriers lie before and behind this stage, and the others do nothing in it.
        unsafe {
            groups
                .get_mut()
                .fill(self.matrix(routes), self.extent.tokens, top_k)
        };
    }

    /// Every worker takes its columns of every expert.
    pub(super) fn experts(&self, kernel: &Kernel, worker: &Worker<'_>) {
        let groups = self
            .program
            .groups
            .as_ref()
            .expect("made with the first route node");
        // SAFETY: `group` has finished; a barrier lies behind it.
        let groups = unsafe { groups.get() };
        let matrices = &self.program.matrices;
        match kernel {
            Kernel::ExpertsGated {
                input,
                gate,
                up,
                activation,
                out,
                top_k,
            } => {
                let (gate, up) = (&matrices[*gate], &matrices[*up]);
                let mut out = self.out_view(*out);
                out.row_stride /= top_k;
                let input = self.activations(input);
                for expert in 0..gate.parts() {
                    let range = groups.of(expert);
                    if range.is_empty() {
                        continue;
                    }
                    let rows = RowSelect::List {
                        input: &groups.tokens[range.clone()],
                        output: &groups.rows[range],
                    };
                    // SAFETY: barriers lie behind the input and every old use of the output; rows are distinct.
                    unsafe {
                        linear::gated_part(worker, gate, up, expert, *activation, &input, rows, out);
                    }
                }
            }
            Kernel::ExpertsDown {
                input,
                down,
                slots,
                top_k,
            } => {
                let matrix = &matrices[*down];
                let mut out = self.out_view(*slots);
                out.row_stride /= top_k;
                let input = self.activations(input);
                for expert in 0..matrix.parts() {
                    let rows = &groups.rows[groups.of(expert)];
                    if rows.is_empty() {
                        continue;
                    }
                    let products = [Product {
                        matrix,
                        part: expert,
                        column: 0,
                        bias: None,
                    }];
                    let select = RowSelect::List {
                        input: rows,
                        output: rows,
                    };
                    // SAFETY: as above.
                    unsafe {
                        linear::linear_part(worker, &products, &input, select, out, Epilogue::Store);
                    }
                }
            }
            _ => unreachable!("`stage` gives only expert products"),
        }
    }

    /// `sum_slot weight * slot` of this worker's tokens.
    pub(super) fn combine(&self, worker: &Worker<'_>, slots: Place, routes: Place, out: Place, top_k: usize) {
        for row in self.rows(out.outer, worker) {
            // SAFETY: the rows exist; the output row is this worker's.
            let (slots, weights, out) = unsafe {
                (
                    std::slice::from_raw_parts(self.matrix(slots).row(row), slots.len),
                    std::slice::from_raw_parts(self.matrix(routes).row(row).add(top_k), top_k),
                    std::slice::from_raw_parts_mut(self.matrix(out).row(row), out.len),
                )
            };
            out.fill(0.0);
            for (slot, &weight) in slots.chunks_exact(out.len()).zip(weights) {
                for (out, &x) in out.iter_mut().zip(slot) {
                    *out += weight * x;
                }
            }
        }
    }
}
