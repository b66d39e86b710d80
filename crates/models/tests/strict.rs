//! What a family does not understand fails the load, by name.

mod common;

use common::golden_path;
use galvani_models::{ModelError, build, families};
use galvani_weights::gguf::Gguf;
use galvani_weights::safetensors::Safetensors;
use galvani_weights::{Checkpoint, LoadError};
use serde_json::{Map, Value, json};

/// A tiny checkpoint taken apart: config and tensors can be changed before it is opened.
struct Parts {
    config: Map<String, Value>,
    header: Map<String, Value>,
    data: Vec<u8>,
}

impl Parts {
    fn of(family: &str) -> Self {
        let folder = golden_path(&format!("tiny/{family}"));
        let config = std::fs::read(folder.join("config.json")).unwrap();
        let file = std::fs::read(folder.join("model.safetensors")).unwrap();
        let len = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
        Self {
            config: serde_json::from_slice(&config).unwrap(),
            header: serde_json::from_slice(&file[8..8 + len]).unwrap(),
            data: file[8 + len..].to_vec(),
        }
    }

    fn set(mut self, key: &str, value: Value) -> Self {
        self.config.insert(key.into(), value);
        self
    }

    fn rename(mut self, from: &str, to: &str) -> Self {
        let entry = self.header.remove(from).unwrap();
        self.header.insert(to.into(), entry);
        self
    }

    /// Adds a copy of tensor `from`; `change` is xored into its first byte.
    fn copy(mut self, from: &str, to: &str, change: u8) -> Self {
        let mut entry = self.header[from].clone();
        let range = entry["data_offsets"].as_array().unwrap().clone();
        let (start, end) = (
            range[0].as_u64().unwrap() as usize,
            range[1].as_u64().unwrap() as usize,
        );
        let at = self.data.len();
        self.data.extend_from_within(start..end);
        self.data[at] ^= change;
        entry["data_offsets"] = json!([at, self.data.len()]);
        self.header.insert(to.into(), entry);
        self
    }

    fn add(mut self, name: &str, dims: &[usize], numbers: &[f32]) -> Self {
        let at = self.data.len();
        self.data.extend(numbers.iter().flat_map(|n| n.to_le_bytes()));
        let entry = json!({"dtype": "F32", "shape": dims, "data_offsets": [at, self.data.len()]});
        self.header.insert(name.into(), entry);
        self
    }

    fn open(&self) -> Result<Checkpoint, LoadError> {
        let header = serde_json::to_vec(&self.header).unwrap();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header);
        file.extend(&self.data);
        let config = serde_json::to_vec(&self.config).unwrap();
        Checkpoint::from_hub(
            Safetensors::from_bytes("model.safetensors", file)?,
            config,
            "config.json",
            None,
        )
    }

    fn error(&self) -> String {
        match self.open() {
            Err(error) => error.to_string(),
            Ok(checkpoint) => match build(&checkpoint) {
                Err(error) => error.to_string(),
                Ok(_) => panic!("it loads"),
            },
        }
    }
}

#[test]
fn unexpected_config_values() {
    let cases: [(&str, &str, Value, &str); 21] = [
        ("llama", "hidden_act", json!("gelu"), "hidden_act"),
        ("llama", "a_new_key", json!(3), "a_new_key"),
        ("llama", "pretraining_tp", json!(2), "pretraining_tp"),
        ("llama", "num_attention_heads", json!(0), "num_attention_heads"),
        ("llama", "num_key_value_heads", json!(3), "num_key_value_heads"),
        ("llama", "hidden_size", json!("64"), "hidden_size"),
        ("llama", "hidden_size", json!(128), "embed_tokens.weight"),
        ("llama", "num_hidden_layers", json!(2), "layers.2."),
        ("llama", "num_hidden_layers", json!(1_000_000_000), "layers.3."),
        (
            "llama",
            "attention_bias",
            json!(true),
            "layers.0.self_attn.q_proj.bias",
        ),
        (
            "llama",
            "rope_parameters",
            json!({"rope_type": "dynamic", "factor": 2.0}),
            "rope_parameters.rope_type",
        ),
        (
            "llama",
            "rope_parameters",
            json!({"rope_type": "llama3", "factor": 8.0}),
            "low_freq_factor",
        ),
        (
            "llama",
            "rope_parameters",
            json!({"rope_type": "linear", "factor": 0.0}),
            "rope_parameters.factor",
        ),
        (
            "llama",
            "rope_parameters",
            json!({"rope_type": "default", "odd": 1}),
            "rope_parameters.odd",
        ),
        (
            "llama",
            "quantization_config",
            json!({"bits": 4}),
            "quantization_config",
        ),
        ("llama", "model_type", json!("llama9"), "llama9"),
        ("qwen3_moe", "mlp_only_layers", json!([1]), "mlp_only_layers"),
        ("qwen3_moe", "num_experts_per_tok", json!(9), "top_k"),
        ("smollm3", "no_rope_layers", json!([1, 0]), "no_rope_layers"),
        (
            "gemma3_text",
            "layer_types",
            json!(["full_attention"]),
            "layer_types",
        ),
        ("gemma3_text", "sliding_window", Value::Null, "sliding_window"),
    ];
    for (family, key, value, wanted) in cases {
        let error = Parts::of(family).set(key, value.clone()).error();
        assert!(error.contains(wanted), "{family} {key} = {value}: {error}");
    }
    let mut missing = Parts::of("llama");
    missing.config.remove("rms_norm_eps");
    assert!(missing.error().contains("rms_norm_eps"));
}

#[test]
fn tensors_must_fit() {
    let norm = "model.layers.1.input_layernorm.weight";
    let expert = "model.layers.0.mlp.experts.3.up_proj.weight";
    let cases = [
        (
            Parts::of("llama").rename(norm, "model.layers.1.odd.weight"),
            "layers.1.input_layernorm.weight` is missing",
        ),
        (
            Parts::of("llama").copy(norm, "model.layers.1.odd.weight", 0),
            "not understood: layers.1.odd.weight",
        ),
        (
            Parts::of("llama").copy(norm, "layers.1.input_layernorm.weight", 0),
            "twice",
        ),
        (
            Parts::of("qwen3_moe").rename(expert, "model.layers.0.mlp.experts.9.up_proj.weight"),
            "expert 3 of 8",
        ),
        (
            Parts::of("qwen3_moe").rename(expert, "model.layers.0.odd.weight"),
            "expert 3 of 7",
        ),
    ];
    for (parts, wanted) in cases {
        let error = parts.error();
        assert!(error.contains(wanted), "wanted {wanted}: {error}");
    }
    // Old checkpoints hold the rotary table; that is not a fault.
    let old = Parts::of("llama").copy(norm, "model.layers.1.self_attn.rotary_emb.inv_freq", 0);
    build(&old.open().unwrap()).unwrap();
}

/// Factors beside weights, as NVFP4 files have them: applied, or refused by name.
#[test]
fn factors_beside_weights() {
    let golden = common::golden("tiny/qwen3");
    let logits = |parts: Parts| {
        let checkpoint = parts.open().unwrap();
        let graph = build(&checkpoint).unwrap().graph;
        common::logits(
            &galvani_cpu::reference::Reference,
            &graph,
            &checkpoint,
            &golden.ids,
            common::Feed::Whole,
        )
    };
    // The scale of v goes through attention and o unchanged, so 2 and one half cancel; the head's doubles the logits.
    let both = Parts::of("qwen3")
        .add("model.layers.1.self_attn.v_proj.scale", &[1], &[2.0])
        .add("model.layers.1.self_attn.o_proj.scale", &[1], &[0.5]);
    assert!(common::worst(&logits(both), &golden.logits) < 1e-4);
    let doubled: Vec<f32> = golden.logits.iter().map(|l| l * 2.0).collect();
    let untied = Parts::of("qwen3")
        .set("tie_word_embeddings", json!(false))
        .copy("model.embed_tokens.weight", "lm_head.weight", 0)
        .add("lm_head.scale", &[1], &[2.0]);
    assert!(common::worst(&logits(untied), &doubled) < 2e-4);

    let name = "model.layers.0.mlp.experts.up_proj.scale";
    let ones = Parts::of("qwen3_moe").add(name, &[8], &[1.0; 8]);
    build(&ones.open().unwrap()).unwrap();
    let refused = [
        Parts::of("qwen3_moe").add(name, &[8], &[2.0; 8]),
        Parts::of("qwen3_moe").add(name, &[1], &[2.0]),
        Parts::of("qwen3").add("model.layers.0.self_attn.q_proj.scale", &[2], &[2.0; 2]),
        Parts::of("qwen3").add("model.norm.scale", &[1], &[1.0]),
        Parts::of("qwen2").add("model.layers.0.self_attn.q_proj.scale", &[1], &[2.0]),
    ];
    for parts in refused {
        let error = parts.error();
        assert!(
            error.contains(".scale") && error.contains("not understood"),
            "{error}"
        );
    }
}

/// Tied embeddings in their three shapes, and untied ones.
#[test]
fn tied_heads() {
    let table = "model.embed_tokens.weight";
    // (config, head: None, or a copy with this byte changed; tied, warnings)
    let cases: [(Value, Option<u8>, bool, usize); 6] = [
        (json!(true), None, true, 0),
        (json!(true), Some(0), true, 0),
        (json!(true), Some(1), true, 1),
        (json!(false), Some(1), false, 0),
        (Value::Null, None, true, 0),
        (Value::Null, Some(1), false, 0),
    ];
    for (tie, head, tied, warnings) in cases {
        let mut parts = Parts::of("qwen3").set("tie_word_embeddings", tie.clone());
        if let Some(change) = head {
            parts = parts.copy(table, "lm_head.weight", change);
        }
        let info = build(&parts.open().unwrap()).unwrap().info;
        assert_eq!(
            (info.tied, info.warnings.len()),
            (tied, warnings),
            "{tie} {head:?}"
        );
        assert!(
            info.warnings
                .iter()
                .all(|warning| warning.contains("lm_head.weight"))
        );
    }
    let error = Parts::of("qwen3")
        .set("tie_word_embeddings", json!(false))
        .error();
    assert!(error.contains("`lm_head.weight` is missing"), "{error}");
}

/// Changes text of the same length in a GGUF file.
fn edited(family: &str, from: &str, to: &str) -> String {
    assert_eq!(from.len(), to.len());
    let mut bytes = std::fs::read(golden_path(&format!("tiny/{family}/model-f32.gguf"))).unwrap();
    let mut found = 0;
    for at in 0..bytes.len().min(1 << 16) - from.len() {
        if &bytes[at..at + from.len()] == from.as_bytes() {
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            found += 1;
        }
    }
    assert!(found > 0, "{from} is not in the file");
    let opened = Gguf::from_bytes("m.gguf", bytes).and_then(Checkpoint::from_gguf);
    match opened
        .map_err(ModelError::from)
        .and_then(|checkpoint| build(&checkpoint))
    {
        Err(error) => error.to_string(),
        Ok(_) => panic!("{family}: it loads with {to}"),
    }
}

#[test]
fn gguf_faults() {
    let cases = [
        (
            "llama",
            "llama.vocab_size",
            "llama.vocab_sizo",
            "llama.vocab_sizo",
        ),
        (
            "llama",
            "llama.block_count",
            "llama.block_coont",
            "llama.block_count",
        ),
        (
            "granite",
            "granite.logit_scale",
            "granite.logit_scolo",
            "granite.logit_scale",
        ),
        (
            "qwen3",
            "blk.1.attn_q.weight",
            "blk.1.attn_z.weight",
            "layers.1.self_attn.q_proj.weight` is missing",
        ),
        ("qwen2", "qwen2", "qwen9", "qwen9"),
        (
            "qwen3_moe",
            "expert_used_count",
            "expert_used_coont",
            "qwen3moe.expert_used_count",
        ),
        (
            "gemma3_text",
            "blk.0.ffn_norm.weight",
            "blk.0.ffn_morm.weight",
            "pre_feedforward_layernorm.weight` is missing",
        ),
    ];
    for (family, from, to, wanted) in cases {
        let error = edited(family, from, to);
        assert!(error.contains(wanted), "{family} {to}: {error}");
    }
}

#[test]
fn facts_of_models() {
    for (family, layers, kv_heads, tied) in [
        ("llama", 3, 2, false),
        ("qwen3", 3, 2, true),
        ("gemma3_text", 6, 2, true),
    ] {
        for (container, checkpoint) in common::containers(family) {
            let info = build(&checkpoint).unwrap().info;
            assert_eq!(
                (info.layers, info.kv_heads, info.tied),
                (layers, kv_heads, tied),
                "{family} {container}"
            );
            assert_eq!(info.weight_bytes, info.parameter_count * 4);
            assert_eq!(info.active_parameter_count, info.parameter_count);
            assert_eq!(
                info.kv_bytes_per_token,
                (layers * kv_heads * 2 * info.head_dim * 2) as u64
            );
            assert_eq!(info.formats, [("F32", info.weight_bytes)]);
        }
    }
    let (_, moe) = &common::containers("qwen3_moe")[1];
    let info = build(moe).unwrap().info;
    // 3 layers of 8 experts of 3 x 32 x 64 numbers, 2 of them used.
    assert_eq!(
        info.parameter_count - info.active_parameter_count,
        3 * 6 * 3 * 32 * 64
    );
    assert_eq!(families().len(), common::FAMILIES.len());
}
