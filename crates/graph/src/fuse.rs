//! Fewer, larger products: fewer passes over the activations and fewer barriers.
//!
//! 1. `Gated(Linear(x), Linear(x))` becomes `LinearGated`.
//! 2. `Add(a, Linear(x))` becomes `LinearAdd`.
//! 3. The remaining products of one value become one `Linear` with several matrices; their old outputs become views.
//!
//! Each fused operation computes what its parts did, in the same order, so numbers do not change.

use std::collections::HashMap;

use crate::compact::compact;
use crate::{Dim, Graph, Node, NodeId, Op, Value, ValueId, ValueSource, View};

/// Fuses what can be fused.
pub fn fuse(mut graph: Graph) -> Graph {
    let uses = Uses::of(&graph);
    let mut gone = vec![false; graph.nodes.len()];
    for index in 0..graph.nodes.len() {
        if let Some((node, parts)) = gated(&graph, &uses, index).or_else(|| added(&graph, &uses, index)) {
            graph.nodes[index] = node;
            parts.iter().for_each(|part| gone[part.0 as usize] = true);
        }
    }
    siblings(&mut graph, &mut gone);
    let mut index = 0;
    graph.nodes.retain(|_| {
        index += 1;
        !gone[index - 1]
    });
    compact(graph)
}

/// How often each value is read, directly or as the base of a view.
struct Uses(Vec<usize>);

impl Uses {
    fn of(graph: &Graph) -> Self {
        let mut uses = vec![0; graph.values.len()];
        for value in &graph.values {
            if let ValueSource::View(view) = value.source {
                uses[view.base.0 as usize] += 1;
            }
        }
        for node in &graph.nodes {
            node.inputs.iter().for_each(|input| uses[input.0 as usize] += 1);
        }
        if let Some(output) = graph.output {
            uses[output.0 as usize] += 1;
        }
        Uses(uses)
    }

    /// The product of one matrix behind `value`, when nothing else reads it.
    fn only_product<'g>(&self, graph: &'g Graph, value: ValueId) -> Option<(NodeId, &'g Node)> {
        let ValueSource::Node(id) = graph.value(value).source else {
            return None;
        };
        let node = graph.node(id);
        let single = self.0[value.0 as usize] == 1
            && node.op == Op::Linear { bias: false }
            && node.weights.len() == 1
            && graph.value(node.inputs[0]).dims.len() == 2;
        single.then_some((id, node))
    }
}

fn gated(graph: &Graph, uses: &Uses, index: usize) -> Option<(Node, Vec<NodeId>)> {
    let node = &graph.nodes[index];
    let Op::Gated { activation } = node.op else {
        return None;
    };
    let (gate_id, gate) = uses.only_product(graph, node.inputs[0])?;
    let (up_id, up) = uses.only_product(graph, node.inputs[1])?;
    let same_format = graph.weight(gate.weights[0]).format == graph.weight(up.weights[0]).format;
    if gate.inputs != up.inputs || !same_format {
        return None;
    }
    let fused = Node {
        op: Op::LinearGated { activation },
        inputs: gate.inputs.clone(),
        weights: vec![gate.weights[0], up.weights[0]],
        output: node.output,
        label: node.label.clone(),
    };
    Some((fused, vec![gate_id, up_id]))
}

fn added(graph: &Graph, uses: &Uses, index: usize) -> Option<(Node, Vec<NodeId>)> {
    let node = &graph.nodes[index];
    let Op::Add { scale } = node.op else {
        return None;
    };
    let (a, b) = (node.inputs[0], node.inputs[1]);
    // `a + 1 * b` and `b + 1 * a` are the same number, so either side may be the product.
    let (residual, (id, product)) = match uses.only_product(graph, b) {
        Some(found) => (a, found),
        None if scale == 1.0 => (b, uses.only_product(graph, a)?),
        None => return None,
    };
    let fused = Node {
        op: Op::LinearAdd { scale },
        inputs: vec![product.inputs[0], residual],
        weights: product.weights.clone(),
        output: node.output,
        label: product.label.clone(),
    };
    Some((fused, vec![id]))
}

fn siblings(graph: &mut Graph, gone: &mut [bool]) {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    let mut group_of: HashMap<(ValueId, bool), usize> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let Op::Linear { bias } = node.op else { continue };
        // The logits keep a buffer of their own: a backend hands it to the caller.
        if gone[index]
            || graph
                .output
                .is_some_and(|output| graph.storage(output).base == node.output)
        {
            continue;
        }
        let group = *group_of.entry((node.inputs[0], bias)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push(index);
    }
    for group in groups.iter().filter(|group| group.len() > 1) {
        join(graph, group);
        group[1..].iter().for_each(|&index| gone[index] = true);
    }
}

/// Puts the products `group` into the first of them.
fn join(graph: &mut Graph, group: &[usize]) {
    let first = graph.nodes[group[0]].clone();
    let Op::Linear { bias } = first.op else {
        unreachable!("groups hold products only");
    };
    let (mut matrices, mut biases, mut parts, mut total) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for &index in group {
        let node = &graph.nodes[index];
        let count = if bias {
            node.weights.len() / 2
        } else {
            node.weights.len()
        };
        matrices.extend_from_slice(&node.weights[..count]);
        biases.extend_from_slice(&node.weights[count..]);
        parts.push((node.output, total));
        total += graph.value(node.output).row_len();
    }
    let label = joined_label(group.iter().map(|&index| graph.nodes[index].label.as_str()));
    let output = ValueId(graph.values.len() as u32);
    graph.values.push(Value {
        name: label.clone(),
        dims: vec![graph.value(first.output).dims[0], Dim::Fixed(total)],
        source: ValueSource::Node(NodeId(group[0] as u32)),
    });
    for (part, start) in parts {
        move_into(graph, part, output, start, total);
    }
    matrices.extend(biases);
    graph.nodes[group[0]] = Node {
        op: first.op,
        inputs: first.inputs,
        weights: matrices,
        output,
        label,
    };
}

/// Makes `part`, and every view of it, a view of `whole`.
fn move_into(graph: &mut Graph, part: ValueId, whole: ValueId, start: usize, row_stride: usize) {
    for value in &mut graph.values {
        if let ValueSource::View(view) = &mut value.source
            && view.base == part
        {
            *view = View {
                base: whole,
                offset: start + view.offset,
                row_stride,
            };
        }
    }
    graph.values[part.0 as usize].source = ValueSource::View(View {
        base: whole,
        offset: start,
        row_stride,
    });
}

/// `a.q_proj`, `a.k_proj` -> `a.q_proj+k_proj`.
fn joined_label<'a>(labels: impl Iterator<Item = &'a str>) -> String {
    let mut joined = String::new();
    for label in labels {
        if joined.is_empty() {
            joined.push_str(label);
        } else {
            joined.push('+');
            joined.push_str(label.rsplit('.').next().unwrap_or(label));
        }
    }
    joined
}
