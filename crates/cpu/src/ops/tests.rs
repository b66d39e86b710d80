//! The kernels against plain loops, on every instruction set of the machine.

use std::sync::atomic::AtomicUsize;

use galvani_graph::{CacheSpec, LimitsSpec, PageId, StepInput, StepSequence};

use super::attention::{Item, Shape, Task, attend, list_items, scratch_bytes};
use super::cache::{CacheType, KvPool};
use super::route::Groups;
use super::rows::{Matrix, Pointwise, pointwise, rms_norm};
use crate::isa::Isa;
use crate::lanes::{Set, dispatch};

/// Numbers in -1..1 from a linear congruence.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..count)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

fn matrix(data: &mut [f32], stride: usize) -> Matrix {
    Matrix {
        base: data.as_mut_ptr(),
        stride,
    }
}

fn sets() -> Vec<Set> {
    let mut sets: Vec<Set> = Isa::available().into_iter().map(Set::of).collect();
    sets.dedup();
    sets
}

fn run_pointwise(set: Set, op: Pointwise, a: &mut [f32], b: &mut [f32], out: &mut [f32]) {
    let len = a.len();
    let (a, b, out) = (matrix(a, len), matrix(b, len), matrix(out, len));
    // SAFETY: one row of `len` numbers each; the set is available.
    unsafe {
        dispatch!(set, pointwise(
            op: Pointwise = op, a: Matrix = a, b: Matrix = b, out: Matrix = out,
            rows: std::ops::Range<usize> = 0..1, columns: std::ops::Range<usize> = 0..len
        ));
    }
}

#[test]
fn pointwise_functions_are_close_to_f64_over_their_range() {
    let mut a: Vec<f32> = (-2000..2000).map(|i| i as f32 * 0.06).collect();
    a.extend([
        0.0, -0.0, 1e-30, -1e-30, 88.0, -88.0, 200.0, -200.0, 1e30, -1e30, 3.0,
    ]);
    let mut b = vec![1.5; a.len()];
    let silu = |a: f64| a / (1.0 + (-a).exp());
    let gelu =
        |a: f64| 0.5 * a * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (a + 0.044715 * a * a * a)).tanh());
    type Case<'a> = (Pointwise, &'a dyn Fn(f64, f64) -> f64, f64);
    let cases: [Case<'_>; 5] = [
        (Pointwise::Add { by: 2.0 }, &|a, b| a + 2.0 * b, 1e-7),
        (Pointwise::Scale { by: 0.5 }, &|a, _| a * 0.5, 0.0),
        (
            Pointwise::Softcap { cap: 30.0 },
            &|a, _| 30.0 * (a / 30.0).tanh(),
            1e-5,
        ),
        (Pointwise::Silu, &|a, b| silu(a) * b, 3e-7),
        (Pointwise::GeluTanh, &|a, b| gelu(a) * b, 2e-6),
    ];
    for set in sets() {
        for (op, wanted, tolerance) in &cases {
            let mut out = vec![0.0; a.len()];
            run_pointwise(set, *op, &mut a, &mut b, &mut out);
            for i in 0..a.len() {
                let wanted = wanted(f64::from(a[i]), f64::from(b[i]));
                let error = (f64::from(out[i]) - wanted).abs();
                let close = error <= tolerance * wanted.abs().max(1.0);
                assert!(close, "{set:?} {op:?} of {}: {} for {wanted}", a[i], out[i]);
            }
        }
        let mut out = [0.0];
        run_pointwise(set, Pointwise::Silu, &mut [f32::NAN], &mut [1.0], &mut out);
        assert!(out[0].is_nan(), "{set:?}: a NaN must stay one");
    }
}

#[test]
fn rms_norm_equals_plain_loops() {
    for set in sets() {
        for (len, groups) in [(1, 1), (15, 2), (16, 1), (17, 3), (64, 2), (100, 1), (576, 1)] {
            let mut x = numbers(len as u64, 3 * groups * len);
            let weight = numbers(7, len);
            let mut out = vec![0.0; x.len()];
            let (xm, om) = (matrix(&mut x, groups * len), matrix(&mut out, groups * len));
            // SAFETY: three rows of `groups * len` numbers; the set is available.
            unsafe {
                dispatch!(set, rms_norm(
                    x: Matrix = xm, w: *const f32 = weight.as_ptr(), out: Matrix = om,
                    rows: std::ops::Range<usize> = 0..3, groups: usize = groups, len: usize = len, eps: f32 = 1e-5
                ));
            }
            for (x, out) in x.chunks(len).zip(out.chunks(len)) {
                let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / len as f64;
                for i in 0..len {
                    let wanted = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(weight[i]);
                    assert!(
                        (f64::from(out[i]) - wanted).abs() < 1e-6,
                        "{set:?} len {len}: {} {wanted}",
                        out[i]
                    );
                }
            }
        }
    }
}

/// One sequence in a pool with shuffled pages.
struct Fixture {
    shape: Shape,
    pool: KvPool,
    pages: Vec<PageId>,
    length: usize,
    k: Vec<f32>,
    v: Vec<f32>,
    q: Vec<f32>,
}

impl Fixture {
    fn new(shape: Shape, kind: CacheType, page_tokens: usize, length: usize) -> Self {
        let page_count = length.div_ceil(page_tokens);
        let limits = LimitsSpec {
            step_tokens_max: length,
            step_rows_max: 1,
            step_sequences_max: 1,
            page_tokens,
            page_count,
            context_max: length,
        };
        let spec = CacheSpec {
            layer: 0,
            kv_heads: shape.kv_heads,
            key_dim: shape.key_dim,
            value_dim: shape.value_dim,
            window: shape.window,
        };
        let heads = shape.kv_heads * shape.group;
        Fixture {
            shape,
            pool: KvPool::new(&spec, &limits, kind).expect("memory"),
            pages: (0..page_count as u32).rev().map(PageId).collect(),
            length,
            k: numbers(1, length * shape.kv_heads * shape.key_dim),
            v: numbers(2, length * shape.kv_heads * shape.value_dim),
            q: numbers(3, length * heads * shape.key_dim),
        }
    }

    /// Stores and attends in chunks of `chunk` tokens.
    fn run(&mut self, set: Set, chunk: usize, workers: usize) -> Vec<f32> {
        let shape = self.shape;
        let heads = shape.kv_heads * shape.group;
        let mut out = vec![0.0; self.length * heads * shape.value_dim];
        let mut scratch = vec![f32::NAN; scratch_bytes(&shape) / 4];
        for start in (0..self.length).step_by(chunk) {
            let count = chunk.min(self.length - start);
            for position in start..start + count {
                self.store(set, position);
            }
            let sequences = [StepSequence {
                token_start: 0,
                token_count: count as u32,
                position_start: start as u32,
                page_start: 0,
                page_count: self.pages.len() as u32,
            }];
            let step = StepInput {
                tokens: &[],
                positions: &[],
                sequences: &sequences,
                pages: &self.pages,
                rows: &[],
            };
            let mut items: Vec<Item> = Vec::new();
            list_items(&step, shape.group, shape.kv_heads, workers, &mut items);
            let next = AtomicUsize::new(0);
            let (key_row, value_row) = (heads * shape.key_dim, heads * shape.value_dim);
            let task = Task {
                shape,
                pool: &self.pool,
                sequences: &sequences,
                pages: &self.pages,
                items: &items,
                next: &next,
                q: matrix(&mut self.q[start * key_row..], key_row),
                out: matrix(&mut out[start * value_row..], value_row),
            };
            // SAFETY: everything the task needs was stored above; the set is available.
            unsafe {
                dispatch!(set, attend(task: Task<'_> = task, scratch: *mut f32 = scratch.as_mut_ptr()))
            };
        }
        out
    }

    fn store(&self, set: Set, position: usize) {
        #[inline(always)]
        unsafe fn body<S: crate::lanes::Lanes>(fixture: &Fixture, position: usize) {
            let (pool, shape) = (&fixture.pool, &fixture.shape);
            let page = fixture.pages[position / pool.page_tokens].0 as usize;
            for head in 0..shape.kv_heads {
                let at = position * shape.kv_heads + head;
                let (k, v) = (
                    &fixture.k[at * shape.key_dim..],
                    &fixture.v[at * shape.value_dim..],
                );
                // SAFETY: the fixture's pool holds every position.
                unsafe { pool.store::<S>(page, position % pool.page_tokens, head, k.as_ptr(), v.as_ptr()) };
            }
        }
        // SAFETY: the set is available.
        unsafe { dispatch!(set, body(fixture: &Fixture = self, position: usize = position)) };
    }

    fn wanted(&self) -> Vec<f64> {
        let s = &self.shape;
        let mut out = Vec::new();
        for token in 0..self.length {
            for head in 0..s.kv_heads * s.group {
                let q = &self.q[(token * s.kv_heads * s.group + head) * s.key_dim..][..s.key_dim];
                let first = s.window.map_or(0, |w| (token + 1).saturating_sub(w));
                let at = |p: usize, dim: usize| (p * s.kv_heads + head / s.group) * dim;
                let weights: Vec<f64> = (first..=token)
                    .map(|p| {
                        let k = &self.k[at(p, s.key_dim)..][..s.key_dim];
                        let dot: f64 = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                        let score = dot * f64::from(s.scale);
                        s.softcap
                            .map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh())
                            .exp()
                    })
                    .collect();
                let sum: f64 = weights.iter().sum();
                for column in 0..s.value_dim {
                    let value = |p: usize| f64::from(self.v[at(p, s.value_dim) + column]);
                    let total: f64 = (first..=token).zip(&weights).map(|(p, w)| w * value(p)).sum();
                    out.push(total / sum);
                }
            }
        }
        out
    }
}

#[test]
fn attention_equals_plain_loops_and_no_split_changes_a_bit() {
    let shape = |group, kv_heads, key_dim, value_dim, window, softcap| Shape {
        group,
        kv_heads,
        key_dim,
        value_dim,
        scale: 0.9,
        window,
        softcap,
    };
    let cases = [
        (shape(1, 1, 16, 16, None, None), 16, 1),
        (shape(2, 2, 64, 64, None, None), 16, 65),
        (shape(3, 1, 24, 40, None, Some(2.0)), 32, 130),
        (shape(7, 1, 80, 80, Some(5), None), 64, 129),
        (shape(1, 2, 32, 16, Some(64), Some(1.0)), 128, 200),
        (shape(2, 1, 16, 16, Some(70), None), 16, 260),
    ];
    for (shape, page_tokens, length) in cases {
        for (kind, tolerance) in [(CacheType::F32, 3e-6), (CacheType::F16, 2e-3)] {
            let mut fixture = Fixture::new(shape, kind, page_tokens, length);
            let wanted = fixture.wanted();
            for set in sets() {
                let whole = fixture.run(set, length, 1);
                let worst = whole
                    .iter()
                    .zip(&wanted)
                    .map(|(&a, &b)| (f64::from(a) - b).abs())
                    .fold(0.0, f64::max);
                assert!(worst < tolerance, "{set:?} {shape:?} {kind:?}: off by {worst}");
                for (chunk, workers) in [(1, 1), (1, 4), (7, 2), (64, 3), (100, 1)] {
                    let split = fixture.run(set, chunk, workers);
                    let equal = whole.iter().zip(&split).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(
                        equal,
                        "{set:?} {shape:?} {kind:?}: chunks of {chunk}, {workers} workers"
                    );
                }
            }
        }
    }
}

#[test]
fn groups_hold_each_slot_once_in_order() {
    let ids = [3_u32, 0, 3, 1, 0, 3];
    let mut routes: Vec<f32> = ids
        .chunks(2)
        .flat_map(|ids| [f32::from_bits(ids[0]), f32::from_bits(ids[1]), 0.5, 0.5])
        .collect();
    let mut groups = Groups::new(4, 5, 2);
    // SAFETY: three rows of two ids and two weights.
    unsafe { groups.fill(matrix(&mut routes, 4), 3, 2) };
    let rows = |expert: usize| groups.rows[groups.of(expert)].to_vec();
    assert_eq!(
        [rows(0), rows(1), rows(2), rows(3)],
        [vec![1, 4], vec![3], vec![], vec![0, 2, 5]]
    );
    assert_eq!(groups.tokens[groups.of(3)], [0, 1, 2]);
}
