//! The graph: values, weights, caches and nodes in execution order.

use crate::{Dim, Format, Op, RopeId, RopeSpec};

/// Index of a [`Value`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// Index of a [`Node`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// Index of a [`Weight`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// Index of a [`CacheSpec`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheId(pub u32);

/// A canonical weight tensor: the one meaning, whatever the source. The graph holds its name, shape and encoding;
/// the bytes come from a [`crate::WeightSource`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weight {
    /// Canonical name (the hub's tensor names without the `model.` prefix, such as `layers.3.self_attn.q_proj.weight`).
    pub name: String,
    /// Shape `[out, in]`, `[experts, out, in]` or `[len]`; the last runs along the encoded row.
    pub dims: Vec<usize>,
    /// Encoding of the rows.
    pub format: Format,
    /// Rows of the source this weight consists of, in order, when it is a shard; `None` means all. In stacked experts they
    /// count within each expert.
    pub row_range: Option<std::ops::Range<usize>>,
    /// Columns (numbers along the row, block aligned) when it is a shard; `None` means all.
    pub column_range: Option<std::ops::Range<usize>>,
}

impl Weight {
    /// Numbers in a row.
    pub fn row_len(&self) -> usize {
        *self.dims.last().expect("a weight has at least one dimension")
    }

    /// Rows, experts flattened.
    pub fn row_count(&self) -> usize {
        self.dims[..self.dims.len() - 1].iter().product()
    }
}

/// Keys and values of one attention layer, paged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheSpec {
    /// Layer it belongs to.
    pub layer: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers in a key head.
    pub key_dim: usize,
    /// Numbers in a value head.
    pub value_dim: usize,
    /// Positions that may still be read, counted back from the newest; `None` means all.
    pub window: Option<usize>,
}

/// Where a value comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueSource {
    /// Token ids of the step, `[T]` u32.
    Tokens,
    /// Their positions, `[T]` u32.
    Positions,
    /// Indices of the rows whose logits are wanted, `[R]` u32.
    Rows,
    /// Written by a node.
    Node(NodeId),
    /// A window on another value's storage.
    View(View),
}

/// Part of another value: `[outer, dims..]` at `offset` numbers into each row of `base`, whose rows lie `row_stride`
/// numbers apart. The inner dimensions are dense. Split, reshape and head views are all of this shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct View {
    /// The value that owns the storage (never itself a view).
    pub base: ValueId,
    /// Numbers to skip at the start of each row.
    pub offset: usize,
    /// Numbers from one row to the next.
    pub row_stride: usize,
}

/// An activation: f32 numbers `[outer, ..]`, or u32 for the step's inputs. Backends may hold it in fewer bits where their
/// documents say so.
#[derive(Debug, Clone, PartialEq)]
pub struct Value {
    /// Name for printing.
    pub name: String,
    /// Shape; only the first may be symbolic.
    pub dims: Vec<Dim>,
    /// Origin.
    pub source: ValueSource,
}

impl Value {
    /// Numbers in one row (all but the outermost dimension).
    pub fn row_len(&self) -> usize {
        self.dims[1..]
            .iter()
            .map(|d| d.fixed().expect("inner dimensions are fixed"))
            .product()
    }
}

/// One operation with its operands.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What is done.
    pub op: Op,
    /// Activations read.
    pub inputs: Vec<ValueId>,
    /// Weights read.
    pub weights: Vec<WeightId>,
    /// The value written.
    pub output: ValueId,
    /// Where in the model, such as `layers.3.self_attn.qkv`.
    pub label: String,
}

/// A model as data: nodes in execution order over values, weights, caches and rotary tables.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Graph {
    /// Values, by [`ValueId`].
    pub values: Vec<Value>,
    /// Weights, by [`WeightId`].
    pub weights: Vec<Weight>,
    /// Nodes, in execution order, by [`NodeId`].
    pub nodes: Vec<Node>,
    /// Key/value caches, by [`CacheId`].
    pub caches: Vec<CacheSpec>,
    /// Rotary tables, by [`RopeId`].
    pub ropes: Vec<RopeSpec>,
    /// The logits, `[R, vocab]`.
    pub output: Option<ValueId>,
}

impl Graph {
    /// A value by id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0 as usize]
    }

    /// A weight by id.
    pub fn weight(&self, id: WeightId) -> &Weight {
        &self.weights[id.0 as usize]
    }

    /// A node by id.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// A cache by id.
    pub fn cache(&self, id: CacheId) -> &CacheSpec {
        &self.caches[id.0 as usize]
    }

    /// A rotary table by id.
    pub fn rope(&self, id: RopeId) -> &RopeSpec {
        &self.ropes[id.0 as usize]
    }

    /// The value that owns the storage behind `id`, with the offset into each of its rows and the row stride, in numbers.
    pub fn storage(&self, id: ValueId) -> View {
        let value = self.value(id);
        match value.source {
            ValueSource::View(view) => view,
            ValueSource::Tokens | ValueSource::Positions | ValueSource::Rows | ValueSource::Node(_) => View {
                base: id,
                offset: 0,
                row_stride: value.row_len(),
            },
        }
    }
}
