//! Buffers: a readable plan, and random graphs against an arena that is really written.

mod common;

use common::{Seeded, TOY, toy};
use galvani_graph::{Builder, Extent, Format, Graph, Op, PLAN_ALIGNMENT, ValueId, ValueSource, fuse, plan};

#[test]
fn prints_buffers() {
    let graph = fuse(toy(TOY).unwrap());
    let plan = plan(&graph, Extent { tokens: 8, rows: 2 });
    insta::assert_snapshot!(plan.display(&graph).to_string());
}

/// A random graph: each node reads one or two earlier values or views of them.
fn random(seed: u64) -> Graph {
    let mut random = Seeded(seed);
    let mut b = Builder::new();
    let tokens = b.tokens();
    let widths = [1, 16, 48, 64, 1000];
    let table = |b: &mut Builder, width: usize| b.weight(&format!("table{width}"), &[9, width], Format::F32);
    let mut values: Vec<(ValueId, usize)> = Vec::new();
    for step in 0..5 + random.below(60) {
        let name = format!("n{step}");
        let made = if values.is_empty() || random.below(5) == 0 {
            let width = widths[random.below(widths.len())];
            let weight = table(&mut b, width);
            (
                b.node(Op::Embed { scale: 1.0 }, &name, &[tokens], &[weight])
                    .unwrap(),
                width,
            )
        } else {
            let (source, width) = values[random.below(values.len())];
            let cut = 1 + random.below(width);
            let view = b.view(source, width - cut, &[cut]).unwrap();
            let (other, other_width) = values[random.below(values.len())];
            if other_width >= cut && random.below(2) == 0 {
                let other = b.view(other, 0, &[cut]).unwrap();
                (b.add(&name, view, other, 1.0).unwrap(), cut)
            } else {
                (b.node(Op::Scale { by: 2.0 }, &name, &[view], &[]).unwrap(), cut)
            }
        };
        values.push(made);
    }
    let output = values[values.len() - 1].0;
    b.finish(output)
}

/// Runs the plan byte by byte: each node marks its buffer; whoever reads must find the mark of the one it means.
fn replay(graph: &Graph, extent: Extent) {
    let plan = plan(graph, extent);
    plan.check_integrity();
    let mut arena = vec![u32::MAX; plan.bytes];
    let bytes = |id: ValueId| graph.value(id).dims[0].resolve(extent) * graph.value(id).row_len() * 4;
    for (index, node) in graph.nodes.iter().enumerate() {
        for &input in &node.inputs {
            let base = graph.storage(input).base;
            let ValueSource::Node(writer) = graph.value(base).source else {
                continue;
            };
            let Some(offset) = plan.offset(base) else {
                assert_eq!(Some(base), graph.output);
                continue;
            };
            assert!(
                arena[offset..offset + bytes(base)]
                    .iter()
                    .all(|&mark| mark == writer.0),
                "%{}",
                base.0
            );
        }
        if let Some(offset) = plan.offset(node.output) {
            assert!(offset.is_multiple_of(PLAN_ALIGNMENT));
            arena[offset..offset + bytes(node.output)].fill(index as u32);
            // The inputs are whole after the output is written: nothing is in place.
            for &input in &node.inputs {
                let base = graph.storage(input).base;
                if let (ValueSource::Node(writer), Some(offset)) =
                    (graph.value(base).source, plan.offset(base))
                {
                    assert!(
                        arena[offset..offset + bytes(base)]
                            .iter()
                            .all(|&mark| mark == writer.0)
                    );
                }
            }
        }
    }
    // Between the bytes that live at once (no plan can do with less) and all of them.
    let alive = |node: usize| {
        plan.buffers
            .iter()
            .filter(|b| b.first <= node && node <= b.last)
            .map(|b| b.bytes)
            .sum::<usize>()
    };
    let least = (0..graph.nodes.len()).map(alive).max().unwrap_or(0);
    let all: usize = plan.buffers.iter().map(|b| b.bytes).sum();
    assert!(
        (least..=all).contains(&plan.bytes),
        "{} not in {least}..={all}",
        plan.bytes
    );
    assert!(
        plan.bytes <= least + least / 2,
        "{} is wasteful for {least}",
        plan.bytes
    );
}

#[test]
fn random_graphs_hold_their_buffers() {
    for seed in 0..200 {
        let graph = random(seed);
        graph.check().unwrap();
        for tokens in [1, 7] {
            replay(&graph, Extent { tokens, rows: 1 });
        }
    }
    replay(&toy(TOY).unwrap(), Extent { tokens: 5, rows: 5 });
    replay(&fuse(toy(TOY).unwrap()), Extent { tokens: 5, rows: 5 });
}
