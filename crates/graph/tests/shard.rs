//! Sharded graphs: shapes, ranges and refusals. That the ranks together compute the same is tested in `models`.

mod common;

use common::{TOY, Toy, toy};
use galvani_graph::{Format, Graph, Rank, fuse, shard};

fn ranks(graph: &Graph, count: usize) -> Vec<Graph> {
    (0..count)
        .map(|index| shard(graph, Rank { index, count }).unwrap())
        .collect()
}

#[test]
fn prints_a_shard() {
    let graph = toy(TOY).unwrap();
    insta::assert_snapshot!(ranks(&graph, 2)[1].to_string());
}

#[test]
fn prints_a_shard_of_experts() {
    let graph = toy(Toy {
        experts: 8,
        bias: true,
        ..TOY
    })
    .unwrap();
    insta::assert_snapshot!(ranks(&graph, 2)[1].to_string());
}

/// Every row and column of every weight is on some rank, once, or whole on each.
#[test]
fn shards_cover_each_weight() {
    for size in [TOY, Toy { experts: 8, ..TOY }, Toy { bias: true, ..TOY }] {
        let graph = toy(size).unwrap();
        for count in [1, 2] {
            let shards = ranks(&graph, count);
            for weight in &graph.weights {
                let parts: Vec<_> = shards
                    .iter()
                    .map(|s| s.weights.iter().find(|w| w.name == weight.name).cloned())
                    .collect();
                let whole: usize = weight.dims.iter().product();
                let total: usize = parts
                    .iter()
                    .flatten()
                    .map(|w| w.dims.iter().product::<usize>())
                    .sum();
                let split = parts
                    .iter()
                    .flatten()
                    .any(|w| w.row_range.is_some() || w.column_range.is_some());
                if split {
                    assert_eq!(total, whole, "{}", weight.name);
                } else {
                    assert_eq!(total, whole * parts.iter().flatten().count(), "{}", weight.name);
                }
            }
            shards.iter().for_each(|s| fuse(s.clone()).check().unwrap());
        }
    }
}

#[test]
fn replicates_key_value_heads() {
    let size = Toy {
        heads: 8,
        kv_heads: 2,
        head_dim: 32,
        format: Format::F32,
        ..TOY
    };
    let shards = ranks(&toy(size).unwrap(), 4);
    let rows: Vec<_> = shards
        .iter()
        .map(|s| {
            s.weights
                .iter()
                .find(|w| w.name.contains("k_proj"))
                .unwrap()
                .row_range
                .clone()
                .unwrap()
        })
        .collect();
    assert_eq!(rows, [0..32, 0..32, 32..64, 32..64]);
    assert!(shards.iter().all(|s| s.caches[0].kv_heads == 1));
}

#[test]
fn refuses_by_name() {
    let fused = fuse(toy(TOY).unwrap());
    let cases: [(&str, Graph, Rank, &str); 7] = [
        (
            "rank",
            toy(TOY).unwrap(),
            Rank { index: 2, count: 2 },
            "2 of 2 does not exist",
        ),
        (
            "none",
            toy(TOY).unwrap(),
            Rank { index: 0, count: 0 },
            "does not exist",
        ),
        (
            "heads",
            toy(Toy {
                heads: 6,
                kv_heads: 2,
                ..TOY
            })
            .unwrap(),
            Rank { index: 0, count: 4 },
            "6 query heads",
        ),
        (
            "kv",
            toy(Toy {
                heads: 12,
                kv_heads: 4,
                ..TOY
            })
            .unwrap(),
            Rank { index: 0, count: 6 },
            "4 key/value heads",
        ),
        (
            "fused",
            fused,
            Rank { index: 0, count: 2 },
            "shard comes before fuse",
        ),
        (
            "blocks",
            toy(Toy {
                hidden: 256,
                head_dim: 64,
                format: Format::Q4K,
                inner: 256,
                ..TOY
            })
            .unwrap(),
            Rank { index: 1, count: 2 },
            "columns 128..256 are not whole blocks of 256 numbers (Q4_K)",
        ),
        (
            "again",
            shard(&toy(TOY).unwrap(), Rank { index: 0, count: 2 }).unwrap(),
            Rank { index: 0, count: 2 },
            "shard",
        ),
    ];
    for (name, graph, rank, wanted) in cases {
        let error = shard(&graph, rank).expect_err(name).to_string();
        assert!(error.contains(wanted), "{name}: {error}");
    }
}
