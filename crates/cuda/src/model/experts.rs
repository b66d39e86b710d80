//! The expert stack's two products in the model's terms, and how that fits what an H200 took.

use std::fmt::Write;

use super::{FIT, Gpu, H200, LoopRow, Pass, Prediction, Work, predict, skinny_loop};
use crate::ops::experts::plan::{Activation, ExpertStack, ExpertsPlan, Path};
use crate::ops::experts::router::{Router, RouterInput, Score, Selection};
use crate::ops::experts::rows;
use crate::ops::linear::formats;

/// What binds blocks of each of the two products.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Kernels {
    pub gated: LoopRow,
    pub down: LoopRow,
}

impl Kernels {
    /// A V100's: the loops of the skinny linears, which are the same products (`product.cuh`).
    pub fn volta(stack: &ExpertStack) -> Self {
        Self {
            gated: skinny_loop(true, stack.gated.name, 1),
            down: skinny_loop(true, stack.down.name, 1),
        }
    }
}

/// Experts that `tokens` tokens choose, all experts alike: `E (1 - (1 - k / E)^tokens)`.
pub(super) fn distinct(stack: &ExpertStack, tokens: u32) -> f64 {
    let experts = f64::from(stack.experts);
    experts * (1.0 - (1.0 - f64::from(stack.top_k) / experts).powf(f64::from(tokens)))
}

/// Times of gate-up and down of the direct and the grouped path. Row blocks that no token fills end at once and are not counted; an
/// expert's slots are taken to fit one row block.
pub(super) fn products(gpu: &Gpu, plan: &ExpertsPlan, kernels: &Kernels) -> [Prediction; 2] {
    let stack = &plan.stack;
    let direct = plan.path == Path::Direct;
    let row_blocks = if direct {
        f64::from(plan.slots())
    } else {
        distinct(stack, plan.tokens)
    };
    let work = |tiles: f64, warps: u32, matrices: u32, k: u32, kernel: &LoopRow, shared: u32| {
        let format = if matrices == 2 { &stack.gated } else { &stack.down };
        let pieces = k.div_ceil(format.piece);
        // Gate and up are one run of bytes that all warps of a block share, and so are the experts of a direct down block.
        let runs = if matrices == 2 {
            2
        } else {
            warps.div_ceil(rows::DOWN_PARTS)
        };
        Work {
            tiles: tiles.round() as u32,
            parts: 1,
            warps,
            pieces: pieces * runs,
            piece: format.piece,
            piece_bytes: format.tile_bytes(k) as f64 / f64::from(pieces),
            tokens: 1,
            token_tiles: 1,
            registers: kernel.registers,
            shared_bytes: shared + kernel.shared_static,
            pass: kernel.pass,
        }
    };
    let gated_tiles = f64::from(stack.inner.div_ceil(32)) * row_blocks;
    let down_tiles = f64::from(stack.hidden.div_ceil(32));
    let gated = work(
        gated_tiles,
        rows::GATED_THREADS / 32,
        2,
        stack.hidden,
        &kernels.gated,
        rows::GATED_SHARED,
    );
    let down = if direct {
        let warps = plan.direct_warps();
        let blocks = down_tiles * f64::from(plan.tokens);
        let mut down = work(
            blocks,
            warps,
            1,
            stack.inner,
            &kernels.down,
            rows::direct_shared(stack.top_k),
        );
        down.pieces = stack.top_k * stack.inner.div_ceil(stack.down.piece);
        down
    } else {
        work(
            down_tiles * row_blocks,
            rows::DOWN_PARTS,
            1,
            stack.inner,
            &kernels.down,
            rows::DOWN_SHARED,
        )
    };
    [gated, down].map(|work| predict(gpu, &work, &FIT))
}

/// One measured bucket: gate-up and down, each in us, and the loops of the machine code that ran.
struct Sample {
    model: &'static str,
    plan: ExpertsPlan,
    us: [f64; 2],
    kernels: Kernels,
}

fn samples() -> Vec<Sample> {
    let lines = include_str!("h200_experts.tsv").lines();
    lines.filter(|line| !line.starts_with('#')).map(sample).collect()
}

fn sample(line: &'static str) -> Sample {
    let fields: Vec<&'static str> = line.split('\t').collect();
    let number = |index: usize| -> f64 {
        fields[index]
            .parse()
            .expect("h200_experts.tsv holds numbers after the name")
    };
    let whole = |index: usize| number(index) as u32;
    let kernel = |at: usize| LoopRow {
        pass: Pass {
            issued: whole(at),
            int: whole(at + 1),
            fma: whole(at + 2),
            half: whole(at + 3),
            tensor: whole(at + 4),
            ..Pass::default()
        },
        registers: whole(at + 5),
        shared_static: 0,
    };
    let stack = stack("nvfp4", [whole(1), whole(2), whole(3), whole(4)]);
    let plan = stack
        .plan(whole(5))
        .expect("measured shapes are inside the limits");
    Sample {
        model: fields[0],
        plan,
        us: [number(6), number(7)],
        kernels: Kernels {
            gated: kernel(8),
            down: kernel(14),
        },
    }
}

/// A stack of experts, top k, width and inner width, with a plain router.
pub(super) fn stack(format: &str, [experts, top_k, hidden, inner]: [u32; 4]) -> ExpertStack {
    let known = formats().into_iter().find(|known| known.name == format);
    let format = known.expect("a format of the table");
    ExpertStack {
        experts,
        top_k,
        hidden,
        inner,
        gated: format,
        down: format,
        activation: Activation::Silu,
        router: Router {
            input: RouterInput::F16,
            softcap: 0.0,
            score: Score::Softmax,
            selection: Selection::Best,
            bias: false,
            groups: 0,
            groups_kept: 0,
            group_best: 1,
            renormalise: true,
            scale: 1.0,
            shared_gate: false,
        },
    }
}

/// By how much the measured launches take longer than predicted, in the geometric mean: predictions of experts are multiplied by it.
pub(super) fn slowdown() -> f64 {
    let mut logarithms = Vec::new();
    for sample in samples() {
        let predicted = products(&H200, &sample.plan, &sample.kernels);
        logarithms.extend(predicted.iter().zip(sample.us).map(|(p, us)| (us / p.us).ln()));
    }
    (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp()
}

/// The errors one by one, as a Markdown table, and their root mean square.
pub(super) fn calibration() -> String {
    let mut text = String::from(
        "| model | N | path | gate and up: measured us | model / measured | down: measured us | model / measured |\n|---|---|---|---|---|---|---|\n",
    );
    let mut squares = Vec::new();
    for sample in samples() {
        let predicted = products(&H200, &sample.plan, &sample.kernels);
        let ratio = |i: usize| predicted[i].us / sample.us[i];
        squares.extend([ratio(0).ln().powi(2), ratio(1).ln().powi(2)]);
        writeln!(
            text,
            "| {} | {} | {:?} | {:.1} | {:.2} | {:.1} | {:.2} |",
            sample.model,
            sample.plan.tokens,
            sample.plan.path,
            sample.us[0],
            ratio(0),
            sample.us[1],
            ratio(1)
        )
        .expect("to memory");
    }
    let error = (squares.iter().sum::<f64>() / squares.len() as f64).sqrt();
    writeln!(
        text,
        "\n{} launches, root mean square error {:.0} %",
        squares.len(),
        100.0 * error
    )
    .expect("to memory");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fit_of_the_linears_holds_for_the_experts() {
        let samples = samples();
        assert_eq!(samples.len(), 14);
        for sample in samples {
            let predicted = products(&H200, &sample.plan, &sample.kernels);
            for (predicted, us) in predicted.iter().zip(sample.us) {
                let ratio = predicted.us / us;
                assert!(
                    (0.5..1.7).contains(&ratio),
                    "{} N={}: {ratio:.2} of {us} us",
                    sample.model,
                    sample.plan.tokens
                );
            }
        }
    }

    #[test]
    fn distinct_experts_are_those_that_a_run_met() {
        let qwen = stack("nvfp4", [256, 8, 2048, 512]);
        for (tokens, met) in [(1, 8.0), (2, 15.6), (8, 57.7), (64, 223.0)] {
            assert!((distinct(&qwen, tokens) / met - 1.0).abs() < 0.03, "{tokens}");
        }
    }
}
