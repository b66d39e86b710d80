//! unpack(repack(w)) against the file's own numbers, for every format at the edges of tiles and stripes.

use galvani_graph::Format;
use galvani_weights::quant::dequantize;

use super::*;
use crate::source::{Codes, Fp8Scale, Group, IntBits, Source};
use samples::{Random, blocks, e4m3};

mod device;
mod interpreter;
mod samples;

const ROWS: [usize; 6] = [1, 31, 32, 33, 64, 100];

/// Differences that the module's table allows: `ulps` 2^-11 of what is added up to the weight, and `terms` roundings at 2^-25
/// of the column scale.
struct Allowed {
    ulps: f64,
    terms: f64,
}

/// Packs, unpacks, compares: `wanted` are the file's numbers, `parts` the magnitudes that add up to each.
fn check(name: &str, weight: &Weight<'_>, wanted: &[f64], parts: &[f64], allowed: Allowed) -> Packed {
    let packed = repack(weight).unwrap_or_else(|error| panic!("{name}: {error}"));
    let k = weight.k();
    for (i, got) in unpack(&packed).into_iter().enumerate() {
        let scale = f64::from(packed.column_scales[i / k]).abs();
        let relative = allowed.ulps * parts[i] / 2048.0;
        let column = wanted[i].abs() * f64::from(f32::EPSILON);
        let bound = relative * 1.001 + allowed.terms * scale * 2f64.powi(-25) + column;
        let difference = (f64::from(got) - wanted[i]).abs();
        assert!(
            difference <= bound,
            "{name}: row {} position {}: {got}, wanted {}, difference {difference:e}, allowed {bound:e}",
            i / k,
            i % k,
            wanted[i]
        );
    }
    for row in weight.n()..packed.layout.column_scales() {
        assert_eq!(packed.column_scales[row], 0.0, "{name}: padded rows are nothing");
    }
    packed
}

fn magnitudes(numbers: &[f64]) -> Vec<f64> {
    numbers.iter().map(|number| number.abs()).collect()
}

/// What is rounded for each number: itself, or, with minima (found with all codes at zero), also the two that it is the difference of.
fn parts(format: Format, bytes: &[u8], wanted: &[f64]) -> Vec<f64> {
    let codes = match format {
        Format::Q2K => 16..80,
        Format::Q4K => 16..144,
        Format::Q5K => 16..176,
        _ => return magnitudes(wanted),
    };
    let mut bytes = bytes.to_vec();
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        block[codes.clone()].fill(0);
    }
    let mut minima = vec![0.0; wanted.len()];
    dequantize(format, &bytes, &mut minima).expect("whole blocks");
    wanted
        .iter()
        .zip(minima)
        .map(|(w, min)| 2.0 * (w.abs() + f64::from(min).abs()))
        .collect()
}

#[test]
fn rows_of_blocks_come_back() {
    let table = [
        (Format::F16, &[1, 7, 8, 63, 64, 65, 130][..], 0.0, 0.0),
        (Format::BF16, &[1, 65], 0.0, 1.0),
        (Format::F32, &[1, 65], 1.0, 1.0),
        (Format::Q8_0, &[32, 64, 96], 1.0, 2.0),
        (Format::Q4_0, &[32, 64, 96], 1.0, 2.0),
        (Format::Iq4Nl, &[32, 64, 96], 1.0, 2.0),
        (Format::Mxfp4, &[32, 64, 96], 0.0, 1.0),
        (Format::Nvfp4, &[64, 128], 0.0, 0.0),
        (Format::Q2K, &[256, 512], 1.0, 2.0),
        (Format::Q3K, &[256, 512], 2.0, 2.0),
        (Format::Q4K, &[256, 512], 1.0, 2.0),
        (Format::Q5K, &[256, 512], 1.0, 2.0),
        (Format::Q6K, &[256, 512], 2.0, 2.0),
        (Format::Iq4Xs, &[256, 512], 2.0, 2.0),
    ];
    let mut random = Random(0x1234_5678_9ABC_DEF1);
    for (format, widths, ulps, terms) in table {
        for (n, &k) in ROWS.iter().flat_map(|&n| widths.iter().map(move |k| (n, k))) {
            let bytes = blocks(&mut random, format, n * k / format.block_len());
            let mut wanted = vec![0.0; n * k];
            dequantize(format, &bytes, &mut wanted).expect("whole blocks");
            let wanted: Vec<f64> = wanted.into_iter().map(f64::from).collect();
            let source = Source::Rows {
                format,
                bytes: &bytes,
            };
            let weight = Weight::new(n, k, source).expect("a shape of the format");
            let parts = parts(format, &bytes, &wanted);
            let packed = check(
                &format!("{format} {n}x{k}"),
                &weight,
                &wanted,
                &parts,
                Allowed { ulps, terms },
            );
            assert_eq!(packed.census, Census::default(), "{format}: nothing lost");
        }
    }
}

#[test]
fn integer_groups_come_back() {
    let mut random = Random(0xFEED_5EED);
    for (bits, group, has_zeros, halves, n) in [IntBits::Four, IntBits::Eight].into_iter().flat_map(|bits| {
        let groups = [Group::G32, Group::G64, Group::G128].into_iter();
        groups.flat_map(move |group| {
            let rest = [
                (false, true, 1),
                (true, true, 33),
                (true, false, 64),
                (false, false, 31),
            ]
            .into_iter();
            rest.map(move |(has_zeros, halves, n)| (bits, group, has_zeros, halves, n))
        })
    }) {
        let k = 3 * group.len();
        let groups = n * 3;
        let four = bits == IntBits::Four;
        let codes: Vec<u8> = random
            .bytes(n * k)
            .into_iter()
            .map(|code| if four { code & 15 } else { code })
            .collect();
        let zeros: Vec<u8> = random
            .bytes(groups)
            .into_iter()
            .map(|zero| if four { zero % 17 } else { zero })
            .collect();
        let scales = random.many(groups, if halves { Random::half } else { Random::scale });
        let wanted: Vec<f64> = (0..n * k)
            .map(|i| {
                let zero = match has_zeros {
                    true => zeros[i / group.len()],
                    false if four => 8,
                    false => 128,
                };
                (f64::from(codes[i]) - f64::from(zero)) * f64::from(scales[i / group.len()])
            })
            .collect();
        let packed_codes: Vec<u8> = codes
            .chunks_exact(2)
            .map(|pair| pair[0] | (pair[1] & 15) << 4)
            .collect();
        let forms = [
            Some(Codes::Bytes(&codes)),
            four.then_some(Codes::Nibbles(&packed_codes)),
        ];
        let mut first = None;
        for codes in forms.into_iter().flatten() {
            let source = Source::GroupInt {
                bits,
                group,
                codes,
                scales: &scales,
                zeros: has_zeros.then_some(&zeros[..]),
            };
            let weight = Weight::new(n, k, source).expect("a shape of the format");
            let allowed = Allowed {
                ulps: if halves { 1.0 } else { 2.0 },
                terms: 2.0,
            };
            let name = format!("{bits:?} {group:?} zeros {has_zeros} {n}x{k}");
            let packed = check(&name, &weight, &wanted, &magnitudes(&wanted), allowed);
            assert_eq!(
                first.get_or_insert(packed.bytes.clone()),
                &packed.bytes,
                "{name}: bytes and nibbles alike"
            );
        }
    }
}

fn e4m3_value(byte: u8) -> f64 {
    let (e, m) = (i32::from(byte >> 3 & 15), f64::from(byte & 7));
    let magnitude = if e == 0 {
        m / 512.0
    } else {
        (1.0 + m / 8.0) * 2f64.powi(e - 7)
    };
    if byte < 0x80 { magnitude } else { -magnitude }
}

#[test]
fn fp8_comes_back() {
    let mut random = Random(0xF8F8);
    for (n, k) in [(1, 1), (31, 64), (32, 65), (33, 127), (130, 128), (129, 257)] {
        let codes: Vec<u8> = (0..n * k).map(|_| e4m3(&mut random)).collect();
        let channels = random.many(n, Random::scale);
        let blocks = random.many(n.div_ceil(128) * k.div_ceil(128), Random::scale);
        for (scale, ulps) in [
            (Fp8Scale::Tensor(0.0123), 0.0),
            (Fp8Scale::Channel(&channels), 0.0),
            (Fp8Scale::Block128(&blocks), 2.0),
        ] {
            let wanted: Vec<f64> = (0..n * k)
                .map(|i| {
                    let (row, position) = (i / k, i % k);
                    let scale = match scale {
                        Fp8Scale::Tensor(scale) => scale,
                        Fp8Scale::Channel(scales) => scales[row],
                        Fp8Scale::Block128(scales) => scales[row / 128 * k.div_ceil(128) + position / 128],
                    };
                    e4m3_value(codes[i]) * f64::from(scale)
                })
                .collect();
            let weight = Weight::new(n, k, Source::Fp8 { codes: &codes, scale }).expect("any shape");
            let terms = ulps / 2.0;
            check(
                &format!("{n}x{k}"),
                &weight,
                &wanted,
                &magnitudes(&wanted),
                Allowed { ulps, terms },
            );
        }
    }
}

const E2M1: [f64; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

#[test]
fn fp4_of_the_hub_comes_back() {
    let mut random = Random(0xF4F4);
    for (n, k) in [(1, 32), (33, 64), (100, 96)] {
        let codes = random.bytes(n * k / 2);
        let code = |i: usize| E2M1[usize::from(codes[i / 2] >> (4 * (i % 2)) & 15)];

        let scales: Vec<u8> = (0..n * k / 16).map(|_| e4m3(&mut random) & 0x7F).collect();
        let globals = [(n / 3, 0.7f32), (n - n / 3, 0.3)];
        let global = |row: usize| if row < n / 3 { 0.7f32 } else { 0.3 };
        let wanted: Vec<f64> = (0..n * k)
            .map(|i| code(i) * e4m3_value(scales[i / 16]) * f64::from(global(i / k)))
            .collect();
        let source = Source::Nvfp4 {
            codes: &codes,
            scales: &scales,
            globals: &globals,
        };
        let weight = Weight::new(n, k, source).expect("a shape of the format");
        let none = Allowed {
            ulps: 0.0,
            terms: 0.0,
        };
        check("NVFP4", &weight, &wanted, &magnitudes(&wanted), none);

        // 29 powers of two, and one that is flushed.
        let scales: Vec<u8> = (0..n * k / 32).map(|i| [130, 101, 120, 100][i % 4]).collect();
        let wanted: Vec<f64> = (0..n * k)
            .map(|i| code(i) * 2f64.powi(i32::from(scales[i / 32]) - 127))
            .collect();
        let source = Source::Mxfp4 {
            codes: &codes,
            scales: &scales,
        };
        let weight = Weight::new(n, k, source).expect("a shape of the format");
        let packed = check(
            "MXFP4",
            &weight,
            &wanted,
            &magnitudes(&wanted),
            Allowed {
                ulps: 0.0,
                terms: 4.0,
            },
        );
        let flushed = (0..n).any(|row| {
            let scales = &scales[row * k / 32..][..k / 32];
            scales.contains(&130) && scales.contains(&100)
        });
        assert_eq!(packed.census.flushed > 0, flushed, "{n}x{k}");
    }
}

/// Files that hold what no kernel can multiply by are refused by row and position.
#[test]
fn numbers_that_are_none_are_refused() {
    fn refused(n: usize, k: usize, source: Source<'_>) -> Option<String> {
        let weight = Weight::new(n, k, source).expect("the shape is good");
        repack(&weight).err().map(|error| error.to_string())
    }
    let contains = |error: Option<String>, text: &str| {
        let error = error.unwrap_or_else(|| panic!("{text}: taken"));
        assert!(error.contains(text), "{error}");
    };
    for (format, at, bytes) in [
        (Format::F16, 2 * 130, &[0x00, 0x7C][..]),
        (Format::BF16, 2 * 130, &[0xC0, 0x7F]),
        (Format::F32, 4 * 130, &[0, 0, 0x80, 0xFF]),
        (Format::Q8_0, 34 * 4, &[0x00, 0x7E]),
        (Format::Iq4Nl, 18 * 4, &[0x00, 0xFC]),
        (Format::Mxfp4, 17 * 4, &[0xFF]),
        (Format::Q4K, 144 + 2, &[0x00, 0x7C]),
        (Format::Q6K, 210 + 208, &[0x00, 0x7C]),
    ] {
        let k = if format.block_len() == 256 { 256 } else { 128 };
        let mut rows = vec![0; 2 * format.row_bytes(k).expect("whole blocks")];
        rows[at..at + bytes.len()].copy_from_slice(bytes);
        let position = if format.is_float() { 2 } else { 0 };
        contains(
            refused(2, k, Source::Rows { format, bytes: &rows }),
            &format!("row 1, position {position}:"),
        );
    }
    let mut codes = vec![0; 2 * 128];
    codes[128 + 5] = 0xFF;
    let scale = Fp8Scale::Tensor(1.0);
    contains(
        refused(2, 128, Source::Fp8 { codes: &codes, scale }),
        "row 1, position 5: code 0xff",
    );
    codes[128 + 5] = 16;
    fn group<'a>(codes: &'a [u8], scales: &'a [f32], zeros: Option<&'a [u8]>) -> Source<'a> {
        Source::GroupInt {
            bits: IntBits::Four,
            group: Group::G64,
            codes: Codes::Bytes(codes),
            scales,
            zeros,
        }
    }
    let ones = [1.0; 4];
    contains(
        refused(2, 128, group(&codes, &ones, None)),
        "row 1, position 5: code 16",
    );
    codes[128 + 5] = 0;
    let infinite = [1.0, 1.0, 1.0, f32::INFINITY];
    contains(
        refused(2, 128, group(&codes, &infinite, None)),
        "row 1, position 64: scale inf",
    );
    let zeros = [0, 0, 17, 0];
    contains(
        refused(2, 128, group(&codes, &ones, Some(&zeros))),
        "row 1, position 0: zero point 17",
    );
    let scale = Fp8Scale::Channel(&[1.0, f32::NAN]);
    contains(
        refused(2, 128, Source::Fp8 { codes: &codes, scale }),
        "row 1, position 0: scale NaN",
    );
    let mut scales = [0x38; 16];
    for byte in [0x7F, 0xFF, 0x81] {
        scales[9] = byte;
        let source = Source::Nvfp4 {
            codes: &codes[..128],
            scales: &scales,
            globals: &[(2, 1.0)],
        };
        contains(refused(2, 128, source), "row 1, position 16: scale 0x");
    }
}

/// Lengths that are not the shape's are refused before anything is read.
#[test]
fn lengths_are_checked() {
    let bytes = [0u8; 34 * 4];
    let rows = |n, k, format, length: usize| {
        let bytes = &bytes[..length];
        Weight::new(n, k, Source::Rows { format, bytes }).is_ok()
    };
    assert!(rows(4, 32, Format::Q8_0, 34 * 4));
    assert!(!rows(4, 32, Format::Q8_0, 34 * 4 - 1));
    assert!(!rows(3, 32, Format::Q8_0, 34 * 4));
    assert!(!rows(4, 33, Format::Q8_0, 34 * 4));
    assert!(!rows(1, 32, Format::Q4_1, 20), "no packed form");
    let parts = [(1, 1.0f32), (usize::MAX, 1.0)];
    let source = Source::Nvfp4 {
        codes: &bytes[..32],
        scales: &bytes[..4],
        globals: &parts,
    };
    assert!(Weight::new(1, 64, source).is_err());
}

/// What a half cannot hold beside the column's largest is counted.
#[test]
fn losses_are_counted() {
    let numbers = [1.0f32, 3.0e-9, 1.0e-20, 0.0];
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    let source = Source::Rows {
        format: Format::F32,
        bytes: &bytes,
    };
    let packed = repack(&Weight::new(1, 4, source).expect("any shape")).expect("finite");
    let census = Census {
        subnormal: 1,
        flushed: 1,
        first: Some((0, 1)),
    };
    assert_eq!(packed.census, census);
}

/// A tile does not depend on which tiles are packed with it.
#[test]
fn tiles_are_independent() {
    let mut random = Random(7);
    let (n, k) = (100, 256);
    let bytes = blocks(&mut random, Format::Q5K, n);
    let source = Source::Rows {
        format: Format::Q5K,
        bytes: &bytes,
    };
    let weight = Weight::new(n, k, source).expect("a shape of the format");
    let whole = repack(&weight).expect("finite");
    let size = whole.layout.tile_bytes();
    for tile in 0..4 {
        let (mut out, mut scales) = (vec![0xAA; size], [9.0; TILE]);
        repack_tiles(&weight, tile..tile + 1, &mut out, &mut scales).expect("finite");
        assert_eq!(out, whole.bytes[tile * size..][..size]);
        assert_eq!(scales, whole.column_scales[tile * TILE..][..TILE]);
    }
}
