//! The hub's tensors: the leading `model.` goes, single experts become a stack.

use std::collections::BTreeMap;

use crate::canon::{NormOffset, Piece, TensorInfo};
use crate::{LoadError, RawTensor};
use galvani_graph::Format;

/// Tensors that hold nothing a graph needs: old checkpoints store the rotary table.
const IGNORED: [&str; 1] = [".rotary_emb.inv_freq"];

/// Canonical tensors of a hub checkpoint whose config says `model_type`.
pub(crate) fn from_hub(raw: &[RawTensor], model_type: &str) -> Result<Vec<TensorInfo>, LoadError> {
    let mut tensors = Vec::with_capacity(raw.len());
    let mut experts: BTreeMap<String, BTreeMap<usize, usize>> = BTreeMap::new();
    for (index, tensor) in raw.iter().enumerate() {
        let name = tensor.name.strip_prefix("model.").unwrap_or(&tensor.name);
        if IGNORED.iter().any(|ending| name.ends_with(ending)) {
            continue;
        }
        if let Some((stack, expert)) = single_expert(name) {
            experts.entry(stack).or_default().insert(expert, index);
        } else if let Some(prefix) = name.strip_suffix(".experts.gate_up_proj") {
            for (half, part) in ["gate_proj", "up_proj"].into_iter().enumerate() {
                let name = format!("{prefix}.experts.{part}.weight");
                tensors.push(TensorInfo::expert_half(name, index, tensor, half)?);
            }
        } else if name.ends_with(".experts.down_proj") {
            tensors.push(TensorInfo::whole(format!("{name}.weight"), index, tensor)?);
        } else {
            tensors.push(TensorInfo::whole(name.to_owned(), index, tensor)?);
        }
    }
    for (name, members) in experts {
        tensors.push(stack(name, &members, raw)?);
    }
    if model_type == "gemma3_text" {
        undo_norm_offset(&mut tensors)?;
    }
    Ok(tensors)
}

/// `layers.0.mlp.experts.7.up_proj.weight` -> (`layers.0.mlp.experts.up_proj.weight`, 7).
fn single_expert(name: &str) -> Option<(String, usize)> {
    let (prefix, rest) = name.split_once(".experts.")?;
    let (number, rest) = rest.split_once('.')?;
    let expert = number.parse().ok()?;
    Some((format!("{prefix}.experts.{rest}"), expert))
}

fn stack(name: String, members: &BTreeMap<usize, usize>, raw: &[RawTensor]) -> Result<TensorInfo, LoadError> {
    let count = members.len();
    let first = match members.first_key_value() {
        Some((0, &index)) => index,
        _ => return Err(LoadError::tensor("weights", &name, "expert 0 is missing")),
    };
    let mut info = TensorInfo::whole(name, first, &raw[first])?;
    let rows = info.row_count();
    info.assembly.pieces.clear();
    for (expert, (&number, &index)) in members.iter().enumerate() {
        let tensor = &raw[index];
        if number != expert {
            let reason = format!("expert {expert} of {count} or more is missing");
            return Err(LoadError::tensor("weights", &info.name, reason));
        }
        if tensor.dims != info.dims || tensor.dtype != raw[first].dtype {
            let reason = format!(
                "is {:?} {}, but expert 0 is {:?} {}",
                tensor.dims, tensor.dtype, info.dims, info.format
            );
            return Err(LoadError::tensor("weights", &tensor.name, reason));
        }
        info.assembly.pieces.push(Piece {
            tensor: index as u32,
            first_row: 0,
            row_count: rows,
        });
    }
    info.dims.insert(0, count);
    Ok(info)
}

/// Gemma stores its norm weights as `w - 1`. The sum is kept in f32, as the reference computes it.
fn undo_norm_offset(tensors: &mut [TensorInfo]) -> Result<(), LoadError> {
    for tensor in tensors.iter_mut().filter(|t| t.name.ends_with("norm.weight")) {
        if tensor.dims.len() != 1 {
            return Err(LoadError::tensor(
                "weights",
                &tensor.name,
                format!("has shape {:?}; a norm is a vector", tensor.dims),
            ));
        }
        tensor.assembly.offset = NormOffset::One;
        tensor.format = Format::F32;
    }
    Ok(())
}
