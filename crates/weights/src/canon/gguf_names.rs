//! GGUF's tensors: short names become the hub's, rows of query and key products are put back in order.

use crate::canon::{Piece, RowOrder, TensorInfo};
use crate::{LoadError, RawTensor};

/// What is needed to know about an architecture to read its tensors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GgufShape {
    pub(crate) head_dim: usize,
    pub(crate) query_heads: usize,
    pub(crate) kv_heads: usize,
    /// Converters interleave the rotary pairs of this architecture.
    pub(crate) paired_rows: bool,
    /// Norms stand after the blocks too, so `ffn_norm` is the one before the feed-forward block.
    pub(crate) sandwich_norms: bool,
}

/// Tensors that are read elsewhere (`rope_freqs` goes into the config) or are not for plain weights.
const IGNORED: [&str; 3] = ["rope_freqs.weight", ".attn_rot_embd", ".input_scale"];

/// Part of a block's name, canonical form.
const BLOCK: [(&str, &str); 17] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("ffn_gate_inp", "mlp.gate"),
    ("ffn_gate_exps", "mlp.experts.gate_proj"),
    ("ffn_up_exps", "mlp.experts.up_proj"),
    ("ffn_down_exps", "mlp.experts.down_proj"),
    ("ffn_norm", "post_attention_layernorm"),
];

/// Canonical tensors of a GGUF checkpoint. Tensors that have no canonical name keep their own, so that a load names them
/// as not understood.
pub(crate) fn from_gguf(raw: &[RawTensor], shape: GgufShape) -> Result<Vec<TensorInfo>, LoadError> {
    let mut tensors = Vec::with_capacity(raw.len());
    for (index, tensor) in raw.iter().enumerate() {
        let name = tensor.name.as_str();
        if IGNORED.iter().any(|ending| name.ends_with(ending)) {
            continue;
        }
        if let Some((layer, "attn_qkv", "weight")) = block_part(name) {
            fused_attention(&mut tensors, layer, index, tensor, shape)?;
        } else if let Some((layer, "ffn_gate_up_exps", "weight")) = block_part(name) {
            for (half, part) in ["gate_proj", "up_proj"].into_iter().enumerate() {
                let name = format!("layers.{layer}.mlp.experts.{part}.weight");
                tensors.push(TensorInfo::expert_half(name, index, tensor, half)?);
            }
        } else {
            let mut info = TensorInfo::whole(canonical(name, shape), index, tensor)?;
            if shape.paired_rows && is_query_or_key(&info.name) {
                set_pairs(&mut info, shape.head_dim)?;
            }
            tensors.push(info);
        }
    }
    Ok(tensors)
}

/// `blk.3.attn_q.weight` -> (`3`, `attn_q`, `weight`).
fn block_part(name: &str) -> Option<(&str, &str, &str)> {
    let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    let (part, ending) = rest.rsplit_once('.')?;
    Some((layer, part, ending))
}

fn canonical(name: &str, shape: GgufShape) -> String {
    match name {
        "token_embd.weight" => return "embed_tokens.weight".into(),
        "output_norm.weight" => return "norm.weight".into(),
        "output.weight" => return "lm_head.weight".into(),
        _ => {}
    }
    let Some((layer, part, ending)) = block_part(name) else {
        return name.to_owned();
    };
    if shape.sandwich_norms && part == "ffn_norm" {
        return format!("layers.{layer}.pre_feedforward_layernorm.{ending}");
    }
    match BLOCK.iter().find(|row| row.0 == part) {
        Some((_, canonical)) => format!("layers.{layer}.{canonical}.{ending}"),
        None => name.to_owned(),
    }
}

fn is_query_or_key(name: &str) -> bool {
    let ends = [".q_proj.weight", ".k_proj.weight", ".q_proj.bias", ".k_proj.bias"];
    ends.iter().any(|end| name.ends_with(end))
}

fn set_pairs(info: &mut TensorInfo, head_dim: usize) -> Result<(), LoadError> {
    if head_dim == 0 || !head_dim.is_multiple_of(2) || !info.row_count().is_multiple_of(head_dim) {
        let reason = format!(
            "{} rows are not whole heads of {head_dim}, an even number",
            info.row_count()
        );
        return Err(LoadError::tensor("weights", &info.name, reason));
    }
    info.assembly.order = RowOrder::Pairs { head_dim };
    Ok(())
}

/// `attn_qkv.weight` holds the rows of q, k and v, one after the other.
fn fused_attention(
    tensors: &mut Vec<TensorInfo>,
    layer: &str,
    index: usize,
    raw: &RawTensor,
    shape: GgufShape,
) -> Result<(), LoadError> {
    let whole = TensorInfo::whole(String::new(), index, raw)?;
    let heads = [
        ("q_proj", shape.query_heads),
        ("k_proj", shape.kv_heads),
        ("v_proj", shape.kv_heads),
    ];
    let wanted: usize = heads.iter().map(|(_, heads)| heads * shape.head_dim).sum();
    if whole.dims.len() != 2 || whole.row_count() != wanted {
        let reason = format!(
            "has shape {:?}; {wanted} rows of q, k and v were expected",
            whole.dims
        );
        return Err(LoadError::tensor("weights", &raw.name, reason));
    }
    let mut first_row = 0;
    for (part, heads) in heads {
        let row_count = heads * shape.head_dim;
        let mut info = whole.clone();
        info.name = format!("layers.{layer}.self_attn.{part}.weight");
        info.dims[0] = row_count;
        info.assembly.pieces = vec![Piece {
            tensor: index as u32,
            first_row,
            row_count,
        }];
        if shape.paired_rows && part != "v_proj" {
            set_pairs(&mut info, shape.head_dim)?;
        }
        first_row += row_count;
        tensors.push(info);
    }
    Ok(())
}
