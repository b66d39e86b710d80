//! Operations on rows: norms, sums, gates, rotations. Each row is a function of that row alone.

use std::ops::Range;

use crate::lanes::{self, LANES, Lanes};

/// Rows of f32 in the arena: row r begins at `base + r * stride`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix {
    pub base: *mut f32,
    /// Numbers from one row to the next.
    pub stride: usize,
}

impl Matrix {
    /// First number of row `index`.
    ///
    /// # Safety
    /// The matrix has this row.
    #[inline(always)]
    pub(crate) unsafe fn row(self, index: usize) -> *mut f32 {
        // SAFETY: inside the matrix, as the caller says.
        unsafe { self.base.add(index * self.stride) }
    }
}

/// What is done number by number.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pointwise {
    /// `a + by * b`
    Add { by: f32 },
    /// `a * by`
    Scale { by: f32 },
    /// `cap * tanh(a / cap)`
    Softcap { cap: f32 },
    /// `silu(a) * b`
    Silu,
    /// `gelu_tanh(a) * b`
    GeluTanh,
}

/// `out = op(a, b)` for `rows` and the numbers `columns` of each.
///
/// # Safety
/// All three matrices hold these rows and columns, `out` overlaps neither operand unless it is the same place, nobody else
/// touches these places, and the set of `S` is available.
#[inline(always)]
pub(crate) unsafe fn pointwise<S: Lanes>(
    op: Pointwise,
    a: Matrix,
    b: Matrix,
    out: Matrix,
    rows: Range<usize>,
    columns: Range<usize>,
) {
    for row in rows {
        // SAFETY: passed on from the caller.
        unsafe {
            let (a, b, out) = (
                a.row(row).add(columns.start),
                b.row(row).add(columns.start),
                out.row(row),
            );
            let out = out.add(columns.start);
            let len = columns.len();
            match op {
                Pointwise::Add { by } => {
                    let by = S::splat(by);
                    zip::<S>(a, b, out, len, |a, b| S::fma(by, b, a));
                }
                Pointwise::Scale { by } => {
                    let by = S::splat(by);
                    zip::<S>(a, a, out, len, |a, _| S::mul(a, by));
                }
                Pointwise::Softcap { cap } => zip::<S>(a, a, out, len, |a, _| lanes::softcap::<S>(a, cap)),
                Pointwise::Silu => zip::<S>(a, b, out, len, |a, b| S::mul(lanes::silu::<S>(a), b)),
                Pointwise::GeluTanh => zip::<S>(a, b, out, len, |a, b| S::mul(lanes::gelu_tanh::<S>(a), b)),
            }
        }
    }
}

/// `out[i] = f(a[i], b[i])`; the tail goes through padded vectors, so its lanes compute as all others.
#[inline(always)]
unsafe fn zip<S: Lanes>(
    a: *const f32,
    b: *const f32,
    out: *mut f32,
    len: usize,
    f: impl Fn(S::V, S::V) -> S::V,
) {
    let whole = len / LANES * LANES;
    let mut i = 0;
    // SAFETY: whole vectors lie inside the rows; the tail is copied number by number.
    unsafe {
        while i < whole {
            S::store(out.add(i), f(S::load(a.add(i)), S::load(b.add(i))));
            i += LANES;
        }
        if whole < len {
            let mut padded = [[0.0_f32; LANES]; 2];
            std::ptr::copy_nonoverlapping(a.add(whole), padded[0].as_mut_ptr(), len - whole);
            std::ptr::copy_nonoverlapping(b.add(whole), padded[1].as_mut_ptr(), len - whole);
            let mut result = [0.0_f32; LANES];
            S::store(
                result.as_mut_ptr(),
                f(S::load(padded[0].as_ptr()), S::load(padded[1].as_ptr())),
            );
            std::ptr::copy_nonoverlapping(result.as_ptr(), out.add(whole), len - whole);
        }
    }
}

/// RMS norm of each group of `len` numbers, `groups` a row.
///
/// # Safety
/// As [`pointwise`]; `weight` holds `len` numbers.
#[allow(clippy::too_many_arguments)]
#[inline(always)]
pub(crate) unsafe fn rms_norm<S: Lanes>(
    x: Matrix,
    weight: *const f32,
    out: Matrix,
    rows: Range<usize>,
    groups: usize,
    len: usize,
    eps: f32,
) {
    for row in rows {
        for group in 0..groups {
            // SAFETY: passed on from the caller.
            unsafe {
                let (x, out) = (x.row(row).add(group * len), out.row(row).add(group * len));
                let mean = squares::<S>(x, len) / len as f32;
                let factor = S::splat(1.0 / (mean + eps).sqrt());
                zip::<S>(x, weight, out, len, |x, weight| S::mul(S::mul(x, factor), weight));
            }
        }
    }
}

/// Sum of squares: four chains of vectors, then a fixed tree.
#[inline(always)]
unsafe fn squares<S: Lanes>(x: *const f32, len: usize) -> f32 {
    // SAFETY: whole vectors lie inside `len` numbers; the tail is copied.
    unsafe {
        let mut sums = [S::splat(0.0); 4];
        let mut i = 0;
        while i + 4 * LANES <= len {
            for (j, sum) in sums.iter_mut().enumerate() {
                let v = S::load(x.add(i + j * LANES));
                *sum = S::fma(v, v, *sum);
            }
            i += 4 * LANES;
        }
        while i + LANES <= len {
            let v = S::load(x.add(i));
            sums[0] = S::fma(v, v, sums[0]);
            i += LANES;
        }
        if i < len {
            let mut padded = [0.0_f32; LANES];
            std::ptr::copy_nonoverlapping(x.add(i), padded.as_mut_ptr(), len - i);
            let v = S::load(padded.as_ptr());
            sums[1] = S::fma(v, v, sums[1]);
        }
        S::sum(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3])))
    }
}

/// Cosines and sines of one step: row t is `[2 * half]`, cosines then sines, of token t's position.
pub(crate) fn rope_angles(
    positions: &[u32],
    frequencies: &[f32],
    magnitude: f32,
    table: Matrix,
    rows: Range<usize>,
) {
    let half = frequencies.len();
    for row in rows {
        for (i, &frequency) in frequencies.iter().enumerate() {
            // The angle is formed in f32, as the models were trained; its sine and cosine are exact.
            let (sin, cos) = f64::from(positions[row] as f32 * frequency).sin_cos();
            // SAFETY: the table has `2 * half` numbers for each token of the largest step; rows are this worker's own.
            unsafe {
                *table.row(row).add(i) = cos as f32 * magnitude;
                *table.row(row).add(half + i) = sin as f32 * magnitude;
            }
        }
    }
}

/// Rotates pairs (i, i + half) of each head of `head` numbers; the rest is copied.
///
/// # Safety
/// As [`pointwise`]; `table` is that of [`rope_angles`].
#[allow(clippy::too_many_arguments)]
#[inline(always)]
pub(crate) unsafe fn rope<S: Lanes>(
    x: Matrix,
    table: Matrix,
    out: Matrix,
    rows: Range<usize>,
    heads: usize,
    head: usize,
    half: usize,
) {
    for row in rows {
        for index in 0..heads {
            // SAFETY: passed on from the caller.
            unsafe {
                let (x, out) = (x.row(row).add(index * head), out.row(row).add(index * head));
                let (cos, sin) = (table.row(row), table.row(row).add(half));
                rotate::<S>(x, cos, sin, out, half);
                let rotated = 2 * half;
                std::ptr::copy(x.add(rotated), out.add(rotated), head - rotated);
            }
        }
    }
}

#[inline(always)]
unsafe fn rotate<S: Lanes>(x: *const f32, cos: *const f32, sin: *const f32, out: *mut f32, half: usize) {
    let mut i = 0;
    // SAFETY: x and out hold 2 * half numbers, cos and sin half.
    unsafe {
        while i + LANES <= half {
            let (a, b) = (S::load(x.add(i)), S::load(x.add(i + half)));
            let (c, s) = (S::load(cos.add(i)), S::load(sin.add(i)));
            S::store(out.add(i), S::sub(S::mul(a, c), S::mul(b, s)));
            S::store(out.add(i + half), S::add(S::mul(b, c), S::mul(a, s)));
            i += LANES;
        }
        while i < half {
            let (a, b) = (*x.add(i), *x.add(i + half));
            let (c, s) = (*cos.add(i), *sin.add(i));
            *out.add(i) = a * c - b * s;
            *out.add(i + half) = b * c + a * s;
            i += 1;
        }
    }
}
