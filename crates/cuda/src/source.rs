//! Weights as files hold them: rows of blocks, or the hub containers' tensors.

use std::ops::Range;

use galvani_graph::Format;

use crate::error::CudaError;
use crate::layout::{Layout, PackedFormat};

/// A weight [n, k] as its file holds it, checked: every slice has just the length that the shape asks for.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    n: usize,
    k: usize,
    source: Source<'a>,
}

/// Where the numbers are. Nothing here is interpreted yet; all slices are row by row.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// GGUF's blocks, or plain floats.
    Rows {
        /// The encoding.
        format: Format,
        /// n rows.
        bytes: &'a [u8],
    },
    /// w = (code - zero) scale, codes without sign.
    GroupInt {
        /// Width of a code.
        bits: IntBits,
        /// Numbers of k that share a scale.
        group: Group,
        /// [n, k]
        codes: Codes<'a>,
        /// [n, k / group]
        scales: &'a [f32],
        /// [n, k / group]; without, every zero is the middle, 8 or 128.
        zeros: Option<&'a [u8]>,
    },
    /// e4m3 codes.
    Fp8 {
        /// [n, k]
        codes: &'a [u8],
        /// What a code is multiplied by.
        scale: Fp8Scale<'a>,
    },
    /// e2m1 codes, an e4m3 scale for each 16.
    Nvfp4 {
        /// [n, k / 2], the lower k in the low nibble.
        codes: &'a [u8],
        /// [n, k / 16]
        scales: &'a [u8],
        /// (rows, factor) of each part of a fused weight, in order.
        globals: &'a [(usize, f32)],
    },
    /// e2m1 codes, a power of two (e8m0) for each 32.
    Mxfp4 {
        /// [n, k / 2], the lower k in the low nibble.
        codes: &'a [u8],
        /// [n, k / 32]
        scales: &'a [u8],
    },
}

/// Width of an integer code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum IntBits {
    Four,
    Eight,
}

/// Numbers of k that share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Group {
    G32,
    G64,
    G128,
}

impl Group {
    /// The number.
    #[expect(clippy::len_without_is_empty, reason = "no group is empty")]
    pub const fn len(self) -> usize {
        match self {
            Self::G32 => 32,
            Self::G64 => 64,
            Self::G128 => 128,
        }
    }
}

/// Integer codes.
#[derive(Clone, Copy, Debug)]
pub enum Codes<'a> {
    /// One a byte.
    Bytes(&'a [u8]),
    /// Two a byte, the lower k in the low nibble.
    Nibbles(&'a [u8]),
}

/// Scales of e4m3 codes.
#[derive(Clone, Copy, Debug)]
pub enum Fp8Scale<'a> {
    /// One for all.
    Tensor(f32),
    /// [n]
    Channel(&'a [f32]),
    /// [ceil(n / 128), ceil(k / 128)]
    Block128(&'a [f32]),
}

impl<'a> Weight<'a> {
    /// Takes `source` as a weight of `n` rows of `k` numbers.
    ///
    /// # Errors
    /// A shape that the format does not hold, a format with no packed form, or a slice of another length.
    pub fn new(n: usize, k: usize, source: Source<'a>) -> Result<Self, CudaError> {
        let weight = Self { n, k, source };
        let layout = weight.layout()?;
        weight.check_lengths()?;
        assert!(layout.n() == n && layout.k() == k);
        Ok(weight)
    }

    /// Rows.
    pub const fn n(&self) -> usize {
        self.n
    }

    /// Numbers in a row.
    pub const fn k(&self) -> usize {
        self.k
    }

    /// The numbers.
    pub const fn source(&self) -> &Source<'a> {
        &self.source
    }

    /// The packed sizes.
    ///
    /// # Errors
    /// As [`Weight::new`].
    pub fn layout(&self) -> Result<Layout, CudaError> {
        Layout::new(self.packed_format()?, self.n, self.k)
    }

    /// The form that the weight is packed to.
    ///
    /// # Errors
    /// There is none.
    pub fn packed_format(&self) -> Result<PackedFormat, CudaError> {
        use PackedFormat as F;
        Ok(match self.source {
            Source::Rows { format, .. } => return packed_rows(format),
            Source::GroupInt {
                bits, group, zeros, ..
            } => match (bits, zeros.is_some(), group) {
                (IntBits::Four, false, Group::G32) => F::Int4G32,
                (IntBits::Four, false, Group::G64) => F::Int4G64,
                (IntBits::Four, false, Group::G128) => F::Int4G128,
                (IntBits::Four, true, Group::G32) => F::Int4G32Zero,
                (IntBits::Four, true, Group::G64) => F::Int4G64Zero,
                (IntBits::Four, true, Group::G128) => F::Int4G128Zero,
                (IntBits::Eight, false, Group::G32) => F::Int8G32,
                (IntBits::Eight, false, Group::G64) => F::Int8G64,
                (IntBits::Eight, false, Group::G128) => F::Int8G128,
                (IntBits::Eight, true, Group::G32) => F::Int8G32Zero,
                (IntBits::Eight, true, Group::G64) => F::Int8G64Zero,
                (IntBits::Eight, true, Group::G128) => F::Int8G128Zero,
            },
            Source::Fp8 { scale, .. } => match scale {
                Fp8Scale::Tensor(_) | Fp8Scale::Channel(_) => F::Fp8,
                Fp8Scale::Block128(_) => F::Fp8Block,
            },
            Source::Nvfp4 { .. } => F::Nvfp4,
            Source::Mxfp4 { .. } => F::Mxfp4,
        })
    }

    fn check_lengths(&self) -> Result<(), CudaError> {
        let (n, k) = (self.n, self.k);
        match self.source {
            Source::Rows { format, bytes } => {
                let row = format.row_bytes(k).map_err(|error| CudaError::Shape {
                    what: "columns",
                    value: k,
                    allowed: error.to_string(),
                })?;
                length("bytes", bytes.len(), [n, row])
            }
            Source::GroupInt {
                bits,
                group,
                codes,
                scales,
                zeros,
            } => {
                match (bits, codes) {
                    (IntBits::Four | IntBits::Eight, Codes::Bytes(codes)) => {
                        length("codes", codes.len(), [n, k])?
                    }
                    (IntBits::Four, Codes::Nibbles(codes)) => length("codes", codes.len(), [n, k / 2])?,
                    (IntBits::Eight, Codes::Nibbles(_)) => {
                        return Err(CudaError::Shape {
                            what: "bits of a code in a nibble",
                            value: 8,
                            allowed: "4".to_owned(),
                        });
                    }
                }
                length("scales", scales.len(), [n, k / group.len()])?;
                zeros.map_or(Ok(()), |zeros| length("zeros", zeros.len(), [n, k / group.len()]))
            }
            Source::Fp8 { codes, scale } => {
                length("codes", codes.len(), [n, k])?;
                match scale {
                    Fp8Scale::Tensor(_) => Ok(()),
                    Fp8Scale::Channel(scales) => length("scales", scales.len(), [n, 1]),
                    Fp8Scale::Block128(scales) => {
                        length("scales", scales.len(), [n.div_ceil(128), k.div_ceil(128)])
                    }
                }
            }
            Source::Nvfp4 {
                codes,
                scales,
                globals,
            } => {
                length("codes", codes.len(), [n, k / 2])?;
                length("scales", scales.len(), [n, k / 16])?;
                let rows = globals
                    .iter()
                    .try_fold(0usize, |sum, part| sum.checked_add(part.0));
                length("rows of the parts", rows.unwrap_or(usize::MAX), [n, 1])
            }
            Source::Mxfp4 { codes, scales } => {
                length("codes", codes.len(), [n, k / 2])?;
                length("scales", scales.len(), [n, k / 32])
            }
        }
    }

    /// The rows `range`, as a weight of their own where no scale is shared with others; used to send a large weight in parts.
    pub(crate) fn row_bytes(&self, format: Format, row: usize) -> Range<usize> {
        let bytes = format.row_bytes(self.k).expect("checked by new");
        row * bytes..(row + 1) * bytes
    }
}

/// Checks that a slice has just as many items as the shape.
fn length(what: &'static str, value: usize, shape: [usize; 2]) -> Result<(), CudaError> {
    if shape[0].checked_mul(shape[1]) == Some(value) {
        return Ok(());
    }
    Err(CudaError::Shape {
        what,
        value,
        allowed: format!("{} x {}", shape[0], shape[1]),
    })
}

fn packed_rows(format: Format) -> Result<PackedFormat, CudaError> {
    use PackedFormat as F;
    match format {
        Format::F32 | Format::F16 | Format::BF16 => Ok(F::F16),
        Format::Q4_0 => Ok(F::Int4G32),
        Format::Q8_0 => Ok(F::Int8G32),
        Format::Q2K => Ok(F::Q2K),
        Format::Q3K => Ok(F::Q3K),
        Format::Q4K => Ok(F::Q4K),
        Format::Q5K => Ok(F::Q5K),
        Format::Q6K => Ok(F::Q6K),
        Format::Iq4Nl => Ok(F::Iq4Nl),
        Format::Iq4Xs => Ok(F::Iq4Xs),
        Format::Mxfp4 => Ok(F::Mxfp4),
        Format::Nvfp4 => Ok(F::Nvfp4),
        Format::Q4_1
        | Format::Q5_0
        | Format::Q5_1
        | Format::Iq1S
        | Format::Iq1M
        | Format::Iq2Xxs
        | Format::Iq2Xs
        | Format::Iq2S
        | Format::Iq3Xxs
        | Format::Iq3S
        | Format::Tq1_0
        | Format::Tq2_0 => Err(CudaError::NoPackedForm { format }),
    }
}
