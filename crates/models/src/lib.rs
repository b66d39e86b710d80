//! Model families: each turns a config into a graph. No quantisation format and no backend is named here.
//!
//! A family is one file over [`blocks`] and one row of [`families`]. Everything a family does not know, in the config or
//! among the tensors, fails the load by name.

#![forbid(unsafe_code)]

mod blocks;
mod error;
mod gemma3_text;
mod granite;
mod info;
mod llama;
mod qwen2;
mod qwen3;
mod qwen3_moe;
mod rope;
mod smollm3;

use std::collections::HashSet;

use galvani_graph::Graph;
use galvani_weights::{Checkpoint, Config};

pub use error::ModelError;
pub use info::ModelInfo;

use blocks::Net;

/// A model: what is computed, and what there is to say about it.
#[derive(Debug, Clone)]
pub struct Model {
    /// The graph, neither sharded nor fused.
    pub graph: Graph,
    /// Facts for people and for planning.
    pub info: ModelInfo,
}

/// One row of the registry.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// Name, as documents and messages have it.
    pub name: &'static str,
    /// Values of `model_type` that mean this family.
    pub model_types: &'static [&'static str],
    /// GGUF architectures that mean this family.
    pub gguf_architectures: &'static [&'static str],
    build: fn(&mut Net<'_>, &Config) -> Result<galvani_graph::ValueId, ModelError>,
}

const FAMILIES: [Family; 7] = [
    Family {
        name: "llama",
        model_types: &["llama", "mistral"],
        gguf_architectures: &["llama"],
        build: llama::build,
    },
    Family {
        name: "smollm3",
        model_types: &["smollm3"],
        gguf_architectures: &["smollm3"],
        build: smollm3::build,
    },
    Family {
        name: "qwen2",
        model_types: &["qwen2"],
        gguf_architectures: &["qwen2"],
        build: qwen2::build,
    },
    Family {
        name: "qwen3",
        model_types: &["qwen3"],
        gguf_architectures: &["qwen3"],
        build: qwen3::build,
    },
    Family {
        name: "qwen3_moe",
        model_types: &["qwen3_moe"],
        gguf_architectures: &["qwen3moe"],
        build: qwen3_moe::build,
    },
    Family {
        name: "granite",
        model_types: &["granite"],
        gguf_architectures: &["granite"],
        build: granite::build,
    },
    Family {
        name: "gemma3_text",
        model_types: &["gemma3_text"],
        gguf_architectures: &["gemma3"],
        build: gemma3_text::build,
    },
];

/// All families.
pub fn families() -> &'static [Family] {
    &FAMILIES
}

/// Builds the model of a checkpoint.
///
/// # Errors
/// When the family is not known, the config has a key or value that the family does not understand, or a tensor is
/// missing, has the wrong shape or is not used.
pub fn build(checkpoint: &Checkpoint) -> Result<Model, ModelError> {
    let config = checkpoint.config();
    let model_type = config.str("model_type")?;
    let family = FAMILIES
        .iter()
        .find(|family| family.model_types.contains(&model_type.as_str()))
        .ok_or_else(|| ModelError::Family {
            origin: checkpoint.origin().to_owned(),
            model_type: model_type.clone(),
            known: FAMILIES
                .iter()
                .flat_map(|family| family.model_types)
                .copied()
                .collect::<Vec<_>>()
                .join(", "),
        })?;
    let mut net = Net::new(checkpoint, &config)?;
    let logits = (family.build)(&mut net, &config)?;
    config.ignore(&IGNORED).finish()?;
    let (graph, sizes, factors) = net.finish(logits);
    all_used(checkpoint, &graph, &factors)?;
    let info = ModelInfo::new(family, &model_type, checkpoint, &graph, sizes);
    Ok(Model { graph, info })
}

/// Keys that do not change what a model computes, or that others read (the tokenizer, the sampler).
const IGNORED: [&str; 22] = [
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "bos_token_id",
    "cache_implementation",
    "dtype",
    "eos_token_id",
    "initializer_range",
    "is_llama_config",
    "output_router_logits",
    "pad_token_id",
    "router_aux_loss_coef",
    "task_specific_params",
    "tie_word_embeddings",
    "tokenizer_class",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "unsloth_fixed",
    "unsloth_version",
    "use_cache",
    "max_window_layers",
];

/// Every tensor of the file must have a place in the graph: what nobody reads may be half of the model.
fn all_used(checkpoint: &Checkpoint, graph: &Graph, factors: &[String]) -> Result<(), ModelError> {
    let weights = graph.weights.iter().map(|weight| weight.name.as_str());
    let used: HashSet<&str> = weights.chain(factors.iter().map(String::as_str)).collect();
    let unused: Vec<&str> = checkpoint
        .tensors()
        .iter()
        .map(|tensor| tensor.name.as_str())
        .filter(|name| !used.contains(name))
        .collect();
    if unused.is_empty() {
        return Ok(());
    }
    Err(ModelError::UnusedTensors {
        origin: checkpoint.origin().to_owned(),
        count: unused.len(),
        names: unused.iter().take(8).copied().collect::<Vec<_>>().join(", "),
    })
}
