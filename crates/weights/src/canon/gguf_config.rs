//! GGUF's metadata as the hub's config.json would say it, so that each family reads one vocabulary.
//!
//! The reading is as strict as that of a config: a key of the architecture that nobody asked for is an error.

use std::cell::RefCell;
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::LoadError;
use crate::canon::gguf_names::GgufShape;
use crate::gguf::{Gguf, Metadata};

/// (GGUF architecture, hub model type, whether converters interleave rotary pairs)
const ARCHITECTURES: [(&str, &str, bool); 7] = [
    ("llama", "llama", true),
    ("smollm3", "smollm3", true),
    ("granite", "granite", true),
    ("qwen2", "qwen2", false),
    ("qwen3", "qwen3", false),
    ("qwen3moe", "qwen3_moe", false),
    ("gemma3", "gemma3_text", false),
];

/// The config of `gguf`, and what its tensors look like. `divisors` are the numbers of `rope_freqs.weight`, if there.
pub(crate) fn translate(
    gguf: &Gguf,
    divisors: Option<Vec<f32>>,
) -> Result<(Map<String, Value>, GgufShape), LoadError> {
    let metadata = gguf.metadata();
    let key = "general.architecture";
    let architecture = metadata.need(key, metadata.get_str(key)?)?;
    let Some(&(architecture, model_type, paired_rows)) =
        ARCHITECTURES.iter().find(|row| row.0 == architecture)
    else {
        return Err(LoadError::Value {
            origin: metadata.origin().to_owned(),
            key: key.to_owned(),
            found: crate::error::shown(architecture),
            allowed: ARCHITECTURES.map(|row| row.0).join(", "),
        });
    };
    let keys = Keys {
        metadata,
        architecture,
        read: RefCell::default(),
    };
    let mut config = Map::new();
    config.insert("model_type".into(), model_type.into());
    let shape = keys.common(&mut config, gguf, paired_rows)?;
    match architecture {
        "smollm3" => keys.smollm3(&mut config)?,
        "granite" => keys.granite(&mut config)?,
        "qwen3moe" => keys.qwen3moe(&mut config)?,
        "gemma3" => keys.gemma3(&mut config, shape)?,
        _ => {}
    }
    if architecture != "gemma3" {
        keys.rope(&mut config, divisors)?;
    }
    if architecture != "qwen3moe" {
        keys.must_be("expert_count", keys.usize("expert_count")?, 0)?;
        keys.must_be("expert_used_count", keys.usize("expert_used_count")?, 0)?;
    }
    keys.finish()?;
    let sandwich_norms = architecture == "gemma3";
    Ok((
        config,
        GgufShape {
            sandwich_norms,
            ..shape
        },
    ))
}

/// The keys of one architecture, which remember that they were read.
struct Keys<'a> {
    metadata: &'a Metadata,
    architecture: &'static str,
    read: RefCell<BTreeSet<String>>,
}

impl Keys<'_> {
    fn path(&self, key: &str) -> String {
        let path = format!("{}.{key}", self.architecture);
        self.read.borrow_mut().insert(path.clone());
        path
    }

    fn usize(&self, key: &str) -> Result<Option<usize>, LoadError> {
        self.metadata.get_usize(&self.path(key))
    }

    fn f32(&self, key: &str) -> Result<Option<f32>, LoadError> {
        self.metadata.get_f32(&self.path(key))
    }

    fn text(&self, key: &str) -> Result<Option<&str>, LoadError> {
        self.metadata.get_str(&self.path(key))
    }

    fn need<T>(&self, key: &str, value: Option<T>) -> Result<T, LoadError> {
        self.metadata.need(&format!("{}.{key}", self.architecture), value)
    }

    fn unsupported(&self, key: &str, found: impl ToString, allowed: impl ToString) -> LoadError {
        LoadError::Value {
            origin: self.metadata.origin().to_owned(),
            key: self.path(key),
            found: found.to_string(),
            allowed: allowed.to_string(),
        }
    }

    /// Where the key stands, it must say `wanted`.
    fn must_be<T: PartialEq + ToString>(
        &self,
        key: &str,
        found: Option<T>,
        wanted: T,
    ) -> Result<(), LoadError> {
        match found {
            Some(found) if found != wanted => {
                Err(self.unsupported(key, found.to_string(), wanted.to_string()))
            }
            _ => Ok(()),
        }
    }

    fn finish(&self) -> Result<(), LoadError> {
        let prefix = format!("{}.", self.architecture);
        let read = self.read.borrow();
        let keys: Vec<String> = self
            .metadata
            .iter()
            .filter(|(key, _)| key.starts_with(&prefix) && !read.contains(*key))
            .map(|(key, value)| format!("{} = {value}", crate::error::shown(key)))
            .collect();
        if keys.is_empty() {
            return Ok(());
        }
        Err(LoadError::UnreadKeys {
            origin: self.metadata.origin().to_owned(),
            keys,
        })
    }

    /// What all architectures have.
    fn common(
        &self,
        config: &mut Map<String, Value>,
        gguf: &Gguf,
        paired_rows: bool,
    ) -> Result<GgufShape, LoadError> {
        let origin = self.metadata.origin();
        let size = |key: &str| self.need(key, self.usize(key)?);
        let hidden = size("embedding_length")?;
        let heads = size("attention.head_count")?;
        let kv_heads = self.usize("attention.head_count_kv")?.unwrap_or(heads);
        if heads == 0 {
            return Err(self.unsupported("attention.head_count", 0, "1 and more"));
        }
        let head_dim = self.usize("attention.key_length")?.unwrap_or(hidden / heads);
        self.must_be(
            "attention.value_length",
            self.usize("attention.value_length")?,
            head_dim,
        )?;
        self.must_be(
            "rope.dimension_count",
            self.usize("rope.dimension_count")?,
            head_dim,
        )?;
        let table = gguf.tensor("token_embd.weight");
        let table = table.ok_or_else(|| LoadError::tensor(origin, "token_embd.weight", "is missing"))?;
        let vocab = table.dims.first().copied().unwrap_or(0);
        self.must_be("vocab_size", self.usize("vocab_size")?, vocab)?;
        let causal = "attention.causal";
        self.must_be(causal, self.metadata.get_bool(&self.path(causal))?, true)?;
        let epsilon = "attention.layer_norm_rms_epsilon";
        let epsilon = self.need(epsilon, self.f32(epsilon)?)?;
        let entries = [
            ("vocab_size", json!(vocab)),
            ("hidden_size", json!(hidden)),
            ("num_hidden_layers", json!(size("block_count")?)),
            ("num_attention_heads", json!(heads)),
            ("num_key_value_heads", json!(kv_heads)),
            ("head_dim", json!(head_dim)),
            ("max_position_embeddings", json!(size("context_length")?)),
            ("rms_norm_eps", json!(epsilon)),
            (
                "tie_word_embeddings",
                json!(gguf.tensor("output.weight").is_none()),
            ),
        ];
        config.extend(entries.map(|(key, value)| (key.to_owned(), value)));
        self.feed_forward(config)?;
        Ok(GgufShape {
            head_dim,
            query_heads: heads,
            kv_heads,
            paired_rows,
            sandwich_norms: false,
        })
    }

    fn feed_forward(&self, config: &mut Map<String, Value>) -> Result<(), LoadError> {
        let inner = self.usize("feed_forward_length")?;
        if self.architecture != "qwen3moe" {
            config.insert(
                "intermediate_size".into(),
                self.need("feed_forward_length", inner)?.into(),
            );
        }
        let activation = if self.architecture == "gemma3" {
            "hidden_activation"
        } else {
            "hidden_act"
        };
        let name = if self.architecture == "gemma3" {
            "gelu_pytorch_tanh"
        } else {
            "silu"
        };
        config.insert(activation.into(), name.into());
        Ok(())
    }

    fn rope(&self, config: &mut Map<String, Value>, divisors: Option<Vec<f32>>) -> Result<(), LoadError> {
        config.insert(
            "rope_theta".into(),
            json!(self.f32("rope.freq_base")?.unwrap_or(10_000.0)),
        );
        let mut scaling = self.rope_scaling()?;
        if let Some(divisors) = divisors {
            if scaling.is_some() {
                return Err(self.unsupported(
                    "rope.scaling.type",
                    "given beside rope_freqs.weight",
                    "one of the two",
                ));
            }
            scaling = Some(json!({ "rope_type": "divisors", "divisors": divisors }));
        }
        config.insert("rope_scaling".into(), scaling.unwrap_or(Value::Null));
        Ok(())
    }

    fn rope_scaling(&self) -> Result<Option<Value>, LoadError> {
        let factor = self.f32("rope.scaling.factor")?;
        let original = self.usize("rope.scaling.original_context_length")?;
        let old_factor = self.f32("rope.scale_linear")?;
        let finetuned = "rope.scaling.finetuned";
        self.metadata.get_bool(&self.path(finetuned))?;
        let key = "rope.scaling.type";
        let kind = self.text(key)?;
        match kind {
            None if old_factor.is_some_and(|factor| factor != 1.0) => {
                Ok(Some(json!({ "rope_type": "linear", "factor": old_factor })))
            }
            None | Some("none") => {
                self.must_be("rope.scaling.factor", factor, 1.0)?;
                Ok(None)
            }
            Some("linear") => Ok(Some(
                json!({ "rope_type": "linear", "factor": self.need("rope.scaling.factor", factor)? }),
            )),
            Some("yarn") => Ok(Some(json!({
                "rope_type": "yarn",
                "factor": self.need("rope.scaling.factor", factor)?,
                "original_max_position_embeddings": self.need("rope.scaling.original_context_length", original)?,
                "beta_fast": self.f32("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                "beta_slow": self.f32("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                "attention_factor": self.f32("rope.scaling.attn_factor")?,
            }))),
            Some(other) => Err(self.unsupported(key, crate::error::shown(other), "none, linear, yarn")),
        }
    }

    /// The GGUF format has no key for it: every fourth layer goes without rotary embedding.
    fn smollm3(&self, config: &mut Map<String, Value>) -> Result<(), LoadError> {
        let layers = self.need("block_count", self.usize("block_count")?)?;
        // A hostile count must not make us allocate; no model has as many layers as this.
        if layers > 1 << 16 {
            return Err(self.unsupported("block_count", layers, "at most 65536"));
        }
        let pattern: Vec<u8> = (1..=layers)
            .map(|layer| u8::from(!layer.is_multiple_of(4)))
            .collect();
        config.insert("no_rope_layers".into(), json!(pattern));
        Ok(())
    }

    fn granite(&self, config: &mut Map<String, Value>) -> Result<(), LoadError> {
        let rows = [
            ("attention.scale", "attention_multiplier"),
            ("embedding_scale", "embedding_multiplier"),
            ("residual_scale", "residual_multiplier"),
            ("logit_scale", "logits_scaling"),
        ];
        for (key, hub) in rows {
            config.insert(hub.into(), json!(self.need(key, self.f32(key)?)?));
        }
        Ok(())
    }

    fn qwen3moe(&self, config: &mut Map<String, Value>) -> Result<(), LoadError> {
        let rows = [
            ("expert_count", "num_experts"),
            ("expert_used_count", "num_experts_per_tok"),
            ("expert_feed_forward_length", "moe_intermediate_size"),
        ];
        for (key, hub) in rows {
            config.insert(hub.into(), json!(self.need(key, self.usize(key)?)?));
        }
        // The architecture divides the chosen weights by their sum unless the file says otherwise.
        let norm = "expert_weights_norm";
        let renormalise = self.metadata.get_bool(&self.path(norm))?.unwrap_or(true);
        config.insert("norm_topk_prob".into(), json!(renormalise));
        self.must_be(
            "expert_weights_scale",
            self.f32("expert_weights_scale")?.filter(|&s| s != 0.0),
            1.0,
        )?;
        self.must_be("expert_gating_func", self.usize("expert_gating_func")?, 1)?;
        self.must_be("expert_shared_count", self.usize("expert_shared_count")?, 0)?;
        self.must_be(
            "leading_dense_block_count",
            self.usize("leading_dense_block_count")?,
            0,
        )
    }

    fn gemma3(&self, config: &mut Map<String, Value>, shape: GgufShape) -> Result<(), LoadError> {
        let layers = self.need("block_count", self.usize("block_count")?)?;
        if layers > 1 << 16 {
            return Err(self.unsupported("block_count", layers, "at most 65536"));
        }
        let key = "attention.sliding_window";
        let window = self.need(key, self.usize(key)?)?;
        let pattern = self.path("attention.sliding_window_pattern");
        let sliding: Vec<bool> = match self.metadata.get(&pattern) {
            Some(value) if value.integer().is_none() => {
                self.metadata.get_bools(&pattern)?.unwrap_or_default()
            }
            _ => {
                let period = self.metadata.get_usize(&pattern)?.unwrap_or(6).max(1);
                (1..=layers).map(|layer| !layer.is_multiple_of(period)).collect()
            }
        };
        let types: Vec<_> = sliding
            .iter()
            .map(|&s| if s { "sliding_attention" } else { "full_attention" })
            .collect();
        // The 27B model alone (62 layers) scales by hidden / heads instead of the head's size; GGUF has no key for it.
        let scalar = if layers == 62 {
            self.need("embedding_length", self.usize("embedding_length")?)? / shape.query_heads
        } else {
            shape.head_dim
        };
        let full_theta = self.f32("rope.freq_base")?.unwrap_or(1_000_000.0);
        let mut full = self
            .rope_scaling()?
            .unwrap_or_else(|| json!({ "rope_type": "default" }));
        full["rope_theta"] = json!(full_theta);
        let sliding_theta = self.f32("rope.freq_base_swa")?.unwrap_or(10_000.0);
        let entries = [
            ("sliding_window", json!(window)),
            ("layer_types", json!(types)),
            ("query_pre_attn_scalar", json!(scalar)),
            (
                "attn_logit_softcapping",
                json!(self.f32("attn_logit_softcapping")?),
            ),
            (
                "final_logit_softcapping",
                json!(self.f32("final_logit_softcapping")?),
            ),
            (
                "rope_parameters",
                json!({
                    "full_attention": full,
                    "sliding_attention": { "rope_type": "default", "rope_theta": sliding_theta },
                }),
            ),
        ];
        config.extend(entries.map(|(key, value)| (key.to_owned(), value)));
        Ok(())
    }
}
