//! Random weights as files hold them, in every form that is packed.

use galvani_cuda::CudaError;
use galvani_cuda::source::{Codes, Fp8Scale, Group, IntBits, Source, Weight};
use galvani_graph::Format;
use half::f16;

use crate::weights::{Random, push_block};

/// A way that weights come in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// GGUF blocks or plain floats.
    Rows(Format),
    /// Integer codes; `zeros` of their own, and scales that are no halves.
    Ints {
        /// Width.
        bits: IntBits,
        /// Numbers a scale.
        group: Group,
        /// Whether each group has a zero.
        zeros: bool,
        /// Whether scales need more bits than a half has.
        wide: bool,
    },
    /// e4m3 codes.
    Fp8(Fp8Kind),
    /// Hub containers' NVFP4.
    Nvfp4,
    /// Hub containers' MXFP4.
    Mxfp4,
}

/// What an e4m3 scale is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Fp8Kind {
    Tensor,
    Channel,
    Block128,
}

/// A random weight [n, k] that owns its numbers.
#[derive(Clone, Debug)]
pub struct RandomWeight {
    kind: Kind,
    n: usize,
    k: usize,
    codes: Vec<u8>,
    bytes: Vec<u8>,
    zeros: Vec<u8>,
    scales: Vec<f32>,
    globals: Vec<(usize, f32)>,
}

/// Every kind.
pub fn kinds() -> Vec<Kind> {
    let formats = [
        Format::F32,
        Format::F16,
        Format::BF16,
        Format::Q4_0,
        Format::Q8_0,
        Format::Q2K,
        Format::Q3K,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
        Format::Iq4Nl,
        Format::Iq4Xs,
        Format::Mxfp4,
        Format::Nvfp4,
    ];
    let mut all: Vec<Kind> = formats.into_iter().map(Kind::Rows).collect();
    for bits in [IntBits::Four, IntBits::Eight] {
        for group in [Group::G32, Group::G64, Group::G128] {
            for zeros in [false, true] {
                let wide = zeros ^ (group == Group::G64);
                all.push(Kind::Ints {
                    bits,
                    group,
                    zeros,
                    wide,
                });
            }
        }
    }
    all.extend([Fp8Kind::Tensor, Fp8Kind::Channel, Fp8Kind::Block128].map(Kind::Fp8));
    all.extend([Kind::Nvfp4, Kind::Mxfp4]);
    all
}

impl Kind {
    /// What k is a multiple of, beyond what the packed form asks for.
    pub fn k_multiple(self) -> u32 {
        match self {
            // At most 256.
            Self::Rows(format) => format.block_len() as u32,
            Self::Ints { .. } | Self::Fp8(_) | Self::Nvfp4 | Self::Mxfp4 => 1,
        }
    }
}

impl RandomWeight {
    /// Numbers of a size near 1 / sqrt(k).
    pub fn new(kind: Kind, n: usize, k: usize, seed: u64) -> Self {
        let mut weight = Self {
            kind,
            n,
            k,
            codes: Vec::new(),
            bytes: Vec::new(),
            zeros: Vec::new(),
            scales: Vec::new(),
            globals: Vec::new(),
        };
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let size = 1.0 / (k as f32).sqrt();
        match kind {
            Kind::Rows(format) => {
                for _ in 0..n * k / format.block_len() {
                    push_block(format, size, 0.0, &mut random, &mut weight.bytes);
                }
            }
            Kind::Ints {
                bits,
                group,
                zeros,
                wide,
            } => weight.ints(bits, group.len(), zeros, wide, size, &mut random),
            Kind::Fp8(kind) => weight.fp8(kind, size, &mut random),
            Kind::Nvfp4 => weight.nvfp4(size, &mut random),
            Kind::Mxfp4 => {
                weight.codes = random.bytes(n * k / 2, |byte| byte);
                let middle = 127 + (size / 4.0).log2() as i32;
                weight.bytes = random.bytes(n * k / 32, |byte| (middle + i32::from(byte % 5) - 2) as u8);
            }
        }
        weight
    }

    fn ints(&mut self, bits: IntBits, group: usize, zeros: bool, wide: bool, size: f32, random: &mut Random) {
        let (mask, middle) = match bits {
            IntBits::Four => (15, 8.0),
            IntBits::Eight => (255, 128.0),
        };
        let groups = self.n * self.k / group;
        self.codes = if nibbles(bits, zeros) {
            random.bytes(self.n * self.k / 2, |byte| byte)
        } else {
            random.bytes(self.n * self.k, |byte| byte & mask)
        };
        self.scales = (0..groups)
            .map(|_| {
                let scale = size / middle * (0.5 + random.unit());
                if wide {
                    scale
                } else {
                    f16::from_f32(scale).to_f32()
                }
            })
            .collect();
        if zeros {
            self.zeros = random.bytes(groups, |byte| byte & mask);
        }
    }

    fn fp8(&mut self, kind: Fp8Kind, size: f32, random: &mut Random) {
        // Both codes that stand for no number become others.
        self.codes = random.bytes(self.n * self.k, |byte| {
            if byte & 0x7f == 0x7f { byte & 0xbf } else { byte }
        });
        let scales = match kind {
            Fp8Kind::Tensor => 1,
            Fp8Kind::Channel => self.n,
            Fp8Kind::Block128 => self.n.div_ceil(128) * self.k.div_ceil(128),
        };
        self.scales = (0..scales).map(|_| size / 64.0 * (0.5 + random.unit())).collect();
    }

    fn nvfp4(&mut self, size: f32, random: &mut Random) {
        self.codes = random.bytes(self.n * self.k / 2, |byte| byte);
        // Scales of all magnitudes but the one that is no number.
        self.bytes = random.bytes(self.n * self.k / 16, |byte| (byte & 0x7f).min(0x7e));
        let first = self.n.min(32);
        self.globals = vec![(first, size / 256.0)];
        if self.n > first {
            self.globals.push((self.n - first, size / 96.0));
        }
    }

    /// The weight for the packer.
    ///
    /// # Errors
    /// A shape that the format does not hold.
    pub fn weight(&self) -> Result<Weight<'_>, CudaError> {
        let source = match self.kind {
            Kind::Rows(format) => Source::Rows {
                format,
                bytes: &self.bytes,
            },
            Kind::Ints {
                bits, group, zeros, ..
            } => Source::GroupInt {
                bits,
                group,
                codes: if nibbles(bits, zeros) {
                    Codes::Nibbles(&self.codes)
                } else {
                    Codes::Bytes(&self.codes)
                },
                scales: &self.scales,
                zeros: zeros.then_some(&self.zeros[..]),
            },
            Kind::Fp8(kind) => Source::Fp8 {
                codes: &self.codes,
                scale: match kind {
                    Fp8Kind::Tensor => Fp8Scale::Tensor(self.scales[0]),
                    Fp8Kind::Channel => Fp8Scale::Channel(&self.scales),
                    Fp8Kind::Block128 => Fp8Scale::Block128(&self.scales),
                },
            },
            Kind::Nvfp4 => Source::Nvfp4 {
                codes: &self.codes,
                scales: &self.bytes,
                globals: &self.globals,
            },
            Kind::Mxfp4 => Source::Mxfp4 {
                codes: &self.codes,
                scales: &self.bytes,
            },
        };
        Weight::new(self.n, self.k, source)
    }
}

/// Codes with zeros come two a byte, the others one a byte: both ways are met.
fn nibbles(bits: IntBits, zeros: bool) -> bool {
    bits == IntBits::Four && zeros
}

impl Random {
    fn bytes(&mut self, count: usize, change: impl Fn(u8) -> u8) -> Vec<u8> {
        (0..count).map(|_| change((self.bits() >> 32) as u8)).collect()
    }

    /// 0 to 1.
    fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 24) as f32
    }
}
