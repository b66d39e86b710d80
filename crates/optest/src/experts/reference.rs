//! The oracle of this module against the reference backend, where the graph has the operation.

use std::borrow::Cow;
use std::ops::Range;

use galvani_cpu::reference::Reference;
use galvani_cuda::ops::experts::{self, Score};
use galvani_graph::{
    Activation, BackendError, Builder, Format, Graph, GraphError, Op, RouterScore, Weight, WeightSource,
};

use super::{Case, Data, oracle};
use crate::device::random::Kind;
use crate::{Machine, Sequence, alone};

/// The data's numbers as a graph's weights, all in f32.
struct Numbers<'a>(&'a Data);

impl WeightSource for Numbers<'_> {
    fn rows(&self, weight: &Weight, rows: Range<usize>) -> Result<Cow<'_, [u8]>, BackendError> {
        let all = match weight.name.as_str() {
            "x" => &self.0.x,
            "router" => &self.0.router,
            "bias" => self.0.router_bias.as_ref().expect("the case has a bias"),
            "gate" => &self.0.gated.numbers[0],
            "up" => &self.0.gated.numbers[1],
            "down" => &self.0.down.numbers[0],
            other => panic!("no weight {other}"),
        };
        let width = weight.row_len();
        let part = &all[rows.start * width..rows.end * width];
        Ok(Cow::Owned(super::data::floats(part)))
    }
}

fn graph(case: &Case) -> Result<Graph, GraphError> {
    let stack = &case.stack;
    let [experts, top_k, hidden, inner] =
        [stack.experts, stack.top_k, stack.hidden, stack.inner].map(|size| size as usize);
    let mut b = Builder::new();
    let mut weight = |name: &str, dims: &[usize]| b.weight(name, dims, Format::F32);
    let table = weight("x", &[case.tokens as usize, hidden]);
    let router = weight("router", &[experts, hidden]);
    let gate = weight("gate", &[experts, inner, hidden]);
    let up = weight("up", &[experts, inner, hidden]);
    let down = weight("down", &[experts, hidden, inner]);
    let bias: Vec<_> = stack
        .router
        .bias
        .then(|| weight("bias", &[experts]))
        .into_iter()
        .collect();
    let tokens = b.tokens();
    let x = b.node(Op::Embed { scale: 1.0 }, "x", &[tokens], &[table])?;
    let logits = b.linear("router", x, router)?;
    let route = Op::Route {
        top_k,
        score: match stack.router.score {
            Score::Softmax => RouterScore::Softmax,
            Score::Sigmoid => RouterScore::Sigmoid,
            Score::SqrtSoftplus => panic!("the graph has no such score"),
        },
        renormalise: stack.router.renormalise,
        scale: stack.router.scale,
    };
    let routes = b.node(route, "route", &[logits], &bias)?;
    let activation = match stack.activation {
        experts::Activation::GeluTanh => Activation::GeluTanh,
        _ => Activation::Silu,
    };
    let gated = b.node(
        Op::ExpertsGated { activation },
        "gated",
        &[x, routes],
        &[gate, up],
    )?;
    let out = b.node(Op::ExpertsDown, "down", &[gated, routes], &[down])?;
    let rows = b.rows();
    let out = b.node(Op::TakeRows, "out", &[out, rows], &[])?;
    Ok(b.finish(out))
}

#[test]
fn the_oracle_is_the_reference() {
    for (score, activation, bias, renormalise, kind) in [
        (
            Score::Softmax,
            experts::Activation::Silu,
            false,
            true,
            Kind::Nvfp4,
        ),
        (
            Score::Softmax,
            experts::Activation::GeluTanh,
            false,
            false,
            Kind::Mxfp4,
        ),
        (
            Score::Sigmoid,
            experts::Activation::Silu,
            true,
            true,
            Kind::Rows(Format::Q8_0),
        ),
        (
            Score::Sigmoid,
            experts::Activation::GeluTanh,
            true,
            false,
            Kind::Rows(Format::F16),
        ),
    ] {
        let mut case = Case::new([12, 3, 64, 96], 11, kind);
        case.stack.router.score = score;
        case.stack.router.bias = bias;
        case.stack.router.renormalise = renormalise;
        case.stack.router.scale = 1.5;
        case.stack.activation = activation;
        let data = Data::new(&case).expect("packs");
        let wanted = oracle::wanted(&case, &data);
        let sequence = [Sequence::counting(11, 11)];
        let graph = graph(&case).expect("a valid graph");
        let mut machine = Machine::new(&Reference, &graph, &Numbers(&data), &sequence, 16).expect("compiles");
        let found = machine.drive(&sequence, &alone(11, 11)).expect("runs").remove(0);
        assert_eq!(found.len(), wanted.out.len());
        let size = wanted
            .out
            .iter()
            .fold(0.0f64, |most, number| most.max(number.abs()));
        for (at, (found, (want, bound))) in found
            .iter()
            .zip(wanted.out.iter().zip(&wanted.bounds))
            .enumerate()
        {
            let off = (f64::from(*found) - want).abs();
            assert!(
                off <= 1e-5 * size,
                "{}: number {at} is {found}, wanted {want}",
                case.name()
            );
            assert!(
                *bound < 0.02 * size,
                "{}: a bound of {bound} says nothing about {want}",
                case.name()
            );
        }
    }
}
