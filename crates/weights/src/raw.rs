//! Tensors as their file lists them.

use std::fmt;
use std::ops::Range;

use galvani_graph::Format;

use crate::LoadError;
use crate::source::Source;

/// Most tensors of a checkpoint. With the largest known at about 150,000, this bounds what a header can make us allocate.
pub(crate) const TENSORS_MAX: usize = 1 << 18;

/// How a file stores a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum RawDtype {
    /// One of the formats that weights can have in a graph.
    Format(Format),
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F64,
    /// Eight bits: sign, 4 exponent, 3 mantissa (OCP e4m3, no infinities).
    F8E4M3,
    /// Eight bits: sign, 5 exponent, 2 mantissa.
    F8E5M2,
    /// A power of two, biased by 127.
    F8E8M0,
}

impl RawDtype {
    /// (name, elements a block, bytes a block)
    pub(crate) fn layout(self) -> (&'static str, usize, usize) {
        match self {
            RawDtype::Format(format) => (format.name(), format.block_len(), format.block_bytes()),
            RawDtype::Bool => ("BOOL", 1, 1),
            RawDtype::U8 => ("U8", 1, 1),
            RawDtype::I8 => ("I8", 1, 1),
            RawDtype::U16 => ("U16", 1, 2),
            RawDtype::I16 => ("I16", 1, 2),
            RawDtype::U32 => ("U32", 1, 4),
            RawDtype::I32 => ("I32", 1, 4),
            RawDtype::U64 => ("U64", 1, 8),
            RawDtype::I64 => ("I64", 1, 8),
            RawDtype::F64 => ("F64", 1, 8),
            RawDtype::F8E4M3 => ("F8_E4M3", 1, 1),
            RawDtype::F8E5M2 => ("F8_E5M2", 1, 1),
            RawDtype::F8E8M0 => ("F8_E8M0", 1, 1),
        }
    }
}

impl fmt::Display for RawDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.layout().0)
    }
}

/// A tensor as its file lists it, checked: its bytes lie inside the file and no other tensor's bytes overlap them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawTensor {
    /// Name in the file.
    pub name: String,
    /// Sizes, outermost first (`[out, in]` for a linear layer). Empty for a scalar (safetensors only).
    pub dims: Vec<usize>,
    /// How the elements are stored.
    pub dtype: RawDtype,
    /// Index of its file in the checkpoint.
    pub(crate) file: u32,
    /// From the start of that file.
    pub(crate) offset: u64,
    /// Length of its data.
    pub(crate) byte_count: usize,
}

impl RawTensor {
    /// Length of its data, bytes.
    pub fn byte_count(&self) -> usize {
        self.byte_count
    }

    /// Elements of the tensor.
    pub fn element_count(&self) -> usize {
        self.dims.iter().product()
    }

    /// The innermost size; 1 for a scalar.
    pub fn row_len(&self) -> usize {
        self.dims.last().copied().unwrap_or(1)
    }

    /// The weight format.
    ///
    /// # Errors
    /// When the elements are integers, bytes or 8-bit floats, which only mean something with their companions.
    pub fn format(&self) -> Result<Format, LoadError> {
        match self.dtype {
            RawDtype::Format(format) => Ok(format),
            other => Err(LoadError::tensor(
                "weights",
                &self.name,
                format!("has dtype {other}; a plain weight is F32, F16, BF16 or a GGUF block format"),
            )),
        }
    }
}

/// Bytes that a tensor takes, or what is wrong with its sizes.
pub(crate) fn tensor_bytes(dtype: RawDtype, dims: &[usize]) -> Result<usize, String> {
    let (name, block_len, block_bytes) = dtype.layout();
    let row_len = dims.last().copied().unwrap_or(1);
    if !row_len.is_multiple_of(block_len) {
        return Err(format!(
            "the innermost size is {row_len}; {name} rows hold a multiple of {block_len} numbers"
        ));
    }
    let element_count = dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(dim));
    element_count
        .map(|count| count / block_len)
        .and_then(|block_count| block_count.checked_mul(block_bytes))
        .filter(|&byte_count| i64::try_from(byte_count).is_ok())
        .ok_or_else(|| format!("sizes {dims:?} multiply to more than any file holds"))
}

/// The files of a checkpoint and the tensors in them: what all containers have in common.
#[derive(Debug)]
pub(crate) struct TensorSet {
    pub(crate) sources: Vec<Source>,
    pub(crate) tensors: Vec<RawTensor>,
    /// Indices into `tensors`, sorted by name.
    by_name: Vec<u32>,
}

impl TensorSet {
    /// Checks that there are not too many tensors and that no name stands twice.
    pub(crate) fn new(sources: Vec<Source>, tensors: Vec<RawTensor>) -> Result<Self, LoadError> {
        let origin = sources.first().map_or("", Source::name);
        if tensors.len() > TENSORS_MAX {
            return Err(LoadError::malformed(
                origin,
                format!(
                    "lists {} tensors; at most {TENSORS_MAX} are allowed",
                    tensors.len()
                ),
            ));
        }
        let mut by_name: Vec<u32> = (0..tensors.len() as u32).collect();
        by_name.sort_unstable_by(|&a, &b| tensors[a as usize].name.cmp(&tensors[b as usize].name));
        for pair in by_name.windows(2) {
            let (a, b) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
            if a.name == b.name {
                let first = sources[a.file as usize].name();
                let second = sources[b.file as usize].name();
                return Err(LoadError::tensor(
                    first,
                    &a.name,
                    format!("is listed twice (again in {second})"),
                ));
            }
        }
        Ok(Self {
            sources,
            tensors,
            by_name,
        })
    }

    pub(crate) fn tensor(&self, name: &str) -> Option<&RawTensor> {
        let position = self
            .by_name
            .binary_search_by(|&index| self.tensors[index as usize].name.as_str().cmp(name))
            .ok()?;
        Some(&self.tensors[self.by_name[position] as usize])
    }

    pub(crate) fn byte_count(&self) -> u64 {
        self.sources.iter().map(Source::len).sum()
    }

    /// Bytes `byte_range` of a tensor's data.
    pub(crate) fn read(
        &self,
        tensor: &RawTensor,
        byte_range: Range<usize>,
        out: &mut [u8],
    ) -> Result<(), LoadError> {
        assert!(
            byte_range.start <= byte_range.end && byte_range.end <= tensor.byte_count,
            "range {byte_range:?} is outside of `{}`, {} bytes",
            tensor.name,
            tensor.byte_count
        );
        assert_eq!(out.len(), byte_range.len(), "buffer for `{}`", tensor.name);
        self.sources[tensor.file as usize].read_at(tensor.offset + byte_range.start as u64, out)
    }
}

/// Checks that no two tensors of a file share bytes. Every tensor must already lie inside the file.
pub(crate) fn check_overlap(source: &Source, tensors: &[RawTensor]) -> Result<(), LoadError> {
    let mut order: Vec<u32> = (0..tensors.len() as u32).collect();
    order.sort_unstable_by_key(|&index| (tensors[index as usize].offset, tensors[index as usize].byte_count));
    for pair in order.windows(2) {
        let (a, b) = (&tensors[pair[0] as usize], &tensors[pair[1] as usize]);
        let a_end = a.offset + a.byte_count as u64;
        if a_end > b.offset {
            return Err(LoadError::tensor(
                source.name(),
                &b.name,
                format!(
                    "starts at byte {} inside of tensor `{}`, which ends at {a_end}",
                    b.offset,
                    crate::error::shown(&a.name)
                ),
            ));
        }
    }
    Ok(())
}
