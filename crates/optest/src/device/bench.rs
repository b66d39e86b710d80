//! The linears' speed on a GPU: each format, shape and number of tokens against what the memory gives.

use std::fmt::Write;

use galvani_cuda::launch::Launch;
use galvani_cuda::model::{FIT, predict};
use galvani_cuda::ops::linear::divide::Device;
use galvani_cuda::ops::linear::{
    FORMATS, Linear, LinearFormat, LinearPlan, Operands, Route, Skinny, Step, Workspace,
};
use galvani_cuda::repack::repack;
use galvani_cuda::{CudaError, DeviceBuffer, Launcher};
use half::f16;

use super::gpu::GpuExecutor;
use super::random::{RandomWeight, kinds};
use super::speed::{self, Limits};

type Failure = Box<dyn std::error::Error>;

/// How much slower by the model than the plan a way may be to be measured: the model errs by less.
const NEAR: f64 = 1.5;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Parts of the names of formats; empty for all.
    pub formats: Vec<String>,
    /// (N, K)
    pub shapes: Vec<(u32, u32)>,
    /// Tokens.
    pub tokens: Vec<u32>,
    /// All ways of the skinny kernel that the model thinks near the best, and not only that of the plan.
    pub sweep: bool,
}

/// One measured product.
#[derive(Clone, Debug)]
pub struct Line {
    /// The format's name.
    pub format: &'static str,
    /// Columns.
    pub n: u32,
    /// Numbers a row.
    pub k: u32,
    /// Tokens.
    pub m: u32,
    /// How it ran.
    pub plan: String,
    /// The same as numbers, on the skinny route.
    pub skinny: Option<Skinny>,
    /// Whether it is what the plan says.
    pub planned: bool,
    /// Bytes of weights.
    pub bytes: usize,
    /// A launch.
    pub us: f64,
    /// Of the weights.
    pub gb_s: f64,
    /// The plain read of as many bytes.
    pub read_gb_s: f64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            formats: Vec::new(),
            shapes: vec![(17408, 5120), (5120, 17408), (2048, 5120), (14336, 4096)],
            tokens: vec![1, 2, 4, 8, 16, 32],
            sweep: false,
        }
    }
}

/// Measures the plan; `report` gets each line as it comes.
///
/// # Errors
/// The driver's, or a result that is no number.
pub fn run(
    on: &mut GpuExecutor,
    plan: &Plan,
    report: &mut dyn FnMut(&Limits, &Line),
) -> Result<Limits, Failure> {
    let limits = speed::limits(on)?;
    let device = Device {
        sm_count: on.sm_count(),
        read_gb_s: limits.read_gb_s as u32,
        volta: on.volta(),
    };
    for format in FORMATS {
        if !plan.formats.is_empty()
            && !plan
                .formats
                .iter()
                .any(|part| format.name.contains(part.as_str()))
        {
            continue;
        }
        for &(n, k) in &plan.shapes {
            if k.is_multiple_of(format.k_multiple) {
                for line in shape(on, format, (n, k), plan, device)? {
                    report(&limits, &line);
                }
            }
        }
    }
    Ok(limits)
}

/// The weights' copies, and everything else of one shape.
struct Bench {
    linear: Linear,
    bytes: usize,
    copies: usize,
    weights: DeviceBuffer,
    at: Operands,
}

fn shape(
    on: &mut GpuExecutor,
    format: &LinearFormat,
    (n, k): (u32, u32),
    wanted: &Plan,
    device: Device,
) -> Result<Vec<Line>, Failure> {
    let most = wanted.tokens.iter().copied().max().unwrap_or(1);
    let mut bench = prepare(on, format, (n, k), most)?;
    let read_gb_s = speed::read(on, &bench.weights, bench.copies, bench.bytes)?;
    let mut lines = Vec::new();
    for &m in &wanted.tokens {
        let planned = bench.linear.plan(m, device)?;
        let mut plans = vec![planned];
        if wanted.sweep {
            plans.extend(near(&planned, device));
        }
        let most = |bytes: fn(&Workspace) -> usize| {
            plans
                .iter()
                .map(|plan| bytes(&plan.workspace()))
                .max()
                .unwrap_or(0)
                .max(256)
        };
        let counters = on.alloc(most(|memory| memory.counters_bytes))?;
        on.upload(&counters, 0, &vec![0; counters.bytes()])?;
        bench.at.counters = Some(counters);
        bench.at.sums = Some(on.alloc(most(|memory| memory.sums_bytes))?);
        for plan in plans {
            let us = time(on, &bench, &plan)?;
            lines.push(Line {
                format: format.name,
                n,
                k,
                m,
                plan: plan.describe(device),
                skinny: plan.skinny(),
                planned: plan == planned,
                bytes: bench.bytes,
                us,
                gb_s: bench.bytes as f64 / us / 1e3,
                read_gb_s,
            });
        }
    }
    Ok(lines)
}

/// The other ways of the skinny kernel that the model thinks near a plan's.
fn near(planned: &LinearPlan, device: Device) -> Vec<LinearPlan> {
    let (linear, m, rates) = (planned.linear, planned.m, device.rates());
    let Some(own) = planned.skinny() else {
        return Vec::new();
    };
    let predicted = |way| predict(&rates, &linear.skinny_work(m, way, device), &FIT).us;
    let most = NEAR * predicted(own);
    let ways = linear.skinny_ways(m, device).into_iter();
    ways.filter(|way| *way != own && predicted(*way) <= most)
        .map(|way| LinearPlan {
            route: Route::Skinny(way),
            ..*planned
        })
        .collect()
}

/// Microseconds of a plan.
fn time(on: &mut GpuExecutor, bench: &Bench, plan: &LinearPlan) -> Result<f64, Failure> {
    let us = speed::microseconds(on, bench.copies, &|index| {
        let address = bench.weights.range(index * bench.bytes, bench.bytes)?;
        let at = Operands {
            weights: DeviceBuffer::new(address, bench.bytes),
            ..bench.at
        };
        plan.steps(&at)?.into_iter().map(only_kernels).collect()
    })?;
    finite(on, &bench.at.out, plan.m as usize * plan.linear.n as usize)?;
    Ok(us)
}

fn only_kernels(step: Step) -> Result<Launch, CudaError> {
    match step {
        Step::Kernel(launch) => Ok(launch),
        Step::Product(_) => Err(CudaError::Executor {
            symbol: "bench".to_owned(),
            reason: "so many tokens go to a library, allowed: those of our own kernels".to_owned(),
        }),
    }
}

/// Random weights: one tile's, over and over, which is as good as any to a kernel that never looks at what it multiplies.
fn prepare(
    on: &mut GpuExecutor,
    format: &LinearFormat,
    (n, k): (u32, u32),
    m: u32,
) -> Result<Bench, Failure> {
    on.reset()?;
    let kind = kinds().into_iter().find(|kind| {
        let source = RandomWeight::new(*kind, 1, 256, 1);
        let packed = source.weight().and_then(|weight| weight.packed_format());
        packed.is_ok_and(|packed| packed.row().name == format.name)
    });
    let kind = kind.ok_or_else(|| format!("no kind of weight is packed to {}", format.name))?;
    let source = RandomWeight::new(kind, 32, k as usize, 1);
    let packed = repack(&source.weight()?)?;
    let tiles = n.div_ceil(32) as usize;
    let one = packed.bytes.repeat(tiles);
    let copies = speed::copies(one.len());
    let weights = on.alloc(one.len() * copies)?;
    for copy in 0..copies {
        on.upload(&weights, copy * one.len(), &one)?;
    }
    let scales: Vec<u8> = packed
        .column_scales
        .iter()
        .flat_map(|s| s.to_le_bytes())
        .collect();
    let column_scale = on.alloc(scales.len() * tiles)?;
    on.upload(&column_scale, 0, &scales.repeat(tiles))?;
    let x: Vec<u8> = (0..m * k)
        .flat_map(|i| f16::from_f32(((i * 37 + i / 7) % 201) as f32 / 100.0 - 1.0).to_le_bytes())
        .collect();
    let x_buffer = on.alloc(x.len())?;
    on.upload(&x_buffer, 0, &x)?;
    Ok(Bench {
        linear: Linear::plain(*format, n, k),
        bytes: one.len(),
        copies,
        weights,
        at: Operands {
            x: x_buffer,
            x_stride: k,
            weights,
            column_scale,
            bias: None,
            residual: None,
            out: on.alloc(m as usize * n as usize * 2)?,
            out_stride: n,
            sums: None,
            counters: None,
            rows: None,
        },
    })
}

fn finite(on: &mut GpuExecutor, out: &DeviceBuffer, count: usize) -> Result<(), Failure> {
    let mut bytes = vec![0; count * 2];
    on.download(out, 0, &mut bytes)?;
    let halves = bytes.as_chunks::<2>().0.iter();
    match halves
        .map(|half| f16::from_le_bytes(*half))
        .position(|half| !half.is_finite())
    {
        None => Ok(()),
        Some(at) => Err(format!("result {at} is no number").into()),
    }
}

/// The lines as a Markdown table.
pub fn markdown(name: &str, image: &str, limits: &Limits, lines: &[Line]) -> String {
    let mut text = format!(
        "{name}, {image}: reads {:.0} GB/s (1 GiB), a launch of nothing takes {:.2} us in a sequence.\n\n\
         | format | N x K | M | us | GB/s | of 1 GiB read | of a read of the same size | plan |\n\
         |---|---|---|---|---|---|---|---|\n",
        limits.read_gb_s, limits.floor_us
    );
    for line in lines {
        writeln!(
            text,
            "| {} | {} x {} | {} | {:.1} | {:.0} | {:.0} % | {:.0} % | {} |",
            line.format,
            line.n,
            line.k,
            line.m,
            line.us,
            line.gb_s,
            100.0 * line.gb_s / limits.read_gb_s,
            100.0 * line.gb_s / line.read_gb_s,
            line.plan
        )
        .expect("to memory");
    }
    text
}

/// The lines as JSON.
pub fn json(name: &str, image: &str, limits: &Limits, lines: &[Line]) -> String {
    let lines: Vec<serde_json::Value> = lines
        .iter()
        .map(|line| {
            serde_json::json!({
                "format": line.format, "n": line.n, "k": line.k, "m": line.m, "plan": line.plan, "planned": line.planned,
                "skinny": line.skinny.map(|s| [s.shape.columns, s.shape.token_tiles, s.warps, s.parts]),
                "bytes": line.bytes, "us": line.us, "gb_s": line.gb_s, "read_gb_s": line.read_gb_s,
            })
        })
        .collect();
    serde_json::json!({
        "device": name, "image": image, "floor_us": limits.floor_us, "read_gb_s": limits.read_gb_s, "lines": lines,
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_have_every_line() {
        let limits = Limits {
            floor_us: 1.5,
            read_gb_s: 4000.0,
        };
        let line = Line {
            format: "nvfp4",
            n: 2048,
            k: 5120,
            m: 8,
            plan: "skinny".to_owned(),
            skinny: None,
            planned: true,
            bytes: 5_898_240,
            us: 2.0,
            gb_s: 2949.12,
            read_gb_s: 3000.0,
        };
        let text = markdown("card", "ptx", &limits, &[line.clone(), line.clone()]);
        assert_eq!(
            text.lines()
                .filter(|line| line.contains("| 74 % | 98 % |"))
                .count(),
            2
        );
        let value: serde_json::Value = serde_json::from_str(&json("card", "ptx", &limits, &[line])).unwrap();
        assert_eq!(value["lines"][0]["m"], 8);
    }
}
