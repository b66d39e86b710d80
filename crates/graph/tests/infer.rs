//! Every operation refuses operands that break its contract, naming what is wrong.

use galvani_graph::{
    Activation, Builder, CacheSpec, Format, GraphError, Op, RopeScaling, RopeSpec, RouterScore, ValueId,
    WeightId,
};

struct Fixture {
    b: Builder,
}

impl Fixture {
    /// `[T, width]`.
    fn x(&mut self, width: usize) -> ValueId {
        let tokens = self.b.tokens();
        let table = self.b.weight(&format!("table{width}"), &[4, width], Format::F32);
        self.b
            .node(Op::Embed { scale: 1.0 }, "x", &[tokens], &[table])
            .unwrap()
    }

    /// `[T, heads, dim]`.
    fn heads(&mut self, heads: usize, dim: usize) -> ValueId {
        let x = self.x(heads * dim);
        self.b.view(x, 0, &[heads, dim]).unwrap()
    }

    fn w(&mut self, dims: &[usize]) -> WeightId {
        self.b.weight(&format!("w{dims:?}"), dims, Format::F32)
    }
}

type Make = fn(&mut Fixture) -> (Op, Vec<ValueId>, Vec<WeightId>);

#[test]
fn wrong_operands() {
    let linear = Op::Linear { bias: false };
    assert_eq!(linear.name(), "linear");
    let cases: [(&str, Make, &str); 22] = [
        (
            "embed of floats",
            |f| (Op::Embed { scale: 1.0 }, vec![f.x(8)], vec![f.w(&[4, 8])]),
            "rank",
        ),
        (
            "embed of a vector",
            |f| (Op::Embed { scale: 1.0 }, vec![f.b.tokens()], vec![f.w(&[8])]),
            "weight rank",
        ),
        (
            "norm of another width",
            |f| (Op::RmsNorm { eps: 1e-6 }, vec![f.x(8)], vec![f.w(&[9])]),
            "last dimension",
        ),
        (
            "norm without weight",
            |f| (Op::RmsNorm { eps: 1e-6 }, vec![f.x(8)], vec![]),
            "operands",
        ),
        (
            "linear of another width",
            |f| (Op::Linear { bias: false }, vec![f.x(8)], vec![f.w(&[4, 9])]),
            "input row",
        ),
        (
            "linear without weight",
            |f| (Op::Linear { bias: false }, vec![f.x(8)], vec![]),
            "weights",
        ),
        (
            "bias missing",
            |f| (Op::Linear { bias: true }, vec![f.x(8)], vec![f.w(&[4, 8])]),
            "weights",
        ),
        (
            "bias too short",
            |f| {
                (
                    Op::Linear { bias: true },
                    vec![f.x(8)],
                    vec![f.w(&[4, 8]), f.w(&[3])],
                )
            },
            "bias",
        ),
        (
            "residual",
            |f| {
                (
                    Op::LinearAdd { scale: 1.0 },
                    vec![f.x(8), f.x(5)],
                    vec![f.w(&[4, 8])],
                )
            },
            "residual",
        ),
        (
            "gate and up",
            |f| {
                let gated = Op::LinearGated {
                    activation: Activation::Silu,
                };
                (gated, vec![f.x(8)], vec![f.w(&[4, 8]), f.w(&[5, 8])])
            },
            "up rows",
        ),
        (
            "gated",
            |f| {
                (
                    Op::Gated {
                        activation: Activation::Silu,
                    },
                    vec![f.x(8), f.x(9)],
                    vec![],
                )
            },
            "second operand",
        ),
        (
            "add",
            |f| (Op::Add { scale: 1.0 }, vec![f.x(8), f.heads(2, 4)], vec![]),
            "second operand",
        ),
        (
            "scale of two",
            |f| (Op::Scale { by: 2.0 }, vec![f.x(8), f.x(8)], vec![]),
            "operands",
        ),
        (
            "rope of flat rows",
            |f| {
                let rope = f.b.rope_table(RopeSpec {
                    dims: 4,
                    theta: 1e4,
                    scaling: RopeScaling::None,
                });
                (Op::Rope { rope }, vec![f.x(8), f.b.positions()], vec![])
            },
            "rank",
        ),
        (
            "rope wider than the head",
            |f| {
                let rope = f.b.rope_table(RopeSpec {
                    dims: 8,
                    theta: 1e4,
                    scaling: RopeScaling::None,
                });
                (Op::Rope { rope }, vec![f.heads(2, 4), f.b.positions()], vec![])
            },
            "head",
        ),
        (
            "attention: k heads",
            |f| attention(f, 4, [(4, 8), (3, 8), (2, 8)]),
            "k",
        ),
        (
            "attention: v width",
            |f| attention(f, 4, [(4, 8), (2, 8), (2, 7)]),
            "v",
        ),
        (
            "attention: q width",
            |f| attention(f, 4, [(4, 9), (2, 8), (2, 8)]),
            "q head",
        ),
        (
            "attention: q heads",
            |f| attention(f, 4, [(5, 8), (2, 8), (2, 8)]),
            "heads",
        ),
        (
            "more experts than there are",
            |f| {
                let route = Op::Route {
                    top_k: 9,
                    score: RouterScore::Softmax,
                    renormalise: true,
                    scale: 1.0,
                };
                (route, vec![f.x(8)], vec![])
            },
            "top_k",
        ),
        (
            "experts of two sizes",
            |f| {
                let gated = Op::ExpertsGated {
                    activation: Activation::Silu,
                };
                (
                    gated,
                    vec![f.x(8), f.x(4)],
                    vec![f.w(&[3, 5, 8]), f.w(&[3, 6, 8])],
                )
            },
            "up",
        ),
        (
            "experts down, flat",
            |f| (Op::ExpertsDown, vec![f.x(8), f.x(4)], vec![f.w(&[3, 5, 8])]),
            "rank",
        ),
    ];
    for (name, make, wanted) in cases {
        let mut fixture = Fixture { b: Builder::new() };
        let (op, inputs, weights) = make(&mut fixture);
        let op_name = op.name();
        match fixture.b.node(op, "under_test", &inputs, &weights) {
            Err(GraphError::Shape { op, label, what, .. }) => {
                assert_eq!(
                    (op, label.as_str(), what),
                    (op_name, "under_test", wanted),
                    "{name}"
                );
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

fn attention(
    f: &mut Fixture,
    _heads: usize,
    shapes: [(usize, usize); 3],
) -> (Op, Vec<ValueId>, Vec<WeightId>) {
    let cache = f.b.cache(CacheSpec {
        layer: 0,
        kv_heads: 2,
        key_dim: 8,
        value_dim: 8,
        window: None,
    });
    let inputs = shapes.iter().map(|&(heads, dim)| f.heads(heads, dim)).collect();
    (
        Op::Attention {
            cache,
            scale: 1.0,
            window: None,
            softcap: None,
        },
        inputs,
        vec![],
    )
}

#[test]
fn views_stay_inside() {
    let mut f = Fixture { b: Builder::new() };
    let x = f.x(8);
    assert!(f.b.view(x, 0, &[2, 4]).is_ok());
    let inner = f.b.view(x, 4, &[4]).unwrap();
    assert!(
        f.b.view(inner, 1, &[4])
            .unwrap_err()
            .to_string()
            .contains("at most 4")
    );
    let nested = f.b.view(inner, 1, &[3]).unwrap();
    assert_eq!(f.b.graph().storage(nested).offset, 5);
}
