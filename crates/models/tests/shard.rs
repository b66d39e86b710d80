//! All ranks of a sharded model together compute what one rank does.

mod common;

use common::{FAMILIES, Feed, LIMITS, containers, feed_steps, golden, logits, vocab, worst};
use galvani_cpu::reference::Reference;
use galvani_graph::{Backend, Rank, fuse, shard};
use galvani_models::build;

#[test]
fn ranks_agree_with_one() {
    for family in FAMILIES {
        let golden = golden(&format!("tiny/{family}"));
        for (container, checkpoint) in containers(family) {
            let model = build(&checkpoint).unwrap();
            let whole = logits(&Reference, &model.graph, &checkpoint, &golden.ids, Feed::Whole);
            // Two key/value heads: with four ranks each lives on two of them.
            for count in [2, 4] {
                let mut programs: Vec<_> = (0..count)
                    .map(|index| {
                        let part = shard(&model.graph, Rank { index, count }).unwrap();
                        Reference.compile(&fuse(part), &checkpoint, LIMITS).unwrap()
                    })
                    .collect();
                let got = feed_steps(&golden.ids, Feed::Chunks(20), vocab(&model.graph), |step, out| {
                    Reference.run_ranks(&mut programs, step, out).unwrap();
                });
                let worst = worst(&got, &whole);
                assert!(
                    worst < 1e-5,
                    "{family} {container}, {count} ranks: off by {worst:e}"
                );
            }
        }
    }
}

#[test]
fn refuses_what_does_not_divide() {
    let (_, checkpoint) = &containers("qwen3")[0];
    let graph = build(checkpoint).unwrap().graph;
    let error = shard(&graph, Rank { index: 0, count: 3 })
        .unwrap_err()
        .to_string();
    assert!(error.contains("3 ranks"), "{error}");
}
