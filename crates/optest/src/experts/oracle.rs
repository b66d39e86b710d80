//! A stack in plain loops in f64, with a bound on what f16 intermediates and f32 sums in any order may change.

use galvani_cuda::ops::experts::{Activation, Score};

use crate::experts::Case;
use crate::experts::data::{Data, Experts};

/// Half a unit in the last place of f32 and of f16.
const F32: f64 = 1.0 / (1u64 << 24) as f64;
const F16: f64 = 1.0 / (1u64 << 11) as f64;

/// One token's experts.
#[derive(Debug, Clone, Default)]
pub struct Routes {
    /// Best first.
    pub ids: Vec<usize>,
    /// Their weights.
    pub weights: Vec<f64>,
    /// How far off each weight may be.
    pub bound: f64,
    /// The shared expert's weight.
    pub shared: f64,
}

/// What a case gives.
#[derive(Debug)]
pub struct Wanted {
    /// By token.
    pub routes: Vec<Routes>,
    /// `[tokens, hidden]`
    pub out: Vec<f64>,
    /// How far off each may be.
    pub bounds: Vec<f64>,
}

impl Wanted {
    /// Which experts are chosen by anybody.
    pub fn used(&self, experts: u32) -> Vec<bool> {
        let mut used = vec![false; experts as usize];
        self.routes
            .iter()
            .flat_map(|routes| &routes.ids)
            .for_each(|&id| used[id] = true);
        used
    }
}

/// The choices of the tokens that exist.
pub fn routes(case: &Case, data: &Data) -> Vec<Routes> {
    let hidden = case.stack.hidden as usize;
    let tokens = data.x.chunks_exact(hidden).take(case.live());
    tokens
        .enumerate()
        .map(|(token, x)| route(case, data, token, x))
        .collect()
}

fn route(case: &Case, data: &Data, token: usize, x: &[f32]) -> Routes {
    let router = &case.stack.router;
    let rows = data.router.chunks_exact(x.len());
    let logits: Vec<Sum> = rows.map(|row| Sum::of(x, row).capped(router.softcap)).collect();
    let scores: Vec<f64> = match router.score {
        Score::Sigmoid => logits.iter().map(|logit| sigmoid(logit.value)).collect(),
        Score::SqrtSoftplus => logits
            .iter()
            .map(|logit| (logit.value.max(0.0) + (-logit.value.abs()).exp().ln_1p()).sqrt())
            .collect(),
        Score::Softmax => {
            let top = logits
                .iter()
                .fold(f64::NEG_INFINITY, |top, logit| top.max(logit.value));
            let powers: Vec<f64> = logits.iter().map(|logit| (logit.value - top).exp()).collect();
            let sum: f64 = powers.iter().sum();
            powers.iter().map(|power| power / sum).collect()
        }
    };
    let bias = |expert: usize| {
        data.router_bias
            .as_ref()
            .map_or(0.0, |bias| f64::from(bias[expert]))
    };
    let ranks: Vec<f64> = scores
        .iter()
        .enumerate()
        .map(|(expert, score)| score + bias(expert))
        .collect();
    let allowed = allowed(case, &ranks);
    let mut order: Vec<usize> = (0..ranks.len()).filter(|&expert| allowed[expert]).collect();
    order.sort_by(|&a, &b| ranks[b].total_cmp(&ranks[a]).then(a.cmp(&b)));
    order.truncate(case.stack.top_k as usize);
    if let Some((table, row_of)) = &data.choices {
        let row = table
            .chunks_exact(case.stack.top_k as usize)
            .nth(row_of[token] as usize);
        let row = row.expect("a row of the table");
        order = row.iter().map(|&id| id as usize).collect();
    }
    let sum: f64 = order.iter().map(|&id| scores[id]).sum::<f64>() + 1e-20;
    let divisor = if router.renormalise { sum } else { 1.0 };
    let weights: Vec<f64> = order
        .iter()
        .map(|&id| scores[id] / divisor * f64::from(router.scale))
        .collect();
    // A logit's error is a score's relative error, and there are two of them in a quotient.
    let logit = logits.iter().fold(0.0f64, |most, logit| most.max(logit.bound));
    let largest = weights.iter().fold(0.0f64, |most, weight| most.max(weight.abs()));
    Routes {
        ids: order,
        weights,
        bound: largest * (2.0 * logit + 64.0 * F32),
        shared: if router.shared_gate {
            sigmoid(Sum::of(x, &data.shared_gate).value)
        } else {
            1.0
        },
    }
}

/// Which experts the groups allow.
fn allowed(case: &Case, ranks: &[f64]) -> Vec<bool> {
    let router = &case.stack.router;
    if router.groups <= 1 {
        return vec![true; ranks.len()];
    }
    let size = ranks.len() / router.groups as usize;
    let mut groups: Vec<(usize, f64)> = ranks
        .chunks_exact(size)
        .map(|group| {
            let mut sorted = group.to_vec();
            sorted.sort_by(|a, b| b.total_cmp(a));
            sorted[..router.group_best as usize].iter().sum()
        })
        .enumerate()
        .collect();
    groups.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    let kept = &groups[..router.groups_kept as usize];
    (0..ranks.len())
        .map(|expert| kept.iter().any(|(group, _)| *group == expert / size))
        .collect()
}

/// A sum of products and how far off f32 may be, whatever its order: a unit in the last place of the sum of magnitudes
/// for each term, twice for hardware that cuts off.
#[derive(Clone, Copy)]
struct Sum {
    value: f64,
    bound: f64,
}

impl Sum {
    fn of(x: &[f32], row: &[f32]) -> Self {
        let products = || x.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b));
        let size: f64 = products().map(f64::abs).sum();
        Self {
            value: products().sum(),
            bound: size * (2 * x.len() + 32) as f64 * F32,
        }
    }

    /// As a router with a cap on its logits has it.
    fn capped(self, cap: f32) -> Self {
        if cap == 0.0 {
            return self;
        }
        let cap = f64::from(cap);
        Self {
            value: cap * (self.value / cap).tanh(),
            bound: self.bound + 16.0 * F32 * cap,
        }
    }

    /// With an input that is itself off.
    fn of_inexact(x: &[Sum], row: &[f32]) -> Self {
        let values: Vec<f32> = x.iter().map(|x| x.value as f32).collect();
        let off: f64 = x.iter().zip(row).map(|(x, w)| x.bound * f64::from(w.abs())).sum();
        let sum = Self::of(&values, row);
        Self {
            value: x.iter().zip(row).map(|(x, w)| x.value * f64::from(*w)).sum(),
            bound: sum.bound + off,
        }
    }

    /// Times its factor, then a bias.
    fn finished(self, bias: Option<f32>) -> Self {
        let value = self.value + bias.map_or(0.0, f64::from);
        Self {
            value,
            bound: self.bound + 4.0 * F32 * (value.abs() + self.value.abs()),
        }
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn activate(activation: Activation, gate: Sum, up: Sum) -> Sum {
    let (g, u) = (gate.value, up.value);
    let (a, u) = match activation {
        Activation::Silu => (g * sigmoid(g), u),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (g + 0.044715 * g * g * g);
            (0.5 * g * (1.0 + inner.tanh()), u)
        }
        Activation::SiluClamped { limit } => {
            let (g, limit) = (g.min(f64::from(limit)), f64::from(limit));
            (g * sigmoid(g), u.clamp(-limit, limit))
        }
        Activation::SiluBetween { limit, alpha } => {
            let (g, limit) = (g.min(f64::from(limit)), f64::from(limit));
            (g * sigmoid(f64::from(alpha) * g), u.clamp(-limit, limit) + 1.0)
        }
    };
    // No activation is steeper than 1.2; the smallest halves are 2^-24 apart.
    let value = a * u;
    let bound = 1.2 * u.abs() * gate.bound
        + (a.abs() + 1.2 * gate.bound) * up.bound
        + 32.0 * F32 * (value.abs() + a.abs());
    Sum {
        value,
        bound: bound + F16 * (value.abs() + bound) + F16 / 8192.0,
    }
}

/// Everything.
pub fn wanted(case: &Case, data: &Data) -> Wanted {
    let hidden = case.stack.hidden as usize;
    let routes = routes(case, data);
    let (mut out, mut bounds) = (Vec::new(), Vec::new());
    for (token, chosen) in routes.iter().enumerate() {
        let x = &data.x[token * hidden..][..hidden];
        let slots: Vec<Vec<Sum>> = chosen.ids.iter().map(|&id| expert(case, data, id, x)).collect();
        for column in 0..hidden {
            let (mut value, mut bound, mut size) = (0.0, 0.0, 0.0);
            for (slot, weight) in slots.iter().zip(&chosen.weights) {
                let row = slot[column];
                value += weight * row.value;
                bound += weight.abs() * row.bound + chosen.bound * (row.value.abs() + row.bound);
                size += (weight * row.value).abs();
            }
            let at = token * hidden + column;
            if let Some(shared) = &data.shared {
                value += chosen.shared * f64::from(shared[at]);
                size += 8.0 * f64::from(shared[at]).abs();
            }
            if let Some(residual) = &data.residual {
                value += f64::from(residual[at]);
                size += f64::from(residual[at]).abs();
            }
            out.push(value);
            bounds.push(bound + size * F32 * (slots.len() + 4) as f64);
        }
    }
    Wanted { routes, out, bounds }
}

/// One expert's result, not yet weighted.
fn expert(case: &Case, data: &Data, id: usize, x: &[f32]) -> Vec<Sum> {
    let (hidden, inner) = (case.stack.hidden as usize, case.stack.inner as usize);
    let (gated, down) = (case.stack.gated_bytes(), case.stack.down_bytes());
    let bias = |experts: &Experts, at: usize| experts.biases.as_ref().map(|biases| biases[at]);
    let product = |matrix: usize, column: usize| {
        let row = &data.gated.numbers[matrix][(id * inner + column) * hidden..][..hidden];
        let at = gated.scale_offset(id, matrix, column / 32) + column % 32;
        Sum::of(x, row).finished(bias(&data.gated, at))
    };
    let activated: Vec<Sum> = (0..inner)
        .map(|column| activate(case.stack.activation, product(0, column), product(1, column)))
        .collect();
    (0..hidden)
        .map(|column| {
            let row = &data.down.numbers[0][(id * hidden + column) * inner..][..inner];
            let at = down.scale_offset(id, 0, column / 32) + column % 32;
            Sum::of_inexact(&activated, row).finished(bias(&data.down, at))
        })
        .collect()
}
