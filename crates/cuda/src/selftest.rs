//! The self-test's row and its expected results; any launcher runs it.

use crate::arch::Arch;
use crate::error::CudaError;
use crate::kernels::{Fact, KernelRow};
use crate::launch::{Arg, DeviceBuffer, Launch, Launcher};

/// The row's symbol.
pub const SYMBOL: &str = "selftest_u32_m8n8k4";
const THREADS: u32 = 128;

/// The table.
pub fn rows() -> Vec<KernelRow> {
    vec![KernelRow {
        symbol: SYMBOL.to_owned(),
        source: "selftest.cu",
        defines: Vec::new(),
        threads: THREADS,
        min_blocks: 4,
        shared_bytes: 0,
        registers_max: 64,
        archs: &Arch::ALL,
        requires: &[Fact::Hmma884, Fact::NoCall],
    }]
}

/// One run's buffers.
pub struct SelfTest {
    pattern: DeviceBuffer,
    product: DeviceBuffer,
    count: u32,
    seed: u32,
}

impl SelfTest {
    /// Allocates for `count` pattern words.
    pub fn new(launcher: &mut dyn Launcher, count: u32, seed: u32) -> Result<Self, CudaError> {
        Ok(Self {
            pattern: launcher.alloc(count as usize * 4)?,
            product: launcher.alloc(4 * 8 * 8 * 4)?,
            count,
            seed,
        })
    }

    /// The launch, on `blocks` blocks.
    pub fn plan(&self, blocks: u32) -> Launch {
        Launch {
            symbol: SYMBOL.to_owned(),
            grid: [blocks, 1, 1],
            block: [THREADS, 1, 1],
            shared_bytes: 0,
            args: vec![
                self.pattern.arg(),
                self.product.arg(),
                Arg::U32(self.count),
                Arg::U32(self.seed),
            ],
        }
    }

    /// Overwrites the results with bytes that are wrong everywhere.
    pub fn clear(&self, launcher: &mut dyn Launcher) -> Result<(), CudaError> {
        for buffer in [&self.pattern, &self.product] {
            launcher.upload(buffer, 0, &vec![0xa5; buffer.bytes()])?;
        }
        Ok(())
    }

    /// Compares everything.
    ///
    /// # Errors
    /// The first word that differs.
    pub fn check(&self, launcher: &mut dyn Launcher) -> Result<(), CudaError> {
        let wanted: Vec<u32> = (0..self.count).map(|i| pattern(i, self.seed)).collect();
        compare(launcher, &self.pattern, &wanted, "pattern")?;
        let wanted: Vec<u32> = product().iter().map(|value| value.to_bits()).collect();
        compare(launcher, &self.product, &wanted, "product")
    }
}

fn compare(
    launcher: &mut dyn Launcher,
    buffer: &DeviceBuffer,
    wanted: &[u32],
    what: &'static str,
) -> Result<(), CudaError> {
    let mut bytes = vec![0; buffer.bytes()];
    launcher.download(buffer, 0, &mut bytes)?;
    let words = bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|word| u32::from_le_bytes(*word));
    match words
        .zip(wanted)
        .enumerate()
        .find(|(_, (got, want))| got != *want)
    {
        None => Ok(()),
        Some((index, (got, want))) => Err(CudaError::SelfTest {
            what,
            index,
            got,
            want: *want,
        }),
    }
}

fn pattern(index: u32, seed: u32) -> u32 {
    index.wrapping_mul(2_654_435_761).wrapping_add(seed)
}

/// D of the four products // [quad-pair 4, row 8, column 8]
fn product() -> Vec<f32> {
    let mut out = Vec::with_capacity(256);
    for q in 0..4 {
        for r in 0..8 {
            for c in 0..8 {
                let sum: i32 = (0..4).map(|k| (r + 2 * k + q) * (c + q - k)).sum();
                out.push(sum as f32 + (8 * r + c) as f32 / 16.0);
            }
        }
    }
    out
}
