//! The expert stack's speed on a GPU: time and bytes of the experts that are chosen.

use std::fmt::Write;

use galvani_cuda::launch::Launch;
use galvani_cuda::ops::experts::{ExpertStack, ExpertsPlan, Operands, Path, SharedExpert};
use galvani_cuda::{CudaError, DeviceBuffer, Launcher};

use crate::device::gpu::GpuExecutor;
use crate::device::random::Kind;
use crate::device::speed::{self, Limits};
use crate::experts::Case;
use crate::weights::Random;

/// A stack to measure.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Model.
    pub name: &'static str,
    /// Experts, experts a token, width of a token, width of an expert.
    pub sizes: [u32; 4],
}

/// The stacks of the mission's models.
pub const SHAPES: [Shape; 2] = [
    Shape {
        name: "Qwen3.6-35B-A3B",
        sizes: [256, 8, 2048, 512],
    },
    Shape {
        name: "Laguna-S-2.1",
        sizes: [256, 10, 3072, 1024],
    },
];

/// Buckets to measure.
pub const TOKENS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Different inputs that are taken in turns: they choose different experts, so that little is read from a cache.
const BATCHES: usize = 32;

/// One measured bucket.
#[derive(Debug, Clone)]
pub struct Line {
    /// Model.
    pub model: &'static str,
    /// Weights.
    pub format: &'static str,
    /// Tokens.
    pub tokens: u32,
    /// How it ran.
    pub path: Path,
    /// Different experts that are chosen, on average.
    pub touched: f64,
    /// Their bytes.
    pub bytes: f64,
    /// The whole stack: route, gated, down, combine.
    pub us: f64,
    /// Time of each launch by itself.
    pub launch_us: Vec<(String, f64)>,
}

impl Line {
    /// GB/s of the experts that are chosen, each read once.
    pub fn gb_s(&self) -> f64 {
        self.bytes / self.us / 1e3
    }
}

/// A layer's weights on a device. Codes are random, which takes as long as real ones.
#[derive(Debug)]
pub struct Layer {
    stack: ExpertStack,
    router: DeviceBuffer,
    gated: [DeviceBuffer; 2],
    down: [DeviceBuffer; 2],
}

impl Layer {
    /// Allocates and fills them.
    ///
    /// # Errors
    /// The launcher's.
    pub fn new(on: &mut dyn Launcher, shape: &Shape, kind: Kind) -> Result<Self, CudaError> {
        let stack = Case::new(shape.sizes, 1, kind).stack;
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        let router = random.floats(stack.experts as usize * stack.hidden as usize);
        let router = put(on, &router)?;
        let mut experts = [stack.gated_bytes(), stack.down_bytes()]
            .into_iter()
            .map(|sizes| {
                let codes = on.alloc(sizes.bytes())?;
                let one = random.codes(sizes.expert_bytes());
                for expert in 0..sizes.experts {
                    on.upload(&codes, expert * one.len(), &one)?;
                }
                Ok([
                    codes,
                    put(on, &1.0f32.to_le_bytes().repeat(sizes.column_scales()))?,
                ])
            });
        let mut next = || experts.next().expect("there are two matrices");
        let (gated, down) = (next()?, next()?);
        Ok(Self {
            stack,
            router,
            gated,
            down,
        })
    }

    /// The launches of a bucket, one list for each input, and how many experts they choose on average.
    ///
    /// # Errors
    /// The launcher's, or the plan's.
    pub fn prepare(
        &self,
        on: &mut dyn Launcher,
        tokens: u32,
    ) -> Result<(ExpertsPlan, Vec<Vec<Launch>>, f64), CudaError> {
        let plan = self.stack.plan(tokens)?;
        let numbers = tokens as usize * self.stack.hidden as usize;
        let zeros = vec![0; 4 * numbers];
        let (shared, residual, out) = (put(on, &zeros)?, put(on, &zeros)?, put(on, &zeros)?);
        let mut random = Random(u64::from(tokens) * 2 + 1);
        let (mut all, mut touched) = (Vec::new(), 0);
        for _ in 0..BATCHES {
            // A workspace each, so that a launch by itself finds its own input's choices.
            let workspace = put(on, &vec![0; plan.workspace().bytes])?;
            let x = put(on, &random.halves(numbers))?;
            let launches = plan.launches(&self.operands(x, shared, residual, out, workspace))?;
            touched += self.touched(on, &plan, &launches, &workspace)?;
            all.push(launches);
        }
        Ok((plan, all, touched as f64 / BATCHES as f64))
    }

    fn operands(
        &self,
        x: DeviceBuffer,
        shared: DeviceBuffer,
        residual: DeviceBuffer,
        out: DeviceBuffer,
        workspace: DeviceBuffer,
    ) -> Operands {
        let stride = self.stack.hidden;
        Operands {
            x,
            x_stride: stride,
            token_count: None,
            router: self.router,
            shared_gate: None,
            router_bias: None,
            choices: None,
            gated: self.gated[0],
            gated_scale: self.gated[1],
            gated_bias: None,
            down: self.down[0],
            down_scale: self.down[1],
            down_bias: None,
            shared: Some(SharedExpert { rows: shared, stride }),
            residual: Some(residual),
            out,
            out_stride: stride,
            workspace,
        }
    }

    /// Different experts that one run chooses.
    fn touched(
        &self,
        on: &mut dyn Launcher,
        plan: &ExpertsPlan,
        launches: &[Launch],
        workspace: &DeviceBuffer,
    ) -> Result<usize, CudaError> {
        for launch in launches {
            on.run(launch)?;
        }
        let top_k = self.stack.top_k as usize;
        let mut bytes = vec![0; plan.tokens as usize * 8 * top_k];
        on.download(workspace, plan.workspace().routes, &mut bytes)?;
        let mut used = vec![false; self.stack.experts as usize];
        for row in bytes.chunks_exact(8 * top_k) {
            for id in row[..4 * top_k].as_chunks::<4>().0 {
                used[u32::from_le_bytes(*id) as usize] = true;
            }
        }
        Ok(used.iter().filter(|used| **used).count())
    }

    fn expert_bytes(&self) -> usize {
        self.stack.gated_bytes().expert_bytes() + self.stack.down_bytes().expert_bytes()
    }
}

/// Measures shapes and buckets; `report` gets each line as it comes.
///
/// # Errors
/// The driver's.
pub fn run(
    on: &mut GpuExecutor,
    kind: Kind,
    tokens: &[u32],
    report: &mut dyn FnMut(&Limits, Line),
) -> Result<(), CudaError> {
    let limits = speed::limits(on)?;
    for shape in &SHAPES {
        on.reset()?;
        let layer = Layer::new(on, shape, kind)?;
        for &tokens in tokens {
            let (plan, launches, touched) = layer.prepare(on, tokens)?;
            let us = speed::microseconds(on, BATCHES, &|index| Ok(launches[index].clone()))?;
            let mut launch_us = Vec::new();
            for (step, first) in launches[0].iter().enumerate() {
                let alone = |index: usize| Ok(vec![launches[index][step].clone()]);
                launch_us.push((first.symbol.clone(), speed::microseconds(on, BATCHES, &alone)?));
            }
            let line = Line {
                model: shape.name,
                format: layer.stack.gated.name,
                tokens,
                path: plan.path,
                touched,
                bytes: touched * layer.expert_bytes() as f64,
                us,
                launch_us,
            };
            report(&limits, line);
        }
    }
    Ok(())
}

/// The lines as a Markdown table.
pub fn markdown(name: &str, image: &str, limits: &Limits, lines: &[Line]) -> String {
    let mut text = format!(
        "{name}, {image}: reads {:.0} GB/s (1 GiB), a launch of nothing takes {:.2} us in a sequence.\n\n\
         | model | format | N | experts | MB | us | GB/s | of 1 GiB read | path | launches, us each |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
        limits.read_gb_s, limits.floor_us
    );
    for line in lines {
        let each: Vec<String> = line.launch_us.iter().map(|(_, us)| format!("{us:.1}")).collect();
        writeln!(
            text,
            "| {} | {} | {} | {:.1} | {:.1} | {:.1} | {:.0} | {:.0} % | {:?} | {} |",
            line.model,
            line.format,
            line.tokens,
            line.touched,
            line.bytes / 1e6,
            line.us,
            line.gb_s(),
            100.0 * line.gb_s() / limits.read_gb_s,
            line.path,
            each.join(" + ")
        )
        .expect("to memory");
    }
    text
}

fn put(on: &mut dyn Launcher, bytes: &[u8]) -> Result<DeviceBuffer, CudaError> {
    let buffer = on.alloc(bytes.len())?;
    on.upload(&buffer, 0, bytes)?;
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_every_line() {
        let line = |tokens: u32| Line {
            model: "model",
            format: "nvfp4",
            tokens,
            path: Path::Direct,
            touched: 8.0,
            bytes: 14e6,
            us: 7.0,
            launch_us: vec![("a".to_owned(), 1.0), ("b".to_owned(), 2.0)],
        };
        let limits = Limits {
            floor_us: 1.0,
            read_gb_s: 4000.0,
        };
        let text = markdown("card", "ptx", &limits, &[line(1), line(2)]);
        assert_eq!(
            text.lines()
                .filter(|line| line.contains("| 2000 | 50 % | Direct | 1.0 + 2.0 |"))
                .count(),
            2
        );
    }
}
