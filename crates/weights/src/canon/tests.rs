//! Canonical rows: any part of a tensor equals that part of the whole, and both containers hold the same numbers.

use std::path::PathBuf;

use galvani_graph::{Weight, WeightSource};

use crate::{Checkpoint, TensorInfo};

const FAMILIES: [&str; 7] = [
    "llama",
    "smollm3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "granite",
    "gemma3_text",
];

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../goldens")
        .join(name)
}

fn weight(info: &TensorInfo) -> Weight {
    Weight {
        name: info.name.clone(),
        dims: info.dims.clone(),
        format: info.format,
        row_range: None,
        column_range: None,
    }
}

fn all(checkpoint: &Checkpoint, info: &TensorInfo) -> Vec<u8> {
    let weight = weight(info);
    checkpoint
        .rows(&weight, 0..weight.row_count())
        .unwrap()
        .into_owned()
}

#[test]
fn containers_hold_the_same_tensors() {
    for family in FAMILIES {
        let hub = Checkpoint::open(&path(&format!("tiny/{family}"))).unwrap();
        let gguf = Checkpoint::open(&path(&format!("tiny/{family}/model-f32.gguf"))).unwrap();
        assert_eq!(hub.tensors().len(), gguf.tensors().len(), "{family}");
        assert_eq!(hub.tied(), gguf.tied());
        for info in hub.tensors() {
            let other = gguf
                .tensor(&info.name)
                .unwrap_or_else(|| panic!("{family}: no {}", info.name));
            assert_eq!(
                (&info.dims, info.format),
                (&other.dims, other.format),
                "{family} {}",
                info.name
            );
            assert_eq!(all(&hub, info), all(&gguf, other), "{family} {}", info.name);
        }
    }
}

#[test]
fn parts_equal_parts_of_the_whole() {
    let files = [
        "tiny/llama/model-f32.gguf",
        "tiny/gemma3_text",
        "tiny/qwen3_moe",
        "tiny/qwen2",
        "gguf/Q4_K_M.gguf",
    ];
    for file in files {
        let checkpoint = Checkpoint::open(&path(file)).unwrap();
        for info in checkpoint
            .tensors()
            .iter()
            .filter(|t| !t.name.contains("layers.1."))
        {
            let whole = weight(info);
            let bytes = all(&checkpoint, info);
            let row_bytes = info.format.row_bytes(whole.row_len()).unwrap();
            let rows = whole.row_count();
            for range in [0..1, rows - 1..rows, rows / 3..rows / 2 + 1, 0..0] {
                let got = checkpoint.rows(&whole, range.clone()).unwrap();
                let wanted = &bytes[range.start * row_bytes..range.end * row_bytes];
                assert_eq!(&*got, wanted, "{file} {} rows {range:?}", info.name);
            }
            shards(&checkpoint, info, &bytes, row_bytes);
        }
    }
}

/// The upper half of the rows of each expert, the upper half of the columns.
fn shards(checkpoint: &Checkpoint, info: &TensorInfo, bytes: &[u8], row_bytes: usize) {
    let last = info.dims.len() - 1;
    let columns = info.dims[last];
    let half = columns / 2;
    if half.is_multiple_of(info.format.block_len()) {
        let mut part = weight(info);
        part.dims[last] = columns - half;
        part.column_range = Some(half..columns);
        let skip = info.format.row_bytes(half).unwrap();
        let wanted: Vec<u8> = bytes
            .chunks_exact(row_bytes)
            .flat_map(|row| &row[skip..])
            .copied()
            .collect();
        assert_eq!(
            *checkpoint.rows(&part, 0..part.row_count()).unwrap(),
            wanted,
            "{}",
            info.name
        );
    }
    if last > 0 {
        let rows = info.dims[last - 1];
        let mut part = weight(info);
        part.dims[last - 1] = rows - rows / 2;
        part.row_range = Some(rows / 2..rows);
        let expert = rows * row_bytes;
        let wanted: Vec<u8> = bytes
            .chunks_exact(expert)
            .flat_map(|e| &e[rows / 2 * row_bytes..])
            .copied()
            .collect();
        assert_eq!(
            *checkpoint.rows(&part, 0..part.row_count()).unwrap(),
            wanted,
            "{}",
            info.name
        );
        // A range that starts and ends inside of experts.
        let count = part.row_count();
        let got = checkpoint.rows(&part, 1..count - 1).unwrap();
        assert_eq!(*got, wanted[row_bytes..wanted.len() - row_bytes], "{}", info.name);
    }
}

#[test]
fn refuses_another_shape() {
    let checkpoint = Checkpoint::open(&path("tiny/llama")).unwrap();
    let info = checkpoint.tensor("layers.0.mlp.up_proj.weight").unwrap();
    let good = weight(info);
    let bad = [
        Weight {
            dims: vec![64, 64],
            ..good.clone()
        },
        Weight {
            name: "layers.9.mlp.up_proj.weight".into(),
            ..good.clone()
        },
        Weight {
            format: galvani_graph::Format::F16,
            ..good.clone()
        },
        Weight {
            dims: vec![2, 64],
            row_range: Some(127..129),
            ..good.clone()
        },
    ];
    for weight in bad {
        let error = checkpoint.rows(&weight, 0..1).unwrap_err().to_string();
        assert!(error.contains("mlp.up_proj.weight"), "{error}");
    }
    assert!(checkpoint.rows(&good, 0..1).is_ok());
}

#[test]
fn opens_what_people_name() {
    assert!(Checkpoint::open(&path("tiny/llama/model.safetensors")).is_ok());
    assert!(Checkpoint::open(&path("gguf/split")).is_ok());
    let several = Checkpoint::open(&path("gguf")).unwrap_err().to_string();
    assert!(several.contains("4 GGUF files"), "{several}");
    for missing in ["tiny", "nowhere", "tiny/llama/nothing.gguf"] {
        Checkpoint::open(&path(missing)).expect_err(missing);
    }
}
