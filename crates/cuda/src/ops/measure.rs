//! Kernels that measure a device: a plain read, and nothing at all.

use crate::arch::Arch;
use crate::error::CudaError;
use crate::kernels::{Fact, KernelRow};
use crate::launch::{Arg, DeviceBuffer, Launch};

/// Reads memory.
pub const READ: &str = "measure_read";
/// Does nothing: the least time that a launch takes.
pub const EMPTY: &str = "measure_empty";

const THREADS: u32 = 256;
/// Blocks of a multiprocessor: all that it holds.
const BLOCKS: u32 = 8;
/// Loads in flight a thread.
const READS: u32 = 4;
/// Buffers are read in multiples of this.
pub const READ_BYTES: usize = (THREADS * READS * 16) as usize;

/// The table.
pub fn rows() -> Vec<KernelRow> {
    let row = |symbol: &str, reads: u32| KernelRow {
        symbol: symbol.to_owned(),
        source: "measure.cu",
        defines: vec![("READS", reads.to_string())],
        threads: THREADS,
        min_blocks: 4,
        shared_bytes: 0,
        registers_max: 64,
        archs: &Arch::ALL,
        requires: if reads > 0 { &[Fact::Ldg128] } else { &[] },
    };
    vec![row(READ, READS), row(EMPTY, 0)]
}

/// A read of the first `bytes` of `from`, cut to whole steps. `sink` takes a word.
///
/// # Errors
/// A buffer that is too small.
pub fn read(
    from: &DeviceBuffer,
    bytes: usize,
    sink: &DeviceBuffer,
    sm_count: u32,
) -> Result<Launch, CudaError> {
    let bytes = bytes / READ_BYTES * READ_BYTES;
    let words = u32::try_from(bytes / 16).map_err(|_| CudaError::Shape {
        what: "bytes to read",
        value: bytes as _,
        allowed: format!("{READ_BYTES} to {}", u64::from(u32::MAX) * 16),
    })?;
    Ok(Launch {
        symbol: READ.to_owned(),
        grid: [(sm_count * BLOCKS).min((bytes / READ_BYTES) as u32).max(1), 1, 1],
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        args: vec![
            Arg::Ptr(from.range(0, bytes)?),
            Arg::U32(words),
            Arg::Ptr(sink.range(0, 4)?),
        ],
    })
}

/// A launch of nothing, of as many blocks as a device holds.
pub fn empty(sm_count: u32) -> Launch {
    Launch {
        symbol: EMPTY.to_owned(),
        grid: [sm_count * 4, 1, 1],
        block: [THREADS, 1, 1],
        shared_bytes: 0,
        args: vec![Arg::Ptr(0), Arg::U32(0), Arg::Ptr(0)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_stay_inside() {
        let (from, sink) = (
            DeviceBuffer::new(0x1000, 3 * READ_BYTES + 5),
            DeviceBuffer::new(0x100, 4),
        );
        for (bytes, blocks, words) in [(READ_BYTES, 1, 1024), (3 * READ_BYTES + 5, 3, 3072), (1, 1, 0)] {
            let launch = read(&from, bytes, &sink, 80).unwrap();
            assert_eq!(
                (launch.grid[0], launch.args[1]),
                (blocks, Arg::U32(words)),
                "{bytes}"
            );
        }
        assert!(read(&from, 4 * READ_BYTES, &sink, 80).is_err());
        assert!(read(&from, usize::MAX, &sink, 80).is_err());
    }
}
