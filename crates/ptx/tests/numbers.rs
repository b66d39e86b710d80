//! Arithmetic of compiled kernels against Rust's own: tensor products, halves, integers, floats.

mod common;

use common::{Bench, Random, half_value, halves, nearest_half, pairs};
use galvani_ptx::{Arg, MmaOrder, Pipe};

/// Lane and element of (row, k) of A, or of (column, k) of B, in quad pair `pair`.
fn fragment(pair: usize, row: usize, k: usize, by_k: bool) -> (usize, usize) {
    if by_k {
        (4 * pair + k + row / 4 * 16, row % 4)
    } else {
        (4 * pair + row % 4 + row / 4 * 16, k)
    }
}

/// Lane and register of an f32 accumulator, as measured on hardware: searched for, not computed.
fn accumulator(pair: usize, row: usize, column: usize) -> (usize, usize) {
    for lane in (4 * pair..4 * pair + 4).chain(16 + 4 * pair..20 + 4 * pair) {
        for i in 0..8 {
            let high = if lane >= 16 { 4 } else { 0 };
            if ((lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)) == (row, column) {
                return (lane, i);
            }
        }
    }
    panic!("every element has a lane");
}

#[test]
fn m8n8k4_in_all_layouts() {
    let mut bench = Bench::fixture("mma");
    let mut random = Random(1);
    for (layout, a_by_k, b_by_k) in [
        ("row_col", false, false),
        ("row_row", false, true),
        ("col_col", true, false),
        ("col_row", true, true),
    ] {
        for wide in [true, false] {
            // Four products of [8][4] by [4][8] in exact reach of f32.
            let (a, b) = (halves(&mut random, 128, true), halves(&mut random, 128, true));
            let c = halves(&mut random, 256, true);
            let (mut a_lanes, mut b_lanes) = ([0_u32; 128], [0_u32; 128]);
            let mut c_lanes = vec![0_u32; 256];
            for pair in 0..4 {
                for row in 0..8 {
                    for k in 0..4 {
                        let (lane, at) = fragment(pair, row, k, a_by_k);
                        a_lanes[lane * 4 + at] = a[pair * 32 + row * 4 + k];
                        let (lane, at) = fragment(pair, row, k, b_by_k);
                        b_lanes[lane * 4 + at] = b[pair * 32 + row * 4 + k];
                    }
                    for column in 0..8 {
                        let value = c[pair * 64 + row * 8 + column];
                        if wide {
                            let (lane, i) = accumulator(pair, row, column);
                            c_lanes[lane * 8 + i] = (half_value(value) as f32).to_bits();
                        } else {
                            let (lane, _) = fragment(pair, row, 0, false);
                            c_lanes[lane * 8 + column] = value;
                        }
                    }
                }
            }
            let (da, db) = (
                bench.words("a", &pairs(&a_lanes)),
                bench.words("b", &pairs(&b_lanes)),
            );
            let dc = if wide {
                bench.words("c", &c_lanes)
            } else {
                bench.words("c", &pairs(&c_lanes))
            };
            let size = if wide { 256 } else { 128 };
            let out = bench.empty("d", size * 4);
            let kernel = format!("{}_{layout}", if wide { "mma" } else { "mma16" });
            let counters = bench.run(
                &kernel,
                1,
                32,
                &[Arg::Ptr(da), Arg::Ptr(db), Arg::Ptr(dc), Arg::Ptr(out)],
            );
            assert_eq!((counters.mma, counters.pipe(Pipe::Tensor)), (1, 1));
            let got = bench.read_words(out, size);
            for (pair, row, column) in (0..256).map(|at| (at / 64, at / 8 % 8, at % 8)) {
                let factors = |k: usize| {
                    [a[pair * 32 + row * 4 + k], b[pair * 32 + column * 4 + k]].map(|h| half_value(h) as f32)
                };
                let c = half_value(c[pair * 64 + row * 8 + column]) as f32;
                // Products of halves are exact in f32.
                let product = |k: usize| factors(k)[0] * factors(k)[1];
                let sum = if wide {
                    (((product(0) + product(1)) + product(2)) + product(3)) + c
                } else {
                    (c + (product(0) + product(1))) + (product(2) + product(3))
                };
                let found = if wide {
                    let (lane, i) = accumulator(pair, row, column);
                    assert_eq!(got[lane * 8 + i], sum.to_bits(), "{kernel} {pair} {row} {column}");
                    continue;
                } else {
                    let (lane, _) = fragment(pair, row, 0, false);
                    got[lane * 4 + column / 2] >> (column % 2 * 16) & 0xffff
                };
                assert_eq!(
                    found,
                    nearest_half(f64::from(sum)),
                    "{kernel} {pair} {row} {column}"
                );
            }
        }
    }
}

/// The two orders differ, and no more than five truncations at the largest term allow.
#[test]
fn the_model_of_volta_stays_near() {
    let mut bench = Bench::fixture("mma");
    let mut random = Random(2);
    let (a, b) = (
        pairs(&halves(&mut random, 128, true)),
        pairs(&halves(&mut random, 128, true)),
    );
    let c: Vec<f32> = random.units(256);
    let (da, db, dc) = (bench.words("a", &a), bench.words("b", &b), bench.floats("c", &c));
    let mut results = Vec::new();
    for order in [MmaOrder::EmulatedF32, MmaOrder::Volta] {
        let out = bench.empty("d", 1024);
        bench.options.mma = order;
        bench.run(
            "mma_row_col",
            1,
            32,
            &[Arg::Ptr(da), Arg::Ptr(db), Arg::Ptr(dc), Arg::Ptr(out)],
        );
        results.push(bench.read_floats(out, 256));
    }
    let largest = 4.0 * 2_f32.powi(10);
    let differ = results[0].iter().zip(&results[1]).filter(|(x, y)| x != y).count();
    assert!(differ > 0);
    for (x, y) in results[0].iter().zip(&results[1]) {
        assert!((x - y).abs() <= 6.0 * largest * 2_f32.powi(-23), "{x} {y}");
    }
}

#[test]
fn gemv_of_halves() {
    let mut bench = Bench::fixture("gemv");
    let mut random = Random(3);
    for (rows, k) in [(1, 8), (5, 256), (9, 1032)] {
        // Products of eight halves stay far below overflow.
        let small = |random: &mut Random, count: usize| -> Vec<u32> {
            (0..count)
                .map(|_| nearest_half(f64::from(random.unit())))
                .collect()
        };
        let (w, x) = (small(&mut random, rows * k), small(&mut random, k));
        let (dw, dx) = (bench.words("w", &pairs(&w)), bench.words("x", &pairs(&x)));
        let out = bench.empty("y", rows * 2);
        let args = [
            Arg::Ptr(dw),
            Arg::Ptr(dx),
            Arg::Ptr(out),
            Arg::I32(rows as i32),
            Arg::I32(k as i32 / 8),
        ];
        let counters = bench.run("gemv", rows.div_ceil(4) as u32, 128, &args);
        let mut got = vec![0; rows * 2];
        bench.memory.read(out, &mut got).expect("all rows are written");
        for row in 0..rows {
            let mut lanes = [0.0_f32; 32];
            for (chunk, values) in w[row * k..][..k].chunks(8).enumerate() {
                let mut sums = [0_u32; 2];
                for (at, value) in values.iter().enumerate() {
                    let exact = half_value(*value) * half_value(x[chunk * 8 + at]);
                    let sum = &mut sums[at % 2];
                    // Sums of products below 1 are exact in f64.
                    *sum = nearest_half(if at < 2 { exact } else { exact + half_value(*sum) });
                }
                lanes[chunk % 32] += half_value(sums[0]) as f32 + half_value(sums[1]) as f32;
            }
            for distance in [16, 8, 4, 2, 1] {
                let old = lanes;
                for lane in 0..32 {
                    lanes[lane] += old[lane ^ distance];
                }
            }
            let found = u32::from(u16::from_le_bytes([got[row * 2], got[row * 2 + 1]]));
            assert_eq!(
                found,
                nearest_half(f64::from(lanes[0])),
                "row {row} of {rows}, k {k}"
            );
        }
        assert_eq!(counters.global_loads.bytes, (2 * rows * k * 2) as u64);
        assert_eq!(counters.pipe(Pipe::Fp16) % 6, 0);
    }
}

#[test]
fn half_instructions() {
    let mut bench = Bench::fixture("gemv");
    let mut random = Random(4);
    let n = 1024;
    let (a, b) = (
        halves(&mut random, 2 * n, false),
        halves(&mut random, 2 * n, false),
    );
    let (da, db) = (bench.words("a", &pairs(&a)), bench.words("b", &pairs(&b)));
    let out = bench.empty("out", 12 * n * 4);
    bench.run(
        "halves",
        1,
        n as u32,
        &[Arg::Ptr(da), Arg::Ptr(db), Arg::Ptr(out), Arg::I32(n as i32)],
    );
    let got = bench.read_words(out, 12 * n);
    let number = |half: u32| half & 0x7fff <= 0x7c00;
    for i in 0..n {
        let rows: Vec<[u32; 2]> = (0..12)
            .map(|row| got[row * n + i])
            .map(|word| [word & 0xffff, word >> 16])
            .collect();
        for side in 0..2 {
            let (x, y) = (a[2 * i + side], b[2 * i + side]);
            let (u, v) = (half_value(x), half_value(y));
            let at = |row: usize| rows[row][side];
            let context = format!("{x:04x} {y:04x}");
            assert_eq!(at(0), nearest_half(u + v), "add {context}");
            assert_eq!(at(1), nearest_half(u - v), "sub {context}");
            assert_eq!((at(2), at(3)), (x ^ 0x8000, x & 0x7fff), "neg, abs {context}");
            if number(x) && number(y) && u != v {
                assert_eq!(at(4), if u < v { x } else { y }, "min {context}");
                assert_eq!(at(5), if u > v { x } else { y }, "max {context}");
            }
            assert_eq!(at(6), if u > v { 0x3c00 } else { 0 }, "gt {context}");
            let sum = half_value(nearest_half(u + v));
            assert_eq!(
                at(7),
                nearest_half(if sum > 0.0 { sum.min(1.0) } else { 0.0 }),
                "sat {context}"
            );
        }
        let (u, v) = (half_value(a[2 * i]), half_value(b[2 * i + 1]));
        assert_eq!(
            rows[9],
            [nearest_half(u + v), if u < v { a[2 * i] } else { b[2 * i + 1] }]
        );
        let whole = if u.is_nan() {
            0.0
        } else {
            u.trunc().clamp(-2_147_483_648.0, 2_147_483_647.0)
        };
        assert_eq!(rows[10][0], nearest_half(whole + 0.0), "int {u}");
        if u.is_finite() {
            assert_eq!(rows[11][1], nearest_half(u.floor()), "floor {u}");
        }
    }
}

#[test]
fn integer_instructions() {
    let mut bench = Bench::fixture("shared");
    let mut random = Random(5);
    let n = 1024;
    let (mut a, mut b) = (random.words(n), random.words(n));
    for (at, value) in [0, 1, u32::MAX, 1 << 31, i32::MAX as u32, 2, 31, 32]
        .into_iter()
        .enumerate()
    {
        (a[at], b[at + 4], a[at + 20], b[at + 20]) = (value, value, value, value);
    }
    let (da, db) = (bench.words("a", &a), bench.words("b", &b));
    let out = bench.empty("out", 12 * n * 8);
    bench.run(
        "integers",
        1,
        n as u32,
        &[Arg::Ptr(da), Arg::Ptr(db), Arg::Ptr(out), Arg::I32(n as i32)],
    );
    let got = bench.read_wides(out, 12 * n);
    for i in 0..n {
        let (x, y) = (a[i], b[i]);
        let want = integers(x, y);
        for (row, want) in want.into_iter().enumerate() {
            assert_eq!(got[row * n + i], want, "row {row}: {x:#x} {y:#x}");
        }
    }
}

fn integers(x: u32, y: u32) -> [u64; 12] {
    let (s, t) = (x as i32, y as i32);
    let both = u64::from(x) << 32 | u64::from(y);
    let bytes = [y.to_le_bytes(), x.to_le_bytes()];
    // __byte_perm takes x's bytes as 0 to 3 and y's as 4 to 7.
    let picked = (0..4).fold(0, |word, place| {
        let select = (x & 0x7777) >> (place * 4) & 7;
        let byte = if select < 4 {
            bytes[1][select as usize]
        } else {
            bytes[0][select as usize - 4]
        };
        word | u32::from(byte) << (place * 8)
    });
    let funnel = ((u64::from(y) << 32 | u64::from(x)) << (y & 31) >> 32) as u32;
    let first = if y == 0 { 0 } else { y.trailing_zeros() + 1 };
    let counted = x
        .count_ones()
        .wrapping_add(y.leading_zeros())
        .wrapping_add(x.reverse_bits())
        .wrapping_add(first);
    let unsigned = x.checked_div(y).map_or(1, |ratio| ratio.wrapping_add(x % y));
    let signed = if t != 0 && !(s == i32::MIN && t == -1) {
        (s / t).wrapping_add(s % t)
    } else {
        1
    };
    let byte = |word: i32, at: usize| i32::from(word.to_le_bytes()[at] as i8);
    let half = |word: i32, at: usize| (word >> (16 * at)) as i16;
    let dot4 = (0..4).fold(5_i32, |sum, at| sum.wrapping_add(byte(s, at) * byte(t, at)));
    let dot2 = (0..2).fold(1_i32, |sum, at| {
        sum.wrapping_add(i32::from(half(s, at)) * byte(t, at))
    });
    let each = |f: &dyn Fn(u8, u8) -> u8| {
        u32::from_le_bytes(std::array::from_fn(|at| {
            f(x.to_le_bytes()[at], y.to_le_bytes()[at])
        }))
    };
    let sums = each(&|x, y| x.wrapping_add(y)).wrapping_add(each(&|x, y| if x > y { 0xff } else { 0 }));
    let wide = |value: i32| i64::from(value) as u64;
    [
        u64::from(x) * u64::from(y),
        (i64::from(s) * i64::from(t)) as u64,
        u64::from(
            (((u64::from(x) * u64::from(y)) >> 32) as u32)
                .wrapping_add(((i64::from(s) * i64::from(t)) >> 32) as u32),
        ),
        u64::from(picked.wrapping_add(funnel)),
        u64::from(counted),
        u64::from(unsigned.wrapping_add(signed as u32)),
        both / (u64::from(y) + 1),
        wide(dot4.wrapping_add(dot2)),
        u64::from((x & !y) | ((y & 0x0f0f_0f0f) ^ (x >> 3))),
        u64::from(
            (((x << 20) as i32 >> 24) as u32)
                .wrapping_add(x >> 5 & 63)
                .wrapping_add(s.min(t) as u32)
                .wrapping_add(x.max(y))
                .wrapping_add(s.wrapping_abs() as u32),
        ),
        ((both as i64 >> (y & 63)) as u64).wrapping_add(1),
        u64::from(sums),
    ]
}

#[test]
fn float_instructions() {
    let mut bench = Bench::fixture("shared");
    let mut random = Random(6);
    let n = 1024;
    let (mut a, mut b) = (random.words(n), random.words(n));
    for i in 0..n / 2 {
        // Half of them of usual size.
        (a[i], b[i]) = ((random.unit() * 100.0).to_bits(), (random.unit() * 3.0).to_bits());
    }
    let special = [
        0.0,
        -0.0,
        1.0,
        f32::INFINITY,
        f32::NAN,
        f32::MAX,
        f32::MIN_POSITIVE,
        1e-40,
        0.5,
        1.5,
        2.5,
        -3e9,
    ];
    for (at, value) in special.into_iter().enumerate() {
        for (other_at, other) in special.into_iter().enumerate() {
            let at = 500 + at * 12 + other_at;
            (a[at], b[at]) = (value.to_bits(), other.to_bits());
        }
    }
    let (da, db) = (bench.words("a", &a), bench.words("b", &b));
    let out = bench.empty("out", 14 * n * 4);
    bench.run(
        "floats",
        1,
        n as u32,
        &[Arg::Ptr(da), Arg::Ptr(db), Arg::Ptr(out), Arg::I32(n as i32)],
    );
    let got = bench.read_words(out, 14 * n);
    for i in 0..n {
        let (x, y) = (f32::from_bits(a[i]), f32::from_bits(b[i]));
        let whole = (x as i32 as f32) + (y.abs() as u32 as f32);
        let want: [(usize, f32); 11] = [
            (0, x / y),
            (1, x.abs().sqrt()),
            (2, 1.0 / y),
            (3, x.mul_add(y, x)),
            (6, x.floor() + y.ceil() + x.trunc() + y.round_ties_even()),
            (7, whole),
            (8, f64::from(x).mul_add(f64::from(y), 1.0) as f32),
            (9, if x.is_nan() { 0.0 } else { x.clamp(0.0, 1.0) + 0.0 }),
            (10, if x < y { -x } else { x.copysign(y) }),
            (11, x * 8.0 - y),
            (13, if x.is_nan() || x > y { 1.0 } else { 0.0 }),
        ];
        for (row, want) in want {
            let (found, want_bits) = (got[row * n + i], want.to_bits());
            let nan = want.is_nan() && f32::from_bits(found).is_nan() && (row == 10 || found == 0x7fff_ffff);
            assert!(
                found == want_bits || nan,
                "row {row}: {x:e} {y:e}: {:e}, not {want:e}",
                f32::from_bits(found)
            );
        }
        let (least, most) = (f32::from_bits(got[4 * n + i]), f32::from_bits(got[5 * n + i]));
        if x.is_nan() || y.is_nan() {
            assert_eq!(
                (least.is_nan(), most.is_nan()),
                (x.is_nan() && y.is_nan(), x.is_nan() && y.is_nan())
            );
        } else {
            assert!(least == x.min(y) && most == x.max(y));
            assert!(
                x != 0.0
                    || y != 0.0
                    || least.is_sign_negative() == (x.is_sign_negative() || y.is_sign_negative())
            );
        }
    }
}
