//! GGUF: loads as what it says, or fails in words.

use galvani_weights::gguf::{Gguf, MetaValue};
use galvani_weights::quant::dequantize;

use super::{Target, fixtures};

#[path = "../../../crates/weights/tests/support/rewrite.rs"]
mod rewrite;

pub const TARGET: Target = Target {
    name: "gguf",
    about: "GGUF container: header, keys, tensor ranges, decoding of what loads",
    run,
    seeds: || fixtures("hostile", ".gguf"),
    dictionary: &[
        b"GGUF",
        b"general.alignment",
        b"general.architecture",
        b"split.count",
        b"split.no",
        b"\x09\0\0\0\x08\0\0\0",
        b"\x08\0\0\0",
        b"\x04\0\0\0\x20\0\0\0",
    ],
};

fn run(input: &[u8]) -> String {
    let gguf = match Gguf::from_bytes("input", input.to_vec()) {
        Ok(gguf) => gguf,
        Err(error) => return error.to_string(),
    };
    let written = rewrite::gguf_header(&gguf, input).expect("what loads can be read");
    assert!(
        input.starts_with(&written),
        "loads as something else than what it says"
    );
    for tensor in gguf.tensors() {
        assert!(gguf.tensor(&tensor.name) == Some(tensor));
        let mut bytes = vec![0; tensor.byte_count()];
        gguf.read(tensor, 0..bytes.len(), &mut bytes)
            .expect("the range was checked");
        if let Ok(format) = tensor.format() {
            let row_bytes = format.row_bytes(tensor.row_len()).expect("rows are whole blocks");
            let mut row = vec![0.0; tensor.row_len()];
            dequantize(format, &bytes[..row_bytes], &mut row).expect("a row is whole blocks");
        }
    }
    let mut kinds: Vec<String> = gguf
        .tensors()
        .iter()
        .map(|tensor| tensor.dtype.to_string())
        .collect();
    kinds.extend(gguf.metadata().iter().filter_map(|(_, value)| match value {
        MetaValue::Array(array) if array.is_empty() => Some("none".to_owned()),
        MetaValue::Array(_) => Some(value.to_string()),
        _ => None,
    }));
    kinds.sort_unstable();
    kinds.dedup();
    format!("loads {}", kinds.join(" "))
}
