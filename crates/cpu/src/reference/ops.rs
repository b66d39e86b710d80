//! Row-wise operations. `out` is dense, `[outer, width]`.

use std::ops::Range;

use galvani_graph::Activation;

use super::Rows;

/// Sum of products in ascending order, f64, rounded once.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let sum: f64 = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
    sum as f32
}

pub(super) fn embed(ids: &[u32], table: &[f32], scale: f32, width: usize, out: &mut [f32]) {
    for (row, &id) in ids.iter().enumerate() {
        for column in 0..width {
            out[row * width + column] = table[id as usize * width + column] * scale;
        }
    }
}

/// Over the last dimension, whose length is the weight's.
pub(super) fn rms_norm(x: Rows<'_>, weight: &[f32], eps: f32, out: &mut [f32]) {
    for (row, out) in out.chunks_exact_mut(x.len).enumerate() {
        let groups = x.row(row).chunks_exact(weight.len());
        for (x, out) in groups.zip(out.chunks_exact_mut(weight.len())) {
            let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
            let scale = 1.0 / (squares / x.len() as f64 + f64::from(eps)).sqrt();
            for column in 0..x.len() {
                out[column] = (f64::from(x[column]) * scale) as f32 * weight[column];
            }
        }
    }
}

/// `W x` (`+ bias`) into columns `columns` of `out`.
pub(super) fn linear(
    x: Rows<'_>,
    matrix: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
    width: usize,
    columns: Range<usize>,
) {
    for (row, out) in out.chunks_exact_mut(width).enumerate() {
        let x = x.row(row);
        for (n, out) in out[columns.clone()].iter_mut().enumerate() {
            *out = dot(x, &matrix[n * x.len()..][..x.len()]) + bias.map_or(0.0, |bias| bias[n]);
        }
    }
}

/// `residual + scale * out` in place of `out`.
pub(super) fn scale_onto(residual: Rows<'_>, scale: f32, width: usize, out: &mut [f32]) {
    for (row, out) in out.chunks_exact_mut(width).enumerate() {
        for (out, &residual) in out.iter_mut().zip(residual.row(row)) {
            *out = residual + scale * *out;
        }
    }
}

/// `act(gate) * up` in place of `gate`.
pub(super) fn gate_in_place(activation: Activation, gate: &mut [f32], up: &[f32]) {
    for (gate, &up) in gate.iter_mut().zip(up) {
        *gate = activate(activation, *gate) * up;
    }
}

pub(super) fn zip(a: Rows<'_>, b: Rows<'_>, width: usize, out: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    for (row, out) in out.chunks_exact_mut(width).enumerate() {
        for (out, (&a, &b)) in out.iter_mut().zip(a.row(row).iter().zip(b.row(row))) {
            *out = f(a, b);
        }
    }
}

pub(super) fn activate(activation: Activation, x: f32) -> f32 {
    let x = f64::from(x);
    let y = match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    };
    y as f32
}

pub(super) fn softcap(x: f32, cap: f32) -> f32 {
    (f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh()) as f32
}

/// Rotates the first `2 * frequencies.len()` numbers of each head of `head` numbers.
pub(super) fn rope(
    x: Rows<'_>,
    positions: &[u32],
    frequencies: &[f32],
    magnitude: f32,
    head: usize,
    width: usize,
    out: &mut [f32],
) {
    let half = frequencies.len();
    for (row, out) in out.chunks_exact_mut(width).enumerate() {
        out.copy_from_slice(x.row(row));
        for head in out.chunks_exact_mut(head) {
            for i in 0..half {
                // The angle is formed in f32, as the models were trained; sine and cosine of it are exact.
                let angle = f64::from(positions[row] as f32 * frequencies[i]);
                let (sin, cos) = (angle.sin() as f32 * magnitude, angle.cos() as f32 * magnitude);
                let (a, b) = (head[i], head[i + half]);
                head[i] = a * cos - b * sin;
                head[i + half] = b * cos + a * sin;
            }
        }
    }
}
