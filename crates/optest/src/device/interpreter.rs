//! The PTX interpreter as a launcher: runs a pack's compute_70 texts, checked and counted.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use galvani_cuda::ops::linear::Product;
use galvani_cuda::pack::file::Pack;
use galvani_cuda::{Arch, Arg, CudaError, DeviceBuffer, Launcher};
use galvani_ptx::{Approximate, Counters, Memory, MmaOrder, Module, Options};
use half::f16;

use super::Executor;

const MEMORY_BYTES: u64 = 2 << 30;
/// No kernel here runs so long; one that hangs does.
const STEPS_MAX: u64 = 1 << 24;
/// As a V100 has.
const SM_COUNT: u32 = 80;

/// The interpreter with its memory.
pub struct Interpreter {
    pack: Pack,
    modules: BTreeMap<String, Module>,
    memory: Memory,
    options: Options,
    /// Everything launched so far, by symbol: launches and counts.
    pub launched: BTreeMap<String, (u64, Counters)>,
}

impl Interpreter {
    /// Over a pack's PTX. `threads` are of the host.
    pub fn new(pack: Pack, mma: MmaOrder, threads: usize) -> Self {
        Self {
            pack,
            modules: BTreeMap::new(),
            memory: Memory::new(MEMORY_BYTES),
            options: Options {
                mma,
                approximate: Approximate::Refuse,
                threads,
                steps_max: STEPS_MAX,
                races: true,
            },
            launched: BTreeMap::new(),
        }
    }

    /// The order of the tensor core's sums.
    pub const fn mma(&self) -> MmaOrder {
        self.options.mma
    }

    fn module(&mut self, symbol: &str) -> Result<&Module, CudaError> {
        match self.modules.entry(symbol.to_owned()) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let found = self.pack.find(symbol, Arch::Compute70);
                let (_, bytes) = found.ok_or_else(|| error(symbol, "the pack has no PTX of it"))?;
                let text = std::str::from_utf8(bytes).map_err(|fault| error(symbol, fault))?;
                let module = Module::parse(text).map_err(|fault| error(symbol, fault))?;
                Ok(place.insert(module))
            }
        }
    }

    fn halves(&self, address: u64, count: usize) -> Result<Vec<f32>, CudaError> {
        let mut bytes = vec![0; count * 2];
        self.memory
            .read(address, &mut bytes)
            .map_err(|fault| error("product", fault))?;
        let halves = bytes.as_chunks::<2>().0.iter();
        Ok(halves.map(|half| f16::from_le_bytes(*half).to_f32()).collect())
    }
}

fn error(symbol: &str, reason: impl ToString) -> CudaError {
    CudaError::Executor {
        symbol: symbol.to_owned(),
        reason: reason.to_string(),
    }
}

impl Launcher for Interpreter {
    fn sm_count(&self) -> u32 {
        SM_COUNT
    }

    fn alloc(&mut self, bytes: usize) -> Result<DeviceBuffer, CudaError> {
        if bytes == 0 {
            return Err(error("alloc", "0 bytes, allowed: 1 and more"));
        }
        let address = self.memory.alloc("buffer", bytes);
        Ok(DeviceBuffer::new(
            address.map_err(|fault| error("alloc", fault))?,
            bytes,
        ))
    }

    fn reset(&mut self) -> Result<(), CudaError> {
        self.memory = Memory::new(MEMORY_BYTES);
        Ok(())
    }

    fn upload(&mut self, buffer: &DeviceBuffer, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        let address = buffer.range(offset, bytes.len())?;
        self.memory
            .write(address, bytes)
            .map_err(|fault| error("upload", fault))
    }

    fn download(&mut self, buffer: &DeviceBuffer, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        let address = buffer.range(offset, bytes.len())?;
        self.memory
            .read(address, bytes)
            .map_err(|fault| error("download", fault))
    }

    fn launch(
        &mut self,
        symbol: &str,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        args: &[Arg],
    ) -> Result<(), CudaError> {
        self.module(symbol)?;
        let module = &self.modules[symbol];
        let kernel = module
            .kernel(symbol)
            .ok_or_else(|| error(symbol, "its text has no such kernel"))?;
        let args: Vec<galvani_ptx::Arg<'_>> = args.iter().map(argument).collect();
        let launch = galvani_ptx::Launch {
            grid,
            block,
            shared_bytes,
            params: kernel.params(&args).map_err(|fault| error(symbol, fault))?,
        };
        let counters = galvani_ptx::run(module, symbol, &launch, &mut self.memory, &self.options)
            .map_err(|fault| error(symbol, fault))?;
        let known = self.launched.entry(symbol.to_owned()).or_default();
        known.0 += 1;
        known.1 += counters;
        Ok(())
    }
}

fn argument(arg: &Arg) -> galvani_ptx::Arg<'static> {
    match *arg {
        Arg::Ptr(value) => galvani_ptx::Arg::Ptr(value),
        Arg::U32(value) => galvani_ptx::Arg::U32(value),
        Arg::I32(value) => galvani_ptx::Arg::I32(value),
        Arg::F32(value) => galvani_ptx::Arg::F32(value),
        Arg::U64(value) => galvani_ptx::Arg::U64(value),
    }
}

impl Executor for Interpreter {
    /// There is no library here: a plain product, summed in f32 in ascending k.
    fn product(&mut self, product: &Product) -> Result<(), CudaError> {
        let k = product.k as usize;
        let row = |base: u64, stride: u32, row: u32| base + u64::from(row) * u64::from(stride) * 2;
        let weights: Vec<Vec<f32>> = (0..product.n)
            .map(|n| self.halves(row(product.rows.address(), product.row_stride, n), k))
            .collect::<Result<_, _>>()?;
        for m in 0..product.m {
            let x = self.halves(row(product.x.address(), product.x_stride, m), k)?;
            let dot = |w: &Vec<f32>| x.iter().zip(w).fold(0f32, |sum, (x, w)| x.mul_add(*w, sum));
            let sums: Vec<u8> = weights.iter().flat_map(|w| dot(w).to_le_bytes()).collect();
            let at = m as usize * product.n as usize * 4;
            self.upload(&product.product, at, &sums)?;
        }
        Ok(())
    }

    fn checks(&self) -> bool {
        true
    }
}
