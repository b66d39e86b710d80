//! Llama 2 and 3, Mistral, SmolLM2 and what is shaped like them: grouped-query attention, gated SiLU, one rotary table.

use galvani_graph::{Activation, ValueId};
use galvani_weights::Config;

use crate::ModelError;
use crate::blocks::{Attention, Net, windows};
use crate::rope::rope;

pub(crate) fn build(net: &mut Net<'_>, config: &Config) -> Result<ValueId, ModelError> {
    config.require_eq("hidden_act", "silu")?;
    config.require_eq("pretraining_tp", 1)?;
    let attention_bias = config.bool_or("attention_bias", false)?;
    let mlp_bias = config.bool_or("mlp_bias", false)?;
    let inner = config.usize("intermediate_size")?;
    let rope = net.b.rope_table(rope(config, net.sizes.head_dim)?);
    // Mistral 7B v0.1 slides in all layers.
    let window = config.opt_usize("sliding_window")?;
    let windows = windows(config, net.sizes.layers, window, |_| true)?;
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
            qkv_bias: attention_bias,
            output_bias: attention_bias,
        };
        x = net.pre_norm_layer(x, attention, 1.0, |net, x| {
            net.gated_mlp(layer, x, inner, Activation::Silu, mlp_bias)
        })?;
    }
    net.head(x)
}
