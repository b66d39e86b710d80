//! Kernels as NVRTC compiles them, against plain loops; their counters against counts by hand.

mod common;

use common::{Bench, Random};
use galvani_ptx::{Arg, Pipe};

#[test]
fn vector_add_with_a_tail() {
    let mut bench = Bench::fixture("vector_add");
    let mut random = Random(1);
    let n = 1000;
    let (a, b) = (random.units(n), random.units(n));
    let (da, db) = (bench.floats("a", &a), bench.floats("b", &b));
    let dc = bench.empty("c", n * 4);
    let args = [Arg::Ptr(da), Arg::Ptr(db), Arg::Ptr(dc), Arg::I32(n as i32)];
    let counters = bench.run("vector_add", 8, 128, &args);
    let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    assert_eq!(bench.read_floats(dc, n), want);
    // 32 warps; 31 are full, the last has 8 threads below n. 16 loads per.. two loads and a store a warp.
    assert_eq!(
        (counters.warps, counters.blocks, counters.block_warps_max),
        (32, 8, 4)
    );
    assert_eq!((counters.branches, counters.branches_divergent), (32, 1));
    let loads = counters.global_loads;
    assert_eq!((loads.requests, loads.bytes), (64, 8000));
    assert_eq!((loads.sectors, loads.sectors_first), (250, 250));
    assert_eq!(
        (
            counters.global_stores.sectors,
            counters.global_stores.sectors_first
        ),
        (125, 125)
    );
    // One add.f32 a warp; one mad.lo; per thread of the grid 10 instructions before the branch and ret after.
    assert_eq!((counters.pipe(Pipe::Fp32), counters.pipe(Pipe::Memory)), (32, 96));
    assert_eq!(counters.pipe(Pipe::IntMultiply), 64);
    assert_eq!(counters.pipe(Pipe::Control), 64);
}

#[test]
fn axpy_in_vectors_of_four() {
    let mut bench = Bench::fixture("vector_add");
    let mut random = Random(2);
    let n = 4 * 300;
    let (a, c) = (random.units(n), random.units(n));
    let (da, dc) = (bench.floats("a", &a), bench.floats("c", &c));
    let args = [Arg::Ptr(da), Arg::Ptr(dc), Arg::F32(1.5), Arg::I32(300)];
    let counters = bench.run("axpy4", 2, 64, &args);
    let want: Vec<f32> = a.iter().zip(&c).map(|(a, c)| 1.5_f32.mul_add(*a, *c)).collect();
    assert_eq!(bench.read_floats(dc, n), want);
    // Rounds of 128 threads: 300 vectors are 9 full warps and one of 12.
    assert_eq!(counters.global_loads.requests, 20);
    assert_eq!(
        (counters.global_loads.sectors, counters.global_loads.bytes),
        (300, 9600)
    );
    // c was read first: its stores are first writes all the same.
    assert_eq!(
        (
            counters.global_stores.sectors,
            counters.global_stores.sectors_first
        ),
        (150, 150)
    );
}

#[test]
fn reduction_in_the_shuffles_order() {
    let mut bench = Bench::fixture("reduce");
    let mut random = Random(3);
    for (threads, n) in [(32, 10), (64, 1000), (256, 1000), (1024, 5000)] {
        let x = random.units(n);
        let (dx, out) = (bench.floats("x", &x), bench.empty("out", 4));
        bench.run(
            "reduce",
            1,
            threads,
            &[Arg::Ptr(dx), Arg::Ptr(out), Arg::I32(n as i32)],
        );
        let mut sums = vec![0.0_f32; threads as usize];
        for (index, value) in x.iter().enumerate() {
            sums[index % threads as usize] += value;
        }
        let tree = |lanes: &[f32], xor: bool| {
            let mut lanes = lanes.to_vec();
            for distance in [16, 8, 4, 2, 1] {
                let old = lanes.clone();
                for lane in 0..32 {
                    let other = if xor { lane ^ distance } else { lane + distance };
                    lanes[lane] += if other < 32 { old[other] } else { old[lane] };
                }
            }
            lanes[0]
        };
        let mut parts: Vec<f32> = sums.chunks(32).map(|warp| tree(warp, false)).collect();
        parts.resize(32, 0.0);
        assert_eq!(
            bench.read_floats(out, 1)[0].to_bits(),
            tree(&parts, true).to_bits(),
            "{threads} {n}"
        );
    }
}

#[test]
fn votes_and_block_reductions() {
    let mut bench = Bench::fixture("reduce");
    let mut random = Random(4);
    for special in [false, true] {
        let mut x: Vec<u32> = random.words(96).iter().map(|x| x % 500 + 8).collect();
        if special {
            (x[40], x[3]) = (7, 1000);
        }
        let (dx, out) = (bench.words("x", &x), bench.empty("out", 96 * 28));
        let counters = bench.run("votes", 1, 96, &[Arg::Ptr(dx), Arg::Ptr(out)]);
        let got = bench.read_words(out, 96 * 7);
        let odd: u32 = x.iter().map(|x| x & 1).sum();
        for (warp, values) in x.chunks(32).enumerate() {
            let mask = |f: &dyn Fn(u32) -> bool| {
                (0..32).fold(0, |mask, lane| mask | u32::from(f(values[lane])) << lane)
            };
            for lane in 0..32 {
                let found = &got[(warp * 32 + lane) * 7..][..7];
                let same = values[lane] & 3;
                let want = [
                    mask(&|x| x & 1 != 0),
                    u32::from(mask(&|x| x == 7) != 0),
                    u32::from(mask(&|x| x < 1000) == u32::MAX),
                    odd,
                    u32::from(special),
                    u32::from(!special),
                    mask(&|x| x & 3 == same),
                ];
                assert_eq!(found, want, "warp {warp} lane {lane}");
            }
        }
        assert_eq!(counters.barrier_waits, 9);
    }
}

#[test]
fn transpose_with_and_without_conflicts() {
    let mut bench = Bench::fixture("transpose");
    let mut random = Random(5);
    for (kernel, conflicts) in [("transpose_conflicts", 32), ("transpose_padded", 1)] {
        for (rows, columns) in [(32, 32), (33, 31), (64, 96), (1, 100)] {
            let x = random.units(rows * columns);
            let (dx, out) = (bench.floats("x", &x), bench.empty("out", rows * columns * 4));
            let grid = [columns.div_ceil(32) as u32, rows.div_ceil(32) as u32, 1];
            let args = [
                Arg::Ptr(dx),
                Arg::Ptr(out),
                Arg::I32(rows as i32),
                Arg::I32(columns as i32),
            ];
            let counters = bench
                .launch(kernel, grid, [32, 8, 1], &args)
                .unwrap_or_else(|fault| panic!("{fault}"));
            let got = bench.read_floats(out, rows * columns);
            for (index, value) in x.iter().enumerate() {
                assert_eq!(
                    got[index % columns * rows + index / columns],
                    *value,
                    "{kernel} {rows} x {columns}"
                );
            }
            if rows % 32 == 0 && columns % 32 == 0 {
                // 32 rows a tile, written row by row and read column by column.
                let tiles = (rows / 32 * columns / 32) as u64;
                assert_eq!(counters.shared_stores.wavefronts, 32 * tiles);
                assert_eq!(counters.shared_loads.wavefronts, 32 * conflicts * tiles);
                assert_eq!(
                    (
                        counters.shared_loads.requests,
                        counters.shared_loads.wavefronts_ideal
                    ),
                    (32 * tiles, 32 * tiles)
                );
                assert_eq!(
                    (counters.global_loads.sectors, counters.global_stores.sectors),
                    (128 * tiles, 128 * tiles)
                );
                assert_eq!(counters.barrier_waits, 8 * tiles);
            }
        }
    }
}

#[test]
fn histogram_by_atomics() {
    let mut bench = Bench::fixture("histogram");
    let mut random = Random(6);
    for threads in [1, 2] {
        bench.options.threads = threads;
        let x: Vec<u8> = (0..5000).map(|_| random.next() as u8).collect();
        let (dx, bins) = (bench.bytes("x", &x), bench.words("bins", &[0; 16]));
        let counters = bench.run(
            "histogram",
            4,
            128,
            &[Arg::Ptr(dx), Arg::Ptr(bins), Arg::I32(5000)],
        );
        let mut want = [0; 16];
        for value in x {
            want[usize::from(value & 15)] += 1;
        }
        assert_eq!(bench.read_words(bins, 16), want);
        assert_eq!(
            (counters.global_atomics.requests, counters.global_atomics.bytes),
            (4, 256)
        );
        assert_eq!(counters.shared_atomics.bytes, 20000);
    }
}

#[test]
fn every_atomic() {
    let mut bench = Bench::fixture("histogram");
    bench.options.threads = 2;
    let mut words = [0; 10];
    (words[2], words[4], words[7]) = (u32::MAX, u32::MAX, 5);
    let u = bench.words("u", &words);
    let s = bench.words("s", &[0, 0, 100]);
    let (f, w) = (bench.words("f", &[0]), bench.words("w", &[7, 0]));
    bench.run(
        "atomics",
        2,
        64,
        &[Arg::Ptr(u), Arg::Ptr(s), Arg::Ptr(f), Arg::Ptr(w)],
    );
    let t = 0..128_u32;
    // Increments wrap after 40, decrements below 0 to 1000.
    let increments = t
        .clone()
        .fold(0, |value, _| if value >= 40 { 0 } else { value + 1 });
    let decrements = t
        .clone()
        .fold(5, |value, _| if value == 0 { 1000 } else { value - 1 });
    let xor = t.clone().fold(0, |value, t| value ^ t);
    let want = [
        128 * 127 / 2,
        127 * 7,
        5,
        u32::MAX,
        0,
        xor,
        increments,
        decrements,
        77,
        384,
    ];
    assert_eq!(bench.read_words(u, 10), want);
    assert_eq!(
        bench.read_words(s, 3),
        [3, (3 - 127_i32) as u32, (100 - 128 * 127 / 2_i32) as u32]
    );
    assert_eq!(bench.read_floats(f, 1), [64.0]);
    assert_eq!(bench.read_wides(w, 1), [7 + (128 << 33)]);
}

#[test]
fn nested_divergent_loops() {
    let mut bench = Bench::fixture("control");
    let mut random = Random(7);
    let x: Vec<u32> = random.words(100).iter().map(|x| x % 100_000 + 1).collect();
    let (dx, out) = (bench.words("x", &x), bench.empty("out", 400));
    let counters = bench.run("collatz", 1, 100, &[Arg::Ptr(dx), Arg::Ptr(out), Arg::I32(2)]);
    let want: Vec<u32> = x
        .iter()
        .enumerate()
        .map(|(index, x)| {
            let steps = |mut v: u32| {
                let mut steps = 0;
                while v != 1 {
                    v = if v & 1 != 0 { 3 * v + 1 } else { v >> 1 };
                    steps += 1;
                }
                steps
            };
            (0..=(index as u32 & 3) + 2).map(|round| steps(x + round)).sum()
        })
        .collect();
    assert_eq!(bench.read_words(out, 100), want);
    // The inner loop sheds lanes one length after the other: three full warps, three rounds at least.
    assert!(
        counters.branches_divergent > 60,
        "{}",
        counters.branches_divergent
    );
    // Each thread runs its own steps, six instructions and more a step, however the others go.
    assert!(counters.thread_instructions > want.iter().map(|steps| u64::from(*steps) * 6).sum());
}

#[test]
fn calls_loops_and_recursion() {
    let mut bench = Bench::fixture("control");
    let (a, b): (Vec<u32>, Vec<u32>) = (
        (1..=64).map(|i| i * 12).collect(),
        (1..=64).map(|i| 100 - i).collect(),
    );
    let (da, db, out) = (
        bench.words("a", &a),
        bench.words("b", &b),
        bench.empty("out", 256),
    );
    bench.run("calls", 1, 64, &[Arg::Ptr(da), Arg::Ptr(db), Arg::Ptr(out)]);
    fn gcd(a: u32, b: u32) -> u32 {
        if b == 0 { a } else { gcd(b, a % b) }
    }
    fn fibonacci(n: u32) -> u32 {
        if n < 2 {
            n
        } else {
            fibonacci(n - 1) + fibonacci(n - 2)
        }
    }
    let want: Vec<u32> = (0..64)
        .map(|i| {
            let (x, y) = (a[i], b[i]);
            let depth = if i & 3 != 0 { fibonacci(i as u32 & 7) } else { 0 };
            gcd(x, y) * 1000 + depth + (x + 1) + 2 * y + [x, x + 2, x + 3][i % 3]
        })
        .collect();
    assert_eq!(bench.read_words(out, 64), want);
}

#[test]
fn a_switch_and_a_local_array() {
    let mut bench = Bench::fixture("control");
    let mut random = Random(8);
    let x: Vec<u32> = random.words(64).iter().map(|x| x % 10).collect();
    let (dx, out) = (
        bench.words("x", &x),
        bench.words("out", &(0..64).map(|i| i * 11).collect::<Vec<_>>()),
    );
    bench.run("choose", 1, 64, &[Arg::Ptr(dx), Arg::Ptr(out)]);
    let choose = |i: i32, v: u32| match v {
        0 => i * 3,
        1 => i + 100,
        2 => i * 11,
        3 => -i,
        4 => i ^ 21,
        5 => i / 3,
        6 => i % 5,
        7 => i << 3,
        _ => 9999,
    };
    let want: Vec<u32> = x
        .iter()
        .enumerate()
        .map(|(i, v)| choose(i as i32, *v) as u32)
        .collect();
    assert_eq!(bench.read_words(out, 64), want);

    let x: Vec<u32> = random.words(40).iter().map(|x| x % 1000).collect();
    let (dx, out) = (bench.words("x", &x), bench.empty("out", 128));
    let counters = bench.run("local_array", 1, 32, &[Arg::Ptr(dx), Arg::Ptr(out)]);
    let want: Vec<u32> = (0..32)
        .map(|t| {
            let mut a: Vec<u32> = x[t..t + 8].to_vec();
            for (i, other) in x.iter().enumerate().take(8) {
                a.swap(i, *other as usize & 7);
            }
            a[x[t] as usize & 7]
        })
        .collect();
    assert_eq!(bench.read_words(out, 32), want);
    assert!(counters.local_accesses > 30);
}

#[test]
fn dynamic_shared_memory_constants_and_globals() {
    let mut bench = Bench::fixture("shared");
    let x: Vec<f32> = (0..96).map(|i| i as f32).collect();
    let (dx, out) = (bench.floats("x", &x), bench.empty("out", 384));
    bench.shared_bytes = 96 * 8;
    bench.run("reverse", 1, 96, &[Arg::Ptr(dx), Arg::Ptr(out)]);
    let want: Vec<f32> = (0..96)
        .map(|i| (95 - i) as f32 * 2.5 + [3.0, 1.0, 4.0, 1.0][i % 4])
        .collect();
    assert_eq!(bench.read_floats(out, 96), want);
    let kernel = bench.module.kernel("reverse").expect("it ran");
    assert!(kernel.uses_dynamic_shared && kernel.shared_bytes == 0 && kernel.params.len() == 2);
}
