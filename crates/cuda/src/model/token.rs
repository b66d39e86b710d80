//! Whole tokens: what a step of each model is predicted to take on one to eight V100s. Linears and experts come from the model of
//! kernel times; the rest are the assumptions below, until those kernels exist.

use std::fmt::Write;

use super::experts::{self, Kernels};
use super::{V100, table, volta_us};
use crate::ops::experts::ExpertStack;
use crate::ops::linear::{Linear, LinearFormat};

/// Other kernels of a layer: norms, rotation and cache, attention and its reduction (or the steps of linear attention).
const OTHER_LAUNCHES: f64 = 6.0;
/// Each of them, in us: hardly more than a launch, at a short context.
const OTHER_US: f64 = 4.0;
/// Router, table of slots and combination of a layer with experts, in us (an H200 takes 12 to 25).
const ROUTER_US: f64 = 20.0;
/// An all-reduce of a step's rows, in us: 11 with NVLink over two or four boards (published: 10.6 to 13), 32 over two islands of four.
const REDUCE_US: [(u32, f64); 4] = [(1, 0.0), (2, 11.0), (4, 11.0), (8, 32.0)];
/// Sampling, and the way to the next step.
const SAMPLE_US: f64 = 50.0;
/// What weights may take of a board of 32 GB, in bytes: the rest is for the cache, activations and the driver.
const BOARD_BYTES: f64 = 28e9;
/// Tokens of a step.
const TOKENS: [u32; 2] = [1, 8];

enum Split {
    Columns,
    Rows,
    Whole,
}

struct Product {
    format: LinearFormat,
    n: u32,
    k: u32,
    /// Times a step.
    times: f64,
    split: Split,
}

impl Product {
    /// What one of `boards` has of it.
    fn part(&self, boards: u32) -> Linear {
        let (n, k) = match self.split {
            Split::Columns => (self.n.div_ceil(boards), self.k),
            Split::Rows => (
                self.n,
                self.k.div_ceil(boards).next_multiple_of(self.format.k_multiple),
            ),
            Split::Whole => (self.n, self.k),
        };
        Linear::plain(self.format, n, k)
    }
}

struct Experts {
    format: LinearFormat,
    /// Experts, top k, width, inner width.
    sizes: [u32; 4],
    layers: f64,
}

impl Experts {
    /// What one of `boards` has of a layer.
    fn part(&self, boards: u32) -> ExpertStack {
        let [experts, top_k, hidden, inner] = self.sizes;
        experts::stack(self.format, [experts, top_k, hidden, inner / boards])
    }
}

struct Model {
    name: &'static str,
    layers: f64,
    expert_layers: f64,
    /// Numbers of the embedding, f16.
    embedding: f64,
    products: Vec<Product>,
    experts: Option<Experts>,
}

fn models() -> Vec<Model> {
    let mut all: Vec<Model> = Vec::new();
    for row in table::rows(include_str!("models.tsv")) {
        if row.text(0) == "model" {
            all.push(Model {
                name: row.text(1),
                layers: row.get(2),
                expert_layers: row.get(3),
                embedding: row.get::<f64>(4) * row.get::<f64>(5),
                products: Vec::new(),
                experts: None,
            });
            continue;
        }
        let model = all.last_mut().expect("models.tsv begins with a model");
        assert_eq!(model.name, row.text(1), "models.tsv has a model's rows together");
        if row.text(0) == "experts" {
            model.experts = Some(Experts {
                format: row.format(2),
                sizes: row.numbers(3),
                layers: row.get(7),
            });
            continue;
        }
        model.products.push(Product {
            format: row.format(3),
            n: row.get(4),
            k: row.get(5),
            times: row.get(6),
            split: match row.text(7) {
                "n" => Split::Columns,
                "k" => Split::Rows,
                _ => Split::Whole,
            },
        });
    }
    all
}

/// Where a step's time goes, in us.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Step {
    linears: f64,
    experts: f64,
    other: f64,
}

impl Step {
    fn us(&self) -> f64 {
        self.linears + self.experts + self.other
    }
}

impl Model {
    /// Weights of one board.
    fn bytes(&self, boards: u32) -> f64 {
        let products = self.products.iter().map(|product| {
            let part = product.part(boards);
            product.times * product.format.weight_bytes(part.n, part.k) as f64
        });
        let experts = self.experts.as_ref().map_or(0.0, |experts| {
            let stack = experts.part(boards);
            experts.layers * (stack.gated_bytes().bytes() + stack.down_bytes().bytes()) as f64
        });
        products.sum::<f64>() + experts + 2.0 * self.embedding / f64::from(boards)
    }

    /// A step of so many tokens; `slowdown` is what predictions of experts are multiplied by.
    fn step(&self, tokens: u32, boards: u32, slowdown: f64) -> Step {
        let linears = self
            .products
            .iter()
            .map(|product| product.times * volta_us(&V100, &product.part(boards), tokens));
        let experts = self.experts.as_ref().map_or(0.0, |experts| {
            let stack = experts.part(boards);
            let plan = stack.plan(tokens).expect("the shapes are inside the limits");
            let times = experts::products(&V100, &plan, &Kernels::volta(&stack));
            experts.layers * slowdown * times.iter().map(|time| time.us).sum::<f64>()
        });
        let reduce = REDUCE_US.iter().find(|(count, _)| *count == boards);
        let reduce = reduce.expect("a number of boards that the table has").1;
        Step {
            linears: linears.sum(),
            experts,
            other: self.layers * (OTHER_LAUNCHES * OTHER_US + 2.0 * reduce)
                + self.expert_layers * ROUTER_US
                + SAMPLE_US,
        }
    }
}

/// The table in Markdown, the assumptions before it.
pub(super) fn markdown() -> String {
    let slowdown = experts::slowdown();
    let mut text = format!(
        "Whole tokens, predicted for V100s of 32 GB with NVLink. Linears and experts by the model (experts times {:.2}, by which an H200 was \
         slower than predicted). Assumed: {OTHER_LAUNCHES} other kernels a layer at {OTHER_US} us (short context), router and combination {ROUTER_US} us, \
         two all-reduces a layer of 11 us (32 us over eight boards), {SAMPLE_US} us a step; weights up to {:.0} GB a board.\n\n\
         | model | boards | GB a board | M=1: ms (linears, experts, other) | tok/s | M=8: ms | tok/s |\n|---|---|---|---|---|---|---|\n",
        slowdown,
        BOARD_BYTES / 1e9
    );
    for model in models() {
        for (boards, _) in REDUCE_US {
            let gb = model.bytes(boards) / 1e9;
            if model.bytes(boards) > BOARD_BYTES {
                writeln!(
                    text,
                    "| {} | {boards} | {gb:.1} | does not fit | | | |",
                    model.name
                )
                .expect("to memory");
                continue;
            }
            let [one, eight] = TOKENS.map(|tokens| model.step(tokens, boards, slowdown));
            writeln!(
                text,
                "| {} | {boards} | {gb:.1} | {:.1} ({:.1}, {:.1}, {:.1}) | {:.0} | {:.1} | {:.0} |",
                model.name,
                one.us() / 1e3,
                one.linears / 1e3,
                one.experts / 1e3,
                one.other / 1e3,
                1e6 / one.us(),
                eight.us() / 1e3,
                8e6 / eight.us()
            )
            .expect("to memory");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_its_parts_and_boards_share_it() {
        for model in models() {
            let parts = [1, 2, 4, 8].map(|boards| model.step(1, boards, 1.0));
            assert!(
                parts.iter().all(|step| step.linears > 0.0 && step.other > 0.0),
                "{}",
                model.name
            );
            assert_eq!(model.experts.is_some(), parts[0].experts > 0.0, "{}", model.name);
            assert!(
                parts.windows(2).all(|pair| pair[1].linears < pair[0].linears),
                "{}: {parts:?}",
                model.name
            );
            assert!(model.step(8, 4, 1.0).us() > parts[2].us(), "{}", model.name);
            assert!(model.bytes(8) < 0.2 * model.bytes(1), "{}", model.name);
        }
        assert_eq!(models().len(), 8);
    }

    /// Sizes of published checkpoints, GB.
    #[test]
    fn weights_are_as_large_as_the_checkpoints() {
        for (name, gb) in [
            ("Qwen3.6-27B", 20.0),
            ("Qwen3.6-35B-A3B", 21.0),
            ("MiniMax-M2.7", 137.0),
        ] {
            let model = models()
                .into_iter()
                .find(|model| model.name == name)
                .expect("listed");
            let ours = model.bytes(1) / 1e9;
            assert!((ours / gb - 1.0).abs() < 0.15, "{name}: {ours:.1}");
        }
    }
}
