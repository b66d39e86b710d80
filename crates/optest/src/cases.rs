//! The table of operations, formats and shapes.

use galvani_graph::{
    Activation, Builder, CacheSpec, Format, Graph, GraphError, Op, RopeScaling, RopeSpec, RouterScore,
    ValueId,
};

use crate::Closeness;

/// Rows of the input tables.
const VOCABULARY: usize = 61;

/// One operation to hold against the reference.
#[derive(Debug, Clone)]
pub struct Case {
    /// Operation, format and shape.
    pub name: String,
    /// `[tokens, width]` -> the operation -> `[rows, width]`.
    pub graph: Graph,
    /// Tokens run.
    pub tokens: usize,
    /// Token ids lie below this.
    pub vocabulary: usize,
    /// Positions in a page.
    pub page_tokens: usize,
    /// Seed of the weights.
    pub seed: u64,
    /// How many ids begin each output row (route only).
    pub ids: usize,
    /// Relative error allowed with exact and with fast arithmetic.
    tolerances: [f64; 2],
}

impl Case {
    /// Most relative error allowed.
    pub fn tolerance(&self, closeness: Closeness) -> f64 {
        match closeness {
            Closeness::Exact => self.tolerances[0],
            Closeness::Fast => self.tolerances[1],
        }
    }
}

/// Rounding of f32 sums in another order.
const F32: [f64; 2] = [2e-6, 2e-6];
/// Products of int8 activations: half a step of 1/127 of the largest number in a block.
const INT8: [f64; 2] = [2e-6, 1.2e-2];
/// Two such products, one after the other, and a gate.
const INT8_GATED: [f64; 2] = [4e-6, 2.5e-2];
/// Keys and values in half floats.
const HALF: [f64; 2] = [3e-6, 1e-3];

/// All cases.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    rows(&mut cases);
    linears(&mut cases);
    attentions(&mut cases);
    experts(&mut cases);
    cases
}

/// Builds the case of one operation; `body` makes it and returns its value.
fn case(
    name: String,
    tokens: usize,
    tolerances: [f64; 2],
    body: impl FnOnce(&mut Builder) -> Result<ValueId, GraphError>,
) -> Case {
    let mut builder = Builder::new();
    let graph = body(&mut builder)
        .and_then(|value| {
            let width = builder.graph().value(value).row_len();
            let flat = builder.view(value, 0, &[width])?;
            let rows = builder.rows();
            builder.node(Op::TakeRows, "out", &[flat, rows], &[])
        })
        .map(|out| builder.finish(out));
    let graph = graph.unwrap_or_else(|error| panic!("case {name}: {error}"));
    Case {
        name,
        graph,
        tokens,
        vocabulary: VOCABULARY,
        page_tokens: 16,
        seed: 1,
        ids: 0,
        tolerances,
    }
}

/// A random input `[tokens, width]`.
fn input(builder: &mut Builder, index: usize, width: usize) -> Result<ValueId, GraphError> {
    let table = builder.weight(&format!("input{index}"), &[VOCABULARY, width], Format::F32);
    let tokens = builder.tokens();
    builder.node(
        Op::Embed { scale: 1.0 },
        &format!("input{index}"),
        &[tokens],
        &[table],
    )
}

/// An input seen as `[tokens, heads, dim]`.
fn heads(builder: &mut Builder, index: usize, heads: usize, dim: usize) -> Result<ValueId, GraphError> {
    let flat = input(builder, index, heads * dim)?;
    builder.view(flat, 0, &[heads, dim])
}

fn rows(cases: &mut Vec<Case>) {
    for format in Format::ALL {
        let width = format.block_len().max(32) * 2;
        cases.push(case(format!("embed {format} {width}"), 7, F32, |b| {
            let table = b.weight("table", &[VOCABULARY, width], format);
            let tokens = b.tokens();
            b.node(Op::Embed { scale: 1.5 }, "embed", &[tokens], &[table])
        }));
    }
    for width in [1, 16, 17, 100] {
        for tokens in [1, 17] {
            let name = |op: &str| format!("{op} {tokens}x{width}");
            cases.push(case(name("rms_norm"), tokens, F32, |b| {
                let x = input(b, 0, width)?;
                let weight = b.weight("norm", &[width], Format::F32);
                b.rms_norm("norm", x, weight, 1e-5)
            }));
            cases.push(case(name("add"), tokens, F32, |b| {
                let (x, y) = (input(b, 0, width)?, input(b, 1, width)?);
                b.add("add", x, y, 0.7)
            }));
            cases.push(case(name("scale"), tokens, F32, |b| {
                let x = input(b, 0, width)?;
                b.node(Op::Scale { by: 0.3 }, "scale", &[x], &[])
            }));
            cases.push(case(name("softcap"), tokens, [1e-5; 2], |b| {
                let x = input(b, 0, width)?;
                b.node(Op::Softcap { cap: 1.5 }, "softcap", &[x], &[])
            }));
            for activation in [Activation::Silu, Activation::GeluTanh] {
                cases.push(case(name(&format!("gated {activation:?}")), tokens, F32, |b| {
                    let both = input(b, 0, 2 * width)?;
                    let (gate, up) = (b.view(both, 0, &[width])?, b.view(both, width, &[width])?);
                    b.gated("gated", gate, up, activation)
                }));
            }
        }
    }
    for (count, dim, rotated) in [(1, 2, 2), (3, 24, 24), (2, 64, 64), (2, 80, 32), (5, 48, 40)] {
        for scaling in [RopeScaling::None, yarn()] {
            cases.push(case(
                format!("rope {count}x{dim} of {rotated} {scaling:?}"),
                19,
                F32,
                |b| {
                    let x = heads(b, 0, count, dim)?;
                    let rope = b.rope_table(RopeSpec {
                        dims: rotated,
                        theta: 10_000.0,
                        scaling,
                    });
                    let positions = b.positions();
                    b.node(Op::Rope { rope }, "rope", &[x, positions], &[])
                },
            ));
        }
    }
    cases.push(case("rms_norm by head 3x20".into(), 6, F32, |b| {
        let x = heads(b, 0, 3, 20)?;
        let weight = b.weight("norm", &[20], Format::F32);
        b.rms_norm("norm", x, weight, 1e-6)
    }));
}

fn yarn() -> RopeScaling {
    RopeScaling::Yarn {
        factor: 4.0,
        original_context: 64,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: 1.1,
    }
}

fn linears(cases: &mut Vec<Case>) {
    for format in Format::ALL {
        let block = format.block_len().max(32);
        for (tokens, n, blocks) in [
            (1, 16, 1),
            (2, 17, 2),
            (5, 33, 1),
            (16, 48, 3),
            (17, 15, 2),
            (40, 1, 1),
        ] {
            let k = block * blocks;
            cases.push(case(
                format!("linear {format} {tokens}x{k}x{n}"),
                tokens,
                INT8,
                |b| {
                    let x = input(b, 0, k)?;
                    let weight = b.weight("matrix", &[n, k], format);
                    b.linear("linear", x, weight)
                },
            ));
        }
        let (tokens, n, k) = (5, 37, 2 * block);
        cases.push(case(format!("linear_add {format}"), tokens, INT8, |b| {
            let (x, residual) = (input(b, 0, k)?, input(b, 1, n)?);
            let weight = b.weight("matrix", &[n, k], format);
            b.node(
                Op::LinearAdd { scale: 0.5 },
                "linear_add",
                &[x, residual],
                &[weight],
            )
        }));
        for activation in [Activation::Silu, Activation::GeluTanh] {
            cases.push(case(
                format!("linear_gated {format} {activation:?}"),
                tokens,
                INT8_GATED,
                |b| {
                    let x = input(b, 0, k)?;
                    let (gate, up) = (b.weight("gate", &[n, k], format), b.weight("up", &[n, k], format));
                    b.node(Op::LinearGated { activation }, "linear_gated", &[x], &[gate, up])
                },
            ));
        }
    }
    for k in [1, 7, 33, 95] {
        cases.push(case(format!("linear F32 3x{k}x19"), 3, INT8, |b| {
            let x = input(b, 0, k)?;
            let weight = b.weight("matrix", &[19, k], Format::F32);
            b.linear("linear", x, weight)
        }));
    }
    for tokens in [1, 6, 20] {
        cases.push(case(
            format!("linear with biases, three formats, {tokens} tokens"),
            tokens,
            INT8,
            |b| {
                let whole = input(b, 0, 300)?;
                let x = b.view(whole, 20, &[256])?;
                let matrices = [
                    b.weight("q", &[33, 256], Format::Q4K),
                    b.weight("k", &[16, 256], Format::Q8_0),
                    b.weight("v", &[20, 256], Format::F16),
                ];
                let biases =
                    [("bq", 33), ("bk", 16), ("bv", 20)].map(|(name, n)| b.weight(name, &[n], Format::F32));
                b.node(
                    Op::Linear { bias: true },
                    "qkv",
                    &[x],
                    &[matrices, biases].concat(),
                )
            },
        ));
    }
}

fn attentions(cases: &mut Vec<Case>) {
    // (query heads, key heads, key dim, value dim, window, softcap, tokens, page)
    let shapes = [
        (1, 1, 16, 16, None, None, 1, 16),
        (4, 2, 64, 64, None, None, 63, 16),
        (4, 2, 64, 64, None, None, 65, 64),
        (9, 3, 64, 64, None, None, 140, 32),
        (6, 1, 24, 40, None, Some(5.0), 70, 16),
        (2, 2, 128, 128, Some(7), None, 130, 128),
        (8, 1, 80, 80, Some(64), Some(2.0), 200, 16),
        (3, 1, 256, 256, Some(65), None, 129, 16),
    ];
    for (query, kv, key_dim, value_dim, window, softcap, tokens, page_tokens) in shapes {
        let name = format!(
            "attention {query}/{kv}x{key_dim}/{value_dim} {tokens} window {window:?} cap {softcap:?}"
        );
        let mut case = case(name, tokens, HALF, |b| {
            let spec = CacheSpec {
                layer: 0,
                kv_heads: kv,
                key_dim,
                value_dim,
                window,
            };
            let cache = b.cache(spec);
            let q = heads(b, 0, query, key_dim)?;
            let (k, v) = (heads(b, 1, kv, key_dim)?, heads(b, 2, kv, value_dim)?);
            let op = Op::Attention {
                cache,
                scale: 1.0 / (key_dim as f32).sqrt(),
                window,
                softcap,
            };
            b.node(op, "attention", &[q, k, v], &[])
        });
        case.page_tokens = page_tokens;
        cases.push(case);
    }
}

fn experts(cases: &mut Vec<Case>) {
    for score in [RouterScore::Softmax, RouterScore::Sigmoid] {
        for (experts, top_k, renormalise, bias) in
            [(1, 1, true, false), (8, 2, true, true), (60, 4, false, false)]
        {
            let name = format!("route {score:?} {top_k} of {experts}");
            let mut case = case(name, 23, F32, |b| {
                let logits = input(b, 0, experts)?;
                let bias: Vec<_> = bias
                    .then(|| b.weight("correction", &[experts], Format::F32))
                    .into_iter()
                    .collect();
                let op = Op::Route {
                    top_k,
                    score,
                    renormalise,
                    scale: 1.7,
                };
                b.node(op, "route", &[logits], &bias)
            });
            case.ids = top_k;
            cases.push(case);
        }
    }
    for format in Format::ALL {
        let block = format.block_len().max(32);
        for (tokens, experts, top_k) in [(1, 4, 2), (21, 5, 3)] {
            let (hidden, inner) = (block, 2 * block);
            let name = format!("experts {format} {tokens} tokens, {top_k} of {experts}");
            cases.push(case(name, tokens, INT8_GATED, |b| {
                let x = input(b, 0, hidden)?;
                let logits = input(b, 1, experts)?;
                let op = Op::Route {
                    top_k,
                    score: RouterScore::Softmax,
                    renormalise: true,
                    scale: 1.0,
                };
                let routes = b.node(op, "route", &[logits], &[])?;
                let gate = b.weight("gate", &[experts, inner, hidden], format);
                let up = b.weight("up", &[experts, inner, hidden], format);
                let down = b.weight("down", &[experts, hidden, inner], format);
                let gated = Op::ExpertsGated {
                    activation: Activation::Silu,
                };
                let inside = b.node(gated, "gated", &[x, routes], &[gate, up])?;
                b.node(Op::ExpertsDown, "down", &[inside, routes], &[down])
            }));
        }
    }
}
