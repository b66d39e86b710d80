//! The one meaning of each tensor, whatever the container calls it and however it stores it.
//!
//! Canonical names are the hub's without the leading `model.`; experts are stacked `[experts, out, in]`; norm weights are
//! plain multipliers; rotary pairs are (i, i + dims/2). What a source does differently is undone here, once, by saying
//! where each canonical row lies ([`Assembly`]); bytes are only moved when a backend asks for rows.

mod gguf_config;
mod gguf_names;
mod hub_names;
#[cfg(test)]
mod tests;

pub(crate) use gguf_config::translate;
pub(crate) use gguf_names::from_gguf;
pub(crate) use hub_names::from_hub;

use galvani_graph::Format;

use crate::{LoadError, RawTensor};

/// A canonical tensor.
#[derive(Debug, Clone)]
pub struct TensorInfo {
    /// Canonical name, such as `layers.3.self_attn.q_proj.weight`.
    pub name: String,
    /// Shape, outermost first; experts are the first of three.
    pub dims: Vec<usize>,
    /// Encoding of the rows, as a backend receives them.
    pub format: Format,
    pub(crate) assembly: Assembly,
}

/// Where the rows of a canonical tensor lie. A tensor of one dimension counts as rows of one number.
#[derive(Debug, Clone)]
pub(crate) struct Assembly {
    /// One after the other.
    pub(crate) pieces: Vec<Piece>,
    pub(crate) order: RowOrder,
    pub(crate) offset: NormOffset,
}

/// Rows of a stored tensor, experts flattened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Piece {
    /// Index among the container's tensors.
    pub(crate) tensor: u32,
    pub(crate) first_row: usize,
    pub(crate) row_count: usize,
}

/// How the rows of a query or key product are ordered inside each head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// As the hub has them: pair i is rows i and i + half.
    Halves,
    /// As GGUF converters leave them for some architectures: pair i is rows 2i and 2i + 1.
    Pairs { head_dim: usize },
}

/// What the source leaves to be added to a norm weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NormOffset {
    None,
    /// The source stores `w - 1`; the canonical tensor is F32.
    One,
}

impl TensorInfo {
    /// Rows, experts flattened; of one number for a vector.
    pub(crate) fn row_count(&self) -> usize {
        if self.dims.len() == 1 {
            self.dims[0]
        } else {
            self.dims[..self.dims.len() - 1].iter().product()
        }
    }

    /// Numbers in a row.
    pub(crate) fn row_len(&self) -> usize {
        if self.dims.len() == 1 {
            1
        } else {
            self.dims[self.dims.len() - 1]
        }
    }

    /// Numbers in the tensor.
    pub fn number_count(&self) -> usize {
        self.row_count() * self.row_len()
    }

    /// Bytes of the canonical tensor.
    pub fn byte_count(&self) -> usize {
        self.number_count() / self.format.block_len() * self.format.block_bytes()
    }

    /// The whole of stored tensor number `index`.
    pub(crate) fn whole(name: String, index: usize, raw: &RawTensor) -> Result<Self, LoadError> {
        let format = raw.format()?;
        let dims = if raw.dims.is_empty() {
            vec![1]
        } else {
            raw.dims.clone()
        };
        // Rows without numbers could be as many as a header likes: no file is that large.
        if dims.contains(&0) {
            return Err(LoadError::tensor(
                "weights",
                &raw.name,
                format!("has shape {dims:?}; sizes start at 1"),
            ));
        }
        if dims.len() == 1 && !format.is_float() {
            return Err(LoadError::tensor(
                "weights",
                &raw.name,
                format!("is a vector in {format}; vectors are floats"),
            ));
        }
        let mut info = Self {
            name,
            dims,
            format,
            assembly: Assembly {
                pieces: Vec::new(),
                order: RowOrder::Halves,
                offset: NormOffset::None,
            },
        };
        info.assembly.pieces.push(Piece {
            tensor: index as u32,
            first_row: 0,
            row_count: info.row_count(),
        });
        Ok(info)
    }

    /// The gate (or up) half of each expert of a fused `[experts, 2 * inner, in]` tensor, gate rows first.
    pub(crate) fn expert_half(
        name: String,
        index: usize,
        raw: &RawTensor,
        half: usize,
    ) -> Result<Self, LoadError> {
        let mut info = Self::whole(name, index, raw)?;
        let &[experts, both, row_len] = info.dims.as_slice() else {
            return Err(LoadError::tensor(
                "weights",
                &raw.name,
                "fused experts have three dimensions",
            ));
        };
        if !both.is_multiple_of(2) {
            return Err(LoadError::tensor(
                "weights",
                &raw.name,
                format!("{both} rows are not gate and up"),
            ));
        }
        let inner = both / 2;
        info.dims = vec![experts, inner, row_len];
        info.assembly.pieces = (0..experts)
            .map(|expert| Piece {
                tensor: index as u32,
                first_row: expert * both + half * inner,
                row_count: inner,
            })
            .collect();
        Ok(info)
    }
}
