//! SmolLM3: Llama, with layers that have no rotary embedding.

use galvani_graph::{Activation, ValueId};
use galvani_weights::Config;

use crate::ModelError;
use crate::blocks::{Attention, Net, windows};
use crate::rope::rope;

pub(crate) fn build(net: &mut Net<'_>, config: &Config) -> Result<ValueId, ModelError> {
    config.require_eq("hidden_act", "silu")?;
    config.require_eq("pretraining_tp", 1)?;
    config.require_eq("attention_bias", false)?;
    config.require_eq("mlp_bias", false)?;
    let inner = config.usize("intermediate_size")?;
    let rope = net.b.rope_table(rope(config, net.sizes.head_dim)?);
    let rotated = rotated_layers(config, net.sizes.layers)?;
    let window = config.opt_usize("sliding_window")?;
    let slides = config.bool_or("use_sliding_window", false)?;
    let windows = windows(config, net.sizes.layers, window, |_| slides)?;
    let scale = net.usual_scale();
    let mut x = net.embed(1.0)?;
    for (layer, window) in windows.into_iter().enumerate() {
        let attention = Attention {
            layer,
            scale,
            rope: rotated[layer].then_some(rope),
            window,
            softcap: None,
            head_norms: false,
            qkv_bias: false,
            output_bias: false,
        };
        x = net.pre_norm_layer(x, attention, 1.0, |net, x| {
            net.gated_mlp(layer, x, inner, Activation::Silu, false)
        })?;
    }
    net.head(x)
}

/// Which layers rotate: `no_rope_layers` has 1 where they do (its name notwithstanding), else every layer but each
/// `no_rope_layer_interval`-th.
fn rotated_layers(config: &Config, layers: usize) -> Result<Vec<bool>, ModelError> {
    let interval = config.usize_or("no_rope_layer_interval", 4)?.max(1);
    let Some(flags) = config.opt_usizes("no_rope_layers")? else {
        return Ok((1..=layers.min(1 << 16))
            .map(|layer| !layer.is_multiple_of(interval))
            .collect());
    };
    if flags.len() != layers || flags.iter().any(|&flag| flag > 1) {
        return Err(config
            .unsupported("no_rope_layers", format!("a 0 or 1 for each of {layers} layers"))
            .into());
    }
    Ok(flags.iter().map(|&flag| flag == 1).collect())
}
