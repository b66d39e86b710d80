//! GGUF, versions 2 and 3, in one file or split.
//!
//! Layout (little-endian): `"GGUF"`, u32 version, u64 tensor count, u64 key count; keys as (string, u32 type, value);
//! tensors as (string, u32 dimension count, u64 sizes innermost first, u32 type, u64 offset); padding to the alignment;
//! data. A string is a u64 length and UTF-8 bytes.

mod header;
mod metadata;
mod read;
mod split;

use std::ops::Range;
use std::path::Path;

use galvani_graph::Format;

pub use metadata::{MetaArray, MetaValue, Metadata, StringArray};

use crate::raw::{RawTensor, TensorSet};
use crate::source::Source;
use crate::{LoadError, RawDtype};

/// An open GGUF checkpoint: all its shards, their headers checked.
#[derive(Debug)]
pub struct Gguf {
    metadata: Metadata,
    set: TensorSet,
}

impl Gguf {
    /// Opens a file. Given any shard of a split, finds all the others beside it and checks that they belong together.
    ///
    /// # Errors
    /// When a file cannot be read, or is not sound GGUF, or a shard is missing.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        split::open(path)
    }

    /// Takes a whole unsplit file from memory; `name` stands in messages.
    ///
    /// # Errors
    /// As [`Gguf::open`], and when the bytes are one shard of a split.
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, LoadError> {
        let source = Source::from_bytes(name, bytes);
        let header = header::parse(&source, 0)?;
        if let Some(split) = split::Split::of(&header.metadata)? {
            return Err(LoadError::malformed(
                name,
                format!(
                    "is shard {} of {} of a split: open it by its path",
                    split.index + 1,
                    split.count
                ),
            ));
        }
        Ok(Self {
            metadata: header.metadata,
            set: TensorSet::new(vec![source], header.tensors)?,
        })
    }

    /// The keys (of the first shard, which has them all).
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the order of the files.
    pub fn tensors(&self) -> &[RawTensor] {
        &self.set.tensors
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Option<&RawTensor> {
        self.set.tensor(name)
    }

    /// Bytes of all files.
    pub fn file_bytes(&self) -> u64 {
        self.set.byte_count()
    }

    /// Reads bytes `byte_range` of a tensor of this checkpoint into `out`, which has just that length (asserted).
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(
        &self,
        tensor: &RawTensor,
        byte_range: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        self.set.read(tensor, byte_range, out)
    }
}

/// GGUF's number of a tensor type, its name there, and our reading of it.
const TYPES: [(u32, RawDtype); 31] = [
    (0, RawDtype::Format(Format::F32)),
    (1, RawDtype::Format(Format::F16)),
    (2, RawDtype::Format(Format::Q4_0)),
    (3, RawDtype::Format(Format::Q4_1)),
    (6, RawDtype::Format(Format::Q5_0)),
    (7, RawDtype::Format(Format::Q5_1)),
    (8, RawDtype::Format(Format::Q8_0)),
    (10, RawDtype::Format(Format::Q2K)),
    (11, RawDtype::Format(Format::Q3K)),
    (12, RawDtype::Format(Format::Q4K)),
    (13, RawDtype::Format(Format::Q5K)),
    (14, RawDtype::Format(Format::Q6K)),
    (16, RawDtype::Format(Format::Iq2Xxs)),
    (17, RawDtype::Format(Format::Iq2Xs)),
    (18, RawDtype::Format(Format::Iq3Xxs)),
    (19, RawDtype::Format(Format::Iq1S)),
    (20, RawDtype::Format(Format::Iq4Nl)),
    (21, RawDtype::Format(Format::Iq3S)),
    (22, RawDtype::Format(Format::Iq2S)),
    (23, RawDtype::Format(Format::Iq4Xs)),
    (24, RawDtype::I8),
    (25, RawDtype::I16),
    (26, RawDtype::I32),
    (27, RawDtype::I64),
    (28, RawDtype::F64),
    (29, RawDtype::Format(Format::Iq1M)),
    (30, RawDtype::Format(Format::BF16)),
    (34, RawDtype::Format(Format::Tq1_0)),
    (35, RawDtype::Format(Format::Tq2_0)),
    (39, RawDtype::Format(Format::Mxfp4)),
    (40, RawDtype::Format(Format::Nvfp4)),
];

/// Names of GGUF types that exist or existed and are not read.
const TYPES_REFUSED: [(u32, &str); 11] = [
    (4, "Q4_2 (withdrawn)"),
    (5, "Q4_3 (withdrawn)"),
    (9, "Q8_1 (activations only)"),
    (15, "Q8_K (activations only)"),
    (31, "Q4_0_4_4 (withdrawn)"),
    (32, "Q4_0_4_8 (withdrawn)"),
    (33, "Q4_0_8_8 (withdrawn)"),
    (36, "IQ4_NL_4_4 (withdrawn)"),
    (37, "IQ4_NL_4_8 (withdrawn)"),
    (41, "Q1_0"),
    (42, "Q2_0"),
];

/// GGUF's number for a format, for writers of such files.
pub fn type_id(format: Format) -> u32 {
    TYPES
        .iter()
        .find(|row| row.1 == RawDtype::Format(format))
        .expect("every format has its row: a test goes through Format::ALL")
        .0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_its_type_number() {
        let mut ids: Vec<u32> = Format::ALL.iter().map(|&format| type_id(format)).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), Format::ALL.len());
        assert_eq!(type_id(Format::Q4K), 12);
        assert_eq!(type_id(Format::Nvfp4), 40);
    }
}
