//! Quantised GGUFs: blocks used as they are give what the dequantised weights give.

mod common;

use common::{Dequantised, Feed, cpu_exact, golden, golden_path, logits, worst};
use galvani_cpu::reference::Reference;
use galvani_graph::fuse;
use galvani_models::build;
use galvani_weights::Checkpoint;

/// (file, root mean square distance of the quantised model's logits from those of the f32 one, which spread by 0.8)
const FILES: [(&str, f32); 5] = [
    ("Q8_0.gguf", 0.03),
    ("Q4_K_M.gguf", 0.3),
    ("IQ4_XS.gguf", 0.3),
    ("MXFP4_MOE.gguf", 0.03),
    ("split/m-00002-of-00004.gguf", 0.001),
];

#[test]
fn blocks_as_stored() {
    let golden = golden("gguf/f32");
    let cpu = cpu_exact();
    let mut failures = Vec::new();
    for (file, float_distance) in FILES {
        let checkpoint = Checkpoint::open(&golden_path(&format!("gguf/{file}"))).unwrap();
        let graph = build(&checkpoint).unwrap().graph;
        let f32_graph = Dequantised::graph(graph.clone());
        let wanted = logits(
            &Reference,
            &f32_graph,
            &Dequantised(&checkpoint),
            &golden.ids,
            Feed::Whole,
        );
        let mut compare = |what: &str, got: Vec<f32>| {
            let off = worst(&got, &wanted);
            if off > 1e-4 {
                failures.push(format!("{file} {what}: off by {off:e}"));
            }
        };
        compare(
            "reference",
            logits(&Reference, &graph, &checkpoint, &golden.ids, Feed::Chunks(16)),
        );
        for (form, graph) in [("raw", &graph), ("fused", &fuse(graph.clone()))] {
            for feed in [Feed::Chunks(16), Feed::Chunks(3)] {
                compare(form, logits(&cpu, graph, &checkpoint, &golden.ids, feed));
            }
        }
        let off = rms(&wanted, &golden.logits);
        assert!(
            off < float_distance && off > 0.0,
            "{file}: {off:e} from the f32 model"
        );
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn rms(a: &[f32], b: &[f32]) -> f32 {
    let sum: f32 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    (sum / a.len() as f32).sqrt()
}
