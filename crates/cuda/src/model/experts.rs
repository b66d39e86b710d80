//! The expert stack's two products in the model's terms, and how that fits what an H200 took.

use std::fmt::Write;

use super::table::{self, Row};
use super::{FIT, Gpu, H200, LoopRow, Pass, Prediction, Work, predict, skinny_loop};
use crate::ops::experts::plan::{ExpertStack, ExpertsPlan, Path};
use crate::ops::experts::router::{Router, RouterInput, Score};
use crate::ops::experts::rows;
use crate::ops::linear::LinearFormat;
use crate::ops::linear::formats::named;
use crate::ops::linear::rows::{SHAPES, SkinnyShape};

/// The skinny kernel whose loop is that of Volta's experts.
const TILE: SkinnyShape = SHAPES[0];

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
            gated: skinny_loop(true, stack.gated.name, TILE),
            down: skinny_loop(true, stack.down.name, TILE),
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
    // All warps of a block share so many runs of k: gate and up, or the experts of a direct down block.
    let work =
        |blocks: f64, warps: u32, runs: u32, format: &LinearFormat, k: u32, kernel: &LoopRow, shared: u32| {
            let pieces = k.div_ceil(format.piece);
            Work {
                blocks: blocks.round() as u32,
                parts: 1,
                warps,
                pieces: pieces * runs,
                piece: format.piece,
                piece_bytes: format.tile_bytes(k) as f64 / f64::from(pieces),
                tokens: 1,
                sums_bytes: 1024,
                registers: kernel.registers,
                shared_bytes: shared + kernel.shared_static,
                pass: kernel.pass,
            }
        };
    let gated = work(
        f64::from(stack.inner.div_ceil(32)) * row_blocks,
        rows::GATED_THREADS / 32,
        2,
        &stack.gated,
        stack.hidden,
        &kernels.gated,
        rows::GATED_SHARED,
    );
    let (down_blocks, warps, runs, shared) = if direct {
        (
            f64::from(plan.tokens),
            plan.direct_warps(),
            stack.top_k,
            rows::direct_shared(stack.top_k),
        )
    } else {
        (row_blocks, rows::DOWN_PARTS, 1, rows::DOWN_SHARED)
    };
    let down = work(
        f64::from(stack.hidden.div_ceil(32)) * down_blocks,
        warps,
        runs,
        &stack.down,
        stack.inner,
        &kernels.down,
        shared,
    );
    [gated, down].map(|work| predict(gpu, &work, &FIT))
}

/// One measured bucket: gate-up and down, each in us, and what the model makes of the machine code that ran.
struct Sample {
    model: &'static str,
    plan: ExpertsPlan,
    us: [f64; 2],
    predicted: [f64; 2],
}

impl Sample {
    /// Model over measured.
    fn ratios(&self) -> [f64; 2] {
        std::array::from_fn(|i| self.predicted[i] / self.us[i])
    }
}

fn samples() -> Vec<Sample> {
    table::rows(include_str!("h200_experts.tsv"))
        .map(|row| sample(&row))
        .collect()
}

fn sample(row: &Row) -> Sample {
    let kernel = |at: usize| LoopRow {
        pass: Pass::hopper(row.numbers(at)),
        registers: row.get(at + 5),
        shared_static: 0,
    };
    let stack = stack(named("nvfp4").expect("a format of the table"), row.numbers(1));
    let plan = stack
        .plan(row.get(5))
        .expect("measured shapes are inside the limits");
    let kernels = Kernels {
        gated: kernel(8),
        down: kernel(14),
    };
    Sample {
        model: row.text(0),
        plan,
        us: [row.get(6), row.get(7)],
        predicted: products(&H200, &plan, &kernels).map(|prediction| prediction.us),
    }
}

/// Experts of `[experts, top_k, hidden, inner]` with a plain router.
pub(super) fn stack(format: LinearFormat, sizes: [u32; 4]) -> ExpertStack {
    ExpertStack::plain(format, sizes, Router::plain(RouterInput::F16, Score::Softmax))
}

/// By how much the measured launches take longer than predicted, in the geometric mean: predictions of experts are multiplied by it.
pub(super) fn slowdown() -> f64 {
    let logarithms: Vec<f64> = samples()
        .iter()
        .flat_map(Sample::ratios)
        .map(|ratio| -ratio.ln())
        .collect();
    (logarithms.iter().sum::<f64>() / logarithms.len() as f64).exp()
}

/// The errors one by one, as a Markdown table, and their root mean square.
pub(super) fn calibration() -> String {
    let mut text = String::from(
        "| model | N | path | gate and up: measured us | model / measured | down: measured us | model / measured |\n|---|---|---|---|---|---|---|\n",
    );
    let mut squares = Vec::new();
    for sample in samples() {
        let [gated, down] = sample.ratios();
        squares.extend([gated.ln().powi(2), down.ln().powi(2)]);
        writeln!(
            text,
            "| {} | {} | {:?} | {:.1} | {gated:.2} | {:.1} | {down:.2} |",
            sample.model, sample.plan.tokens, sample.plan.path, sample.us[0], sample.us[1],
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
            for (ratio, us) in sample.ratios().into_iter().zip(sample.us) {
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
        let qwen = stack(named("nvfp4").expect("listed"), [256, 8, 2048, 512]);
        for (tokens, met) in [(1, 8.0), (2, 15.6), (8, 57.7), (64, 223.0)] {
            assert!((distinct(&qwen, tokens) / met - 1.0).abs() < 0.03, "{tokens}");
        }
    }
}
