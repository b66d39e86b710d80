//! Renumbering after a pass: values nobody needs go, the others are numbered in the order in which they come to be.

use crate::{Graph, NodeId, ValueId, ValueSource, View, WeightId};

/// Renumbers `graph`, whose `nodes` are final and in order, though values may be unused and node numbers stale.
pub(crate) fn compact(graph: Graph) -> Graph {
    let order = value_order(&graph);
    let mut new_id = vec![None; graph.values.len()];
    for (index, old) in order.iter().enumerate() {
        new_id[old.0 as usize] = Some(ValueId(index as u32));
    }
    let map = |old: ValueId| new_id[old.0 as usize].expect("every operand is kept");
    let mut values: Vec<_> = order.iter().map(|&old| graph.value(old).clone()).collect();
    for value in &mut values {
        if let ValueSource::View(view) = &mut value.source {
            view.base = map(view.base);
        }
    }
    let mut weights = Vec::new();
    let mut new_weight = vec![None; graph.weights.len()];
    let mut nodes = graph.nodes;
    for (index, node) in nodes.iter_mut().enumerate() {
        node.output = map(node.output);
        values[node.output.0 as usize].source = ValueSource::Node(NodeId(index as u32));
        node.inputs.iter_mut().for_each(|input| *input = map(*input));
        for weight in &mut node.weights {
            let old = weight.0 as usize;
            *weight = *new_weight[old].get_or_insert_with(|| {
                weights.push(graph.weights[old].clone());
                WeightId(weights.len() as u32 - 1)
            });
        }
    }
    Graph {
        values,
        weights,
        nodes,
        caches: graph.caches,
        ropes: graph.ropes,
        output: graph.output.map(map),
    }
}

/// The step's inputs, then each node's output with the views of it.
fn value_order(graph: &Graph) -> Vec<ValueId> {
    let mut needed = vec![false; graph.values.len()];
    let reads = graph
        .nodes
        .iter()
        .flat_map(|n| n.inputs.iter())
        .chain(graph.output.iter());
    for &id in reads {
        needed[id.0 as usize] = true;
        needed[graph.storage(id).base.0 as usize] = true;
    }
    let mut views = vec![Vec::new(); graph.values.len()];
    let mut order = Vec::new();
    for (index, value) in graph.values.iter().enumerate() {
        let id = ValueId(index as u32);
        match value.source {
            ValueSource::View(View { base, .. }) if needed[index] => views[base.0 as usize].push(id),
            ValueSource::Tokens | ValueSource::Positions | ValueSource::Rows if needed[index] => {
                order.push(id)
            }
            ValueSource::View(_)
            | ValueSource::Node(_)
            | ValueSource::Tokens
            | ValueSource::Positions
            | ValueSource::Rows => {}
        }
    }
    for input in order.clone() {
        order.append(&mut views[input.0 as usize]);
    }
    for node in &graph.nodes {
        order.push(node.output);
        order.append(&mut views[node.output.0 as usize]);
    }
    order
}
