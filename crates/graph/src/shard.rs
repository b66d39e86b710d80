//! Tensor parallelism as a function from graph to graph: each rank gets its own smaller program, and all ranks together
//! compute what one would.
//!
//! Query, key, value, gate and up products keep a part of their rows; output and down products the matching columns, and
//! an `AllReduce` adds the parts. Experts are split inside each expert. Embedding, norms, router and logits stay whole.
//! With fewer key/value heads than ranks, a head lives on each rank whose queries need it.

use std::ops::Range;

use crate::shard_roles::{Role, roles};
use crate::{
    CacheSpec, Dim, Graph, GraphError, Node, NodeId, Op, Value, ValueId, ValueSource, View, Weight, WeightId,
};

/// One rank of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rank {
    /// This rank, from 0.
    pub index: usize,
    /// All ranks.
    pub count: usize,
}

/// The part of `graph` that rank `rank` runs. Shard before [`crate::fuse`].
///
/// # Errors
/// When heads, rows or blocks do not divide, or the graph has a shape this pass does not know.
pub fn shard(graph: &Graph, rank: Rank) -> Result<Graph, GraphError> {
    if rank.count == 0 || rank.index >= rank.count {
        return Err(failure(
            "rank",
            format!("{} of {} does not exist", rank.index, rank.count),
        ));
    }
    if rank.count == 1 {
        return Ok(graph.clone());
    }
    let mut pass = Shard {
        old: graph,
        rank,
        roles: roles(graph)?,
        new: Graph {
            ropes: graph.ropes.clone(),
            ..Graph::default()
        },
        values: vec![None; graph.values.len()],
    };
    for cache in &graph.caches {
        let kv_heads = pass.kv_heads(cache.kv_heads, "cache")?.len();
        pass.new.caches.push(CacheSpec {
            kv_heads,
            ..cache.clone()
        });
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        pass.node(index, node)?;
    }
    if let Some(output) = graph.output {
        pass.new.output = Some(pass.value(output)?);
    }
    let sharded = crate::compact::compact(pass.new);
    sharded.check()?;
    Ok(sharded)
}

pub(crate) fn failure(label: &str, reason: String) -> GraphError {
    GraphError::Pass {
        pass: "shard",
        label: label.to_owned(),
        reason,
    }
}

struct Shard<'g> {
    old: &'g Graph,
    rank: Rank,
    roles: Vec<Role>,
    new: Graph,
    /// New id of each old value.
    values: Vec<Option<ValueId>>,
}

impl Shard<'_> {
    fn node(&mut self, index: usize, node: &Node) -> Result<(), GraphError> {
        let inputs: Vec<ValueId> = node
            .inputs
            .iter()
            .map(|&input| self.value(input))
            .collect::<Result<_, _>>()?;
        let mut op = node.op.clone();
        let weights = match self.roles[index] {
            Role::Whole | Role::Split => node.weights.iter().map(|&w| self.whole(w)).collect(),
            Role::Query { heads } => {
                let part = self.even(heads, "query heads", &node.label)?;
                self.rows_of(node, heads, &part)?
            }
            Role::KeyValue { heads } => {
                let part = self.kv_heads(heads, &node.label)?;
                self.rows_of(node, heads, &part)?
            }
            Role::Inner => {
                let rows = self.old.weight(node.weights[0]).dims[0];
                let part = self.even(rows, "rows", &node.label)?;
                self.rows_of(node, rows, &part)?
            }
            Role::Reduce => {
                if let Op::Linear { bias } = &mut op {
                    // The bias is added once, by the first rank.
                    *bias = *bias && self.rank.index == 0;
                }
                self.columns_of(node, &op)?
            }
            Role::ExpertsInner => {
                let rows = self.old.weight(node.weights[0]).dims[1];
                let part = self.even(rows, "expert rows", &node.label)?;
                node.weights
                    .iter()
                    .map(|&w| self.part(w, Some(part.clone()), None))
                    .collect::<Result<_, _>>()?
            }
        };
        let mut output = self.push(op, inputs, weights, &node.label)?;
        if self.roles[index] == Role::Reduce {
            output = self.push(
                Op::AllReduce,
                vec![output],
                Vec::new(),
                &format!("{}.sum", node.label),
            )?;
        }
        self.values[node.output.0 as usize] = Some(output);
        Ok(())
    }

    /// This rank's part of the rows of each matrix (and bias) of a product, `units` heads or rows in all.
    fn rows_of(
        &mut self,
        node: &Node,
        units: usize,
        part: &Range<usize>,
    ) -> Result<Vec<WeightId>, GraphError> {
        node.weights
            .iter()
            .map(|&id| {
                let weight = self.old.weight(id);
                let unit = weight.dims[0] / units;
                let range = part.start * unit..part.end * unit;
                if weight.dims.len() == 1 {
                    self.part(id, None, Some(range))
                } else {
                    self.part(id, Some(range), None)
                }
            })
            .collect()
    }

    /// This rank's columns of a product whose input is split; `op` differs from the node's where the bias goes.
    fn columns_of(&mut self, node: &Node, op: &Op) -> Result<Vec<WeightId>, GraphError> {
        let keep = if *op == node.op {
            node.weights.len()
        } else {
            node.weights.len() / 2
        };
        node.weights[..keep]
            .iter()
            .map(|&id| {
                let weight = self.old.weight(id);
                if weight.dims.len() == 1 {
                    return Ok(self.whole(id));
                }
                let columns = self.even(weight.row_len(), "columns", &node.label)?;
                self.part(id, None, Some(columns))
            })
            .collect()
    }

    fn even(&self, total: usize, what: &str, label: &str) -> Result<Range<usize>, GraphError> {
        let Rank { index, count } = self.rank;
        if !total.is_multiple_of(count) {
            return Err(failure(
                label,
                format!("{total} {what} cannot be split among {count} ranks evenly"),
            ));
        }
        let share = total / count;
        Ok(index * share..(index + 1) * share)
    }

    fn kv_heads(&self, heads: usize, label: &str) -> Result<Range<usize>, GraphError> {
        let Rank { index, count } = self.rank;
        if heads >= count {
            return self.even(heads, "key/value heads", label);
        }
        if heads == 0 || !count.is_multiple_of(heads) {
            return Err(failure(
                label,
                format!(
                    "{heads} key/value heads on {count} ranks: the ranks must be a multiple of the heads"
                ),
            ));
        }
        let head = index * heads / count;
        Ok(head..head + 1)
    }

    fn whole(&mut self, id: WeightId) -> WeightId {
        let weight = self.old.weight(id).clone();
        self.intern(weight)
    }

    fn part(
        &mut self,
        id: WeightId,
        rows: Option<Range<usize>>,
        columns: Option<Range<usize>>,
    ) -> Result<WeightId, GraphError> {
        let mut weight = self.old.weight(id).clone();
        if weight.row_range.is_some() || weight.column_range.is_some() {
            return Err(failure(&weight.name, "is a shard already".into()));
        }
        if let Some(range) = rows {
            let outer = weight.dims.len() - 2;
            weight.dims[outer] = range.len();
            weight.row_range = Some(range);
        }
        if let Some(range) = columns {
            let block = weight.format.block_len();
            if !range.start.is_multiple_of(block) || !range.end.is_multiple_of(block) {
                return Err(failure(
                    &weight.name,
                    format!(
                        "columns {}..{} are not whole blocks of {block} numbers ({})",
                        range.start, range.end, weight.format
                    ),
                ));
            }
            *weight.dims.last_mut().expect("a weight has dimensions") = range.len();
            weight.column_range = Some(range);
        }
        Ok(self.intern(weight))
    }

    fn intern(&mut self, weight: Weight) -> WeightId {
        if let Some(index) = self.new.weights.iter().position(|w| *w == weight) {
            return WeightId(index as u32);
        }
        self.new.weights.push(weight);
        WeightId(self.new.weights.len() as u32 - 1)
    }

    fn push(
        &mut self,
        op: Op,
        inputs: Vec<ValueId>,
        weights: Vec<WeightId>,
        label: &str,
    ) -> Result<ValueId, GraphError> {
        let dims = crate::infer::infer(&self.new, &op, label, &inputs, &weights)?;
        let source = ValueSource::Node(NodeId(self.new.nodes.len() as u32));
        let output = self.push_value(label, dims, source);
        self.new.nodes.push(Node {
            op,
            inputs,
            weights,
            output,
            label: label.to_owned(),
        });
        Ok(output)
    }

    fn push_value(&mut self, name: &str, dims: Vec<Dim>, source: ValueSource) -> ValueId {
        self.new.values.push(Value {
            name: name.to_owned(),
            dims,
            source,
        });
        ValueId(self.new.values.len() as u32 - 1)
    }

    /// The new value for `old`; a view of a split value becomes a view of this rank's part.
    fn value(&mut self, old: ValueId) -> Result<ValueId, GraphError> {
        if let Some(new) = self.values[old.0 as usize] {
            return Ok(new);
        }
        let value = self.old.value(old).clone();
        let new = match value.source {
            ValueSource::Tokens | ValueSource::Positions | ValueSource::Rows => {
                self.push_value(&value.name, value.dims, value.source)
            }
            ValueSource::Node(_) => return Err(failure(&value.name, "is read before it is written".into())),
            ValueSource::View(view) => self.view(&value, view)?,
        };
        self.values[old.0 as usize] = Some(new);
        Ok(new)
    }

    fn view(&mut self, value: &Value, view: View) -> Result<ValueId, GraphError> {
        let base = self.value(view.base)?;
        let whole = self.old.value(view.base).row_len();
        let row_stride = self.new.value(base).row_len();
        let mut dims = value.dims.clone();
        if row_stride != whole {
            if view.offset != 0 || value.row_len() != whole {
                return Err(failure(
                    &value.name,
                    "is a part of a split value: shard comes before fuse".into(),
                ));
            }
            let outer = dims[1].fixed().expect("inner dimensions are fixed");
            dims[1] = Dim::Fixed(outer * row_stride / whole);
        }
        let source = ValueSource::View(View {
            base,
            row_stride,
            ..view
        });
        Ok(self.push_value(&value.name, dims, source))
    }
}
