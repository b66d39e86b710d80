//! From a graph to stages: packs weights, gives every value an address, chooses kernels.
//!
//! The arena holds the planned activations, then one table of angles for each rotary embedding, then the slots of expert
//! products.

use std::collections::HashMap;
use std::sync::Arc;

use galvani_graph::{
    Activation, BackendError, CacheId, CensusRow, Dim, Extent, Graph, LimitsSpec, Node, Op, Plan, ValueId,
    ValueSource, WeightId, WeightSource, plan,
};

use super::stage::{Kernel, MatrixId, Memory, Part, Place, Stage};
use super::{CpuProgram, Work};
use crate::isa::Isa;
use crate::lanes::Set;
use crate::ops::attention::{self, Shape};
use crate::ops::route::RouteRule;
use crate::ops::rows::Pointwise;
use crate::pack::{CpuMath, PackedMatrix};
use crate::pool::Pool;

const BACKEND: &str = "cpu";
/// Numbers in a cache line.
pub(super) const LINE: usize = 16;

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

pub(super) struct Compiler<'a> {
    pub target: &'a Target,
    pub graph: &'a Graph,
    pub weights: &'a dyn WeightSource,
    pub limits: LimitsSpec,
    pub extent: Extent,
    pub plan: Plan,
    /// Numbers of the arena so far.
    pub numbers: usize,
    pub stages: Vec<Stage>,
    pub census: Vec<CensusRow>,
    pub matrices: Vec<PackedMatrix>,
    pub matrix_ids: HashMap<WeightId, MatrixId>,
    pub vectors: Vec<Vec<f32>>,
    pub acts: Vec<Acts>,
    pub work: Vec<Work>,
    pub counters: usize,
    /// By rope id.
    pub tables: Vec<Place>,
    /// Where the slots of expert products go, and their numbers.
    pub slots: Option<(usize, usize)>,
    /// (experts, top_k), the largest.
    pub groups: Option<(usize, usize)>,
    /// Bytes of worker scratch of the operations here.
    pub scratch: usize,
    /// Bytes of worker scratch of products.
    pub scratch_product: usize,
}

/// A buffer for quantised rows while compiling.
pub(super) struct Acts {
    pub k: usize,
    pub rows_max: usize,
    /// Whose rows it holds at this point of the program.
    pub holds: Option<Place>,
}

impl Compiler<'_> {
    pub(super) fn push(&mut self, op: &'static str, kernel: Kernel) {
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
    pub(super) fn place(&self, id: ValueId) -> Place {
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
        let x = |compiler: &Self| compiler.place(node.inputs[0]);
        let kernel = match &node.op {
            Op::Embed { scale } => {
                let (table, scale) = (self.matrix(node.weights[0])?, *scale);
                Kernel::Embed { table, scale, out }
            }
            Op::RmsNorm { eps } => {
                let (weight, eps) = (self.vector(node.weights[0])?, *eps);
                let (x, len) = (x(self), self.vectors[weight].len());
                Kernel::RmsNorm {
                    x,
                    weight,
                    out,
                    len,
                    eps,
                }
            }
            Op::Linear { bias } => self.linear(node, *bias, out)?,
            Op::LinearAdd { scale } => {
                let (matrix, scale) = (self.matrix(node.weights[0])?, *scale);
                let input = self.input(node.inputs[0], 1, &[matrix])?;
                let residual = self.place(node.inputs[1]);
                Kernel::LinearAdd {
                    input,
                    matrix,
                    residual,
                    scale,
                    out,
                }
            }
            Op::LinearGated { activation } => {
                let (gate, up) = (self.matrix(node.weights[0])?, self.matrix(node.weights[1])?);
                let (input, activation) = (self.input(node.inputs[0], 1, &[gate, up])?, *activation);
                Kernel::LinearGated {
                    input,
                    gate,
                    up,
                    activation,
                    out,
                }
            }
            Op::Gated {
                activation: Activation::Silu,
            } => self.pointwise(node, Pointwise::Silu, out),
            Op::Gated {
                activation: Activation::GeluTanh,
            } => self.pointwise(node, Pointwise::GeluTanh, out),
            Op::Add { scale } => self.pointwise(node, Pointwise::Add { by: *scale }, out),
            Op::Scale { by } => self.pointwise(node, Pointwise::Scale { by: *by }, out),
            Op::Softcap { cap } => self.pointwise(node, Pointwise::Softcap { cap: *cap }, out),
            Op::Rope { rope } => {
                let (table, half) = (self.tables[rope.0 as usize], self.graph.rope(*rope).dims / 2);
                let (x, head) = (x(self), self.last_dim(node.inputs[0]));
                Kernel::Rope {
                    x,
                    table,
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
                let shape = self.shape(*cache, out.len, *scale, *window, *softcap);
                self.attention(node, cache.0 as usize, shape, out)
            }
            Op::TakeRows => Kernel::TakeRows { x: x(self), out },
            Op::Route {
                top_k,
                score,
                renormalise,
                scale,
            } => {
                let (top_k, score, renormalise, scale) = (*top_k, *score, *renormalise, *scale);
                let rule = RouteRule {
                    experts: x(self).len,
                    top_k,
                    score,
                    renormalise,
                    scale,
                };
                self.route(node, rule, out)?
            }
            Op::ExpertsGated { activation } => {
                let (gate, up) = (self.matrix(node.weights[0])?, self.matrix(node.weights[1])?);
                let (input, activation) = (self.input(node.inputs[0], 1, &[gate, up])?, *activation);
                let top_k = self.top_k(node)?;
                Kernel::ExpertsGated {
                    input,
                    gate,
                    up,
                    activation,
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

    fn attention(&mut self, node: &Node, cache: usize, shape: Shape, out: Place) -> Kernel {
        let [q, k, v] = [0, 1, 2].map(|index| self.place(node.inputs[index]));
        self.push("store", Kernel::Store { cache, k, v });
        let (work, counter) = (self.work_of(shape.group, shape.kv_heads), self.counters);
        self.counters += 1;
        self.scratch = self.scratch.max(attention::scratch_bytes(&shape));
        Kernel::Attend {
            cache,
            shape,
            work,
            counter,
            q,
            out,
        }
    }

    fn route(&mut self, node: &Node, rule: RouteRule, out: Place) -> Result<Kernel, BackendError> {
        let bias = node.weights.first().map(|&id| self.vector(id)).transpose()?;
        let logits = self.place(node.inputs[0]);
        self.scratch = self.scratch.max(2 * rule.experts * size_of::<f32>());
        let (experts, slots) = self.groups.unwrap_or_default();
        self.groups = Some((experts.max(rule.experts), slots.max(rule.top_k)));
        self.push(
            node.op.name(),
            Kernel::Route {
                rule,
                bias,
                logits,
                out,
            },
        );
        Ok(Kernel::Group {
            routes: out,
            top_k: rule.top_k,
        })
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
        let top_k = self.top_k(node)?;
        let input = self.input(node.inputs[0], top_k, &[down])?;
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

    /// Slots of an expert node. The grouping belongs to the newest route node; a graph that uses an older one has no
    /// kernel here.
    fn top_k(&self, node: &Node) -> Result<usize, BackendError> {
        let routes = self.place(node.inputs[1]);
        let newest = self.stages.iter().rev().find_map(|stage| match &stage.kernel {
            Kernel::Group { routes, .. } => Some(*routes),
            _ => None,
        });
        if newest == Some(routes) {
            return Ok(routes.len / 2);
        }
        let reason = "its routes are not those of the newest route node";
        Err(unsupported(node.op.name(), &node.label, reason.into()))
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
        cache: CacheId,
        out_len: usize,
        scale: f32,
        window: Option<usize>,
        softcap: Option<f32>,
    ) -> Shape {
        let spec = self.graph.cache(cache);
        Shape {
            group: out_len / spec.value_dim / spec.kv_heads,
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
}

pub(super) fn unsupported(op: &'static str, label: &str, reason: String) -> BackendError {
    BackendError::Unsupported {
        backend: BACKEND,
        op,
        label: label.to_owned(),
        reason,
    }
}
