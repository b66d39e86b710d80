//! Which part each node plays when a graph is split: found by following the values around attention and gated blocks.

use crate::shard::failure;
use crate::{Graph, GraphError, NodeId, Op, ValueId, ValueSource};

/// A node's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Every rank computes all of it.
    Whole,
    /// Works on this rank's heads or columns, without weights that would be split.
    Split,
    /// A product that makes query heads.
    Query { heads: usize },
    /// A product that makes key or value heads.
    KeyValue { heads: usize },
    /// A product that makes inner columns of a gated block.
    Inner,
    /// Experts' gate and up products.
    ExpertsInner,
    /// A product over split columns: its output is a partial sum.
    Reduce,
}

/// The role of each node.
pub(crate) fn roles(graph: &Graph) -> Result<Vec<Role>, GraphError> {
    let mut roles = Roles {
        graph,
        roles: vec![Role::Whole; graph.nodes.len()],
    };
    for index in 0..graph.nodes.len() {
        roles.visit(NodeId(index as u32))?;
    }
    Ok(roles.roles)
}

struct Roles<'g> {
    graph: &'g Graph,
    roles: Vec<Role>,
}

impl Roles<'_> {
    fn visit(&mut self, id: NodeId) -> Result<(), GraphError> {
        let node = self.graph.node(id);
        match &node.op {
            Op::Attention { cache, .. } => {
                let kv_heads = self.graph.cache(*cache).kv_heads;
                let heads = self.graph.value(node.inputs[0]).dims[1]
                    .fixed()
                    .expect("inner dimensions are fixed");
                self.made_by(node.inputs[0], Role::Query { heads })?;
                self.made_by(node.inputs[1], Role::KeyValue { heads: kv_heads })?;
                self.made_by(node.inputs[2], Role::KeyValue { heads: kv_heads })?;
                self.set(id, Role::Split)?;
                self.read_by_products(node.output)
            }
            Op::Gated { .. } => {
                self.made_by(node.inputs[0], Role::Inner)?;
                self.made_by(node.inputs[1], Role::Inner)?;
                self.set(id, Role::Split)?;
                self.read_by_products(node.output)
            }
            Op::ExpertsGated { .. } => {
                self.set(id, Role::ExpertsInner)?;
                self.read_by_products(node.output)
            }
            Op::LinearAdd { .. } | Op::LinearGated { .. } => Err(failure(
                &node.label,
                format!("{}: shard comes before fuse", node.op.name()),
            )),
            Op::AllReduce => Err(failure(&node.label, "the graph is a shard already".into())),
            Op::Embed { .. }
            | Op::RmsNorm { .. }
            | Op::Linear { .. }
            | Op::Add { .. }
            | Op::Scale { .. }
            | Op::Softcap { .. }
            | Op::Rope { .. }
            | Op::TakeRows
            | Op::Route { .. }
            | Op::ExpertsDown => Ok(()),
        }
    }

    fn set(&mut self, id: NodeId, role: Role) -> Result<(), GraphError> {
        let slot = &mut self.roles[id.0 as usize];
        if *slot != Role::Whole && *slot != role {
            let label = &self.graph.node(id).label;
            return Err(failure(
                label,
                format!("would be split in two ways, {slot:?} and {role:?}"),
            ));
        }
        *slot = role;
        Ok(())
    }

    /// Follows `value` back to the product that makes it, through what works head by head.
    fn made_by(&mut self, value: ValueId, role: Role) -> Result<(), GraphError> {
        let base = self.graph.storage(value).base;
        let ValueSource::Node(id) = self.graph.value(base).source else {
            return Err(failure(
                &self.graph.value(base).name,
                "a step input cannot be split".into(),
            ));
        };
        let node = self.graph.node(id);
        let per_head = self.graph.value(node.output).dims.len() == 3;
        match &node.op {
            Op::Linear { .. } if self.matrices(id) == 1 => self.set(id, role),
            Op::Linear { .. } => Err(failure(
                &node.label,
                "has several matrices: shard comes before fuse".into(),
            )),
            Op::Rope { .. } => {
                self.set(id, Role::Split)?;
                self.made_by(node.inputs[0], role)
            }
            Op::RmsNorm { .. } if per_head => {
                self.set(id, Role::Split)?;
                self.made_by(node.inputs[0], role)
            }
            Op::Scale { .. } | Op::Softcap { .. } => {
                self.set(id, Role::Split)?;
                self.made_by(node.inputs[0], role)
            }
            Op::RmsNorm { .. }
            | Op::Embed { .. }
            | Op::LinearAdd { .. }
            | Op::LinearGated { .. }
            | Op::Gated { .. }
            | Op::Add { .. }
            | Op::Attention { .. }
            | Op::TakeRows
            | Op::Route { .. }
            | Op::ExpertsGated { .. }
            | Op::ExpertsDown
            | Op::AllReduce => Err(failure(
                &node.label,
                format!("{} over all heads or columns cannot be split", node.op.name()),
            )),
        }
    }

    fn matrices(&self, id: NodeId) -> usize {
        let node = self.graph.node(id);
        if node.op == (Op::Linear { bias: true }) {
            node.weights.len() / 2
        } else {
            node.weights.len()
        }
    }

    /// Marks the products that read `value`; any other reader is an error.
    fn read_by_products(&mut self, value: ValueId) -> Result<(), GraphError> {
        for index in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[index];
            if !node
                .inputs
                .iter()
                .any(|&input| self.graph.storage(input).base == value)
            {
                continue;
            }
            let id = NodeId(index as u32);
            let product = matches!(node.op, Op::Linear { .. }) && self.matrices(id) == 1;
            if !product && node.op != Op::ExpertsDown {
                let reason = format!("{} reads a split value; only one product may", node.op.name());
                return Err(failure(&node.label, reason));
            }
            self.set(id, Role::Reduce)?;
        }
        if self
            .graph
            .output
            .is_some_and(|output| self.graph.storage(output).base == value)
        {
            return Err(failure(
                &self.graph.value(value).name,
                "the output cannot be split".into(),
            ));
        }
        Ok(())
    }
}
