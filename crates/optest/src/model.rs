//! A small random model with every kind of layer, to test whole programs.

use galvani_graph::{
    Activation, Builder, CacheSpec, Format, Graph, GraphError, Op, RopeId, RopeScaling, RopeSpec,
    RouterScore, ValueId,
};

/// Sizes of [`graph`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key heads.
    pub kv_heads: usize,
    /// Numbers in a head.
    pub head_dim: usize,
    /// Inner width of the gated layers.
    pub inner: usize,
    /// Token ids.
    pub vocabulary: usize,
    /// Encoding of all matrices.
    pub format: Format,
}

impl Shape {
    /// A shape that `format` can hold.
    pub fn tiny(format: Format) -> Self {
        let block = format.block_len().max(64);
        Shape {
            hidden: block,
            heads: 4,
            kv_heads: 2,
            head_dim: block / 4,
            inner: 2 * block,
            vocabulary: 77,
            format,
        }
    }
}

/// Layer 0 is plain, layer 1 has a window and norms on queries and keys, layer 2 has capped scores and experts. The table
/// is tied to the head, the logits are capped.
///
/// # Errors
/// When a shape does not fit.
pub fn graph(shape: Shape) -> Result<Graph, GraphError> {
    let mut b = Builder::new();
    let table = b.weight("embed", &[shape.vocabulary, shape.hidden], shape.format);
    let tokens = b.tokens();
    let rope = b.rope_table(RopeSpec {
        dims: shape.head_dim,
        theta: 1e4,
        scaling: RopeScaling::None,
    });
    // Weights near 1 / sqrt(hidden) are small for a residual stream.
    let mut x = b.node(
        Op::Embed {
            scale: (shape.hidden as f32).sqrt(),
        },
        "embed",
        &[tokens],
        &[table],
    )?;
    for layer in 0..3 {
        x = b.scoped(&format!("layers.{layer}"), |b| {
            let x = attention(b, shape, rope, layer, x)?;
            if layer == 2 {
                experts(b, shape, x)
            } else {
                gated(b, shape, layer, x)
            }
        })?;
    }
    let rows = b.rows();
    let x = b.node(Op::TakeRows, "rows", &[x, rows], &[])?;
    let weight = b.weight("norm", &[shape.hidden], Format::F32);
    let x = b.rms_norm("norm", x, weight, 1e-5)?;
    let logits = b.linear("head", x, table)?;
    let logits = b.node(Op::Softcap { cap: 20.0 }, "cap", &[logits], &[])?;
    Ok(b.finish(logits))
}

fn matrix(
    b: &mut Builder,
    shape: Shape,
    name: &str,
    layer: usize,
    n: usize,
    k: usize,
) -> galvani_graph::WeightId {
    b.weight(&format!("layers.{layer}.{name}"), &[n, k], shape.format)
}

fn norm(b: &mut Builder, name: &str, layer: usize, x: ValueId, len: usize) -> Result<ValueId, GraphError> {
    let weight = b.weight(&format!("layers.{layer}.{name}"), &[len], Format::F32);
    b.rms_norm(name, x, weight, 1e-5)
}

fn attention(
    b: &mut Builder,
    shape: Shape,
    rope: RopeId,
    layer: usize,
    x: ValueId,
) -> Result<ValueId, GraphError> {
    let Shape {
        hidden,
        heads,
        kv_heads,
        head_dim,
        ..
    } = shape;
    let normed = norm(b, "attn_norm", layer, x, hidden)?;
    let project = |b: &mut Builder, name: &str, count: usize| {
        let weight = matrix(b, shape, name, layer, count * head_dim, hidden);
        let flat = b.linear(name, normed, weight)?;
        b.view(flat, 0, &[count, head_dim])
    };
    let (mut q, mut k) = (project(b, "q", heads)?, project(b, "k", kv_heads)?);
    let v = project(b, "v", kv_heads)?;
    if layer == 1 {
        q = norm(b, "q_norm", layer, q, head_dim)?;
        k = norm(b, "k_norm", layer, k, head_dim)?;
    }
    let positions = b.positions();
    let q = b.node(Op::Rope { rope }, "q_rope", &[q, positions], &[])?;
    let k = b.node(Op::Rope { rope }, "k_rope", &[k, positions], &[])?;
    let window = (layer == 1).then_some(9);
    let cache = b.cache(CacheSpec {
        layer,
        kv_heads,
        key_dim: head_dim,
        value_dim: head_dim,
        window,
    });
    let softcap = (layer == 2).then_some(3.0);
    let op = Op::Attention {
        cache,
        scale: 1.0 / (head_dim as f32).sqrt(),
        window,
        softcap,
    };
    let attended = b.node(op, "attention", &[q, k, v], &[])?;
    let flat = b.view(attended, 0, &[heads * head_dim])?;
    let weight = matrix(b, shape, "o", layer, hidden, heads * head_dim);
    let out = b.linear("o", flat, weight)?;
    b.add("attn_add", x, out, 1.0)
}

fn gated(b: &mut Builder, shape: Shape, layer: usize, x: ValueId) -> Result<ValueId, GraphError> {
    let normed = norm(b, "mlp_norm", layer, x, shape.hidden)?;
    let gate = matrix(b, shape, "gate", layer, shape.inner, shape.hidden);
    let up = matrix(b, shape, "up", layer, shape.inner, shape.hidden);
    let down = matrix(b, shape, "down", layer, shape.hidden, shape.inner);
    let (gate, up) = (b.linear("gate", normed, gate)?, b.linear("up", normed, up)?);
    let inside = b.gated("act", gate, up, Activation::Silu)?;
    let out = b.linear("down", inside, down)?;
    b.add("mlp_add", x, out, 0.5)
}

fn experts(b: &mut Builder, shape: Shape, x: ValueId) -> Result<ValueId, GraphError> {
    let (hidden, inner, count) = (shape.hidden, shape.hidden, 6);
    let normed = norm(b, "mlp_norm", 2, x, hidden)?;
    let router = b.weight("layers.2.router", &[count, hidden], Format::F32);
    let logits = b.linear("router", normed, router)?;
    let op = Op::Route {
        top_k: 2,
        score: RouterScore::Softmax,
        renormalise: true,
        scale: 1.0,
    };
    let routes = b.node(op, "route", &[logits], &[])?;
    let gate = b.weight("layers.2.experts.gate", &[count, inner, hidden], shape.format);
    let up = b.weight("layers.2.experts.up", &[count, inner, hidden], shape.format);
    let down = b.weight("layers.2.experts.down", &[count, hidden, inner], shape.format);
    let op = Op::ExpertsGated {
        activation: Activation::Silu,
    };
    let inside = b.node(op, "experts_gated", &[normed, routes], &[gate, up])?;
    let out = b.node(Op::ExpertsDown, "experts_down", &[inside, routes], &[down])?;
    b.add("mlp_add", x, out, 1.0)
}
