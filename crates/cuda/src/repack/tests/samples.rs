//! Weights of every source, made up: any codes, scales as files have them.

use galvani_graph::Format;

use super::half;
use crate::source::{Codes, Fp8Scale, Group, IntBits, Source, Weight};

/// xorshift: enough for bits that look like any.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    pub fn byte(&mut self) -> u8 {
        (self.next() >> 24) as u8
    }
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.byte()).collect()
    }
    /// 2^-9 .. 2^-5, of either sign.
    pub fn scale(&mut self) -> f32 {
        let mantissa = 1.0 + (self.next() >> 41) as f32 / (1 << 23) as f32;
        let magnitude = mantissa * 2f32.powi(-9 + i32::from(self.byte() % 4));
        if self.byte() & 1 == 1 {
            -magnitude
        } else {
            magnitude
        }
    }
    /// The same, as many bits as a half has.
    pub fn half(&mut self) -> f32 {
        half::round(f64::from(self.scale())) as f32
    }
    pub fn many(&mut self, count: usize, next: fn(&mut Self) -> f32) -> Vec<f32> {
        (0..count).map(|_| next(self)).collect()
    }
}

/// Blocks with any codes, and halves that are scales.
pub fn blocks(random: &mut Random, format: Format, count: usize) -> Vec<u8> {
    let mut bytes = random.bytes(count * format.block_bytes());
    for block in bytes.chunks_exact_mut(format.block_bytes()) {
        let halves: &[usize] = match format {
            Format::F16 | Format::Q8_0 | Format::Q4_0 | Format::Iq4Nl | Format::Iq4Xs => &[0],
            Format::Q4K | Format::Q5K => &[0, 2],
            Format::Q2K => &[80, 82],
            Format::Q3K => &[108],
            Format::Q6K => &[208],
            _ => &[],
        };
        for &at in halves {
            let scale = f64::from(random.half());
            block[at..at + 2].copy_from_slice(&half::bits(scale).to_le_bytes());
        }
        match format {
            Format::BF16 => block.copy_from_slice(&random.scale().to_le_bytes()[2..]),
            Format::F32 => block.copy_from_slice(&random.scale().to_le_bytes()),
            Format::Mxfp4 => block[0] = 100 + random.byte() % 20,
            _ => {}
        }
    }
    bytes
}

/// An e4m3 byte that is a number.
pub fn e4m3(random: &mut Random) -> u8 {
    loop {
        let byte = random.byte();
        if byte & 0x7F != 0x7F {
            return byte;
        }
    }
}

/// A weight that owns its numbers.
pub struct Sample {
    pub name: String,
    n: usize,
    k: usize,
    owned: Owned,
}

enum Owned {
    Rows(Format, Vec<u8>),
    Ints {
        bits: IntBits,
        group: Group,
        codes: Vec<u8>,
        nibbles: bool,
        scales: Vec<f32>,
        zeros: Option<Vec<u8>>,
    },
    Fp8Channel(Vec<u8>, Vec<f32>),
    Fp8Tensor(Vec<u8>, f32),
    Fp8Block(Vec<u8>, Vec<f32>),
    Nvfp4(Vec<u8>, Vec<u8>, Vec<(usize, f32)>),
    Mxfp4(Vec<u8>, Vec<u8>),
}

impl Sample {
    pub fn weight(&self) -> Weight<'_> {
        let source = match &self.owned {
            Owned::Rows(format, bytes) => Source::Rows {
                format: *format,
                bytes,
            },
            Owned::Ints {
                bits,
                group,
                codes,
                nibbles,
                scales,
                zeros,
            } => Source::GroupInt {
                bits: *bits,
                group: *group,
                codes: if *nibbles {
                    Codes::Nibbles(codes)
                } else {
                    Codes::Bytes(codes)
                },
                scales,
                zeros: zeros.as_deref(),
            },
            Owned::Fp8Channel(codes, scales) => Source::Fp8 {
                codes,
                scale: Fp8Scale::Channel(scales),
            },
            Owned::Fp8Tensor(codes, scale) => Source::Fp8 {
                codes,
                scale: Fp8Scale::Tensor(*scale),
            },
            Owned::Fp8Block(codes, scales) => Source::Fp8 {
                codes,
                scale: Fp8Scale::Block128(scales),
            },
            Owned::Nvfp4(codes, scales, globals) => Source::Nvfp4 {
                codes,
                scales,
                globals,
            },
            Owned::Mxfp4(codes, scales) => Source::Mxfp4 { codes, scales },
        };
        Weight::new(self.n, self.k, source).expect("samples have shapes of their formats")
    }
}

/// `n` rows of every source, `stripes` stripes wide (where the format allows, less a part of one).
pub fn samples(n: usize, stripes: usize) -> Vec<Sample> {
    let mut random = Random(0xABCD_EF01 + (n * 64 + stripes) as u64);
    let mut out = Vec::new();
    for add in [rows_of_blocks, integers, floats_of_the_hub] {
        add(&mut random, n, stripes, &mut out);
    }
    out
}

fn rows_of_blocks(random: &mut Random, n: usize, stripes: usize, out: &mut Vec<Sample>) {
    let mut add = |name: String, k, owned| out.push(Sample { name, n, k, owned });
    for format in Format::ALL {
        let (stripe, cut) = match format {
            Format::F32 | Format::F16 | Format::BF16 => (64, 3),
            Format::Q8_0 | Format::Q4_0 | Format::Iq4Nl | Format::Mxfp4 => (64, 32),
            Format::Nvfp4 => (64, 0),
            Format::Q2K | Format::Q3K | Format::Q4K | Format::Q5K | Format::Q6K | Format::Iq4Xs => (256, 0),
            _ => continue,
        };
        let k = stripes * stripe - cut;
        let mut bytes = blocks(random, format, n * k / format.block_len());
        // Rows far from the others in size, and one of nothing.
        let row = bytes.len() / n;
        if n > 8 {
            bytes[5 * row..6 * row].fill(0);
        }
        if format == Format::F32 {
            // What a half cannot hold beside the others.
            bytes[..4].copy_from_slice(&3.0e-9f32.to_le_bytes());
            let last = bytes.len() - 4;
            bytes[last..].copy_from_slice(&1.0e-20f32.to_le_bytes());
        }
        add(format!("{format}"), k, Owned::Rows(format, bytes));
    }
}

fn integers(random: &mut Random, n: usize, stripes: usize, out: &mut Vec<Sample>) {
    let mut add = |name: String, k, owned| out.push(Sample { name, n, k, owned });
    for (bits, nibbles) in [
        (IntBits::Four, false),
        (IntBits::Four, true),
        (IntBits::Eight, false),
    ] {
        for group in [Group::G32, Group::G64, Group::G128] {
            for has_zeros in [false, true] {
                let cut = if group == Group::G32 { 32 } else { 0 };
                let k = stripes * group.len().max(64) - cut;
                let mask = if bits == IntBits::Four && !nibbles {
                    15
                } else {
                    255
                };
                let count = if nibbles { n * k / 2 } else { n * k };
                let codes = random.bytes(count).into_iter().map(|code| code & mask).collect();
                let groups = n * k / group.len();
                let zero_max = if bits == IntBits::Four { 16 } else { 255 };
                let zeros = random
                    .bytes(groups)
                    .into_iter()
                    .map(|zero| zero.min(zero_max))
                    .collect();
                let owned = Owned::Ints {
                    bits,
                    group,
                    codes,
                    nibbles,
                    scales: random.many(groups, Random::scale),
                    zeros: has_zeros.then_some(zeros),
                };
                add(
                    format!("{bits:?} {group:?} nibbles {nibbles} zeros {has_zeros}"),
                    k,
                    owned,
                );
            }
        }
    }
}

fn floats_of_the_hub(random: &mut Random, n: usize, stripes: usize, out: &mut Vec<Sample>) {
    let mut add = |name: String, k, owned| out.push(Sample { name, n, k, owned });
    let k = stripes * 128 - 7;
    let mut codes = || (0..n * k).map(|_| e4m3(random)).collect::<Vec<u8>>();
    let each = [codes(), codes(), codes()];
    let scales = random.many(n, Random::scale);
    let blocks = random.many(n.div_ceil(128) * k.div_ceil(128), Random::scale);
    let [tensor, channel, block] = each;
    add("FP8 tensor".to_owned(), k, Owned::Fp8Tensor(tensor, 0.013));
    add("FP8 channel".to_owned(), k, Owned::Fp8Channel(channel, scales));
    add("FP8 block".to_owned(), k, Owned::Fp8Block(block, blocks));
    let k = stripes * 64 - 16;
    let codes = random.bytes(n * k / 2);
    let scales = (0..n * k / 16).map(|_| e4m3(random) & 0x7F).collect();
    let globals = vec![(n / 3, 0.3), (n - n / 3, 0.0017)];
    add(
        "NVFP4 of the hub".to_owned(),
        k,
        Owned::Nvfp4(codes, scales, globals),
    );
    let k = stripes * 64 - 32;
    let codes = random.bytes(n * k / 2);
    let scales = (0..n * k / 32).map(|_| 90 + random.byte() % 40).collect();
    add("MXFP4 of the hub".to_owned(), k, Owned::Mxfp4(codes, scales));
}
