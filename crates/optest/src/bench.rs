//! Time of each kind of operation in whole models of random weights.

use std::time::Instant;

use galvani_cpu::{CpuBackend, CpuMath, CpuOptions, CpuProgram, Isa, OpTime};
use galvani_graph::{
    Activation, Backend, BackendError, Builder, CacheSpec, Format, Graph, GraphError, LimitsSpec, Op, PageId,
    RopeScaling, RopeSpec, RouterScore, StepInput, StepSequence, ValueId, WeightId, fuse,
};

use crate::RandomWeights;

/// Sizes of a decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Decoder {
    pub name: &'static str,
    pub layers: usize,
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Inner width, of one expert if there are any.
    pub inner: usize,
    /// (experts, experts a token); (0, 0) is a dense model.
    pub experts: (usize, usize),
    pub vocabulary: usize,
    pub qk_norm: bool,
}

/// The shapes that `optest bench` knows.
pub const DECODERS: [Decoder; 3] = [
    Decoder {
        name: "smollm2-135m",
        layers: 30,
        hidden: 576,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        inner: 1536,
        experts: (0, 0),
        vocabulary: 49152,
        qk_norm: false,
    },
    Decoder {
        name: "qwen3-0.6b",
        layers: 28,
        hidden: 1024,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        inner: 3072,
        experts: (0, 0),
        vocabulary: 151_936,
        qk_norm: true,
    },
    Decoder {
        name: "moe-2b",
        layers: 24,
        hidden: 1024,
        heads: 16,
        kv_heads: 4,
        head_dim: 64,
        inner: 384,
        experts: (64, 8),
        vocabulary: 32_000,
        qk_norm: true,
    },
];

impl Decoder {
    /// The graph, all matrices in `format`, the table tied to the head.
    ///
    /// # Errors
    /// When the shape does not fit.
    pub fn graph(&self, format: Format) -> Result<Graph, GraphError> {
        let mut b = Builder::new();
        let table = b.weight("embed", &[self.vocabulary, self.hidden], format);
        let tokens = b.tokens();
        let mut x = b.node(Op::Embed { scale: 1.0 }, "embed", &[tokens], &[table])?;
        for layer in 0..self.layers {
            let scope = format!("layers.{layer}");
            x = b.scoped(&scope, |b| {
                let x = self.attention(b, format, layer, x)?;
                self.feed_forward(b, format, layer, x)
            })?;
        }
        let rows = b.rows();
        let x = b.node(Op::TakeRows, "rows", &[x, rows], &[])?;
        let x = norm(&mut b, "norm", x, self.hidden)?;
        let logits = b.linear("head", x, table)?;
        Ok(fuse(b.finish(logits)))
    }

    fn attention(
        &self,
        b: &mut Builder,
        format: Format,
        layer: usize,
        x: ValueId,
    ) -> Result<ValueId, GraphError> {
        let normed = norm(b, &format!("{layer}.attn_norm"), x, self.hidden)?;
        let project = |b: &mut Builder, name: &str, count: usize| {
            let dims = [count * self.head_dim, self.hidden];
            let weight = b.weight(&format!("{layer}.{name}"), &dims, format);
            let flat = b.linear(name, normed, weight)?;
            b.view(flat, 0, &[count, self.head_dim])
        };
        let (mut q, mut k) = (project(b, "q", self.heads)?, project(b, "k", self.kv_heads)?);
        let v = project(b, "v", self.kv_heads)?;
        if self.qk_norm {
            q = norm(b, &format!("{layer}.q_norm"), q, self.head_dim)?;
            k = norm(b, &format!("{layer}.k_norm"), k, self.head_dim)?;
        }
        let rope = b.rope_table(RopeSpec {
            dims: self.head_dim,
            theta: 1e6,
            scaling: RopeScaling::None,
        });
        let positions = b.positions();
        let q = b.node(Op::Rope { rope }, "q_rope", &[q, positions], &[])?;
        let k = b.node(Op::Rope { rope }, "k_rope", &[k, positions], &[])?;
        let (kv_heads, dim) = (self.kv_heads, self.head_dim);
        let cache = b.cache(CacheSpec {
            layer,
            kv_heads,
            key_dim: dim,
            value_dim: dim,
            window: None,
        });
        let scale = 1.0 / (dim as f32).sqrt();
        let op = Op::Attention {
            cache,
            scale,
            window: None,
            softcap: None,
        };
        let out = b.node(op, "attention", &[q, k, v], &[])?;
        let flat = b.view(out, 0, &[self.heads * dim])?;
        let weight = b.weight(&format!("{layer}.o"), &[self.hidden, self.heads * dim], format);
        let out = b.linear("o", flat, weight)?;
        b.add("attn_add", x, out, 1.0)
    }

    fn feed_forward(
        &self,
        b: &mut Builder,
        format: Format,
        layer: usize,
        x: ValueId,
    ) -> Result<ValueId, GraphError> {
        let normed = norm(b, &format!("{layer}.mlp_norm"), x, self.hidden)?;
        let (hidden, inner, activation) = (self.hidden, self.inner, Activation::Silu);
        let (experts, top_k) = self.experts;
        let weights = |b: &mut Builder, parts: &[usize]| -> [WeightId; 3] {
            [
                ("gate", inner, hidden),
                ("up", inner, hidden),
                ("down", hidden, inner),
            ]
            .map(|(name, n, k)| b.weight(&format!("{layer}.{name}"), &[parts, &[n, k]].concat(), format))
        };
        let out = if experts == 0 {
            let [gate, up, down] = weights(b, &[]);
            let (gate, up) = (b.linear("gate", normed, gate)?, b.linear("up", normed, up)?);
            let inside = b.gated("act", gate, up, activation)?;
            b.linear("down", inside, down)?
        } else {
            let router = b.weight(&format!("{layer}.router"), &[experts, hidden], Format::F32);
            let logits = b.linear("router", normed, router)?;
            let op = Op::Route {
                top_k,
                score: RouterScore::Softmax,
                renormalise: true,
                scale: 1.0,
            };
            let routes = b.node(op, "route", &[logits], &[])?;
            let [gate, up, down] = weights(b, &[experts]);
            let inside = b.node(
                Op::ExpertsGated { activation },
                "experts",
                &[normed, routes],
                &[gate, up],
            )?;
            b.node(Op::ExpertsDown, "experts_down", &[inside, routes], &[down])?
        };
        b.add("mlp_add", x, out, 1.0)
    }
}

fn norm(b: &mut Builder, name: &str, x: ValueId, len: usize) -> Result<ValueId, GraphError> {
    let weight = b.weight(name, &[len], Format::F32);
    b.rms_norm(name, x, weight, 1e-6)
}

/// What [`run`] measures.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The model.
    pub decoder: Decoder,
    /// Encoding of its matrices.
    pub format: Format,
    /// Threads.
    pub threads: usize,
    /// Kernels; `None` is the best.
    pub isa: Option<Isa>,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens decoded after it.
    pub decode: usize,
}

/// One phase: tokens a second, and the time of each kind of operation.
#[derive(Debug, Clone)]
pub struct Phase {
    /// `prefill` or `decode`.
    pub name: &'static str,
    /// Tokens run.
    pub tokens: usize,
    /// Seconds taken.
    pub seconds: f64,
    /// By kind, the longest first.
    pub times: Vec<OpTime>,
}

/// Runs a prompt (twice, the second counts), then decodes.
///
/// # Errors
/// When the backend cannot be made or refuses the graph.
pub fn run(plan: Plan) -> Result<Vec<Phase>, Box<dyn std::error::Error>> {
    let graph = plan.decoder.graph(plan.format)?;
    let options = CpuOptions {
        threads: plan.threads,
        math: CpuMath::Fast,
        isa: plan.isa,
    };
    let backend = CpuBackend::new(options)?;
    let context = plan.prompt + plan.decode;
    let limits = LimitsSpec {
        step_tokens_max: plan.prompt,
        step_rows_max: 1,
        step_sequences_max: 1,
        page_tokens: 64,
        page_count: context.div_ceil(64),
        context_max: context,
    };
    let mut program = backend.compile(&graph, &RandomWeights::new(1), limits)?;
    println!(
        "{}; {} weights of {}",
        backend.describe(),
        plan.format,
        plan.decoder.name
    );
    let compiled = program.compiled();
    println!(
        "weights {} MB, arena {} MB",
        compiled.weight_bytes / 1_000_000,
        compiled.arena_bytes / 1_000_000
    );
    let mut logits = vec![0.0; plan.decoder.vocabulary];
    step(
        &backend,
        &mut program,
        0,
        plan.prompt,
        limits.page_count,
        &mut logits,
    )?;
    let prefill = phase(
        "prefill",
        plan.prompt,
        &backend,
        &mut program,
        |backend, program| step(backend, program, 0, plan.prompt, limits.page_count, &mut logits),
    )?;
    let decode = phase(
        "decode",
        plan.decode,
        &backend,
        &mut program,
        |backend, program| {
            (plan.prompt..context)
                .try_for_each(|at| step(backend, program, at, 1, limits.page_count, &mut logits))
        },
    )?;
    Ok(vec![prefill, decode])
}

fn phase(
    name: &'static str,
    tokens: usize,
    backend: &CpuBackend,
    program: &mut CpuProgram,
    body: impl FnOnce(&CpuBackend, &mut CpuProgram) -> Result<(), BackendError>,
) -> Result<Phase, BackendError> {
    program.measure(true);
    let started = Instant::now();
    body(backend, program)?;
    Ok(Phase {
        name,
        tokens,
        seconds: started.elapsed().as_secs_f64(),
        times: program.times(),
    })
}

fn step(
    backend: &CpuBackend,
    program: &mut CpuProgram,
    start: usize,
    count: usize,
    page_count: usize,
    logits: &mut [f32],
) -> Result<(), BackendError> {
    let tokens: Vec<u32> = (start..start + count)
        .map(|i| (i * 7919 % 30_000) as u32)
        .collect();
    let positions: Vec<u32> = (start..start + count).map(|i| i as u32).collect();
    let pages: Vec<PageId> = (0..page_count as u32).map(PageId).collect();
    let sequence = StepSequence {
        token_start: 0,
        token_count: count as u32,
        position_start: start as u32,
        page_start: 0,
        page_count: page_count as u32,
    };
    let input = StepInput {
        tokens: &tokens,
        positions: &positions,
        sequences: &[sequence],
        pages: &pages,
        rows: &[count as u32 - 1],
    };
    backend.run(program, &input, logits)
}

/// Bytes a second that `threads` read from memory together: 512 MiB, the best of three passes.
pub fn memory_bandwidth(threads: usize) -> f64 {
    const WORDS: usize = 1 << 26;
    let data = vec![1u64; WORDS];
    let pass = || {
        let started = Instant::now();
        std::thread::scope(|scope| {
            for part in data.chunks(WORDS.div_ceil(threads)) {
                scope.spawn(move || {
                    let sums = part.chunks_exact(8).fold([0u64; 8], |mut sums, words| {
                        sums.iter_mut()
                            .zip(words)
                            .for_each(|(sum, word)| *sum = sum.wrapping_add(*word));
                        sums
                    });
                    std::hint::black_box(sums);
                });
            }
        });
        (WORDS * 8) as f64 / started.elapsed().as_secs_f64()
    };
    (0..3).map(|_| pass()).fold(0.0, f64::max)
}

/// Bytes of the weights that one token reads, by kind of operation.
pub fn weight_bytes(graph: &Graph, experts: (usize, usize)) -> Vec<(&'static str, f64)> {
    let mut all: Vec<(&'static str, f64)> = Vec::new();
    for node in graph
        .nodes
        .iter()
        .filter(|node| !matches!(node.op, Op::Embed { .. }))
    {
        let bytes: f64 = node
            .weights
            .iter()
            .map(|&id| {
                let weight = graph.weight(id);
                let row = weight.format.row_bytes(weight.row_len()).unwrap_or(0);
                let share = if weight.dims.len() == 3 {
                    experts.1 as f64 / experts.0 as f64
                } else {
                    1.0
                };
                (weight.row_count() * row) as f64 * share
            })
            .sum();
        match all.iter_mut().find(|(op, _)| *op == node.op.name()) {
            Some((_, total)) => *total += bytes,
            None => all.push((node.op.name(), bytes)),
        }
    }
    all
}
