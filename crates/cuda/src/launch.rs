//! The one way to launch a kernel, on a GPU or in an interpreter: a flat address space, symbols, scalars.

use crate::error::CudaError;

/// Memory of the device: an address in its flat space and a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceBuffer {
    address: u64,
    bytes: usize,
}

impl DeviceBuffer {
    /// What a launcher's `alloc` gives.
    pub const fn new(address: u64, bytes: usize) -> Self {
        Self { address, bytes }
    }

    /// The first byte's address.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// The length.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The whole buffer as an argument.
    pub const fn arg(&self) -> Arg {
        Arg::Ptr(self.address)
    }

    /// The address of `bytes` bytes at `offset`.
    ///
    /// # Errors
    /// The range leaves the buffer.
    pub fn range(&self, offset: usize, bytes: usize) -> Result<u64, CudaError> {
        match offset.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.address + offset as u64),
            _ => Err(CudaError::Range {
                offset,
                bytes,
                allowed: self.bytes,
            }),
        }
    }
}

/// One argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// An address.
    Ptr(u64),
    /// `unsigned`
    U32(u32),
    /// `int`
    I32(i32),
    /// `float`
    F32(f32),
    /// `unsigned long long`
    U64(u64),
}

impl Arg {
    /// The value as the parameter space holds it (little endian); its size is its alignment.
    pub fn bytes(&self) -> ([u8; 8], usize) {
        let mut out = [0; 8];
        let size = match self {
            Self::Ptr(value) | Self::U64(value) => {
                out = value.to_le_bytes();
                8
            }
            Self::U32(value) => {
                out[..4].copy_from_slice(&value.to_le_bytes());
                4
            }
            Self::I32(value) => {
                out[..4].copy_from_slice(&value.to_le_bytes());
                4
            }
            Self::F32(value) => {
                out[..4].copy_from_slice(&value.to_bits().to_le_bytes());
                4
            }
        };
        (out, size)
    }
}

/// One launch of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// The row's symbol.
    pub symbol: String,
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads in x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// In the order of the kernel's parameters.
    pub args: Vec<Arg>,
}

/// What runs kernels. Launches of one launcher happen in their order; `download` waits for them.
pub trait Launcher {
    /// Multiprocessors, which plans divide their work by.
    fn sm_count(&self) -> u32;

    /// New memory, at least 256-byte aligned, of undefined contents. A zero length is an error.
    fn alloc(&mut self, bytes: usize) -> Result<DeviceBuffer, CudaError>;

    /// Gives back all memory: every buffer becomes invalid.
    fn reset(&mut self) -> Result<(), CudaError>;

    /// Host to device.
    fn upload(&mut self, buffer: &DeviceBuffer, offset: usize, bytes: &[u8]) -> Result<(), CudaError>;

    /// Device to host, after everything launched so far.
    fn download(&mut self, buffer: &DeviceBuffer, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError>;

    /// Starts a kernel.
    fn launch(
        &mut self,
        symbol: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        args: &[Arg],
    ) -> Result<(), CudaError>;

    /// Starts one step of a plan.
    fn run(&mut self, launch: &Launch) -> Result<(), CudaError> {
        self.launch(
            &launch.symbol,
            launch.grid,
            launch.block,
            launch.shared_bytes,
            &launch.args,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_stay_inside() {
        let buffer = DeviceBuffer::new(0x1000, 16);
        for (offset, bytes, want) in [
            (0, 16, Some(0x1000)),
            (16, 0, Some(0x1010)),
            (12, 4, Some(0x100c)),
            (12, 5, None),
            (17, 0, None),
            (usize::MAX, 2, None),
        ] {
            assert_eq!(buffer.range(offset, bytes).ok(), want, "{offset} + {bytes}");
        }
    }

    #[test]
    fn arguments_are_little_endian() {
        for (arg, size, first) in [
            (Arg::Ptr(0x1122), 8, 0x22),
            (Arg::U64(3), 8, 3),
            (Arg::U32(0x0405), 4, 5),
            (Arg::I32(-2), 4, 0xfe),
            (Arg::F32(1.0), 4, 0),
        ] {
            let (bytes, length) = arg.bytes();
            assert_eq!((length, bytes[0]), (size, first), "{arg:?}");
            assert!(bytes[length..].iter().all(|byte| *byte == 0));
        }
        assert_eq!(Arg::F32(1.0).bytes().0[..4], 1.0f32.to_le_bytes());
    }
}
