//! Qwen2 and Qwen2.5: Llama with biases on q, k and v.

use galvani_graph::{Activation, ValueId};
use galvani_weights::Config;

use crate::ModelError;
use crate::blocks::{Attention, Net, windows};
use crate::rope::rope;

pub(crate) fn build(net: &mut Net<'_>, config: &Config) -> Result<ValueId, ModelError> {
    config.require_eq("hidden_act", "silu")?;
    config.require_eq("use_mrope", false)?;
    let inner = config.usize("intermediate_size")?;
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
            head_norms: false,
            qkv_bias: true,
            output_bias: false,
        };
        x = net.pre_norm_layer(x, attention, 1.0, |net, x| {
            net.gated_mlp(layer, x, inner, Activation::Silu, false)
        })?;
    }
    net.head(x)
}

/// Qwen's layers slide from `max_window_layers` on, and only where `use_sliding_window` says so.
pub(crate) fn qwen_windows(net: &Net<'_>, config: &Config) -> Result<Vec<Option<usize>>, ModelError> {
    let slides = config.bool_or("use_sliding_window", false)?;
    let first = config.usize_or("max_window_layers", 28)?;
    let window = config.opt_usize("sliding_window")?.filter(|_| slides);
    windows(config, net.sizes.layers, window, |layer| layer >= first)
}
