//! All device memory is one allocation, given out in order. After `freeze` there is none to be had: what a step needs is
//! known before the first one.

use crate::error::CudaError;
use crate::launch::DeviceBuffer;

/// Every buffer starts at a multiple of this, which is more than any load needs.
pub const ALIGNMENT: u64 = 256;

/// Addresses only; who made the memory keeps it alive.
#[derive(Debug)]
pub struct Arena {
    start: u64,
    capacity: u64,
    used: u64,
    frozen: bool,
}

impl Arena {
    /// Over `capacity` bytes at `start`, which must be aligned.
    pub fn new(start: u64, capacity: usize) -> Self {
        assert!(
            start.is_multiple_of(ALIGNMENT),
            "the driver aligns allocations to 256 bytes"
        );
        Self {
            start,
            capacity: capacity as u64,
            used: 0,
            frozen: false,
        }
    }

    /// The next `bytes` bytes.
    ///
    /// # Errors
    /// None, too many, or after `freeze`.
    pub fn alloc(&mut self, bytes: usize) -> Result<DeviceBuffer, CudaError> {
        let refuse = |reason: String| Err(CudaError::Arena { bytes, reason });
        if self.frozen {
            return refuse("allowed: none after the arena was frozen".to_owned());
        }
        if bytes == 0 {
            return refuse("allowed: at least 1".to_owned());
        }
        let left = self.capacity - self.used;
        if bytes as u64 > left {
            return refuse(format!("allowed: {left} of {} that are left", self.capacity));
        }
        let buffer = DeviceBuffer::new(self.start + self.used, bytes);
        self.used = (self.used + bytes as u64)
            .next_multiple_of(ALIGNMENT)
            .min(self.capacity);
        Ok(buffer)
    }

    /// Ends allocation.
    pub fn freeze(&mut self) {
        self.frozen = true;
    }

    /// Takes everything back, and allows allocation again.
    pub fn reset(&mut self) {
        self.used = 0;
        self.frozen = false;
    }

    /// Whether a buffer lies in what was given out.
    pub fn holds(&self, buffer: &DeviceBuffer) -> bool {
        let offset = buffer.address().checked_sub(self.start);
        offset.is_some_and(|offset| offset.saturating_add(buffer.bytes() as u64) <= self.used)
    }

    /// Bytes given out, with what alignment took.
    pub fn used(&self) -> u64 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bump_freeze_reset() {
        let mut arena = Arena::new(4096, 1000);
        let sizes = [1, 256, 257];
        let buffers: Vec<_> = sizes.iter().map(|bytes| arena.alloc(*bytes).unwrap()).collect();
        let addresses: Vec<_> = buffers.iter().map(DeviceBuffer::address).collect();
        assert_eq!(addresses, [4096, 4352, 4608]);
        assert_eq!(arena.used(), 1000, "the end is not aligned beyond the capacity");
        assert!(
            arena
                .alloc(1)
                .unwrap_err()
                .to_string()
                .contains("allowed: 0 of 1000")
        );
        assert!(buffers.iter().all(|buffer| arena.holds(buffer)));
        arena.reset();
        assert!(!arena.holds(&buffers[0]));
        assert!(arena.alloc(0).is_err() && arena.alloc(usize::MAX).is_err());
        assert!(arena.alloc(1000).is_ok());
        arena.reset();
        arena.freeze();
        assert!(arena.alloc(1).unwrap_err().to_string().contains("frozen"));
        assert!(!arena.holds(&DeviceBuffer::new(0, 8)) && !arena.holds(&DeviceBuffer::new(u64::MAX, 8)));
    }
}
