//! Qwen3 with experts in every layer: softmax over all, the best few, their weights divided by their sum.

use galvani_graph::{RouterScore, ValueId};
use galvani_weights::Config;

use crate::ModelError;
use crate::blocks::{Experts, Net};

pub(crate) fn build(net: &mut Net<'_>, config: &Config) -> Result<ValueId, ModelError> {
    // The width of dense layers, of which there are none.
    config.ignore(&["intermediate_size"]);
    config.require_eq("decoder_sparse_step", 1)?;
    if config
        .opt_usizes("mlp_only_layers")?
        .is_some_and(|layers| !layers.is_empty())
    {
        return Err(config.unsupported("mlp_only_layers", "an empty list").into());
    }
    let experts = Experts {
        count: config.usize("num_experts")?,
        per_token: config.usize("num_experts_per_tok")?,
        inner: config.usize("moe_intermediate_size")?,
        score: RouterScore::Softmax,
        renormalise: config.bool_or("norm_topk_prob", false)?,
    };
    net.sizes.experts = experts.count;
    net.sizes.experts_per_token = experts.per_token;
    crate::qwen3::layers(net, config, |net, layer, x| net.experts(layer, x, experts))
}
