//! A small model and a seeded generator for the pass tests.

#![allow(dead_code)]

use galvani_graph::{
    Activation, Builder, CacheSpec, Format, Graph, GraphError, Op, RopeScaling, RopeSpec, RouterScore,
    ValueId,
};

/// Sizes of the toy model.
#[derive(Clone, Copy)]
pub struct Toy {
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub inner: usize,
    pub experts: usize,
    pub bias: bool,
    pub format: Format,
}

pub const TOY: Toy = Toy {
    hidden: 64,
    heads: 4,
    kv_heads: 2,
    head_dim: 16,
    inner: 128,
    experts: 0,
    bias: false,
    format: Format::Q8_0,
};

/// One decoder layer with everything around it.
pub fn toy(size: Toy) -> Result<Graph, GraphError> {
    let mut b = Builder::new();
    let (tokens, positions, rows) = (b.tokens(), b.positions(), b.rows());
    let table = b.weight("embed_tokens.weight", &[96, size.hidden], size.format);
    let x = b.node(Op::Embed { scale: 1.0 }, "embed_tokens", &[tokens], &[table])?;
    let x = b.scoped("layers.0", |b| {
        let attended = attention(b, size, x, positions)?;
        let x = b.add("residual", x, attended, 0.5)?;
        let w = b.weight(
            "layers.0.post_attention_layernorm.weight",
            &[size.hidden],
            Format::F32,
        );
        let normed = b.rms_norm("post_attention_layernorm", x, w, 1e-6)?;
        let out = if size.experts > 0 {
            moe(b, size, normed)?
        } else {
            mlp(b, size, normed)?
        };
        b.add("residual", x, out, 1.0)
    })?;
    let w = b.weight("norm.weight", &[size.hidden], Format::F32);
    let x = b.rms_norm("norm", x, w, 1e-6)?;
    let last = b.node(Op::TakeRows, "last", &[x, rows], &[])?;
    let logits = b.linear("lm_head", last, table)?;
    Ok(b.finish(logits))
}

fn attention(b: &mut Builder, size: Toy, x: ValueId, positions: ValueId) -> Result<ValueId, GraphError> {
    let w = b.weight("layers.0.input_layernorm.weight", &[size.hidden], Format::F32);
    let x = b.rms_norm("input_layernorm", x, w, 1e-6)?;
    let rope = b.rope_table(RopeSpec {
        dims: size.head_dim,
        theta: 1e4,
        scaling: RopeScaling::None,
    });
    let cache = b.cache(CacheSpec {
        layer: 0,
        kv_heads: size.kv_heads,
        key_dim: size.head_dim,
        value_dim: size.head_dim,
        window: None,
    });
    let product = |b: &mut Builder, name: &str, rows: usize, columns: usize, bias: bool, x: ValueId| {
        let mut weights = vec![b.weight(
            &format!("layers.0.self_attn.{name}.weight"),
            &[rows, columns],
            size.format,
        )];
        if bias {
            weights.push(b.weight(&format!("layers.0.self_attn.{name}.bias"), &[rows], Format::F32));
        }
        b.node(Op::Linear { bias }, &format!("self_attn.{name}"), &[x], &weights)
    };
    let (q_rows, kv_rows) = (size.heads * size.head_dim, size.kv_heads * size.head_dim);
    let q = product(b, "q_proj", q_rows, size.hidden, size.bias, x)?;
    let k = product(b, "k_proj", kv_rows, size.hidden, size.bias, x)?;
    let v = product(b, "v_proj", kv_rows, size.hidden, size.bias, x)?;
    let q = b.view(q, 0, &[size.heads, size.head_dim])?;
    let k = b.view(k, 0, &[size.kv_heads, size.head_dim])?;
    let v = b.view(v, 0, &[size.kv_heads, size.head_dim])?;
    let norm = b.weight("layers.0.self_attn.q_norm.weight", &[size.head_dim], Format::F32);
    let q = b.rms_norm("self_attn.q_norm", q, norm, 1e-6)?;
    let q = b.node(Op::Rope { rope }, "self_attn.q_rope", &[q, positions], &[])?;
    let k = b.node(Op::Rope { rope }, "self_attn.k_rope", &[k, positions], &[])?;
    let attention = Op::Attention {
        cache,
        scale: 0.25,
        window: None,
        softcap: None,
    };
    let out = b.node(attention, "self_attn", &[q, k, v], &[])?;
    let out = b.view(out, 0, &[q_rows])?;
    product(b, "o_proj", size.hidden, q_rows, size.bias, out)
}

fn mlp(b: &mut Builder, size: Toy, x: ValueId) -> Result<ValueId, GraphError> {
    let gate = b.weight(
        "layers.0.mlp.gate_proj.weight",
        &[size.inner, size.hidden],
        size.format,
    );
    let up = b.weight(
        "layers.0.mlp.up_proj.weight",
        &[size.inner, size.hidden],
        size.format,
    );
    let down = b.weight(
        "layers.0.mlp.down_proj.weight",
        &[size.hidden, size.inner],
        size.format,
    );
    let gate = b.linear("mlp.gate_proj", x, gate)?;
    let up = b.linear("mlp.up_proj", x, up)?;
    let inner = b.gated("mlp.act", gate, up, Activation::Silu)?;
    b.linear("mlp.down_proj", inner, down)
}

fn moe(b: &mut Builder, size: Toy, x: ValueId) -> Result<ValueId, GraphError> {
    let (experts, inner, hidden) = (size.experts, size.inner, size.hidden);
    let router = b.weight("layers.0.mlp.gate.weight", &[experts, hidden], Format::F32);
    let logits = b.linear("mlp.gate", x, router)?;
    let route = Op::Route {
        top_k: 2,
        score: RouterScore::Softmax,
        renormalise: true,
        scale: 1.0,
    };
    let routes = b.node(route, "mlp.route", &[logits], &[])?;
    let gate = b.weight(
        "layers.0.mlp.experts.gate_proj.weight",
        &[experts, inner, hidden],
        size.format,
    );
    let up = b.weight(
        "layers.0.mlp.experts.up_proj.weight",
        &[experts, inner, hidden],
        size.format,
    );
    let down = b.weight(
        "layers.0.mlp.experts.down_proj.weight",
        &[experts, hidden, inner],
        size.format,
    );
    let gated = Op::ExpertsGated {
        activation: Activation::Silu,
    };
    let x = b.node(gated, "mlp.experts.gated", &[x, routes], &[gate, up])?;
    b.node(Op::ExpertsDown, "mlp.experts.down", &[x, routes], &[down])
}

/// SplitMix64: small and good enough for tests.
pub struct Seeded(pub u64);

impl Seeded {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}
