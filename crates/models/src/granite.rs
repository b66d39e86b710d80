//! Granite 3 and 4 (dense): Llama with four multipliers.

use galvani_graph::{Activation, Op, ValueId};
use galvani_weights::Config;

use crate::ModelError;
use crate::blocks::{Attention, Net};
use crate::rope::rope;

pub(crate) fn build(net: &mut Net<'_>, config: &Config) -> Result<ValueId, ModelError> {
    config.require_eq("hidden_act", "silu")?;
    config.require_eq("attention_bias", false)?;
    config.require_eq("mlp_bias", false)?;
    let inner = config.usize("intermediate_size")?;
    let scale = config.f32("attention_multiplier")?;
    let residual = config.f32("residual_multiplier")?;
    let logits_scaling = config.f32("logits_scaling")?;
    if !logits_scaling.is_normal() {
        return Err(config
            .unsupported("logits_scaling", "a number other than 0")
            .into());
    }
    let rope = net.b.rope_table(rope(config, net.sizes.head_dim)?);
    let mut x = net.embed(config.f32("embedding_multiplier")?)?;
    for layer in 0..net.sizes.layers {
        let attention = Attention {
            layer,
            scale,
            rope: Some(rope),
            window: None,
            softcap: None,
            head_norms: false,
            qkv_bias: false,
            output_bias: false,
        };
        x = net.pre_norm_layer(x, attention, residual, |net, x| {
            net.gated_mlp(layer, x, inner, Activation::Silu, false)
        })?;
    }
    let logits = net.head(x)?;
    let by = logits_scaling.recip();
    Ok(net.b.node(Op::Scale { by }, "logits", &[logits], &[])?)
}
