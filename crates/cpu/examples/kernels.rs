//! Times the linear kernels: `cargo run --release -p galvani-cpu --example kernels -- [FORMAT,..] [ISA] [THREADS,..] [ROWS,..]`.
//!
//! Weights are copied until they exceed the caches, and each pass goes through all copies, as a model step does. GB/s
//! counts packed weight bytes; the share is of the read bandwidth measured first.

use std::borrow::Cow;
use std::hint::black_box;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use galvani_cpu::isa::Isa;
use galvani_cpu::linear::{Activations, Epilogue, InView, OutView, Product, RowSelect, linear_part};
use galvani_cpu::pack::{CpuMath, PackSpec, PackedMatrix};
use galvani_cpu::pool::Pool;
use galvani_cpu::quantise::ActRows;
use galvani_graph::Format;

const SHAPES: [(usize, usize); 3] = [(3072, 1024), (1024, 3072), (151_936, 1024)];
const COLD_BYTES: usize = 400 << 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let list = |i: usize, default: &str| -> Vec<String> {
        let text = arguments.get(i).map_or(default, String::as_str);
        text.split(',').map(str::to_owned).collect()
    };
    let formats: Vec<Format> = list(0, "Q8_0,Q4_0,Q6_K,Q4_K,NVFP4,Q4_1")
        .iter()
        .map(|name| {
            let found = Format::ALL.into_iter().find(|f| f.name() == name);
            found.unwrap_or_else(|| panic!("no format `{name}`"))
        })
        .collect();
    let isa: Isa = match arguments.get(1).map_or("best", String::as_str) {
        "best" => Isa::detect(),
        name => name.parse().expect("a known instruction set"),
    };
    let numbers = |i: usize, default: &str| -> Vec<usize> {
        list(i, default)
            .iter()
            .map(|n| n.parse().expect("a number"))
            .collect()
    };
    let isa = isa.require().expect("available");
    for threads in numbers(2, "1,2") {
        let pool = Pool::new(threads).expect("threads");
        let peak = bandwidth(&pool);
        println!("{isa}, {threads} threads, read bandwidth {peak:.1} GB/s");
        println!(
            "{:8} {:>14} {:>4} {:>10} {:>7} {:>6} {:>8}",
            "format", "n x k", "m", "us", "GB/s", "share", "GOP/s"
        );
        for &format in &formats {
            for (n, k) in SHAPES {
                bench(&pool, isa, format, n, k, &numbers(3, "1,2,4,8,16,64,512"), peak);
            }
        }
    }
}

/// GB/s of reading 256 MiB.
fn bandwidth(pool: &Pool) -> f64 {
    let words = vec![1f32; (256 << 20) / 4];
    let mut best = f64::INFINITY;
    for _ in 0..8 {
        let start = Instant::now();
        pool.run(|worker| {
            let words = &words[worker.share(words.len(), 1024)];
            black_box(sum(words));
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    (words.len() * 4) as f64 / best / 1e9
}

#[cfg(target_arch = "x86_64")]
fn sum(words: &[f32]) -> f32 {
    #[target_feature(enable = "avx2")]
    fn wide(words: &[f32]) -> f32 {
        let mut sums = [0f32; 64];
        for chunk in words.as_chunks::<64>().0 {
            for (sum, word) in sums.iter_mut().zip(chunk) {
                *sum += word;
            }
        }
        sums.iter().sum()
    }
    assert!(Isa::Avx2.is_available(), "this benchmark reads with AVX2");
    // SAFETY: checked above.
    unsafe { wide(words) }
}

#[cfg(not(target_arch = "x86_64"))]
fn sum(words: &[f32]) -> f32 {
    words.iter().sum()
}

/// Raw rows whose scale fields are numbers of a usual size: subnormal ones would be timed by the processor's slow path.
fn raw_rows(format: Format, bytes: usize) -> Vec<u8> {
    // Bytes below 42 are small positive f16, e4m3 and sub-scales.
    let mut raw: Vec<u8> = (0..bytes).map(|i| (i % 251 % 42) as u8).collect();
    for block in raw.chunks_exact_mut(format.block_bytes()) {
        match format {
            Format::Mxfp4 => block[0] = 120,
            Format::F32 => block[3] = 0x3d,
            Format::BF16 => block[1] = 0x3d,
            _ => {}
        }
    }
    raw
}

fn bench(pool: &Pool, isa: Isa, format: Format, n: usize, k: usize, rows: &[usize], peak: f64) {
    let row_bytes = format.row_bytes(k).expect("whole blocks");
    let spec = PackSpec {
        isa,
        math: CpuMath::Fast,
        name: "bench",
        format,
        parts: 1,
        rows: n,
        k,
    };
    let raw = raw_rows(format, 1024 * row_bytes);
    let source = |rows: std::ops::Range<usize>| {
        let bytes = rows.len() * row_bytes;
        Ok(match raw.get(..bytes) {
            Some(raw) => Cow::Borrowed(raw),
            None => Cow::Owned(raw.iter().copied().cycle().take(bytes).collect()),
        })
    };
    let start = Instant::now();
    let first = PackedMatrix::pack(pool, &spec, &source).expect("packs");
    let pack_rate = first.bytes() as f64 / start.elapsed().as_secs_f64() / 1e9;
    println!(
        "{:8} {:>14} packed at {pack_rate:.2} GB/s",
        format.name(),
        format!("{n} x {k}")
    );
    let copies = (COLD_BYTES / first.bytes()).max(1);
    let mut matrices = vec![first];
    while matrices.len() < copies {
        matrices.push(PackedMatrix::pack(pool, &spec, &source).expect("packs"));
    }
    for &m in rows {
        if m > 16 && n > 100_000 {
            continue;
        }
        let x: Vec<f32> = (0..m * k).map(|i| (i * 7 % 255) as f32 / 128.0 - 1.0).collect();
        let mut out = vec![0f32; m * n];
        let acts = ActRows::new(isa, m, k).expect("memory");
        pool.reserve_scratch(matrices[0].scratch_bytes(m))
            .expect("memory");
        let view = InView {
            ptr: x.as_ptr(),
            row_stride: k,
        };
        let target = OutView {
            ptr: out.as_mut_ptr(),
            row_stride: n,
        };
        let input = Activations {
            float: view,
            int8: Some(&acts),
            rows: m,
        };
        // One run over all copies, as one step goes through all layers; each product is timed by the first worker.
        let times = Mutex::new(Vec::new());
        let pass = |count: usize| {
            pool.run(|worker| {
                for matrix in &matrices[..count] {
                    let product = Product {
                        matrix,
                        part: 0,
                        column: 0,
                        bias: None,
                    };
                    let start = Instant::now();
                    // SAFETY: sizes agree; barriers lie between.
                    unsafe {
                        acts.quantise_part(worker, view, m);
                        worker.barrier();
                        linear_part(
                            worker,
                            &[product],
                            &input,
                            RowSelect::All,
                            target,
                            Epilogue::Store,
                        );
                        worker.barrier();
                    }
                    if worker.index == 0 {
                        times
                            .lock()
                            .expect("no panic")
                            .push(start.elapsed().as_secs_f64());
                    }
                }
            });
        };
        let count = if m >= 64 { copies.min(8) } else { copies };
        let deadline = Instant::now() + Duration::from_millis(200);
        pass(count);
        while Instant::now() < deadline {
            pass(count);
        }
        // The lower fifth: what the machine does when nobody else runs on it.
        let mut times = times.into_inner().expect("no panic");
        times.sort_by(f64::total_cmp);
        let best = times[times.len() / 5];
        let bytes = matrices[0].bytes() as f64 / best / 1e9;
        println!(
            "{:8} {:>14} {m:>4} {:>10.1} {bytes:>7.1} {:>5.0}% {:>8.0}",
            format.name(),
            format!("{n} x {k}"),
            best * 1e6,
            bytes / peak * 100.0,
            2.0 * (m * n * k) as f64 / best / 1e9,
        );
    }
}
