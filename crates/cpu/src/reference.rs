//! The reference: every operation as plain loops over f32, to check all else against.
//!
//! Values and the key/value cache are f32, weights are dequantised to f32 when compiled, sums run in ascending order in an
//! f64 accumulator and are rounded once. One thread, no tricks. Each value keeps its storage after a run, so the output
//! of any node can be looked at ([`ReferenceProgram::value`]).

mod attention;
mod experts;
mod ops;

use galvani_graph::{
    Backend, BackendError, CensusRow, Compiled, Extent, Graph, LimitsSpec, Node, Op, StepInput, ValueId,
    ValueSource, Weight, WeightSource,
};
use galvani_weights::quant;

use crate::step::{check_step, vocabulary};
use attention::KvCache;

/// The plain backend.
#[derive(Debug, Clone, Copy)]
pub struct Reference;

/// A graph compiled for the plain backend.
#[derive(Debug)]
pub struct ReferenceProgram {
    graph: Graph,
    limits: LimitsSpec,
    vocabulary: usize,
    /// By weight id, `[rows, row_len]`.
    weights: Vec<Vec<f32>>,
    /// By value id, `[outer, row_len]` of the last step; empty for views and step inputs.
    values: Vec<Vec<f32>>,
    /// By cache id.
    caches: Vec<KvCache>,
    /// By rope id.
    frequencies: Vec<Vec<f32>>,
    extent: Extent,
    compiled: Compiled,
}

/// A value's rows as a node reads them.
#[derive(Clone, Copy)]
struct Rows<'a> {
    data: &'a [f32],
    offset: usize,
    stride: usize,
    len: usize,
}

impl<'a> Rows<'a> {
    fn row(&self, index: usize) -> &'a [f32] {
        let start = index * self.stride + self.offset;
        &self.data[start..start + self.len]
    }
}

impl Backend for Reference {
    type Program = ReferenceProgram;

    fn compile(
        &self,
        graph: &Graph,
        weights: &dyn WeightSource,
        limits: LimitsSpec,
    ) -> Result<ReferenceProgram, BackendError> {
        let tables = graph
            .weights
            .iter()
            .map(|weight| dequantised(weight, weights))
            .collect::<Result<Vec<_>, _>>()?;
        let caches: Vec<KvCache> = graph
            .caches
            .iter()
            .map(|spec| KvCache::new(spec, &limits))
            .collect();
        let compiled = Compiled {
            census: graph.nodes.iter().map(|node| census_row(graph, node)).collect(),
            weight_bytes: tables.iter().map(|table| table.len() * 4).sum(),
            arena_bytes: 0,
            cache_bytes: caches.iter().map(KvCache::bytes).sum(),
        };
        Ok(ReferenceProgram {
            graph: graph.clone(),
            limits,
            vocabulary: vocabulary(graph),
            weights: tables,
            values: vec![Vec::new(); graph.values.len()],
            caches,
            frequencies: graph.ropes.iter().map(|rope| rope.frequencies()).collect(),
            extent: Extent { tokens: 0, rows: 0 },
            compiled,
        })
    }

    fn compiled<'p>(&self, program: &'p ReferenceProgram) -> &'p Compiled {
        &program.compiled
    }

    fn run(
        &self,
        program: &mut ReferenceProgram,
        step: &StepInput<'_>,
        logits: &mut [f32],
    ) -> Result<(), BackendError> {
        self.run_ranks(std::slice::from_mut(program), step, logits)
    }
}

impl Reference {
    /// Runs one step of a sharded model: rank r's program is `programs[r]`, all have the same nodes, and each
    /// [`Op::AllReduce`] adds the ranks' values in rank order. `logits` receives rank 0's output.
    ///
    /// # Errors
    /// As [`Backend::run`].
    pub fn run_ranks(
        &self,
        programs: &mut [ReferenceProgram],
        step: &StepInput<'_>,
        logits: &mut [f32],
    ) -> Result<(), BackendError> {
        let node_count = programs.first().map_or(0, |program| program.graph.nodes.len());
        for program in programs.iter_mut() {
            assert_eq!(
                program.graph.nodes.len(),
                node_count,
                "all ranks have the same nodes"
            );
            check_step(step, &program.limits, program.vocabulary)?;
            program.extent = Extent {
                tokens: step.tokens.len(),
                rows: step.rows.len(),
            };
        }
        for index in 0..node_count {
            if matches!(programs[0].graph.nodes[index].op, Op::AllReduce) {
                all_reduce(programs, index);
            } else {
                programs
                    .iter_mut()
                    .for_each(|program| program.execute(index, step));
            }
        }
        programs
            .first()
            .map_or(Ok(()), |program| program.copy_logits(logits))
    }
}

impl ReferenceProgram {
    /// The graph this program runs.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// What value `id` held after the last step, `[outer, ..]` dense; `None` for the step's inputs.
    pub fn value(&self, id: ValueId) -> Option<Vec<f32>> {
        let base = self.graph.storage(id).base;
        if !matches!(self.graph.value(base).source, ValueSource::Node(_)) {
            return None;
        }
        let rows = self.rows(id);
        Some(
            (0..self.outer(id))
                .flat_map(|row| rows.row(row).iter().copied())
                .collect(),
        )
    }

    fn outer(&self, id: ValueId) -> usize {
        self.graph.value(id).dims[0].resolve(self.extent)
    }

    fn rows(&self, id: ValueId) -> Rows<'_> {
        let storage = self.graph.storage(id);
        Rows {
            data: &self.values[storage.base.0 as usize],
            offset: storage.offset,
            stride: storage.row_stride,
            len: self.graph.value(id).row_len(),
        }
    }

    fn table(&self, node: &Node, index: usize) -> &[f32] {
        &self.weights[node.weights[index].0 as usize]
    }

    fn copy_logits(&self, logits: &mut [f32]) -> Result<(), BackendError> {
        let Some(id) = self.graph.output else {
            return Ok(());
        };
        let (rows, count) = (self.rows(id), self.outer(id));
        if logits.len() != count * rows.len {
            return Err(BackendError::Step(format!(
                "logits hold {} numbers, the step has {count} rows of {}",
                logits.len(),
                rows.len
            )));
        }
        for row in 0..count {
            logits[row * rows.len..][..rows.len].copy_from_slice(rows.row(row));
        }
        Ok(())
    }

    /// Runs node `index`; its output replaces what its value held before.
    fn execute(&mut self, index: usize, step: &StepInput<'_>) {
        let node = self.graph.nodes[index].clone();
        if let Op::Attention { cache, .. } = node.op {
            let mut storage = std::mem::take(&mut self.caches[cache.0 as usize]);
            storage.store(
                step,
                self.rows(node.inputs[1]),
                self.rows(node.inputs[2]),
                &self.limits,
            );
            self.caches[cache.0 as usize] = storage;
        }
        let id = node.output.0 as usize;
        let mut out = std::mem::take(&mut self.values[id]);
        out.clear();
        out.resize(
            self.outer(node.output) * self.graph.value(node.output).row_len(),
            0.0,
        );
        self.compute(&node, step, &mut out);
        self.values[id] = out;
    }

    fn compute(&self, node: &Node, step: &StepInput<'_>, out: &mut [f32]) {
        let input = |index: usize| self.rows(node.inputs[index]);
        let width = self.graph.value(node.output).row_len();
        let head = |index: usize| {
            let dims = &self.graph.value(node.inputs[index]).dims;
            dims[dims.len() - 1].fixed().unwrap_or(1)
        };
        match &node.op {
            Op::Embed { scale } => ops::embed(step.tokens, self.table(node, 0), *scale, width, out),
            Op::RmsNorm { eps } => ops::rms_norm(input(0), self.table(node, 0), *eps, out),
            Op::Linear { bias } => {
                let parts = if *bias {
                    node.weights.len() / 2
                } else {
                    node.weights.len()
                };
                let mut column = 0;
                for part in 0..parts {
                    let matrix = self.table(node, part);
                    let bias = bias.then(|| self.table(node, parts + part));
                    let n = self.graph.weight(node.weights[part]).row_count();
                    ops::linear(input(0), matrix, bias, out, width, column..column + n);
                    column += n;
                }
            }
            Op::LinearAdd { scale } => {
                ops::linear(input(0), self.table(node, 0), None, out, width, 0..width);
                ops::scale_onto(input(1), *scale, width, out);
            }
            Op::LinearGated { activation } => {
                let mut up = vec![0.0; out.len()];
                ops::linear(input(0), self.table(node, 0), None, out, width, 0..width);
                ops::linear(input(0), self.table(node, 1), None, &mut up, width, 0..width);
                ops::gate_in_place(*activation, out, &up);
            }
            Op::Gated { activation } => {
                ops::zip(input(0), input(1), width, out, |g, u| {
                    ops::activate(*activation, g) * u
                });
            }
            Op::Add { scale } => ops::zip(input(0), input(1), width, out, |a, b| a + scale * b),
            Op::Scale { by } => ops::zip(input(0), input(0), width, out, |x, _| x * by),
            Op::Softcap { cap } => ops::zip(input(0), input(0), width, out, |x, _| ops::softcap(x, *cap)),
            Op::Rope { rope } => {
                let spec = self.graph.rope(*rope);
                let frequencies = &self.frequencies[rope.0 as usize];
                ops::rope(
                    input(0),
                    step.positions,
                    frequencies,
                    spec.magnitude(),
                    head(0),
                    width,
                    out,
                );
            }
            Op::Attention {
                cache,
                scale,
                window,
                softcap,
            } => {
                let rule = attention::Rule {
                    scale: *scale,
                    window: *window,
                    softcap: *softcap,
                };
                let cache = &self.caches[cache.0 as usize];
                attention::attend(rule, step, input(0), head(0), cache, &self.limits, width, out);
            }
            Op::TakeRows => {
                for (row, &from) in step.rows.iter().enumerate() {
                    out[row * width..][..width].copy_from_slice(input(0).row(from as usize));
                }
            }
            Op::Route {
                top_k,
                score,
                renormalise,
                scale,
            } => {
                let bias = (!node.weights.is_empty()).then(|| self.table(node, 0));
                let rule = experts::RouteRule {
                    top_k: *top_k,
                    score: *score,
                    renormalise: *renormalise,
                    scale: *scale,
                };
                experts::route(rule, input(0), bias, out);
            }
            Op::ExpertsGated { activation } => {
                let rows = self.graph.weight(node.weights[0]).dims[1];
                let (gate, up) = (self.table(node, 0), self.table(node, 1));
                experts::gated(*activation, input(0), input(1), gate, up, rows, out);
            }
            Op::ExpertsDown => experts::down(input(0), input(1), self.table(node, 0), width, out),
            Op::AllReduce => unreachable!("AllReduce runs over all ranks at once"),
        }
    }
}

/// Adds the ranks' inputs of node `index` in rank order and gives each rank the sum.
fn all_reduce(programs: &mut [ReferenceProgram], index: usize) {
    let operand = |program: &ReferenceProgram| {
        let id = program.graph.nodes[index].inputs[0];
        program.value(id).expect("all_reduce adds a node's output")
    };
    let mut sum = operand(&programs[0]);
    for program in &programs[1..] {
        for (total, x) in sum.iter_mut().zip(operand(program)) {
            *total += x;
        }
    }
    for program in programs {
        let id = program.graph.nodes[index].output.0 as usize;
        program.values[id].clone_from(&sum);
    }
}

fn dequantised(weight: &Weight, source: &dyn WeightSource) -> Result<Vec<f32>, BackendError> {
    let wrong = |reason: String| BackendError::Weight {
        name: weight.name.clone(),
        reason,
    };
    let (rows, len) = (weight.row_count(), weight.row_len());
    let row_bytes = weight.format.row_bytes(len).map_err(|e| wrong(e.to_string()))?;
    let bytes = source.rows(weight, 0..rows)?;
    if bytes.len() != rows * row_bytes {
        return Err(wrong(format!(
            "{} bytes, {rows} rows take {}",
            bytes.len(),
            rows * row_bytes
        )));
    }
    let mut out = vec![0.0; rows * len];
    quant::dequantize(weight.format, &bytes, &mut out).map_err(|e| wrong(e.to_string()))?;
    Ok(out)
}

fn census_row(graph: &Graph, node: &Node) -> CensusRow {
    let format = node
        .weights
        .first()
        .map(|&id| graph.weight(id).format.to_string());
    CensusRow {
        label: node.label.clone(),
        op: node.op.name(),
        format: format.unwrap_or_default(),
        kernel: format!("reference_{}", node.op.name()),
        reason: "plain loops".into(),
        fallback: false,
    }
}
