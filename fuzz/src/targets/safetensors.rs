//! safetensors: loads as what it says, or fails in words.

use galvani_weights::safetensors::Safetensors;

use super::{Target, fixtures};

pub const TARGET: Target = Target {
    name: "safetensors",
    about: "safetensors container: header, tensor ranges",
    run,
    seeds: || fixtures("hostile", ".safetensors"),
    dictionary: &[
        b"\"__metadata__\":",
        b"\"dtype\":\"F32\"",
        b"\"shape\":[",
        b"\"data_offsets\":[0,0]",
        b"BF16",
        b"F8_E4M3",
        b"{",
        b"}",
        b"[",
        b"],",
        b"\\u0000",
        b"\xff",
        b"1e400",
        b"-1",
    ],
};

fn run(input: &[u8]) -> String {
    let checkpoint = match Safetensors::from_bytes("input", input.to_vec()) {
        Ok(checkpoint) => checkpoint,
        Err(error) => return error.to_string(),
    };
    let header_len = u64::from_le_bytes(input[..8].try_into().expect("eight bytes")) as usize;
    let header: serde_json::Value =
        serde_json::from_slice(&input[8..8 + header_len]).expect("it was read as JSON");
    let data = &input[8 + header_len..];
    let mut byte_count = 0;
    for tensor in checkpoint.tensors() {
        let entry = &header[&tensor.name];
        assert_eq!(entry["shape"], serde_json::json!(tensor.dims));
        assert_eq!(entry["dtype"], tensor.dtype.to_string());
        let begin = entry["data_offsets"][0].as_u64().expect("a number") as usize;
        let mut bytes = vec![0; tensor.byte_count()];
        checkpoint
            .read(tensor, 0..bytes.len(), &mut bytes)
            .expect("the range was checked");
        assert_eq!(bytes, data[begin..begin + bytes.len()]);
        byte_count += bytes.len();
    }
    assert_eq!(byte_count, data.len(), "no byte is nobody's");
    let mut kinds: Vec<String> = checkpoint
        .tensors()
        .iter()
        .map(|tensor| tensor.dtype.to_string())
        .collect();
    kinds.sort_unstable();
    kinds.dedup();
    format!("loads {}", kinds.join(" "))
}
