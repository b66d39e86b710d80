//! Canonical rows: any part of a tensor equals that part of the whole, and both containers hold the same numbers.

use std::path::PathBuf;

use galvani_graph::{Format, Weight, WeightSource};

use crate::canon::gguf_names::GgufShape;
use crate::canon::{RowOrder, from_gguf, from_hub};
use crate::{Checkpoint, RawDtype, RawTensor, TensorInfo};

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

fn raw(name: &str, dims: &[usize], dtype: RawDtype) -> RawTensor {
    RawTensor {
        name: name.into(),
        dims: dims.to_vec(),
        dtype,
        file: 0,
        offset: 0,
        byte_count: 0,
    }
}

const F16: RawDtype = RawDtype::Format(Format::F16);

fn pieces(info: &TensorInfo) -> Vec<(usize, usize)> {
    info.assembly
        .pieces
        .iter()
        .map(|piece| (piece.first_row, piece.row_count))
        .collect()
}

/// Tensors that a file keeps together come apart at the border.
#[test]
fn fused_tensors() {
    let shape = GgufShape {
        head_dim: 4,
        query_heads: 3,
        kv_heads: 1,
        paired_rows: true,
        sandwich_norms: false,
    };
    let stored = [
        raw("blk.7.attn_qkv.weight", &[20, 8], F16),
        raw("blk.7.ffn_gate_up_exps.weight", &[2, 10, 8], F16),
    ];
    let tensors = from_gguf(&stored, shape).unwrap();
    let names: Vec<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "layers.7.self_attn.q_proj.weight",
            "layers.7.self_attn.k_proj.weight",
            "layers.7.self_attn.v_proj.weight",
            "layers.7.mlp.experts.gate_proj.weight",
            "layers.7.mlp.experts.up_proj.weight",
        ]
    );
    assert_eq!(
        (pieces(&tensors[0]), tensors[0].dims.as_slice()),
        (vec![(0, 12)], &[12, 8][..])
    );
    assert_eq!(
        (pieces(&tensors[2]), tensors[2].dims.as_slice()),
        (vec![(16, 4)], &[4, 8][..])
    );
    let orders: Vec<bool> = tensors[..3]
        .iter()
        .map(|t| t.assembly.order != RowOrder::Halves)
        .collect();
    assert_eq!(orders, [true, true, false]);
    assert_eq!(
        (pieces(&tensors[3]), tensors[3].dims.as_slice()),
        (vec![(0, 5), (10, 5)], &[2, 5, 8][..])
    );
    assert_eq!(pieces(&tensors[4]), [(5, 5), (15, 5)]);

    let hub = [
        raw("model.layers.0.mlp.experts.gate_up_proj", &[2, 10, 8], F16),
        raw("model.layers.0.mlp.experts.down_proj", &[2, 8, 5], F16),
    ];
    let tensors = from_hub(&hub, "qwen3_moe").unwrap();
    assert_eq!(pieces(&tensors[1]), [(5, 5), (15, 5)]);
    assert_eq!(tensors[2].name, "layers.0.mlp.experts.down_proj.weight");

    let i32 = RawDtype::I32;
    let faults = [
        (
            raw("blk.0.attn_qkv.weight", &[19, 8], F16),
            "20 rows of q, k and v",
        ),
        (raw("blk.0.attn_q.weight", &[10, 8], F16), "whole heads of 4"),
        (
            raw("blk.0.ffn_gate_up_exps.weight", &[2, 9, 8], F16),
            "9 rows are not gate and up",
        ),
        (
            raw("blk.0.ffn_gate_up_exps.weight", &[8, 8], F16),
            "three dimensions",
        ),
        (
            raw("blk.0.ffn_up.weight", &[usize::MAX, 0], F16),
            "sizes start at 1",
        ),
        (raw("blk.0.ffn_up.weight", &[8, 8], i32), "I32"),
        (
            raw("output_norm.weight", &[32], RawDtype::Format(Format::Q8_0)),
            "vectors are floats",
        ),
    ];
    for (tensor, wanted) in faults {
        let error = from_gguf(std::slice::from_ref(&tensor), shape)
            .unwrap_err()
            .to_string();
        assert!(error.contains(wanted), "{}: {error}", tensor.name);
    }
}
