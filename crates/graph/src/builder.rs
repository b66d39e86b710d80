//! Builds a graph node by node, checking shapes as it goes.

use crate::{
    Activation, CacheId, CacheSpec, Dim, Format, Graph, GraphError, Node, NodeId, Op, RopeId, RopeSpec,
    Value, ValueId, ValueSource, View, Weight, WeightId,
};

/// Makes a [`Graph`]. Each method adds one node and returns its value; a wrong shape is an error naming the node.
#[derive(Debug, Default)]
pub struct Builder {
    graph: Graph,
    scope: Vec<String>,
}

impl Builder {
    /// An empty graph.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the graph with its logits `[R, vocab]`.
    pub fn finish(mut self, logits: ValueId) -> Graph {
        self.graph.output = Some(logits);
        self.graph
    }

    /// The graph so far.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Runs `body` with `name` added to the labels of the nodes it makes.
    pub fn scoped<T>(&mut self, name: &str, body: impl FnOnce(&mut Self) -> T) -> T {
        self.scope.push(name.to_owned());
        let result = body(self);
        self.scope.pop();
        result
    }

    /// Declares a weight.
    pub fn weight(&mut self, name: &str, dims: &[usize], format: Format) -> WeightId {
        if let Some(index) = self.graph.weights.iter().position(|w| w.name == name) {
            return WeightId(index as u32);
        }
        self.graph.weights.push(Weight {
            name: name.to_owned(),
            dims: dims.to_vec(),
            format,
            row_range: None,
            column_range: None,
        });
        WeightId(self.graph.weights.len() as u32 - 1)
    }

    /// Declares a rotary table, sharing an equal one.
    pub fn rope_table(&mut self, spec: RopeSpec) -> RopeId {
        if let Some(index) = self.graph.ropes.iter().position(|r| *r == spec) {
            return RopeId(index as u32);
        }
        self.graph.ropes.push(spec);
        RopeId(self.graph.ropes.len() as u32 - 1)
    }

    /// Declares a key/value cache.
    pub fn cache(&mut self, spec: CacheSpec) -> CacheId {
        self.graph.caches.push(spec);
        CacheId(self.graph.caches.len() as u32 - 1)
    }

    /// The step's token ids, `[T]`.
    pub fn tokens(&mut self) -> ValueId {
        self.input("tokens", Dim::Tokens, ValueSource::Tokens)
    }

    /// The step's positions, `[T]`.
    pub fn positions(&mut self) -> ValueId {
        self.input("positions", Dim::Tokens, ValueSource::Positions)
    }

    /// The step's wanted rows, `[R]`.
    pub fn rows(&mut self) -> ValueId {
        self.input("rows", Dim::Rows, ValueSource::Rows)
    }

    /// A part of each row of `base` seen as `dims`: `offset` numbers in, inner dimensions dense.
    pub fn view(&mut self, base: ValueId, offset: usize, dims: &[usize]) -> Result<ValueId, GraphError> {
        let storage = self.graph.storage(base);
        let row_len: usize = dims.iter().product();
        let available = self.graph.value(base).row_len();
        if offset + row_len > available {
            return Err(GraphError::Shape {
                op: "view",
                label: self.label("view"),
                what: "row",
                got: format!("{row_len} numbers at {offset}"),
                wanted: format!("at most {available}"),
            });
        }
        let outer = self.graph.value(base).dims[0];
        let shape = std::iter::once(outer)
            .chain(dims.iter().map(|&d| Dim::Fixed(d)))
            .collect();
        let view = View {
            offset: storage.offset + offset,
            ..storage
        };
        let name = format!("{}[{offset}..{}]", self.graph.value(base).name, offset + row_len);
        Ok(self.push_value(name, shape, ValueSource::View(view)))
    }

    /// Adds a node; its output shape follows from [`crate::Op`]'s contract.
    pub fn node(
        &mut self,
        op: Op,
        name: &str,
        inputs: &[ValueId],
        weights: &[WeightId],
    ) -> Result<ValueId, GraphError> {
        let label = self.label(name);
        let dims = crate::infer::infer(&self.graph, &op, &label, inputs, weights)?;
        let id = NodeId(self.graph.nodes.len() as u32);
        let output = self.push_value(label.clone(), dims, ValueSource::Node(id));
        self.graph.nodes.push(Node {
            op,
            inputs: inputs.to_vec(),
            weights: weights.to_vec(),
            output,
            label,
        });
        Ok(output)
    }

    /// `W x`, one matrix.
    pub fn linear(&mut self, name: &str, x: ValueId, weight: WeightId) -> Result<ValueId, GraphError> {
        self.node(Op::Linear { bias: false }, name, &[x], &[weight])
    }

    /// RMS norm over the last dimension.
    pub fn rms_norm(
        &mut self,
        name: &str,
        x: ValueId,
        weight: WeightId,
        eps: f32,
    ) -> Result<ValueId, GraphError> {
        self.node(Op::RmsNorm { eps }, name, &[x], &[weight])
    }

    /// `act(gate) * up`.
    pub fn gated(
        &mut self,
        name: &str,
        gate: ValueId,
        up: ValueId,
        activation: Activation,
    ) -> Result<ValueId, GraphError> {
        self.node(Op::Gated { activation }, name, &[gate, up], &[])
    }

    /// `a + scale * b`.
    pub fn add(&mut self, name: &str, a: ValueId, b: ValueId, scale: f32) -> Result<ValueId, GraphError> {
        self.node(Op::Add { scale }, name, &[a, b], &[])
    }

    fn input(&mut self, name: &str, dim: Dim, source: ValueSource) -> ValueId {
        if let Some(index) = self.graph.values.iter().position(|v| v.source == source) {
            return ValueId(index as u32);
        }
        self.push_value(name.to_owned(), vec![dim], source)
    }

    fn push_value(&mut self, name: String, dims: Vec<Dim>, source: ValueSource) -> ValueId {
        self.graph.values.push(Value { name, dims, source });
        ValueId(self.graph.values.len() as u32 - 1)
    }

    fn label(&self, name: &str) -> String {
        let mut label = self.scope.join(".");
        if !label.is_empty() {
            label.push('.');
        }
        label + name
    }
}
