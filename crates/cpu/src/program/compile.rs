//! From a graph to stages: packs weights, gives every value an address, chooses kernels.
//!
//! The arena holds the planned activations, then one table of angles for each rotary embedding, then the slots of expert
//! products.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use galvani_graph::{
    BackendError, CensusRow, Compiled, Dim, Extent, Graph, LimitsSpec, Node, Op, Plan, ValueId, ValueSource,
    WeightId, WeightSource, plan,
};
use galvani_weights::quant;

use super::barriers::place_barriers;
use super::stage::{Input, Kernel, MatrixId, Memory, Part, Place, Stage, VectorId};
use super::{CpuProgram, Rope, Shared, Work};
use crate::isa::Isa;
use crate::lanes::Set;
use crate::ops::attention::{self, Shape};
use crate::ops::cache::{CacheType, KvPool};
use crate::ops::route::{Groups, RouteRule};
use crate::ops::rows::Pointwise;
use crate::pack::{AlignedBytes, CpuMath, PackSpec, PackedMatrix};
use crate::pool::Pool;
use crate::quantise::ActRows;
use crate::step::vocabulary;

const BACKEND: &str = "cpu";
/// Numbers in a cache line.
const LINE: usize = 16;

/// What a program is compiled with.
pub(crate) struct Target {
    pub pool: Arc<Pool>,
    pub isa: Isa,
    pub math: CpuMath,
}

pub(crate) fn compile(
    target: &Target,
    graph: &Graph,
    weights: &dyn WeightSource,
    limits: LimitsSpec,
) -> Result<CpuProgram, BackendError> {
    graph
        .check()
        .map_err(|error| unsupported("graph", "graph", error.to_string()))?;
    let extent = Extent {
        tokens: limits.step_tokens_max,
        rows: limits.step_rows_max,
    };
    let plan = plan(graph, extent);
    let mut compiler = Compiler {
        target,
        graph,
        weights,
        limits,
        extent,
        numbers: plan.bytes / size_of::<f32>(),
        plan,
        stages: Vec::new(),
        census: Vec::new(),
        matrices: Vec::new(),
        matrix_ids: HashMap::new(),
        vectors: Vec::new(),
        acts: Vec::new(),
        work: Vec::new(),
        counters: 0,
        tables: Vec::new(),
        slots: None,
        groups: None,
        scratch: 0,
        scratch_product: 0,
    };
    compiler.angles();
    for node in &graph.nodes {
        compiler.node(node)?;
    }
    compiler.copy_out()?;
    compiler.finish()
}

struct Compiler<'a> {
    target: &'a Target,
    graph: &'a Graph,
    weights: &'a dyn WeightSource,
    limits: LimitsSpec,
    extent: Extent,
    plan: Plan,
    /// Numbers of the arena so far.
    numbers: usize,
    stages: Vec<Stage>,
    census: Vec<CensusRow>,
    matrices: Vec<PackedMatrix>,
    matrix_ids: HashMap<WeightId, MatrixId>,
    vectors: Vec<Vec<f32>>,
    acts: Vec<Acts>,
    work: Vec<Work>,
    counters: usize,
    /// By rope id.
    tables: Vec<Place>,
    /// Where the slots of expert products go, and their numbers.
    slots: Option<(usize, usize)>,
    /// (experts, top_k), the largest.
    groups: Option<(usize, usize)>,
    /// Bytes of worker scratch of the operations here.
    scratch: usize,
    /// Bytes of worker scratch of products.
    scratch_product: usize,
}

/// A buffer for quantised rows while compiling.
struct Acts {
    k: usize,
    rows_max: usize,
    /// Whose rows it holds at this point of the program.
    holds: Option<Place>,
}

impl Compiler<'_> {
    fn push(&mut self, op: &'static str, kernel: Kernel) {
        self.stages.push(Stage {
            kernel,
            barrier: false,
            op,
        });
    }

    /// Room for `numbers` more in the arena.
    fn extend(&mut self, numbers: usize) -> usize {
        let at = self.numbers;
        self.numbers += numbers.next_multiple_of(LINE);
        at
    }

    fn angles(&mut self) {
        for (rope, spec) in self.graph.ropes.iter().enumerate() {
            let offset = self.extend(self.extent.tokens * spec.dims);
            let table = Place {
                memory: Memory::Arena,
                buffer: self.graph.values.len() + rope,
                offset,
                stride: spec.dims,
                len: spec.dims,
                outer: Dim::Tokens,
            };
            self.tables.push(table);
            self.push("angles", Kernel::Angles { rope, table });
        }
    }

    /// Where a value's rows lie.
    fn place(&self, id: ValueId) -> Place {
        let storage = self.graph.storage(id);
        let value = self.graph.value(id);
        let (memory, offset) = match self.plan.offset(storage.base) {
            Some(bytes) => (Memory::Arena, bytes / size_of::<f32>()),
            None => {
                let node = matches!(self.graph.value(storage.base).source, ValueSource::Node(_));
                assert!(
                    node,
                    "step inputs are read from the step, only the logits are elsewhere"
                );
                (Memory::Logits, 0)
            }
        };
        Place {
            memory,
            buffer: storage.base.0 as usize,
            offset: offset + storage.offset,
            stride: storage.row_stride,
            len: value.row_len(),
            outer: value.dims[0],
        }
    }

    fn node(&mut self, node: &Node) -> Result<(), BackendError> {
        let out = self.place(node.output);
        let op = node.op.name();
        let kernel = match &node.op {
            Op::Embed { scale } => Kernel::Embed {
                table: self.matrix(node.weights[0])?,
                scale: *scale,
                out,
            },
            Op::RmsNorm { eps } => {
                let weight = self.vector(node.weights[0])?;
                let len = self.vectors[weight].len();
                Kernel::RmsNorm {
                    x: self.place(node.inputs[0]),
                    weight,
                    out,
                    len,
                    eps: *eps,
                }
            }
            Op::Linear { bias } => self.linear(node, *bias, out)?,
            Op::LinearAdd { scale } => {
                let matrix = self.matrix(node.weights[0])?;
                let input = self.input(node.inputs[0], 1, &[matrix])?;
                let residual = self.place(node.inputs[1]);
                Kernel::LinearAdd {
                    input,
                    matrix,
                    residual,
                    scale: *scale,
                    out,
                }
            }
            Op::LinearGated { activation } => {
                let (gate, up) = (self.matrix(node.weights[0])?, self.matrix(node.weights[1])?);
                let input = self.input(node.inputs[0], 1, &[gate, up])?;
                Kernel::LinearGated {
                    input,
                    gate,
                    up,
                    activation: *activation,
                    out,
                }
            }
            Op::Gated { activation } => {
                let op = match activation {
                    galvani_graph::Activation::Silu => Pointwise::Silu,
                    galvani_graph::Activation::GeluTanh => Pointwise::GeluTanh,
                };
                self.pointwise(node, op, out)
            }
            Op::Add { scale } => self.pointwise(node, Pointwise::Add { by: *scale }, out),
            Op::Scale { by } => self.pointwise(node, Pointwise::Scale { by: *by }, out),
            Op::Softcap { cap } => self.pointwise(node, Pointwise::Softcap { cap: *cap }, out),
            Op::Rope { rope } => {
                let x = self.place(node.inputs[0]);
                let head = self.last_dim(node.inputs[0]);
                let half = self.graph.rope(*rope).dims / 2;
                Kernel::Rope {
                    x,
                    table: self.tables[rope.0 as usize],
                    out,
                    head,
                    half,
                }
            }
            Op::Attention {
                cache,
                scale,
                window,
                softcap,
            } => {
                let heads = out.len / self.graph.cache(*cache).value_dim;
                let shape = self.shape(*cache, heads, *scale, *window, *softcap);
                let (k, v) = (self.place(node.inputs[1]), self.place(node.inputs[2]));
                let cache = cache.0 as usize;
                self.push("store", Kernel::Store { cache, k, v });
                let (work, counter) = (self.work_of(shape.group, shape.kv_heads), self.counters);
                self.counters += 1;
                self.scratch = self.scratch.max(attention::scratch_bytes(&shape));
                Kernel::Attend {
                    cache,
                    shape,
                    work,
                    counter,
                    q: self.place(node.inputs[0]),
                    out,
                }
            }
            Op::TakeRows => Kernel::TakeRows {
                x: self.place(node.inputs[0]),
                out,
            },
            Op::Route {
                top_k,
                score,
                renormalise,
                scale,
            } => {
                let bias = node.weights.first().map(|&id| self.vector(id)).transpose()?;
                let logits = self.place(node.inputs[0]);
                let (experts, top_k) = (logits.len, *top_k);
                let rule = RouteRule {
                    experts,
                    top_k,
                    score: *score,
                    renormalise: *renormalise,
                    scale: *scale,
                };
                self.scratch = self.scratch.max(2 * experts * size_of::<f32>());
                let (most, most_slots) = self.groups.unwrap_or_default();
                self.groups = Some((most.max(experts), most_slots.max(top_k)));
                self.push(
                    op,
                    Kernel::Route {
                        rule,
                        bias,
                        logits,
                        out,
                    },
                );
                Kernel::Group { routes: out, top_k }
            }
            Op::ExpertsGated { activation } => {
                let (gate, up) = (self.matrix(node.weights[0])?, self.matrix(node.weights[1])?);
                let input = self.input(node.inputs[0], 1, &[gate, up])?;
                let top_k = self.top_k(node);
                self.check_routes(node)?;
                Kernel::ExpertsGated {
                    input,
                    gate,
                    up,
                    activation: *activation,
                    out,
                    top_k,
                }
            }
            Op::ExpertsDown => self.experts_down(node, out)?,
            Op::AllReduce => {
                return Err(unsupported(op, &node.label, "this backend runs one rank".into()));
            }
        };
        self.push(op, kernel);
        self.census_row(node);
        Ok(())
    }

    fn linear(&mut self, node: &Node, bias: bool, out: Place) -> Result<Kernel, BackendError> {
        let count = if bias {
            node.weights.len() / 2
        } else {
            node.weights.len()
        };
        let (mut parts, mut ids, mut column) = (Vec::new(), Vec::new(), 0);
        for part in 0..count {
            let matrix = self.matrix(node.weights[part])?;
            let bias = bias
                .then(|| self.vector(node.weights[count + part]))
                .transpose()?;
            parts.push(Part { matrix, bias, column });
            ids.push(matrix);
            column += self.matrices[matrix].rows();
        }
        let input = self.input(node.inputs[0], 1, &ids)?;
        Ok(Kernel::Linear { input, parts, out })
    }

    fn experts_down(&mut self, node: &Node, out: Place) -> Result<Kernel, BackendError> {
        let down = self.matrix(node.weights[0])?;
        let top_k = self.top_k(node);
        let input = self.input(node.inputs[0], top_k, &[down])?;
        self.check_routes(node)?;
        let numbers = self.extent.tokens * top_k * out.len;
        let (offset, _) = *match &mut self.slots {
            Some(slots) if slots.1 >= numbers => slots,
            _ => {
                let at = self.extend(numbers);
                self.slots.insert((at, numbers))
            }
        };
        let slots = Place {
            memory: Memory::Arena,
            buffer: usize::MAX - out.buffer,
            offset,
            stride: top_k * out.len,
            len: top_k * out.len,
            outer: out.outer,
        };
        self.push(
            node.op.name(),
            Kernel::ExpertsDown {
                input,
                down,
                slots,
                top_k,
            },
        );
        Ok(Kernel::Combine {
            slots,
            routes: self.place(node.inputs[1]),
            out,
            top_k,
        })
    }

    /// The grouping belongs to the newest route node; a graph that uses an older one has no kernel here.
    fn check_routes(&self, node: &Node) -> Result<(), BackendError> {
        let routes = self.place(node.inputs[1]);
        let newest = self.stages.iter().rev().find_map(|stage| match &stage.kernel {
            Kernel::Group { routes, .. } => Some(*routes),
            _ => None,
        });
        if newest == Some(routes) {
            return Ok(());
        }
        Err(unsupported(
            node.op.name(),
            &node.label,
            "its routes are not those of the newest route node".into(),
        ))
    }

    fn top_k(&self, node: &Node) -> usize {
        self.graph.value(node.inputs[1]).row_len() / 2
    }

    fn last_dim(&self, id: ValueId) -> usize {
        let dims = &self.graph.value(id).dims;
        dims[dims.len() - 1].fixed().expect("inner dimensions are fixed")
    }

    fn pointwise(&mut self, node: &Node, op: Pointwise, out: Place) -> Kernel {
        let a = self.place(node.inputs[0]);
        let b = self.place(node.inputs[node.inputs.len() - 1]);
        // The logits are few and long rows.
        let by_columns = out.outer == Dim::Rows;
        Kernel::Pointwise {
            op,
            a,
            b,
            out,
            by_columns,
        }
    }

    fn shape(
        &self,
        cache: galvani_graph::CacheId,
        heads: usize,
        scale: f32,
        window: Option<usize>,
        softcap: Option<f32>,
    ) -> Shape {
        let spec = self.graph.cache(cache);
        Shape {
            group: heads / spec.kv_heads,
            kv_heads: spec.kv_heads,
            key_dim: spec.key_dim,
            value_dim: spec.value_dim,
            scale,
            window,
            softcap,
        }
    }

    fn work_of(&mut self, group: usize, kv_heads: usize) -> usize {
        if let Some(index) = self
            .work
            .iter()
            .position(|w| w.group == group && w.kv_heads == kv_heads)
        {
            return index;
        }
        let workers = self.target.pool.count();
        let (tokens, sequences) = (self.extent.tokens, self.limits.step_sequences_max);
        let most = attention::item_count_max(tokens, sequences, group, kv_heads, workers);
        self.work.push(Work {
            group,
            kv_heads,
            items: Vec::with_capacity(most),
        });
        self.work.len() - 1
    }

    /// An input of products, quantised first unless the buffer holds it already.
    fn input(&mut self, id: ValueId, rows_each: usize, readers: &[MatrixId]) -> Result<Input, BackendError> {
        let place = self.place(id);
        let k = place.len / rows_each;
        let rows_max = place.outer.resolve(self.extent) * rows_each;
        for &reader in readers {
            let bytes = self.matrices[reader].scratch_bytes(rows_max);
            self.scratch_product = self.scratch_product.max(bytes);
        }
        if rows_each > 1 && place.stride != place.len {
            let label = self.graph.value(id).name.clone();
            return Err(unsupported(
                "experts_down",
                &label,
                "its input is not dense".into(),
            ));
        }
        if !readers.iter().any(|&reader| self.matrices[reader].wants_int8()) {
            return Ok(Input {
                place,
                rows_each,
                acts: None,
            });
        }
        let acts = self.acts.iter().position(|acts| acts.k == k).unwrap_or_else(|| {
            self.acts.push(Acts {
                k,
                rows_max,
                holds: None,
            });
            self.acts.len() - 1
        });
        let buffer = &mut self.acts[acts];
        buffer.rows_max = buffer.rows_max.max(rows_max);
        if buffer.holds != Some(place) || !self.fresh(acts, place) {
            self.acts[acts].holds = Some(place);
            self.push(
                "quantise",
                Kernel::Quantise {
                    place,
                    rows_each,
                    acts,
                },
            );
        }
        Ok(Input {
            place,
            rows_each,
            acts: Some(acts),
        })
    }

    /// Whether nothing was written to `place` since it was quantised into `acts`: buffers are reused for later values.
    fn fresh(&self, acts: usize, place: Place) -> bool {
        let end =
            place.offset + place.outer.resolve(self.extent).saturating_sub(1) * place.stride + place.len;
        let mut stages = self.stages.iter().rev();
        stages
            .find_map(|stage| match &stage.kernel {
                Kernel::Quantise { acts: other, .. } if *other == acts => Some(true),
                kernel => writes_between(kernel, self.extent, place.offset, end).then_some(false),
            })
            .unwrap_or(false)
    }

    fn matrix(&mut self, id: WeightId) -> Result<MatrixId, BackendError> {
        if let Some(&index) = self.matrix_ids.get(&id) {
            return Ok(index);
        }
        let weight = self.graph.weight(id);
        let parts = if weight.dims.len() == 3 { weight.dims[0] } else { 1 };
        let spec = PackSpec {
            isa: self.target.isa,
            math: self.target.math,
            name: &weight.name,
            format: weight.format,
            parts,
            rows: weight.row_count() / parts.max(1),
            k: weight.row_len(),
        };
        let source = |rows| self.weights.rows(weight, rows);
        let matrix = PackedMatrix::pack(&self.target.pool, &spec, &source)?;
        self.matrices.push(matrix);
        self.matrix_ids.insert(id, self.matrices.len() - 1);
        Ok(self.matrices.len() - 1)
    }

    fn vector(&mut self, id: WeightId) -> Result<VectorId, BackendError> {
        let weight = self.graph.weight(id);
        let wrong = |reason: String| BackendError::Weight {
            name: weight.name.clone(),
            reason,
        };
        let bytes = self.weights.rows(weight, 0..weight.row_count())?;
        let wanted = weight
            .format
            .row_bytes(weight.row_len())
            .map_err(|e| wrong(e.to_string()))?;
        if bytes.len() != wanted {
            return Err(wrong(format!(
                "{} bytes, {} numbers take {wanted}",
                bytes.len(),
                weight.row_len()
            )));
        }
        let mut numbers = vec![0.0; weight.row_len()];
        quant::dequantize(weight.format, &bytes, &mut numbers).map_err(|e| wrong(e.to_string()))?;
        self.vectors.push(numbers);
        Ok(self.vectors.len() - 1)
    }

    /// A last stage when the logits are a view of a planned value.
    fn copy_out(&mut self) -> Result<(), BackendError> {
        let output = self.graph.output.expect("checked: the graph has logits");
        let x = self.place(output);
        if x.memory == Memory::Arena {
            let out = Place {
                memory: Memory::Logits,
                offset: 0,
                stride: x.len,
                ..x
            };
            self.push("copy_out", Kernel::CopyOut { x, out });
        }
        Ok(())
    }

    fn census_row(&mut self, node: &Node) {
        let set = format!("{:?}", Set::of(self.target.isa)).to_lowercase();
        let matrix = node.weights.first().and_then(|id| self.matrix_ids.get(id));
        let format = node
            .weights
            .first()
            .map(|&id| self.graph.weight(id).format.to_string());
        let choice = matrix.map(|&index| self.matrices[index].kernel());
        let row = match (&node.op, choice) {
            (Op::Embed { .. }, _) | (_, None) => CensusRow {
                label: node.label.clone(),
                op: node.op.name(),
                format: format.unwrap_or_default(),
                kernel: format!("{}_{set}", node.op.name()),
                reason: "the only kernel of this operation".into(),
                fallback: false,
            },
            (_, Some(choice)) => CensusRow {
                label: node.label.clone(),
                op: node.op.name(),
                format: format.unwrap_or_default(),
                kernel: choice.name,
                reason: choice.reason,
                fallback: choice.fallback,
            },
        };
        self.census.push(row);
    }

    fn finish(mut self) -> Result<CpuProgram, BackendError> {
        place_barriers(&mut self.stages, self.extent);
        let pool = Arc::clone(&self.target.pool);
        pool.reserve_scratch(self.scratch_product)?;
        let kind = match self.target.math {
            CpuMath::Exact => CacheType::F32,
            CpuMath::Fast => CacheType::F16,
        };
        let caches: Vec<KvPool> = self
            .graph
            .caches
            .iter()
            .map(|spec| KvPool::new(spec, &self.limits, kind))
            .collect::<Result<_, _>>()?;
        let acts: Vec<ActRows> = self
            .acts
            .iter()
            .map(|acts| ActRows::new(self.target.isa, acts.rows_max, acts.k))
            .collect::<Result<_, _>>()?;
        // One line of slack: a vector load of the last row's last numbers stays inside.
        let arena = AlignedBytes::zeroed((self.numbers + LINE) * size_of::<f32>(), "activations")?;
        let scratch: Vec<AlignedBytes> = (0..pool.count())
            .map(|_| AlignedBytes::zeroed(self.scratch, "operation scratch"))
            .collect::<Result<_, _>>()?;
        let output = self.graph.output.expect("checked: the graph has logits");
        let compiled = Compiled {
            census: self.census,
            weight_bytes: self.matrices.iter().map(PackedMatrix::bytes).sum::<usize>()
                + self
                    .vectors
                    .iter()
                    .map(|v| v.len() * size_of::<f32>())
                    .sum::<usize>(),
            arena_bytes: arena.len() + acts.iter().map(ActRows::bytes).sum::<usize>(),
            cache_bytes: caches.iter().map(KvPool::bytes).sum(),
        };
        let tokens = self.extent.tokens;
        Ok(CpuProgram {
            pool,
            set: Set::of(self.target.isa),
            limits: self.limits,
            vocabulary: vocabulary(self.graph),
            logits_len: self.graph.value(output).row_len(),
            stages: self.stages,
            arena,
            matrices: self.matrices,
            vectors: self.vectors,
            ropes: self.graph.ropes.iter().map(Rope::new).collect(),
            caches,
            acts,
            work: self.work,
            counters: (0..self.counters).map(|_| AtomicUsize::new(0)).collect(),
            groups: self
                .groups
                .map(|(experts, top_k)| Shared::new(Groups::new(experts, tokens, top_k))),
            scratch,
            times: None,
            compiled,
        })
    }
}

/// Whether `kernel` writes into numbers `start .. end` of the arena.
fn writes_between(kernel: &Kernel, extent: Extent, start: usize, end: usize) -> bool {
    super::barriers::arena_writes(kernel, extent).any(|range| range.start < end && start < range.end)
}

fn unsupported(op: &'static str, label: &str, reason: String) -> BackendError {
    BackendError::Unsupported {
        backend: BACKEND,
        op,
        label: label.to_owned(),
        reason,
    }
}
