//! Decoders and encoders against the fixtures of `goldens/quant`, bit for bit.

use std::path::PathBuf;

use galvani_graph::Format;
use galvani_weights::quant::{dequantize, encode};

fn fixture(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../goldens/quant")
        .join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

#[test]
fn every_format_decodes_bit_for_bit() {
    let mut failures = Vec::new();
    for format in Format::ALL {
        let file = fixture(&format!("{format}.bin"));
        let block_count = u32::from_le_bytes(file[..4].try_into().unwrap()) as usize;
        let (bytes, wanted) = file[4..].split_at(block_count * format.block_bytes());
        let wanted = floats(wanted);
        assert_eq!(
            wanted.len(),
            block_count * format.block_len(),
            "{format}: the fixture's length"
        );
        assert!(
            block_count >= 14,
            "{format}: the fixture has {block_count} blocks"
        );
        let mut found = vec![f32::NAN; wanted.len()];
        dequantize(format, bytes, &mut found).unwrap();
        let wrong = found
            .iter()
            .zip(&wanted)
            .position(|(a, b)| a.to_bits() != b.to_bits());
        if let Some(at) = wrong {
            failures.push(format!(
                "{format}: number {at} is {}, expected {}",
                found[at], wanted[at]
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn encoders_equal_the_reference_bit_for_bit() {
    let file = fixture("encode.bin");
    let count = u32::from_le_bytes(file[..4].try_into().unwrap()) as usize;
    let numbers = floats(&file[4..4 + 4 * count]);
    let mut rest = &file[4 + 4 * count..];
    for format in [
        Format::Q8_0,
        Format::Q4_0,
        Format::Q4_1,
        Format::F16,
        Format::BF16,
    ] {
        let mut out = vec![0; format.row_bytes(count).unwrap()];
        encode(format, &numbers, &mut out).unwrap();
        let (wanted, after) = rest.split_at(out.len());
        let wrong = out.iter().zip(wanted).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "{format}: first wrong byte");
        rest = after;
    }
    assert!(rest.is_empty());
    let mut out = vec![0; 4 * count];
    encode(Format::F32, &numbers, &mut out).unwrap();
    assert_eq!(out, file[4..4 + 4 * count]);
}

#[test]
fn f16_and_bf16_keep_what_is_not_a_number() {
    let mut out = [0.0; 3];
    let bits = |values: [u16; 3]| values.map(u16::to_le_bytes).concat();
    dequantize(Format::F16, &bits([0x7e00, 0xfe01, 0x7c01]), &mut out).unwrap();
    assert!(out.iter().all(|x| x.is_nan()), "{out:?}");
    dequantize(Format::BF16, &bits([0x7fc0, 0xffc1, 0x7f81]), &mut out).unwrap();
    assert!(out.iter().all(|x| x.is_nan()), "{out:?}");
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    for format in Format::ALL {
        let (len, byte_count) = (2 * format.block_len(), 2 * format.block_bytes());
        let mut cases = vec![
            (len, byte_count - 1),
            (len, byte_count + 1),
            (len, 0),
            (0, byte_count),
        ];
        if format.block_len() > 1 {
            cases.extend([(len - 1, byte_count), (len + 1, byte_count)]);
        }
        for (len, byte_count) in cases {
            let error = dequantize(format, &vec![0; byte_count], &mut vec![0.0; len]).unwrap_err();
            assert!(error.to_string().contains(format.name()), "{error}");
            let error = encode(format, &vec![0.0; len], &mut vec![0; byte_count]).unwrap_err();
            assert!(error.to_string().contains(format.name()), "{error}");
        }
        dequantize(format, &[], &mut []).unwrap();
    }
}

#[test]
fn formats_that_are_only_read_say_so() {
    let written = [
        Format::F32,
        Format::F16,
        Format::BF16,
        Format::Q8_0,
        Format::Q4_0,
        Format::Q4_1,
    ];
    for format in Format::ALL {
        let numbers = vec![0.5; format.block_len()];
        let mut out = vec![0; format.block_bytes()];
        let result = encode(format, &numbers, &mut out);
        assert_eq!(result.is_ok(), written.contains(&format), "{format}");
        if let Err(error) = result {
            assert!(error.to_string().contains("only read"), "{error}");
        }
    }
}
