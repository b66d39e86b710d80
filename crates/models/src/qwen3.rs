//! Qwen3, dense: Llama with a norm on each query and key head.

use galvani_graph::{Activation, ValueId};
use galvani_weights::Config;

use crate::ModelError;
use crate::blocks::{Attention, Net};
use crate::qwen2::qwen_windows;
use crate::rope::rope;

pub(crate) fn build(net: &mut Net<'_>, config: &Config) -> Result<ValueId, ModelError> {
    let inner = config.usize("intermediate_size")?;
    layers(net, config, |net, layer, x| {
        net.gated_mlp(layer, x, inner, Activation::Silu, false)
    })
}

/// The decoder around a feed-forward block, shared with the mixture of experts.
pub(crate) fn layers(
    net: &mut Net<'_>,
    config: &Config,
    feed_forward: impl Fn(&mut Net<'_>, usize, ValueId) -> Result<ValueId, ModelError>,
) -> Result<ValueId, ModelError> {
    config.require_eq("hidden_act", "silu")?;
    let bias = config.bool_or("attention_bias", false)?;
    let rope = net.b.rope_table(rope(config, net.sizes.head_dim)?);
    let windows = qwen_windows(net, config)?;
    let scale = net.usual_scale();
    let mut x = net.embed(1.0)?;
    for (layer, window) in windows.into_iter().enumerate() {
        let attention = Attention {
            layer,
            scale,
            rope: Some(rope),
            window,
            softcap: None,
            head_norms: true,
            qkv_bias: bias,
            output_bias: bias,
        };
        x = net.pre_norm_layer(x, attention, 1.0, |net, x| feed_forward(net, layer, x))?;
    }
    net.head(x)
}
