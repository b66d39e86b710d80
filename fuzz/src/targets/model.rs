//! From a config or GGUF keys to a planned graph: any config gives a model or words.

use galvani_graph::{Extent, Rank, fuse, plan, shard};
use galvani_models::{Model, build};
use galvani_weights::gguf::Gguf;
use galvani_weights::safetensors::Safetensors;
use galvani_weights::{Checkpoint, LoadError};

use super::{Target, fixture_paths, fixtures};
use crate::driver::root;

pub const FROM_CONFIG: Target = Target {
    name: "model",
    about: "config.json against a small checkpoint: family, graph, shard, fuse, plan",
    run: run_config,
    seeds: || fixtures("tiny", "/config.json"),
    dictionary: &[
        b"\"model_type\": \"llama\"",
        b"\"head_dim\": ",
        b"\"num_key_value_heads\": ",
        b"\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0}",
        b"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 0}",
        b"\"layer_types\": [\"full_attention\"]",
        b"\"sliding_window\": 0",
        b"null",
        b"-1",
        b"0",
        b"1e308",
        b"true",
    ],
};

pub const FROM_GGUF: Target = Target {
    name: "model_gguf",
    about: "the header of a small GGUF with data of zeros: translation, family, graph, shard, fuse, plan",
    run: run_gguf,
    seeds: || {
        fixture_paths("tiny", "-f32.gguf")
            .iter()
            .map(|path| header_of(path))
            .collect()
    },
    dictionary: &[
        b"llama.block_count",
        b"llama.attention.head_count",
        b"qwen3.",
        b"gemma3.",
        b"granite.",
        b"smollm3.",
        b"rope.scaling.type",
        b"rope_freqs.weight",
        b"output.weight",
        b"blk.0.",
        b"attn_qkv.weight",
    ],
};

/// Data behind a header, bytes; more than the largest of the small checkpoints has.
const DATA_BYTES: usize = 3 << 19;

/// The start of a file up to its data, with room for what is not header to be cut later.
fn header_of(path: &std::path::Path) -> Vec<u8> {
    let file = std::fs::read(path).expect("it was listed just now");
    // The data is random floats; the header ends where all tensors' names have been seen.
    let last = file
        .windows(7)
        .rposition(|window| window == b".weight")
        .expect("a tensor is called so");
    file[..(last + 64).min(file.len())].to_vec()
}

fn run_config(input: &[u8]) -> String {
    let text = String::from_utf8_lossy(input);
    let families = ["gemma3_text", "granite", "qwen2", "qwen3_moe", "qwen3", "smollm3"];
    let family = families
        .iter()
        .find(|family| text.contains(**family))
        .unwrap_or(&"llama");
    let files = Safetensors::open(&root().join("goldens/tiny").join(family)).expect("the fixture is sound");
    walk(Checkpoint::from_hub(files, input.to_vec(), "input", None))
}

fn run_gguf(input: &[u8]) -> String {
    let mut bytes = input.to_vec();
    bytes.resize(input.len() + DATA_BYTES, 0);
    walk(Gguf::from_bytes("input", bytes).and_then(Checkpoint::from_gguf))
}

fn walk(checkpoint: Result<Checkpoint, LoadError>) -> String {
    let checkpoint = match checkpoint {
        Ok(checkpoint) => checkpoint,
        Err(error) => return error.to_string(),
    };
    let Model { graph, info } = match build(&checkpoint) {
        Ok(model) => model,
        Err(error) => return error.to_string(),
    };
    let mut said = format!("{} of {} nodes", info.family, graph.nodes.len());
    for count in [1, 2, 3] {
        match shard(
            &graph,
            Rank {
                index: count - 1,
                count,
            },
        ) {
            Ok(part) => {
                let part = fuse(part);
                plan(&part, Extent { tokens: 7, rows: 2 }).check_integrity();
                assert!(!part.to_string().is_empty());
            }
            Err(error) => said.push_str(&error.to_string()),
        }
    }
    said
}
