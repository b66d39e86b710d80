//! Random weights in any format.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use galvani_graph::{BackendError, Format, Weight, WeightSource};
use half::{bf16, f16};

/// Gives each weight random blocks that depend on its name, the row and the seed. Numbers are about normal with a
/// deviation near `1 / sqrt(row_len)`; those of vectors (norms, biases) are near 1.
#[derive(Debug, Clone, Copy)]
pub struct RandomWeights {
    seed: u64,
}

impl RandomWeights {
    /// The weights of this seed.
    pub fn new(seed: u64) -> Self {
        RandomWeights { seed }
    }
}

impl WeightSource for RandomWeights {
    fn rows(&self, weight: &Weight, rows: Range<usize>) -> Result<Cow<'_, [u8]>, BackendError> {
        let wrong = |reason: String| BackendError::Weight {
            name: weight.name.clone(),
            reason,
        };
        let row_bytes = weight
            .format
            .row_bytes(weight.row_len())
            .map_err(|e| wrong(e.to_string()))?;
        let mut bytes = Vec::with_capacity(rows.len() * row_bytes);
        for row in rows {
            let mut hasher = DefaultHasher::new();
            (self.seed, &weight.name, row).hash(&mut hasher);
            let mut random = Random(hasher.finish() | 1);
            // Inputs of single operations are embeddings: their numbers are of size 1.
            let unit = weight.dims.len() == 1 || weight.name.starts_with("input");
            let size = if unit {
                1.0
            } else {
                1.0 / (weight.row_len() as f32).sqrt()
            };
            let shift = if weight.dims.len() == 1 { 1.0 } else { 0.0 };
            for _ in 0..weight.row_len() / weight.format.block_len() {
                push_block(weight.format, size, shift, &mut random, &mut bytes);
            }
        }
        Ok(Cow::Owned(bytes))
    }
}

/// xorshift64* (Vigna, 2016).
#[derive(Debug, Clone)]
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// About normal, deviation 1 (a sum of twelve uniform numbers).
    pub(crate) fn normal(&mut self) -> f32 {
        (0..3).map(|_| self.four()).sum::<f32>() - 6.0
    }

    fn four(&mut self) -> f32 {
        let bits = self.bits();
        (0..4).map(|i| (bits >> (16 * i) & 0xffff) as f32 / 65536.0).sum()
    }

    /// -1 to 1, uniform.
    fn number(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// The bytes of `count` numbers from -1 to 1 in f32.
    pub(crate) fn floats(&mut self, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| self.number().to_le_bytes()).collect()
    }

    /// The same in f16.
    pub(crate) fn halves(&mut self, count: usize) -> Vec<u8> {
        let halves = (0..count).map(|_| f16::from_f32(self.number()));
        halves.flat_map(f16::to_le_bytes).collect()
    }

    /// Bytes that are no infinity and nothing but a number in any format: small scales, any code.
    pub(crate) fn codes(&mut self, count: usize) -> Vec<u8> {
        let words = (0..count.div_ceil(8)).flat_map(|_| (self.bits() & 0x3737_3737_3737_3737).to_le_bytes());
        words.take(count).collect()
    }
}

/// Where a format keeps its f16 factors (byte, and size relative to a number of deviation 1); the rest is random codes.
fn factors(format: Format) -> &'static [(usize, f32)] {
    match format {
        Format::F32 | Format::F16 | Format::BF16 | Format::Iq1M | Format::Mxfp4 | Format::Nvfp4 => &[],
        Format::Q4_0 => &[(0, 0.2)],
        Format::Q5_0 => &[(0, 0.1)],
        Format::Q8_0 => &[(0, 0.0135)],
        Format::Iq4Nl => &[(0, 0.015)],
        Format::Q4_1 => &[(0, 0.2), (2, -1.5)],
        Format::Q5_1 => &[(0, 0.1), (2, -1.5)],
        Format::Q2K => &[(80, 0.1), (82, 0.15)],
        Format::Q3K => &[(108, 0.02)],
        Format::Q4K => &[(0, 0.006), (2, 0.05)],
        Format::Q5K => &[(0, 0.003), (2, 0.05)],
        Format::Q6K => &[(208, 0.0006)],
        Format::Iq1S | Format::Iq2Xxs | Format::Iq2Xs | Format::Iq2S => &[(0, 0.02)],
        Format::Iq3Xxs | Format::Iq3S => &[(0, 0.01)],
        Format::Iq4Xs => &[(0, 0.001)],
        Format::Tq1_0 => &[(52, 1.2)],
        Format::Tq2_0 => &[(64, 1.2)],
    }
}

pub(crate) fn push_block(format: Format, size: f32, shift: f32, random: &mut Random, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.extend((0..format.block_bytes()).map(|_| random.bits() as u8));
    let block = &mut bytes[start..];
    let float = shift + if shift == 0.0 { size } else { 0.1 } * random.normal();
    for &(at, factor) in factors(format) {
        let jitter = 0.75 + 0.5 * (random.bits() & 0xff) as f32 / 255.0;
        block[at..at + 2].copy_from_slice(&f16::from_f32(factor * size * jitter).to_le_bytes());
    }
    match format {
        Format::F32 => block.copy_from_slice(&float.to_le_bytes()),
        Format::F16 => block.copy_from_slice(&f16::from_f32(float).to_le_bytes()),
        Format::BF16 => block.copy_from_slice(&bf16::from_f32(float).to_le_bytes()),
        // The factor is spread over the top nibbles of the four scale words.
        Format::Iq1M => {
            let factor = f16::from_f32(0.02 * size).to_bits();
            for word in 0..4 {
                let top = &mut block[49 + 2 * word];
                *top = (*top & 15) | ((factor >> (4 * word)) as u8 & 15) << 4;
            }
        }
        // A power of two near `size / 2.5`.
        Format::Mxfp4 => block[0] = (126.0 + (size / 2.5).log2()) as u8 + block[0] % 2,
        // e4m3 scales of 16 numbers each, near `size / 2.5` doubled: exponent bias 7, three bits of fraction.
        Format::Nvfp4 => {
            let exponent = ((size / 2.5).log2().floor() + 8.0).clamp(1.0, 14.0) as u8;
            block[..4]
                .iter_mut()
                .for_each(|scale| *scale = exponent << 3 | (*scale & 7));
        }
        Format::Q4_0
        | Format::Q4_1
        | Format::Q5_0
        | Format::Q5_1
        | Format::Q8_0
        | Format::Q2K
        | Format::Q3K
        | Format::Q4K
        | Format::Q5K
        | Format::Q6K
        | Format::Iq1S
        | Format::Iq2Xxs
        | Format::Iq2Xs
        | Format::Iq2S
        | Format::Iq3Xxs
        | Format::Iq3S
        | Format::Iq4Nl
        | Format::Iq4Xs
        | Format::Tq1_0
        | Format::Tq2_0 => {}
    }
}
