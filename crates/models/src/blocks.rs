//! The blocks that families are made of.

use galvani_graph::{Activation, Builder, CacheSpec, Graph, Op, RopeId, RouterScore, ValueId, WeightId};
use galvani_weights::{Checkpoint, Config};

use crate::ModelError;

/// Sizes that every family has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) vocab: usize,
    pub(crate) context_max: usize,
    pub(crate) eps: f32,
    /// 0 without experts.
    pub(crate) experts: usize,
    pub(crate) experts_per_token: usize,
}

/// A graph in the making, over a checkpoint that says which tensors there are.
pub(crate) struct Net<'c> {
    checkpoint: &'c Checkpoint,
    /// The builder, for what is too special for a block.
    pub(crate) b: Builder,
    /// The config's sizes.
    pub(crate) sizes: Sizes,
    positions: ValueId,
    /// Factors beside weights that the graph applies.
    factors: Vec<String>,
}

/// What is special about the attention of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attention {
    pub(crate) layer: usize,
    /// Multiplier of the scores.
    pub(crate) scale: f32,
    pub(crate) rope: Option<RopeId>,
    pub(crate) window: Option<usize>,
    pub(crate) softcap: Option<f32>,
    /// RMS norm of each query and key head before rotation.
    pub(crate) head_norms: bool,
    /// Biases of q, k and v.
    pub(crate) qkv_bias: bool,
    /// Bias of the output product.
    pub(crate) output_bias: bool,
}

/// What is special about a layer's experts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Experts {
    pub(crate) count: usize,
    pub(crate) per_token: usize,
    pub(crate) inner: usize,
    pub(crate) score: RouterScore,
    pub(crate) renormalise: bool,
}

impl<'c> Net<'c> {
    /// Reads the sizes; the rest of the config is the family's.
    pub(crate) fn new(checkpoint: &'c Checkpoint, config: &Config) -> Result<Self, ModelError> {
        let heads = config.usize("num_attention_heads")?;
        if heads == 0 {
            return Err(config.unsupported("num_attention_heads", "1 and more").into());
        }
        let hidden = config.usize("hidden_size")?;
        let kv_heads = config.usize_or("num_key_value_heads", heads)?;
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(config
                .unsupported("num_key_value_heads", format!("a divisor of the {heads} heads"))
                .into());
        }
        let head_dim = config.usize_or("head_dim", hidden / heads)?;
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(config
                .unsupported("head_dim", "an even number, 2 and more")
                .into());
        }
        let sizes = Sizes {
            hidden,
            layers: config.usize("num_hidden_layers")?,
            heads,
            kv_heads,
            head_dim,
            vocab: config.usize("vocab_size")?,
            context_max: config.usize("max_position_embeddings")?,
            eps: config.f32("rms_norm_eps")?,
            experts: 0,
            experts_per_token: 0,
        };
        let mut b = Builder::new();
        let positions = b.positions();
        Ok(Self {
            checkpoint,
            b,
            sizes,
            positions,
            factors: Vec::new(),
        })
    }

    /// The graph, its sizes, and the factors beside weights that it applies.
    pub(crate) fn finish(self, logits: ValueId) -> (Graph, Sizes, Vec<String>) {
        (self.b.finish(logits), self.sizes, self.factors)
    }

    /// The one number that some formats keep beside the weight `{name}.weight`, to be multiplied with its products; 1
    /// where there is none. Several numbers stay unread, so that the load refuses them by name.
    fn factor(&mut self, name: &str) -> Result<f32, ModelError> {
        let name = format!("{name}.scale");
        let Some(numbers) = self.checkpoint.factors(&name)? else {
            return Ok(1.0);
        };
        match numbers.as_slice() {
            &[number] => {
                self.factors.push(name);
                Ok(number)
            }
            _ => Ok(1.0),
        }
    }

    /// `x * by`, where there is something to multiply.
    fn scaled(&mut self, name: &str, x: ValueId, by: f32) -> Result<ValueId, ModelError> {
        if by == 1.0 {
            return Ok(x);
        }
        Ok(self
            .b
            .node(Op::Scale { by }, &format!("{name}.scale"), &[x], &[])?)
    }

    /// The usual multiplier of attention scores.
    pub(crate) fn usual_scale(&self) -> f32 {
        (self.sizes.head_dim as f32).sqrt().recip()
    }

    /// `x = embedding * scale`.
    pub(crate) fn embed(&mut self, scale: f32) -> Result<ValueId, ModelError> {
        let table = self.weight("embed_tokens.weight", &[self.sizes.vocab, self.sizes.hidden])?;
        let tokens = self.b.tokens();
        Ok(self
            .b
            .node(Op::Embed { scale }, "embed_tokens", &[tokens], &[table])?)
    }

    /// A weight of the checkpoint, of this shape.
    pub(crate) fn weight(&mut self, name: &str, dims: &[usize]) -> Result<WeightId, ModelError> {
        let origin = || self.checkpoint.origin().to_owned();
        let Some(tensor) = self.checkpoint.tensor(name) else {
            return Err(ModelError::MissingTensor {
                origin: origin(),
                name: name.to_owned(),
                wanted: dims.to_vec(),
            });
        };
        if tensor.dims != dims {
            return Err(ModelError::TensorShape {
                origin: origin(),
                name: name.to_owned(),
                got: tensor.dims.clone(),
                wanted: dims.to_vec(),
            });
        }
        Ok(self.b.weight(name, dims, tensor.format))
    }

    /// Norm `{name}.weight` over the last dimension of `x`, `width` numbers.
    pub(crate) fn norm(&mut self, name: &str, x: ValueId, width: usize) -> Result<ValueId, ModelError> {
        let weight = self.weight(&format!("{name}.weight"), &[width])?;
        Ok(self.b.rms_norm(name, x, weight, self.sizes.eps)?)
    }

    /// Product `{name}.weight` `[out, in]`, with the factor that some formats keep beside it.
    pub(crate) fn linear(
        &mut self,
        name: &str,
        x: ValueId,
        (rows, columns): (usize, usize),
        bias: bool,
    ) -> Result<ValueId, ModelError> {
        let mut weights = vec![self.weight(&format!("{name}.weight"), &[rows, columns])?];
        if bias {
            weights.push(self.weight(&format!("{name}.bias"), &[rows])?);
        }
        let product = self.b.node(Op::Linear { bias }, name, &[x], &weights)?;
        if bias {
            // A factor would multiply the bias too: it stays unread, and so is refused by name.
            return Ok(product);
        }
        let factor = self.factor(name)?;
        self.scaled(name, product, factor)
    }

    /// Attention over the layer's cache, output product included: `[T, hidden]`.
    pub(crate) fn attention(&mut self, x: ValueId, a: Attention) -> Result<ValueId, ModelError> {
        let Sizes {
            hidden,
            heads,
            kv_heads,
            head_dim,
            ..
        } = self.sizes;
        let name = |part: &str| format!("layers.{}.self_attn.{part}", a.layer);
        let q = self.linear(&name("q_proj"), x, (heads * head_dim, hidden), a.qkv_bias)?;
        let k = self.linear(&name("k_proj"), x, (kv_heads * head_dim, hidden), a.qkv_bias)?;
        let v = self.linear(&name("v_proj"), x, (kv_heads * head_dim, hidden), a.qkv_bias)?;
        let mut q = self.b.view(q, 0, &[heads, head_dim])?; // [T, heads, head_dim]
        let mut k = self.b.view(k, 0, &[kv_heads, head_dim])?; // [T, kv_heads, head_dim]
        let v = self.b.view(v, 0, &[kv_heads, head_dim])?;
        if a.head_norms {
            q = self.norm(&name("q_norm"), q, head_dim)?;
            k = self.norm(&name("k_norm"), k, head_dim)?;
        }
        if let Some(rope) = a.rope {
            q = self
                .b
                .node(Op::Rope { rope }, &name("q_rope"), &[q, self.positions], &[])?;
            k = self
                .b
                .node(Op::Rope { rope }, &name("k_rope"), &[k, self.positions], &[])?;
        }
        let cache = self.b.cache(CacheSpec {
            layer: a.layer,
            kv_heads,
            key_dim: head_dim,
            value_dim: head_dim,
            window: a.window,
        });
        let op = Op::Attention {
            cache,
            scale: a.scale,
            window: a.window,
            softcap: a.softcap,
        };
        let out = self
            .b
            .node(op, &format!("layers.{}.self_attn", a.layer), &[q, k, v], &[])?;
        let out = self.b.view(out, 0, &[heads * head_dim])?; // [T, heads * head_dim]
        self.linear(&name("o_proj"), out, (hidden, heads * head_dim), a.output_bias)
    }

    /// `down(act(gate x) * (up x))`.
    pub(crate) fn gated_mlp(
        &mut self,
        layer: usize,
        x: ValueId,
        inner: usize,
        activation: Activation,
        bias: bool,
    ) -> Result<ValueId, ModelError> {
        let hidden = self.sizes.hidden;
        let name = |part: &str| format!("layers.{layer}.mlp.{part}");
        let gate = self.linear(&name("gate_proj"), x, (inner, hidden), bias)?;
        let up = self.linear(&name("up_proj"), x, (inner, hidden), bias)?;
        let x = self.b.gated(&name("act"), gate, up, activation)?;
        self.linear(&name("down_proj"), x, (hidden, inner), bias)
    }

    /// A router and its experts.
    pub(crate) fn experts(&mut self, layer: usize, x: ValueId, e: Experts) -> Result<ValueId, ModelError> {
        let hidden = self.sizes.hidden;
        let name = |part: &str| format!("layers.{layer}.mlp.{part}");
        let logits = self.linear(&name("gate"), x, (e.count, hidden), false)?;
        let route = Op::Route {
            top_k: e.per_token,
            score: e.score,
            renormalise: e.renormalise,
            scale: 1.0,
        };
        let routes = self.b.node(route, &name("route"), &[logits], &[])?; // [T, 2 * per_token]
        let gate = self.weight(&name("experts.gate_proj.weight"), &[e.count, e.inner, hidden])?;
        let up = self.weight(&name("experts.up_proj.weight"), &[e.count, e.inner, hidden])?;
        let down = self.weight(&name("experts.down_proj.weight"), &[e.count, hidden, e.inner])?;
        for part in ["gate_proj", "up_proj", "down_proj"] {
            // One factor for all experts of a layer is not a thing: whatever is not 1 is refused by name.
            let factors = self.checkpoint.factors(&name(&format!("experts.{part}.scale")))?;
            if factors.is_some_and(|factors| factors.iter().all(|&factor| factor == 1.0)) {
                self.factors.push(name(&format!("experts.{part}.scale")));
            }
        }
        let gated = Op::ExpertsGated {
            activation: Activation::Silu,
        };
        let x = self
            .b
            .node(gated, &name("experts.act"), &[x, routes], &[gate, up])?; // [T, per_token, inner]
        Ok(self
            .b
            .node(Op::ExpertsDown, &name("experts.down_proj"), &[x, routes], &[down])?)
    }

    /// `x + scale * attention(norm(x))`, then `x + scale * mlp(norm(x))`: the layer of most families.
    pub(crate) fn pre_norm_layer(
        &mut self,
        x: ValueId,
        attention: Attention,
        residual_scale: f32,
        mlp: impl FnOnce(&mut Self, ValueId) -> Result<ValueId, ModelError>,
    ) -> Result<ValueId, ModelError> {
        let hidden = self.sizes.hidden;
        let name = |part: &str| format!("layers.{}.{part}", attention.layer);
        let normed = self.norm(&name("input_layernorm"), x, hidden)?;
        let attended = self.attention(normed, attention)?;
        let x = self
            .b
            .add(&name("attention_residual"), x, attended, residual_scale)?;
        let normed = self.norm(&name("post_attention_layernorm"), x, hidden)?;
        let out = mlp(self, normed)?;
        Ok(self.b.add(&name("residual"), x, out, residual_scale)?)
    }

    /// Final norm, the wanted rows, and the product with the head (or the embedding table): `[R, vocab]`.
    pub(crate) fn head(&mut self, x: ValueId) -> Result<ValueId, ModelError> {
        let Sizes { vocab, hidden, .. } = self.sizes;
        let x = self.norm("norm", x, hidden)?;
        let rows = self.b.rows();
        let last = self.b.node(Op::TakeRows, "last", &[x, rows], &[])?;
        if self.checkpoint.tied() {
            let table = self.weight("embed_tokens.weight", &[vocab, hidden])?;
            let factor = self.factor("embed_tokens")?;
            let logits = self.b.linear("lm_head", last, table)?;
            return self.scaled("lm_head", logits, factor);
        }
        self.linear("lm_head", last, (vocab, hidden), false)
    }
}

/// The window of each layer: from `layer_types` where it stands, else `sliding` says which layers slide.
pub(crate) fn windows(
    config: &Config,
    layers: usize,
    window: Option<usize>,
    sliding: impl Fn(usize) -> bool,
) -> Result<Vec<Option<usize>>, ModelError> {
    let Some(types) = config.opt_strs("layer_types")? else {
        return Ok((0..layers.min(LAYERS_MAX))
            .map(|layer| window.filter(|_| sliding(layer)))
            .collect());
    };
    if types.len() != layers {
        return Err(config
            .unsupported("layer_types", format!("one entry for each of {layers} layers"))
            .into());
    }
    types
        .iter()
        .map(|kind| match (kind.as_str(), window) {
            ("full_attention", _) => Ok(None),
            ("sliding_attention", Some(window)) => Ok(Some(window)),
            ("sliding_attention", None) => Err(config
                .unsupported("sliding_window", "a number: layers slide")
                .into()),
            _ => Err(config
                .unsupported("layer_types", "full_attention, sliding_attention")
                .into()),
        })
        .collect()
}

/// Bounds what a lying config can make us allocate; a load with more layers fails at their tensors.
const LAYERS_MAX: usize = 1 << 16;
