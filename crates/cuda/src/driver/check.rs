//! `galvani-cuda selftest`: everything that the launch layer does, once, on the GPU at hand.

use std::path::Path;
use std::time::Instant;

use half::f16;

use crate::driver::blas::{Blas, Output, Product};
use crate::driver::{Driver, Gpu, Image};
use crate::error::CudaError;
use crate::launch::Launcher;
use crate::pack::file::Pack;
use crate::pack::occupancy;
use crate::selftest::SelfTest;

const ARENA_BYTES: usize = 256 << 20;
const REPLAYS: usize = 100;
const WORDS: u32 = 1 << 20;

/// Runs both images of the pack on a device and prints what it finds.
///
/// # Errors
/// The first thing that is not right. An image that the pack lacks for the device is printed, but one must run.
pub fn run(pack: &Path, ordinal: usize) -> Result<(), CudaError> {
    let driver = Driver::load()?;
    println!(
        "driver: CUDA {}.{}",
        driver.version / 1000,
        driver.version % 1000 / 10
    );
    for info in driver.devices()? {
        println!(
            "GPU {}: {}, sm_{}, {} multiprocessors, {:.1} GB",
            info.ordinal,
            info.name,
            info.sm,
            info.sm_count,
            info.memory_bytes as f64 / 1e9
        );
    }
    let mut ran = 0;
    let mut missing = None;
    for image in [Image::Cubin, Image::Ptx] {
        match Gpu::open(driver, ordinal, Pack::read(pack)?, image, ARENA_BYTES) {
            Ok(mut gpu) => {
                one(&mut gpu, image)?;
                ran += 1;
            }
            Err(error @ (CudaError::NoImage { .. } | CudaError::DriverVersion { .. })) => {
                println!("{image:?}: {error}");
                missing = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    match missing {
        Some(error) if ran == 0 => Err(error),
        _ => Ok(()),
    }
}

fn one(gpu: &mut Gpu, image: Image) -> Result<(), CudaError> {
    let arch = gpu.arch();
    println!("\n{image:?} ({arch}):");
    load_all(gpu)?;
    let first = SelfTest::new(gpu, WORDS, 1)?;
    let second = SelfTest::new(gpu, 12_345, 0x9e37_79b9)?;
    for (test, blocks) in [(&first, 80), (&second, 1)] {
        test.clear(gpu)?;
        gpu.run(&test.plan(blocks))?;
        test.check(gpu)?;
    }
    println!("  launches: right");
    for test in [&first, &second] {
        test.clear(gpu)?;
    }
    let plans = [first.plan(80), second.plan(3)];
    let graph = gpu.record(|gpu| plans.iter().try_for_each(|plan| gpu.run(plan)))?;
    let untouched = first.check(gpu).is_err();
    let milliseconds = gpu.time(|_| (0..REPLAYS).try_for_each(|_| graph.replay()))?;
    first.check(gpu)?;
    second.check(gpu)?;
    println!(
        "  graph of {} launches: recording ran nothing: {untouched}; {REPLAYS} replays right, {:.1} us each",
        graph.nodes(),
        f64::from(milliseconds) * 1e3 / REPLAYS as f64
    );
    let refused = gpu.record(|gpu| first.check(gpu)).err();
    let refused = matches!(refused, Some(CudaError::Recording { .. }));
    println!("  a download while recording is refused: {refused}");
    product(gpu)?;
    gpu.freeze();
    let frozen = gpu.alloc(1).is_err();
    println!("  frozen arena refuses memory: {frozen}");
    for (what, holds) in [("recording", untouched && refused), ("freezing", frozen)] {
        if !holds {
            return Err(CudaError::Executor {
                symbol: what.to_owned(),
                reason: "did not hold".to_owned(),
            });
        }
    }
    Ok(())
}

/// Loads every kernel that the pack has for the device, and compares the driver's occupancy with our table's.
fn load_all(gpu: &mut Gpu) -> Result<(), CudaError> {
    let arch = gpu.arch();
    let entries = gpu
        .pack()
        .manifest
        .blobs
        .iter()
        .filter(|entry| entry.arch == arch);
    let entries: Vec<_> = entries.cloned().collect();
    let start = Instant::now();
    let mut differ = 0;
    for entry in &entries {
        let kernel = gpu.kernel(&entry.symbol)?;
        let (registers, local) = kernel.resources()?;
        let blocks = kernel.blocks(entry.threads, entry.shared_dynamic)?;
        if let Some(limits) = occupancy::limits(arch) {
            let shared = entry.shared_static + entry.shared_dynamic;
            let ours = occupancy::blocks(&limits, entry.threads, entry.registers, shared);
            if (ours, entry.registers, entry.spilled > 0) != (blocks, registers, local > 0) {
                differ += 1;
                println!(
                    "  {}: driver says {blocks} blocks, {registers} registers, {local} local bytes; the report {ours}, {}, {}",
                    entry.symbol, entry.registers, entry.spilled
                );
            }
        } else if local > 0 {
            println!(
                "  {}: the driver's compiler spills {local} bytes a thread",
                entry.symbol
            );
        }
    }
    println!(
        "  {} kernels loaded in {:.2} s, {differ} differ from the report",
        entries.len(),
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

/// A product of small integers by cuBLAS, exact in any order; without cuBLAS its error is printed.
fn product(gpu: &mut Gpu) -> Result<(), CudaError> {
    let (m, n, k) = (33u32, 72u32, 40u32);
    let workspace = gpu.alloc(8 << 20)?;
    let blas = match Blas::load(gpu, &workspace) {
        Ok(blas) => blas,
        Err(error @ CudaError::NoBlas { .. }) => {
            println!("  {error}");
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    let left: Vec<i32> = (0..m * k).map(|i| (i * 7 % 11) as i32 - 5).collect();
    let right: Vec<i32> = (0..n * k).map(|i| (i * 5 % 13) as i32 - 6).collect();
    let bytes = |values: &[i32]| -> Vec<u8> {
        let halves = values.iter().map(|value| f16::from_f32(*value as f32));
        halves.flat_map(|value| value.to_le_bytes()).collect()
    };
    let activations = gpu.alloc((m * k * 2) as usize)?;
    let weights = gpu.alloc((n * k * 2) as usize)?;
    gpu.upload(&activations, 0, &bytes(&left))?;
    gpu.upload(&weights, 0, &bytes(&right))?;
    for store in [Output::F32, Output::F16] {
        let output = gpu.alloc((m * n * 4) as usize)?;
        let product = Product {
            m,
            n,
            k,
            activations,
            activation_stride: k,
            weights,
            weight_stride: k,
            output,
            store,
        };
        let graph = gpu.record(|_| blas.product(&product))?;
        graph.replay()?;
        let mut got = vec![0; (m * n * 4) as usize];
        gpu.download(&output, 0, &mut got)?;
        for row in 0..m as usize {
            for column in 0..n as usize {
                let terms =
                    (0..k as usize).map(|i| left[row * k as usize + i] * right[column * k as usize + i]);
                let want = terms.sum::<i32>() as f32;
                let at = row * n as usize + column;
                let value = match store {
                    Output::F32 => {
                        f32::from_le_bytes([got[at * 4], got[at * 4 + 1], got[at * 4 + 2], got[at * 4 + 3]])
                    }
                    Output::F16 => f16::from_le_bytes([got[at * 2], got[at * 2 + 1]]).to_f32(),
                };
                if value.to_bits() != want.to_bits() {
                    let (got, want) = (value.to_bits(), want.to_bits());
                    return Err(CudaError::SelfTest {
                        what: "cublas",
                        index: at,
                        got,
                        want,
                    });
                }
            }
        }
    }
    println!(
        "  cuBLAS {} ({}): right, recorded, f32 and f16",
        blas.version,
        blas.path.display()
    );
    Ok(())
}
