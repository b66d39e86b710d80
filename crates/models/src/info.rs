//! What there is to say about a model before a byte of it is loaded.

use std::collections::BTreeMap;

use galvani_graph::Graph;
use galvani_weights::Checkpoint;

use crate::Family;
use crate::blocks::Sizes;

/// Facts for people (`show`) and for planning (`plan`, limits).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// Name of the family.
    pub family: &'static str,
    /// `model_type`, in the hub's words.
    pub architecture: String,
    /// Tokens.
    pub vocab: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Decoder layers.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub head_dim: usize,
    /// Longest context the model was made for, tokens.
    pub context_max: usize,
    /// Numbers in all weights, a tied table counted once.
    pub parameter_count: u64,
    /// Parameters that one token touches: of the experts, those chosen.
    pub active_parameter_count: u64,
    /// Bytes of all weights as stored.
    pub weight_bytes: u64,
    /// Key and value bytes a token, in f16, all layers.
    pub kv_bytes_per_token: u64,
    /// Whether the output head is the embedding table.
    pub tied: bool,
    /// Experts of a layer, 0 without.
    pub experts: usize,
    /// Experts a token.
    pub experts_per_token: usize,
    /// Bytes of weights by format name, largest first.
    pub formats: Vec<(&'static str, u64)>,
    /// What is odd about the checkpoint; refused under `--strict`.
    pub warnings: Vec<String>,
}

impl ModelInfo {
    pub(crate) fn new(
        family: &Family,
        model_type: &str,
        checkpoint: &Checkpoint,
        graph: &Graph,
        sizes: Sizes,
    ) -> Self {
        let mut formats: BTreeMap<&'static str, u64> = BTreeMap::new();
        let (mut parameter_count, mut weight_bytes, mut expert_count) = (0u64, 0u64, 0u64);
        for tensor in graph
            .weights
            .iter()
            .filter_map(|weight| checkpoint.tensor(&weight.name))
        {
            let (numbers, bytes) = (tensor.number_count() as u64, tensor.byte_count() as u64);
            parameter_count += numbers;
            weight_bytes += bytes;
            *formats.entry(tensor.format.name()).or_default() += bytes;
            if tensor.dims.len() == 3 {
                expert_count += numbers;
            }
        }
        let mut formats: Vec<_> = formats.into_iter().collect();
        formats.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
        let per_token = |numbers: usize| numbers as u64 * 2;
        let idle = expert_count.checked_div(sizes.experts as u64).unwrap_or(0)
            * sizes.experts.saturating_sub(sizes.experts_per_token) as u64;
        Self {
            family: family.name,
            architecture: model_type.to_owned(),
            vocab: sizes.vocab,
            hidden: sizes.hidden,
            layers: sizes.layers,
            heads: sizes.heads,
            kv_heads: sizes.kv_heads,
            head_dim: sizes.head_dim,
            context_max: sizes.context_max,
            parameter_count,
            active_parameter_count: parameter_count - idle,
            weight_bytes,
            kv_bytes_per_token: graph
                .caches
                .iter()
                .map(|cache| per_token(cache.kv_heads * (cache.key_dim + cache.value_dim)))
                .sum(),
            tied: checkpoint.tied(),
            experts: sizes.experts,
            experts_per_token: sizes.experts_per_token,
            formats,
            warnings: checkpoint.warnings().to_vec(),
        }
    }
}
