//! Every family gives the stored logits: from both containers, whole and token by token, raw and fused.

mod common;

use common::{FAMILIES, Feed, containers, golden, logits, worst};
use galvani_cpu::reference::Reference;
use galvani_graph::{Backend, fuse};
use galvani_models::build;

const TOLERANCE: f32 = 1e-4;

fn check<B: Backend>(backend: &B, feeds: &[Feed]) {
    let mut failures = Vec::new();
    for family in FAMILIES {
        let golden = golden(&format!("tiny/{family}"));
        for (container, checkpoint) in containers(family) {
            let model = build(&checkpoint).unwrap_or_else(|error| panic!("{family} {container}: {error}"));
            assert!(model.info.warnings.is_empty());
            let fused = fuse(model.graph.clone());
            fused.check().unwrap();
            assert!(fused.nodes.len() < model.graph.nodes.len());
            for (form, graph) in [("raw", &model.graph), ("fused", &fused)] {
                for &feed in feeds {
                    let got = logits(backend, graph, &checkpoint, &golden.ids, feed);
                    let worst = worst(&got, &golden.logits);
                    if worst > TOLERANCE {
                        failures.push(format!("{family} {container} {form} {feed:?}: off by {worst:e}"));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn reference() {
    check(&Reference, &[Feed::Whole, Feed::OneByOne, Feed::Chunks(11)]);
}

#[test]
fn cpu_exact() {
    check(
        &common::cpu_exact(),
        &[Feed::Whole, Feed::OneByOne, Feed::Chunks(11)],
    );
}
