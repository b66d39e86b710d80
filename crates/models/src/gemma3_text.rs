//! Gemma 3, text: norms before and after each block, sliding and full layers with a rotary table each, a scaled embedding.

use galvani_graph::{Activation, Op, RopeScaling, RopeSpec, ValueId};
use galvani_weights::Config;

use crate::ModelError;
use crate::blocks::{Attention, Net, windows};
use crate::rope;

pub(crate) fn build(net: &mut Net<'_>, config: &Config) -> Result<ValueId, ModelError> {
    config.require_eq("hidden_activation", "gelu_pytorch_tanh")?;
    config.require_eq("hidden_act", "gelu_pytorch_tanh")?;
    config.require_eq("attention_bias", false)?;
    config.require_eq("use_bidirectional_attention", false)?;
    let inner = config.usize("intermediate_size")?;
    let scale = config.f32("query_pre_attn_scalar")?.sqrt().recip();
    if !scale.is_normal() {
        return Err(config
            .unsupported("query_pre_attn_scalar", "a number above 0")
            .into());
    }
    let softcap = config.opt_f32("attn_logit_softcapping")?;
    let final_cap = config.opt_f32("final_logit_softcapping")?;
    let (full, sliding) = ropes(config, net.sizes.head_dim)?;
    let (full, sliding) = (net.b.rope_table(full), net.b.rope_table(sliding));
    let window = config.opt_usize("sliding_window")?;
    let old_period = config.opt_usize("sliding_window_pattern")?;
    let period = config
        .opt_usize("_sliding_window_pattern")?
        .or(old_period)
        .unwrap_or(6)
        .max(1);
    let windows = windows(config, net.sizes.layers, window, |layer| {
        !(layer + 1).is_multiple_of(period)
    })?;
    let hidden = net.sizes.hidden;
    let mut x = net.embed((hidden as f32).sqrt())?;
    for (layer, window) in windows.into_iter().enumerate() {
        let name = |part: &str| format!("layers.{layer}.{part}");
        let attention = Attention {
            layer,
            scale,
            rope: Some(if window.is_some() { sliding } else { full }),
            window,
            softcap,
            head_norms: true,
            qkv_bias: false,
            output_bias: false,
        };
        let normed = net.norm(&name("input_layernorm"), x, hidden)?;
        let attended = net.attention(normed, attention)?;
        let attended = net.norm(&name("post_attention_layernorm"), attended, hidden)?;
        x = net.b.add(&name("attention_residual"), x, attended, 1.0)?;
        let normed = net.norm(&name("pre_feedforward_layernorm"), x, hidden)?;
        let out = net.gated_mlp(layer, normed, inner, Activation::GeluTanh, false)?;
        let out = net.norm(&name("post_feedforward_layernorm"), out, hidden)?;
        x = net.b.add(&name("residual"), x, out, 1.0)?;
    }
    let logits = net.head(x)?;
    match final_cap {
        Some(cap) => Ok(net.b.node(Op::Softcap { cap }, "logits", &[logits], &[])?),
        None => Ok(logits),
    }
}

/// The tables of full and of sliding layers; older configs write them as `rope_theta` and `rope_local_base_freq`.
fn ropes(config: &Config, dims: usize) -> Result<(RopeSpec, RopeSpec), ModelError> {
    if let Some(both) = config.object("rope_parameters")? {
        let part = |key: &str| {
            both.object(key)?
                .ok_or_else(|| both.unsupported(key, "an object with `rope_theta`"))
        };
        let full = rope::spec(&part("full_attention")?, dims, None)?;
        return Ok((full, rope::spec(&part("sliding_attention")?, dims, None)?));
    }
    let theta = config.f32_or("rope_theta", 1_000_000.0)?;
    let full = match config.object("rope_scaling")? {
        Some(scaling) => rope::spec(&scaling, dims, Some(theta))?,
        None => RopeSpec {
            dims,
            theta,
            scaling: RopeScaling::None,
        },
    };
    let theta = config.f32_or("rope_local_base_freq", 10_000.0)?;
    Ok((
        full,
        RopeSpec {
            dims,
            theta,
            scaling: RopeScaling::None,
        },
    ))
}
