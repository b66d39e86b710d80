//! How fast a GPU does a sequence of launches: recorded once, replayed, its memory rotated past the caches.

use galvani_cuda::launch::Launch;
use galvani_cuda::ops::measure;
use galvani_cuda::{CudaError, DeviceBuffer, Launcher};

use super::gpu::GpuExecutor;

/// Copies of what a launch reads take so much together: three times the second-level cache of an H200, 60 MB, the largest of
/// the GPUs that kernels are built for.
pub const ROTATE_BYTES: usize = 192 << 20;
/// Launches of a recorded sequence at least.
const LAUNCHES_MIN: usize = 64;
const SAMPLES: usize = 7;

/// Copies of `bytes` that pass the caches.
pub fn copies(bytes: usize) -> usize {
    ROTATE_BYTES.div_ceil(bytes).max(2)
}

/// Microseconds a launch: median of some replays after one that warms up. `launch` gives the launches of a number from 0 on,
/// which rotate over `copies` places.
///
/// # Errors
/// The driver's.
pub fn microseconds(
    on: &mut GpuExecutor,
    copies: usize,
    launch: &dyn Fn(usize) -> Result<Vec<Launch>, CudaError>,
) -> Result<f64, CudaError> {
    let count = copies * LAUNCHES_MIN.div_ceil(copies);
    let all: Vec<Vec<Launch>> = (0..copies).map(launch).collect::<Result<_, _>>()?;
    for launch in all.iter().flatten() {
        on.gpu.kernel(&launch.symbol)?;
    }
    let graph = on.gpu.record(|gpu| {
        let launches = (0..count).flat_map(|index| &all[index % copies]);
        launches.into_iter().try_for_each(|launch| gpu.run(launch))
    })?;
    graph.replay()?;
    let mut samples = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        samples.push(f64::from(on.gpu.time(|_| graph.replay())?) * 1e3 / count as f64);
    }
    samples.sort_by(f64::total_cmp);
    Ok(samples[SAMPLES / 2])
}

/// What a device can do at best.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// A launch of nothing, in a sequence.
    pub floor_us: f64,
    /// Reading 1 GiB.
    pub read_gb_s: f64,
}

/// Measures them.
///
/// # Errors
/// The driver's.
pub fn limits(on: &mut GpuExecutor) -> Result<Limits, CudaError> {
    on.reset()?;
    let sm_count = on.sm_count();
    let floor_us = microseconds(on, 2, &|_| Ok(vec![measure::empty(sm_count)]))?;
    let bytes = 1 << 30;
    let buffer = zeros(on, bytes)?;
    let read_gb_s = read(on, &buffer, 1, bytes)?;
    Ok(Limits { floor_us, read_gb_s })
}

/// GB/s of the plain read over `copies` places of `bytes` bytes each in `buffer`.
///
/// # Errors
/// The driver's.
pub fn read(
    on: &mut GpuExecutor,
    buffer: &DeviceBuffer,
    copies: usize,
    bytes: usize,
) -> Result<f64, CudaError> {
    let sm_count = on.sm_count();
    let sink = on.alloc(256)?;
    let whole = bytes / measure::READ_BYTES * measure::READ_BYTES;
    let us = microseconds(on, copies, &|index| {
        let part = DeviceBuffer::new(buffer.range(index * bytes, bytes)?, bytes);
        Ok(vec![measure::read(&part, bytes, &sink, sm_count)?])
    })?;
    Ok(whole as f64 / us / 1e3)
}

fn zeros(on: &mut GpuExecutor, bytes: usize) -> Result<DeviceBuffer, CudaError> {
    let buffer = on.alloc(bytes)?;
    let chunk = vec![0u8; 64 << 20];
    for start in (0..bytes).step_by(chunk.len()) {
        on.upload(&buffer, start, &chunk[..chunk.len().min(bytes - start)])?;
    }
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_pass_the_caches() {
        for (bytes, want) in [(1 << 20, 192), (100 << 20, 2), (1 << 30, 2), ((64 << 20) + 1, 3)] {
            assert_eq!(copies(bytes), want, "{bytes}");
        }
    }
}
