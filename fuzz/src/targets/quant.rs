//! Block decoders: any bytes decode, and only whole blocks do.

use galvani_weights::gguf::type_id;
use galvani_weights::quant::dequantize;

use super::{Target, fixtures};

pub const TARGET: Target = Target {
    name: "quant",
    about: "block decoders: the first byte picks the format, the rest are blocks",
    run,
    seeds: || {
        let blocks = fixtures("quant", ".bin");
        (0..galvani_graph::Format::ALL.len() as u8)
            .map(|format| [&[format][..], &blocks[usize::from(format) % blocks.len()]].concat())
            .collect()
    },
    dictionary: &[b"\x00\x7c", b"\x00\xfc", b"\xff\x7b", b"\x01\x00", b"\xff\xff"],
};

fn run(input: &[u8]) -> String {
    let Some((&first, bytes)) = input.split_first() else {
        return "empty".to_owned();
    };
    let formats = galvani_graph::Format::ALL;
    let format = formats[usize::from(first) % formats.len()];
    assert!(type_id(format) < 64);
    let mut numbers = vec![f32::NAN; bytes.len() / format.block_bytes() * format.block_len()];
    let result = dequantize(format, bytes, &mut numbers);
    assert_eq!(result.is_ok(), bytes.len().is_multiple_of(format.block_bytes()));
    let kinds =
        [f32::is_nan, f32::is_infinite, f32::is_subnormal].map(|kind| numbers.iter().any(|&x| kind(x)));
    format!("{format} {} {kinds:?}", result.is_ok())
}
