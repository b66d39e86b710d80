//! Every family gives the stored logits: from both containers, whole and token by token, raw and fused.

mod common;

use common::{FAMILIES, Feed, containers, golden, logits, worst};
use galvani_cpu::reference::Reference;
use galvani_graph::{Backend, fuse};
use galvani_models::build;

const TOLERANCE: f32 = 1e-4;

fn check<B: Backend>(backend: &B, feeds: [&[Feed]; 2]) {
    let mut failures = Vec::new();
    for family in FAMILIES {
        let golden = golden(&format!("tiny/{family}"));
        for (container, checkpoint) in containers(family) {
            let model = build(&checkpoint).unwrap_or_else(|error| panic!("{family} {container}: {error}"));
            assert!(model.info.warnings.is_empty());
            let fused = fuse(model.graph.clone());
            fused.check().unwrap();
            assert!(fused.nodes.len() < model.graph.nodes.len());
            for (form, graph, feeds) in [("raw", &model.graph, feeds[0]), ("fused", &fused, feeds[1])] {
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

const ALL: &[Feed] = &[Feed::Whole, Feed::OneByOne, Feed::Chunks(11)];

#[test]
fn reference() {
    check(&Reference, [ALL, ALL]);
}

/// What is served is the fused graph; single steps of the raw one would only take time.
#[test]
fn cpu_exact() {
    check(&common::cpu_exact(), [&[Feed::Whole, Feed::Chunks(11)], ALL]);
}
