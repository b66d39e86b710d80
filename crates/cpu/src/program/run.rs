//! One step: every worker walks the stages.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Instant;

use galvani_graph::{BackendError, Dim, Extent, StepInput};

use super::CpuProgram;
use super::stage::{Input, Kernel, Memory, Part, Place};
use crate::lanes::{Lanes, dispatch};
use crate::linear::{self, Activations, Epilogue, InView, OutView, Product, RowSelect};
use crate::ops::attention::{Task, attend, list_items};
use crate::ops::cache::KvPool;
use crate::ops::route::route;
use crate::ops::rows::{self, Matrix, pointwise, rms_norm, rope};
use crate::pool::Worker;
use crate::step::check_step;

/// Products of up to this many matrices are listed on the stack.
const PARTS_MAX: usize = 8;

/// How long one kind of operation took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpTime {
    /// Kind.
    pub op: &'static str,
    /// Stages run.
    pub count: u64,
    /// Time of worker 0, with its waiting for the others.
    pub nanoseconds: u64,
}

/// What the workers of one step see.
pub(super) struct Scene<'a> {
    pub program: &'a CpuProgram,
    pub step: &'a StepInput<'a>,
    pub extent: Extent,
    logits: *mut f32,
}

// SAFETY: the program's memory is written under the barriers placed at compile time; `logits` likewise.
unsafe impl Sync for Scene<'_> {}

impl CpuProgram {
    pub(crate) fn run(&mut self, step: &StepInput<'_>, logits: &mut [f32]) -> Result<(), BackendError> {
        check_step(step, &self.limits, self.vocabulary)?;
        let wanted = step.rows.len() * self.logits_len;
        if logits.len() != wanted {
            return Err(BackendError::Step(format!(
                "logits hold {} numbers, {} rows take {wanted}",
                logits.len(),
                step.rows.len()
            )));
        }
        if step.tokens.is_empty() {
            return Ok(());
        }
        let workers = self.pool.count();
        for work in &mut self.work {
            list_items(step, work.group, work.kv_heads, workers, &mut work.items);
        }
        self.counters
            .iter()
            .for_each(|counter| counter.store(0, Ordering::Relaxed));
        let mut times = self.times.take();
        let extent = Extent {
            tokens: step.tokens.len(),
            rows: step.rows.len(),
        };
        let scene = Scene {
            program: self,
            step,
            extent,
            logits: logits.as_mut_ptr(),
        };
        let clock = times.as_mut().map(Clock);
        let clock = super::Shared::new(clock);
        self.pool.run(|worker| {
            // SAFETY: only worker 0 takes the clock.
            let mut clock = (worker.index == 0)
                .then(|| unsafe { clock.get_mut() }.as_mut())
                .flatten();
            scene.walk(worker, &mut clock);
        });
        self.times = times;
        Ok(())
    }
}

/// Adds up the time of worker 0.
struct Clock<'a>(&'a mut Vec<OpTime>);

impl Clock<'_> {
    fn add(&mut self, op: &'static str, since: Instant) {
        let nanoseconds = since.elapsed().as_nanos() as u64;
        match self.0.iter_mut().find(|time| time.op == op) {
            Some(time) => {
                time.count += 1;
                time.nanoseconds += nanoseconds;
            }
            None => self.0.push(OpTime {
                op,
                count: 1,
                nanoseconds,
            }),
        }
    }
}

impl Scene<'_> {
    fn walk(&self, worker: &Worker<'_>, clock: &mut Option<&mut Clock<'_>>) {
        let stages = &self.program.stages;
        for (index, stage) in stages.iter().enumerate() {
            let started = clock.is_some().then(Instant::now);
            self.stage(&stage.kernel, worker);
            if stages.get(index + 1).is_some_and(|next| next.barrier) {
                worker.barrier();
            }
            if let (Some(clock), Some(started)) = (clock.as_mut(), started) {
                clock.add(stage.op, started);
            }
        }
    }

    fn stage(&self, kernel: &Kernel, worker: &Worker<'_>) {
        match kernel {
            Kernel::Angles { rope, table } => {
                let rope = &self.program.ropes[*rope];
                let rows = self.rows(table.outer, worker);
                let table = self.matrix(*table);
                rows::rope_angles(
                    self.step.positions,
                    &rope.frequencies,
                    rope.magnitude,
                    table,
                    rows,
                );
            }
            Kernel::Linear { input, parts, out } => self.linear(worker, input, parts, *out),
            Kernel::LinearAdd {
                input,
                matrix,
                residual,
                scale,
                out,
            } => {
                let products = [self.product(*matrix, 0)];
                let epilogue = Epilogue::AddScaled {
                    residual: self.input_view(*residual),
                    scale: *scale,
                };
                let out = self.out_view(*out);
                // SAFETY: `barriers` has placed a barrier behind the input, the residual and every old use of the output.
                unsafe {
                    let input = self.activations(input);
                    linear::linear_part(worker, &products, &input, RowSelect::All, out, epilogue);
                }
            }
            Kernel::LinearGated {
                input,
                gate,
                up,
                activation,
                out,
            } => {
                let (gate, up) = (&self.program.matrices[*gate], &self.program.matrices[*up]);
                let out = self.out_view(*out);
                // SAFETY: as above.
                unsafe {
                    let input = self.activations(input);
                    linear::gated_part(worker, gate, up, 0, *activation, &input, RowSelect::All, out);
                }
            }
            Kernel::Quantise {
                place,
                rows_each,
                acts,
            } => {
                let rows = self.rows(place.outer, worker);
                let total = place.outer.resolve(self.extent) * rows_each;
                let view = self.slot_view(*place, *rows_each);
                // SAFETY: `barriers` has placed one behind the last use of the buffer, and the rows are this worker's.
                unsafe {
                    let acts = &self.program.acts[*acts];
                    acts.quantise_rows(view, rows.start * rows_each..rows.end * rows_each, total);
                }
            }
            Kernel::Attend {
                cache,
                shape,
                work,
                counter,
                q,
                out,
            } => {
                let task = Task {
                    shape: *shape,
                    pool: &self.program.caches[*cache],
                    sequences: self.step.sequences,
                    pages: self.step.pages,
                    items: &self.program.work[*work].items,
                    next: &self.program.counters[*counter],
                    q: self.matrix(*q),
                    out: self.matrix(*out),
                };
                let scratch = self.program.scratch[worker.index].as_mut_ptr().cast::<f32>();
                // SAFETY: the step was checked, keys and values are stored (a barrier lies behind), the scratch was sized
                // for this node and is this worker's, the set was chosen for this machine.
                unsafe {
                    dispatch!(self.program.set, attend(task: Task<'_> = task, scratch: *mut f32 = scratch))
                };
            }
            Kernel::Group { routes, top_k } => self.group(worker, *routes, *top_k),
            Kernel::ExpertsGated { .. } | Kernel::ExpertsDown { .. } => self.experts(kernel, worker),
            Kernel::Pointwise {
                op,
                a,
                b,
                out,
                by_columns,
            } => {
                let (rows, columns) = if *by_columns {
                    (0..out.outer.resolve(self.extent), worker.share(out.len, 64))
                } else {
                    (self.rows(out.outer, worker), 0..out.len)
                };
                let (a, b, out) = (self.matrix(*a), self.matrix(*b), self.matrix(*out));
                // SAFETY: rows and columns are this worker's; see `barriers`.
                unsafe {
                    dispatch!(self.program.set, pointwise(
                        op: rows::Pointwise = *op, a: Matrix = a, b: Matrix = b, out: Matrix = out,
                        rows: Range<usize> = rows, columns: Range<usize> = columns
                    ));
                }
            }
            Kernel::Embed { .. }
            | Kernel::RmsNorm { .. }
            | Kernel::Rope { .. }
            | Kernel::Store { .. }
            | Kernel::TakeRows { .. }
            | Kernel::Route { .. }
            | Kernel::Combine { .. }
            | Kernel::CopyOut { .. } => self.by_rows(kernel, worker),
        }
    }

    /// Operations whose rows are shared out.
    fn by_rows(&self, kernel: &Kernel, worker: &Worker<'_>) {
        let set = self.program.set;
        match kernel {
            Kernel::Embed { table, scale, out } => self.embed(worker, *table, *scale, *out),
            Kernel::RmsNorm {
                x,
                weight,
                out,
                len,
                eps,
            } => {
                let rows = self.rows(out.outer, worker);
                let weight = self.program.vectors[*weight].as_ptr();
                let (groups, len, eps) = (out.len / len, *len, *eps);
                let (x, out) = (self.matrix(*x), self.matrix(*out));
                // SAFETY: rows are this worker's; see `barriers`.
                unsafe {
                    dispatch!(set, rms_norm(
                        x: Matrix = x, weight: *const f32 = weight, out: Matrix = out, rows: Range<usize> = rows,
                        groups: usize = groups, len: usize = len, eps: f32 = eps
                    ));
                }
            }
            Kernel::Rope {
                x,
                table,
                out,
                head,
                half,
            } => {
                let rows = self.rows(out.outer, worker);
                let (heads, head, half) = (out.len / head, *head, *half);
                let (x, table, out) = (self.matrix(*x), self.matrix(*table), self.matrix(*out));
                // SAFETY: as above.
                unsafe {
                    dispatch!(set, rope(
                        x: Matrix = x, table: Matrix = table, out: Matrix = out, rows: Range<usize> = rows,
                        heads: usize = heads, head: usize = head, half: usize = half
                    ));
                }
            }
            Kernel::Store { cache, k, v } => {
                let rows = self.rows(k.outer, worker);
                let pool = &self.program.caches[*cache];
                let (k, v) = (self.matrix(*k), self.matrix(*v));
                // SAFETY: as above; the step's page tables were checked.
                unsafe {
                    dispatch!(set, store(
                        pool: &KvPool = pool, step: &StepInput<'_> = self.step, k: Matrix = k, v: Matrix = v,
                        rows: Range<usize> = rows
                    ));
                }
            }
            Kernel::TakeRows { x, out } => {
                for row in self.rows(out.outer, worker) {
                    self.copy_row(*x, self.step.rows[row] as usize, *out, row);
                }
            }
            Kernel::CopyOut { x, out } => {
                for row in self.rows(out.outer, worker) {
                    self.copy_row(*x, row, *out, row);
                }
            }
            Kernel::Route {
                rule,
                bias,
                logits,
                out,
            } => {
                let rows = self.rows(out.outer, worker);
                let bias = bias.map(|bias| self.program.vectors[bias].as_slice());
                let scratch = &self.program.scratch[worker.index];
                // SAFETY: rows and scratch are this worker's; the scratch was sized for this node.
                unsafe {
                    let scratch = scratch.as_mut_ptr().cast::<f32>();
                    let scratch = std::slice::from_raw_parts_mut(scratch, 2 * rule.experts);
                    route(
                        *rule,
                        self.matrix(*logits),
                        bias,
                        self.matrix(*out),
                        rows,
                        scratch,
                    );
                }
            }
            Kernel::Combine {
                slots,
                routes,
                out,
                top_k,
            } => self.combine(worker, *slots, *routes, *out, *top_k),
            Kernel::Angles { .. }
            | Kernel::Quantise { .. }
            | Kernel::Linear { .. }
            | Kernel::LinearAdd { .. }
            | Kernel::LinearGated { .. }
            | Kernel::Pointwise { .. }
            | Kernel::Attend { .. }
            | Kernel::Group { .. }
            | Kernel::ExpertsGated { .. }
            | Kernel::ExpertsDown { .. } => unreachable!("`stage` gives only operations shared by rows"),
        }
    }

    fn linear(&self, worker: &Worker<'_>, input: &Input, parts: &[Part], out: Place) {
        let out = self.out_view(out);
        for parts in parts.chunks(PARTS_MAX) {
            let mut products = [self.product(parts[0].matrix, parts[0].column); PARTS_MAX];
            for (product, part) in products.iter_mut().zip(parts) {
                *product = self.product(part.matrix, part.column);
                product.bias = part.bias.map(|bias| self.program.vectors[bias].as_slice());
            }
            // SAFETY: `barriers` has placed a barrier behind the input and every old use of the output.
            unsafe {
                let input = self.activations(input);
                let products = &products[..parts.len()];
                linear::linear_part(worker, products, &input, RowSelect::All, out, Epilogue::Store);
            }
        }
    }

    fn embed(&self, worker: &Worker<'_>, table: usize, scale: f32, out: Place) {
        let table = &self.program.matrices[table];
        for row in self.rows(out.outer, worker) {
            // SAFETY: the row is this worker's; ids were checked against the table.
            let to = unsafe { std::slice::from_raw_parts_mut(self.matrix(out).row(row), out.len) };
            table.unpack_row(self.step.tokens[row] as usize, to);
            to.iter_mut().for_each(|x| *x *= scale);
        }
    }

    fn copy_row(&self, x: Place, from: usize, out: Place, to: usize) {
        // SAFETY: both rows exist (the step was checked), the output row is this worker's.
        unsafe { std::ptr::copy_nonoverlapping(self.matrix(x).row(from), self.matrix(out).row(to), out.len) };
    }

    /// This worker's rows of `outer`.
    pub(super) fn rows(&self, outer: Dim, worker: &Worker<'_>) -> Range<usize> {
        worker.share(outer.resolve(self.extent), 1)
    }

    pub(super) fn matrix(&self, place: Place) -> Matrix {
        let memory = match place.memory {
            Memory::Arena => self.program.arena.as_mut_ptr().cast::<f32>(),
            Memory::Logits => self.logits,
        };
        Matrix {
            base: memory.wrapping_add(place.offset),
            stride: place.stride,
        }
    }

    fn input_view(&self, place: Place) -> InView {
        let matrix = self.matrix(place);
        InView {
            ptr: matrix.base,
            row_stride: matrix.stride,
        }
    }

    /// Rows of which `rows_each` lie in each row of `place`.
    fn slot_view(&self, place: Place, rows_each: usize) -> InView {
        let row_stride = if rows_each == 1 {
            place.stride
        } else {
            place.len / rows_each
        };
        InView {
            ptr: self.matrix(place).base,
            row_stride,
        }
    }

    pub(super) fn out_view(&self, place: Place) -> OutView {
        let matrix = self.matrix(place);
        OutView {
            ptr: matrix.base,
            row_stride: matrix.stride,
        }
    }

    pub(super) fn activations(&self, input: &Input) -> Activations<'_> {
        Activations {
            float: self.slot_view(input.place, input.rows_each),
            int8: input.acts.map(|acts| &self.program.acts[acts]),
            rows: input.place.outer.resolve(self.extent) * input.rows_each,
        }
    }

    fn product(&self, matrix: usize, column: usize) -> Product<'_> {
        Product {
            matrix: &self.program.matrices[matrix],
            part: 0,
            column,
            bias: None,
        }
    }
}

/// Stores `rows` of the step's keys and values at their positions.
///
/// # Safety
/// The step was checked, the matrices hold its rows, nobody else stores these; the set of `S` is available.
#[inline(always)]
unsafe fn store<S: Lanes>(pool: &KvPool, step: &StepInput<'_>, k: Matrix, v: Matrix, rows: Range<usize>) {
    for sequence in step.sequences {
        let first = sequence.token_start as usize;
        let own = rows.start.max(first)..rows.end.min(first + sequence.token_count as usize);
        for row in own {
            let position = sequence.position_start as usize + row - first;
            let page = step.pages[sequence.page_start as usize + position / pool.page_tokens].0 as usize;
            for head in 0..pool.kv_heads {
                // SAFETY: passed on from the caller.
                unsafe {
                    let key = k.row(row).add(head * pool.key_dim);
                    let value = v.row(row).add(head * pool.value_dim);
                    pool.store::<S>(page, position % pool.page_tokens, head, key, value);
                }
            }
        }
    }
}
