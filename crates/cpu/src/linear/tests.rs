//! Every kernel against the definition of its format: dequantised weights and a dot product in f64.

use std::borrow::Cow;

use galvani_graph::{Activation, Format};
use galvani_weights::quant;
use half::f16;

use super::*;
use crate::isa::Isa;
use crate::pack::PackSpec;
use crate::pool::Pool;
use crate::quantise::SCALE;

/// A small generator (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    /// About normal, from -3 to 3.
    pub fn number(&mut self) -> f32 {
        let unit = |bits: u64| (bits & 0xffff) as f32 / 65536.0 - 0.5;
        let bits = self.bits();
        unit(bits) + unit(bits >> 16) + unit(bits >> 32) + unit(bits >> 48)
    }
}

/// A raw row of random codes with sane scales.
pub(crate) fn random_row(format: Format, k: usize, random: &mut Random) -> Vec<u8> {
    let block_bytes = format.block_bytes();
    let mut row: Vec<u8> = (0..k / format.block_len() * block_bytes)
        .map(|_| random.bits() as u8)
        .collect();
    for block in row.chunks_exact_mut(block_bytes) {
        let mut half = |block: &mut [u8], at: usize, size: f32| {
            let value = f16::from_f32(random.number() * size);
            block[at..at + 2].copy_from_slice(&value.to_le_bytes());
        };
        match format {
            Format::F32 => block.copy_from_slice(&random.number().to_le_bytes()),
            Format::F16 => half(block, 0, 1.0),
            Format::BF16 => block.copy_from_slice(&half::bf16::from_f32(random.number()).to_le_bytes()),
            Format::Q4_0 | Format::Q5_0 | Format::Q8_0 | Format::Iq4Nl => half(block, 0, 0.1),
            Format::Q4_1 | Format::Q5_1 => {
                half(block, 0, 0.1);
                half(block, 2, 0.5);
            }
            Format::Q2K => {
                half(block, 80, 0.05);
                half(block, 82, 0.05);
            }
            Format::Q3K => half(block, 108, 0.01),
            Format::Q4K | Format::Q5K => {
                half(block, 0, 0.01);
                half(block, 2, 0.01);
            }
            Format::Q6K => half(block, 208, 0.001),
            Format::Iq1S
            | Format::Iq2Xxs
            | Format::Iq2Xs
            | Format::Iq2S
            | Format::Iq3Xxs
            | Format::Iq3S
            | Format::Iq4Xs => half(block, 0, 0.01),
            // The f16 factor is spread over the top nibbles of the four scale words: 0x2c00 is 1/16.
            Format::Iq1M => {
                for (word, nibble) in [0u8, 0, 0xc, 0x2].into_iter().enumerate() {
                    let top = &mut block[49 + 2 * word];
                    *top = (*top & 15) | nibble << 4;
                }
            }
            Format::Tq1_0 => half(block, 52, 0.5),
            Format::Tq2_0 => half(block, 64, 0.5),
            Format::Mxfp4 => block[0] = 120 + block[0] % 8,
            Format::Nvfp4 => {}
        }
    }
    row
}

pub(crate) struct Case {
    pub raw: Vec<u8>,
    pub weights: Vec<f32>,
    pub x: Vec<f32>,
    pub rows: usize,
    pub k: usize,
    pub m: usize,
    pub format: Format,
}

impl Case {
    pub fn new(format: Format, rows: usize, k: usize, m: usize) -> Case {
        let mut random = Random::new((rows * 31 + k * 7 + m) as u64);
        let raw: Vec<u8> = (0..rows)
            .flat_map(|_| random_row(format, k, &mut random))
            .collect();
        let mut weights = vec![0.0; rows * k];
        quant::dequantize(format, &raw, &mut weights).expect("whole rows");
        let x = (0..m * k).map(|_| random.number()).collect();
        Case {
            raw,
            weights,
            x,
            rows,
            k,
            m,
            format,
        }
    }

    pub fn pack(&self, pool: &Pool, isa: Isa, math: CpuMath, parts: usize) -> PackedMatrix {
        let row_bytes = self.format.row_bytes(self.k).expect("whole blocks");
        let spec = PackSpec {
            isa,
            math,
            name: "test",
            format: self.format,
            parts,
            rows: self.rows / parts,
            k: self.k,
        };
        let source = |rows: std::ops::Range<usize>| {
            Ok(Cow::Borrowed(
                &self.raw[rows.start * row_bytes..rows.end * row_bytes],
            ))
        };
        PackedMatrix::pack(pool, &spec, &source).expect("packs")
    }

    fn view(&self) -> InView {
        InView {
            ptr: self.x.as_ptr(),
            row_stride: self.k,
        }
    }

    /// Runs one product; returns `[m][rows]` and the activations as the kernel saw them.
    fn run(&self, pool: &Pool, matrix: &PackedMatrix) -> (Vec<f32>, Vec<f32>) {
        let mut out = vec![f32::NAN; self.m * self.rows];
        let acts = ActRows::new(matrix.isa, self.m, self.k).expect("memory");
        pool.reserve_scratch(matrix.scratch_bytes(self.m))
            .expect("memory");
        let view = OutView {
            ptr: out.as_mut_ptr(),
            row_stride: self.rows,
        };
        let input = Activations {
            float: self.view(),
            int8: Some(&acts),
            rows: self.m,
        };
        let product = Product {
            matrix,
            part: 0,
            column: 0,
            bias: None,
        };
        pool.run(|worker| {
            // SAFETY: sizes agree; a barrier lies between.
            unsafe {
                acts.quantise_part(worker, self.view(), self.m);
                worker.barrier();
                linear_part(worker, &[product], &input, RowSelect::All, view, Epilogue::Store);
            }
        });
        let seen = if matrix.wants_int8() {
            dequantised(&acts, self.m)
        } else {
            self.x.clone()
        };
        (out, seen)
    }
}

/// The numbers that int8 rows stand for.
fn dequantised(acts: &ActRows, m: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for row in 0..m {
        let tile = acts.tile(row, m);
        for i in 0..acts.k() {
            let element = i / 32 * tile.height;
            // SAFETY: within the row.
            unsafe {
                let code = *tile.codes.add(32 * element + i % 32);
                out.push(f32::from(code) * *tile.planes.add(SCALE * tile.plane + element));
            }
        }
    }
    out
}

/// Lists the products that differ from f64 by more than f32 sums may.
fn mismatches(case: &Case, x: &[f32], out: &[f32], what: &str, failures: &mut Vec<String>) {
    for row in 0..case.m {
        for n in 0..case.rows {
            let pairs = || {
                let w = &case.weights[n * case.k..(n + 1) * case.k];
                w.iter().zip(&x[row * case.k..(row + 1) * case.k])
            };
            let exact: f64 = pairs().map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
            let size: f64 = pairs().map(|(w, x)| f64::from(w * x).abs()).sum();
            let got = f64::from(out[row * case.rows + n]);
            let error = (got - exact).abs();
            if error.is_nan() || error > 4e-6 * size + 1e-30 {
                failures.push(format!(
                    "{what}: row {row} column {n}: {got} instead of {exact} (terms {size})"
                ));
                return;
            }
        }
    }
}

const BLOCK_FORMATS: [Format; 14] = [
    Format::Q8_0,
    Format::Q4_0,
    Format::Q4_1,
    Format::Q5_0,
    Format::Q5_1,
    Format::Q2K,
    Format::Q3K,
    Format::Q4K,
    Format::Q5K,
    Format::Q6K,
    Format::Iq4Nl,
    Format::Iq4Xs,
    Format::Mxfp4,
    Format::Nvfp4,
];

fn ks(format: Format) -> &'static [usize] {
    match format.block_len() {
        256 => &[256, 768],
        64 => &[64, 192, 576],
        _ => &[32, 64, 96, 256, 576],
    }
}

#[test]
fn rows_unpack_to_the_bits_of_the_definition() {
    let pool = Pool::new(2).expect("threads");
    for format in Format::ALL {
        for &k in ks(format) {
            let case = Case::new(format, 33, k, 1);
            let matrix = case.pack(&pool, Isa::Portable, CpuMath::Fast, 1);
            let mut row = vec![0f32; k];
            for n in 0..33 {
                matrix.unpack_row(n, &mut row);
                let wanted = &case.weights[n * k..(n + 1) * k];
                let same = row.iter().zip(wanted).all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(same, "{format} k {k} row {n}:\n{row:?}\n{wanted:?}");
            }
        }
    }
}

#[test]
fn products_equal_the_definition_and_each_other() {
    let pool = Pool::new(2).expect("threads");
    let mut failures = Vec::new();
    for format in BLOCK_FORMATS {
        for &k in ks(format) {
            for (n, m) in [
                (1, 1),
                (15, 2),
                (16, 3),
                (17, 4),
                (33, 5),
                (33, 8),
                (16, 15),
                (33, 17),
                (17, 33),
                (33, 65),
                // Enough tiles for each thread to take some side by side, and one alone.
                (145, 1),
                (145, 2),
                (130, 3),
                (145, 4),
            ] {
                let case = Case::new(format, n, k, m);
                let mut bits: Option<Vec<u32>> = None;
                for isa in Isa::available() {
                    let what = format!("{format} {isa} n {n} k {k} m {m}");
                    let matrix = case.pack(&pool, isa, CpuMath::Fast, 1);
                    let (out, x) = case.run(&pool, &matrix);
                    mismatches(&case, &x, &out, &what, &mut failures);
                    let own: Vec<u32> = out.iter().map(|v| v.to_bits()).collect();
                    if bits.get_or_insert_with(|| own.clone()) != &own {
                        failures.push(format!("{what}: not the bits of {}", Isa::detect()));
                    }
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn float_products_and_exact_arithmetic_equal_the_definition() {
    let pool = Pool::new(2).expect("threads");
    let mut failures = Vec::new();
    for format in Format::ALL {
        let k = *ks(format).last().expect("some");
        for (n, m) in [(1, 1), (17, 3), (33, 17)] {
            let case = Case::new(format, n, k, m);
            for isa in Isa::available() {
                for math in [CpuMath::Exact, CpuMath::Fast] {
                    let matrix = case.pack(&pool, isa, math, 1);
                    if matrix.wants_int8() {
                        continue;
                    }
                    let (out, x) = case.run(&pool, &matrix);
                    let what = format!("{format} {isa} {math:?} n {n} k {k} m {m}");
                    mismatches(&case, &x, &out, &what, &mut failures);
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A row's result has the same bits alone, in any batch, in a list, and with any number of threads.
#[test]
fn rows_do_not_depend_on_their_company() {
    for format in [
        Format::Q8_0,
        Format::Q4_1,
        Format::Q6K,
        Format::Nvfp4,
        Format::F16,
        Format::Iq3S,
    ] {
        let (n, k, m) = (83, 256, 70);
        let case = Case::new(format, n, k, m);
        for isa in Isa::available() {
            let mut whole: Option<Vec<f32>> = None;
            for threads in 1..=3 {
                let pool = Pool::new(threads).expect("threads");
                let matrix = case.pack(&pool, isa, CpuMath::Fast, 1);
                let (out, _) = case.run(&pool, &matrix);
                let whole = whole.get_or_insert(out.clone());
                assert_eq!(&out, whole, "{format} {isa} threads {threads}");
                for size in [1, 2, 3, 4, 5, 8, 15, 16, 17, 33, 64, 65] {
                    let part = Case {
                        x: case.x[(m - size) * k..].to_vec(),
                        m: size,
                        raw: case.raw.clone(),
                        weights: Vec::new(),
                        ..case
                    };
                    let (out, _) = part.run(&pool, &matrix);
                    assert_eq!(
                        out,
                        whole[(m - size) * n..],
                        "{format} {isa} threads {threads} batch {size}"
                    );
                }
            }
        }
    }
}

#[test]
fn lists_parts_columns_bias_and_residual() {
    let pool = Pool::new(2).expect("threads");
    for format in [Format::Q8_0, Format::F32] {
        let (parts, rows, k, m) = (3, 24, 64, 40);
        let case = Case::new(format, parts * rows, k, m);
        for isa in Isa::available() {
            let matrix = case.pack(&pool, isa, CpuMath::Fast, parts);
            pool.reserve_scratch(matrix.scratch_bytes(m)).expect("memory");
            let acts = ActRows::new(isa, m, k).expect("memory");
            let input = Activations {
                float: case.view(),
                int8: Some(&acts),
                rows: m,
            };
            let bias: Vec<f32> = (0..rows).map(|i| i as f32).collect();
            let whole = Case {
                raw: case.raw.clone(),
                weights: Vec::new(),
                x: case.x.clone(),
                ..case
            };
            let all = whole.pack(&pool, isa, CpuMath::Fast, 1);
            let (wanted, _) = whole.run(&pool, &all);
            for list in [
                vec![],
                vec![7],
                vec![39, 3],
                vec![1, 2, 3, 5, 8],
                (0..20).map(|i| 2 * i).collect(),
            ] {
                let output: Vec<u32> = list.iter().map(|i| m as u32 - 1 - i).collect();
                let mut out = vec![1.0f32; m * (rows + 2)];
                let view = OutView {
                    ptr: out.as_mut_ptr(),
                    row_stride: rows + 2,
                };
                let residual = InView {
                    ptr: view.ptr,
                    row_stride: rows + 2,
                };
                let product = Product {
                    matrix: &matrix,
                    part: 2,
                    column: 2,
                    bias: Some(&bias),
                };
                pool.run(|worker| {
                    // SAFETY: sizes agree; a barrier lies between.
                    unsafe {
                        acts.quantise_part(worker, case.view(), m);
                        worker.barrier();
                        let select = RowSelect::List {
                            input: &list,
                            output: &output,
                        };
                        let epilogue = Epilogue::AddScaled { residual, scale: 0.5 };
                        linear_part(worker, &[product], &input, select, view, epilogue);
                    }
                });
                for row in 0..m {
                    let from = output
                        .iter()
                        .position(|&r| r as usize == row)
                        .map(|i| list[i] as usize);
                    for column in 0..rows + 2 {
                        let got = out[row * (rows + 2) + column];
                        let expected = match from {
                            Some(from) if column >= 2 => {
                                let y = wanted[from * parts * rows + 2 * rows + column - 2];
                                0.5f32.mul_add(y + bias[column - 2], 1.0)
                            }
                            _ => 1.0,
                        };
                        assert_eq!(got, expected, "{format} {isa} {list:?} row {row} column {column}");
                    }
                }
            }
        }
    }
}

#[test]
fn gated_products_apply_the_activation() {
    let pool = Pool::new(2).expect("threads");
    for activation in [Activation::Silu, Activation::GeluTanh] {
        for (gate_format, up_format, m) in [
            (Format::Q4_0, Format::Q4_0, 18),
            (Format::Q4_0, Format::Q4_0, 3),
            (Format::Q8_0, Format::Q4_0, 2),
            (Format::Q8_0, Format::F16, 18),
        ] {
            let (n, k) = (97, 96);
            let gate = Case::new(gate_format, n, k, m);
            let up = Case {
                x: gate.x.clone(),
                ..Case::new(up_format, n, k, m)
            };
            let mut first: Option<Vec<f32>> = None;
            for isa in Isa::available() {
                let g = gate.pack(&pool, isa, CpuMath::Fast, 1);
                let u = up.pack(&pool, isa, CpuMath::Fast, 1);
                pool.reserve_scratch(g.scratch_bytes(m).max(u.scratch_bytes(m)))
                    .expect("memory");
                let (gates, ups) = (gate.run(&pool, &g).0, up.run(&pool, &u).0);
                let acts = ActRows::new(isa, m, k).expect("memory");
                let input = Activations {
                    float: gate.view(),
                    int8: Some(&acts),
                    rows: m,
                };
                let mut out = vec![f32::NAN; m * n];
                let view = OutView {
                    ptr: out.as_mut_ptr(),
                    row_stride: n,
                };
                pool.run(|worker| {
                    // SAFETY: sizes agree; a barrier lies between.
                    unsafe {
                        acts.quantise_part(worker, gate.view(), m);
                        worker.barrier();
                        gated_part(worker, &g, &u, 0, activation, &input, RowSelect::All, view);
                    }
                });
                for (i, got) in out.iter().enumerate() {
                    let (x, up) = (f64::from(gates[i]), f64::from(ups[i]));
                    let exact = up
                        * match activation {
                            Activation::Silu => x / (1.0 + (-x).exp()),
                            Activation::GeluTanh => {
                                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                                0.5 * x * (1.0 + inner.tanh())
                            }
                        };
                    let error = (f64::from(*got) - exact).abs();
                    assert!(
                        error <= 2e-6 * exact.abs() + 1e-6,
                        "{activation:?} {isa} {i}: {got} {exact}"
                    );
                }
                assert_eq!(&out, first.get_or_insert(out.clone()), "{activation:?} {isa}");
            }
        }
    }
}

#[test]
fn quantised_rows_are_within_half_a_step_and_the_same_on_all_sets() {
    let pool = Pool::new(2).expect("threads");
    for (m, k) in [(1, 32), (1, 96), (3, 64), (5, 40), (17, 576)] {
        let mut random = Random::new(m as u64);
        let mut x: Vec<f32> = (0..m * k).map(|_| random.number()).collect();
        x[..32].fill(0.0);
        let view = InView {
            ptr: x.as_ptr(),
            row_stride: k,
        };
        let mut first: Option<Vec<f32>> = None;
        for isa in Isa::available() {
            let acts = ActRows::new(isa, m, k).expect("memory");
            // SAFETY: sizes agree.
            pool.run(|worker| unsafe { acts.quantise_part(worker, view, m) });
            let back = dequantised(&acts, m);
            for (row, (x, back)) in x.chunks(k).zip(back.chunks(k)).enumerate() {
                for (x, back) in x.chunks(32).zip(back.chunks(32)) {
                    let largest = x.iter().fold(0f32, |a, b| a.max(b.abs()));
                    for (x, y) in x.iter().zip(back) {
                        let error = (x - y).abs();
                        assert!(
                            error <= largest / 127.0 * 0.5001,
                            "{isa} m {m} k {k} row {row}: {x} {y}"
                        );
                    }
                }
            }
            assert_eq!(&back, first.get_or_insert(back.clone()), "{isa} m {m} k {k}");
        }
    }
}

#[test]
fn numbers_that_are_not_finite_reach_the_result() {
    let pool = Pool::new(2).expect("threads");
    for isa in Isa::available() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut case = Case::new(Format::Q4_0, 17, 64, 3);
            case.x[64 + 5] = bad;
            let matrix = case.pack(&pool, isa, CpuMath::Fast, 1);
            let (out, _) = case.run(&pool, &matrix);
            assert!(out[..17].iter().all(|v| v.is_finite()), "{isa} {bad}");
            assert!(out[17..34].iter().all(|v| !v.is_finite()), "{isa} {bad}: {out:?}");
            assert!(out[34..].iter().all(|v| v.is_finite()), "{isa} {bad}");
        }
    }
}

#[test]
fn a_source_that_fails_or_falls_short_is_an_error() {
    let pool = Pool::new(2).expect("threads");
    let spec = PackSpec {
        isa: Isa::Portable,
        math: CpuMath::Fast,
        name: "layers.0.w",
        format: Format::Q8_0,
        parts: 1,
        rows: 40,
        k: 64,
    };
    let short = PackedMatrix::pack(&pool, &spec, &|_| Ok(Cow::Owned(vec![0; 5])));
    let message = short.err().expect("5 bytes are no row").to_string();
    assert!(
        message.contains("layers.0.w") && message.contains("5 bytes"),
        "{message}"
    );
    let odd = PackedMatrix::pack(&pool, &PackSpec { k: 33, ..spec }, &|_| {
        Ok(Cow::Owned(Vec::new()))
    });
    assert!(
        odd.err()
            .expect("33 is no whole block")
            .to_string()
            .contains("multiple of 32")
    );
}
