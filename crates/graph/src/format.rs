//! How the numbers of a weight are encoded.

use std::fmt;

/// Encoding of a weight's rows. Rows run along the innermost (input) dimension and are a whole number of blocks.
///
/// The quantised formats are GGUF's blocks, bit for bit (ggml's published block layouts); other containers are brought to
/// one of these families at load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq1S,
    Iq1M,
    Iq2Xxs,
    Iq2Xs,
    Iq2S,
    Iq3Xxs,
    Iq3S,
    Iq4Nl,
    Iq4Xs,
    Tq1_0,
    Tq2_0,
    Mxfp4,
    Nvfp4,
}

/// A row length that the format cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{format} rows hold a multiple of {block_len} numbers, got {len}")]
pub struct FormatError {
    /// The format asked for.
    pub format: Format,
    /// Numbers in one of its blocks.
    pub block_len: usize,
    /// The row length asked for.
    pub len: usize,
}

impl Format {
    /// All formats, for tables.
    pub const ALL: [Format; 26] = [
        Format::F32,
        Format::F16,
        Format::BF16,
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::Q2K,
        Format::Q3K,
        Format::Q4K,
        Format::Q5K,
        Format::Q6K,
        Format::Iq1S,
        Format::Iq1M,
        Format::Iq2Xxs,
        Format::Iq2Xs,
        Format::Iq2S,
        Format::Iq3Xxs,
        Format::Iq3S,
        Format::Iq4Nl,
        Format::Iq4Xs,
        Format::Tq1_0,
        Format::Tq2_0,
        Format::Mxfp4,
        Format::Nvfp4,
    ];

    /// (name as ggml prints it, numbers a block, bytes a block)
    const fn row(self) -> (&'static str, usize, usize) {
        match self {
            Format::F32 => ("F32", 1, 4),
            Format::F16 => ("F16", 1, 2),
            Format::BF16 => ("BF16", 1, 2),
            Format::Q4_0 => ("Q4_0", 32, 18),
            Format::Q4_1 => ("Q4_1", 32, 20),
            Format::Q5_0 => ("Q5_0", 32, 22),
            Format::Q5_1 => ("Q5_1", 32, 24),
            Format::Q8_0 => ("Q8_0", 32, 34),
            Format::Q2K => ("Q2_K", 256, 84),
            Format::Q3K => ("Q3_K", 256, 110),
            Format::Q4K => ("Q4_K", 256, 144),
            Format::Q5K => ("Q5_K", 256, 176),
            Format::Q6K => ("Q6_K", 256, 210),
            Format::Iq1S => ("IQ1_S", 256, 50),
            Format::Iq1M => ("IQ1_M", 256, 56),
            Format::Iq2Xxs => ("IQ2_XXS", 256, 66),
            Format::Iq2Xs => ("IQ2_XS", 256, 74),
            Format::Iq2S => ("IQ2_S", 256, 82),
            Format::Iq3Xxs => ("IQ3_XXS", 256, 98),
            Format::Iq3S => ("IQ3_S", 256, 110),
            Format::Iq4Nl => ("IQ4_NL", 32, 18),
            Format::Iq4Xs => ("IQ4_XS", 256, 136),
            Format::Tq1_0 => ("TQ1_0", 256, 54),
            Format::Tq2_0 => ("TQ2_0", 256, 66),
            Format::Mxfp4 => ("MXFP4", 32, 17),
            Format::Nvfp4 => ("NVFP4", 64, 36),
        }
    }

    /// Name, as GGUF tools print it.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// Numbers in one block.
    pub const fn block_len(self) -> usize {
        self.row().1
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        self.row().2
    }

    /// Whether the numbers are stored one by one as floats.
    pub const fn is_float(self) -> bool {
        self.block_len() == 1
    }

    /// Bytes of a row of `len` numbers.
    ///
    /// # Errors
    /// When `len` is not a whole number of blocks.
    pub fn row_bytes(self, len: usize) -> Result<usize, FormatError> {
        let (_, block_len, block_bytes) = self.row();
        if !len.is_multiple_of(block_len) {
            return Err(FormatError {
                format: self,
                block_len,
                len,
            });
        }
        (len / block_len).checked_mul(block_bytes).ok_or(FormatError {
            format: self,
            block_len,
            len,
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
