//! The text form, and what fuse does to it.

mod common;

use common::{TOY, Toy, toy};
use galvani_graph::{Format, Graph, Op, fuse};

#[test]
fn prints_one_line_a_node() {
    let graph = toy(TOY).unwrap();
    graph.check().unwrap();
    insta::assert_snapshot!(graph.to_string());
}

#[test]
fn fuses_siblings_gates_and_residuals() {
    let graph = fuse(toy(TOY).unwrap());
    graph.check().unwrap();
    insta::assert_snapshot!(graph.to_string());
}

#[test]
fn fuses_biased_siblings_and_keeps_experts() {
    let graph = fuse(
        toy(Toy {
            bias: true,
            experts: 8,
            ..TOY
        })
        .unwrap(),
    );
    graph.check().unwrap();
    insta::assert_snapshot!(graph.to_string());
}

fn count(graph: &Graph, name: &str) -> usize {
    graph.nodes.iter().filter(|n| n.op.name() == name).count()
}

#[test]
fn leaves_alone_what_it_must() {
    // Fusing twice changes nothing more.
    let once = fuse(toy(TOY).unwrap());
    assert_eq!(fuse(once.clone()), once);

    // A product that two nodes read, gate and up of different formats, a product that is the output.
    let mut graph = toy(TOY).unwrap();
    let up = graph
        .weights
        .iter_mut()
        .find(|w| w.name.contains("up_proj"))
        .unwrap();
    up.format = Format::Q4_0;
    let fused = fuse(graph);
    fused.check().unwrap();
    assert_eq!((count(&fused, "linear_gated"), count(&fused, "gated")), (0, 1));
    // Gate and up still become one product, read through views.
    let gate_up = fused
        .nodes
        .iter()
        .find(|n| n.label.contains("gate_proj+up_proj"))
        .unwrap();
    assert_eq!(gate_up.weights.len(), 2);

    let mut graph = toy(TOY).unwrap();
    let down = graph
        .nodes
        .iter()
        .position(|n| n.label.ends_with("down_proj"))
        .unwrap();
    let product = graph.nodes[down].output;
    let add = graph
        .nodes
        .iter_mut()
        .rfind(|n| matches!(n.op, Op::Add { .. }))
        .unwrap();
    add.inputs[0] = product;
    let fused = fuse(graph);
    fused.check().unwrap();
    assert_eq!(
        count(&fused, "add"),
        1,
        "a product read twice is not fused into its sum"
    );
}
