//! Rows on the PTX interpreter, where there is a compiler: each is compiled when it is first launched.

use std::collections::BTreeMap;

use galvani_ptx::{Approximate, Memory, MmaOrder, Module, Options, run};

use crate::pack::nvrtc::Compiler;
use crate::{Arch, Arg, CudaError, DeviceBuffer, KernelRow, Launcher};

pub struct Interpreter {
    compiler: Compiler,
    rows: Vec<KernelRow>,
    arch: Arch,
    modules: BTreeMap<String, Module>,
    memory: Memory,
}

fn error(symbol: &str, reason: impl ToString) -> CudaError {
    CudaError::Executor {
        symbol: symbol.to_owned(),
        reason: reason.to_string(),
    }
}

impl Interpreter {
    /// Of these rows, as they are compiled for `arch`; none, said aloud, without a compiler.
    pub fn new(rows: Vec<KernelRow>, arch: Arch) -> Option<Self> {
        match Compiler::find() {
            Ok(compiler) => Some(Self {
                compiler,
                rows,
                arch,
                modules: BTreeMap::new(),
                memory: Memory::new(1 << 30),
            }),
            Err(error) => {
                println!("skipped: kernels in the interpreter: {error}");
                None
            }
        }
    }

    /// A buffer of these bytes.
    pub fn buffer(&mut self, bytes: &[u8]) -> DeviceBuffer {
        let buffer = self.alloc(bytes.len()).expect("small");
        self.upload(&buffer, 0, bytes).expect("inside");
        buffer
    }

    /// A buffer's bytes.
    pub fn bytes(&mut self, buffer: &DeviceBuffer) -> Vec<u8> {
        let mut bytes = vec![0; buffer.bytes()];
        self.download(buffer, 0, &mut bytes).expect("inside");
        bytes
    }

    fn compile(&mut self, symbol: &str) -> Result<(), CudaError> {
        if self.modules.contains_key(symbol) {
            return Ok(());
        }
        let row = self.rows.iter().find(|row| row.symbol == symbol);
        let row = row.ok_or_else(|| error(symbol, "no such row"))?;
        let unit = self.compiler.compile(row, self.arch)?;
        let text = String::from_utf8(unit.ptx).map_err(|fault| error(symbol, fault))?;
        let module = Module::parse(&text).map_err(|fault| error(symbol, fault))?;
        self.modules.insert(symbol.to_owned(), module);
        Ok(())
    }
}

impl Launcher for Interpreter {
    fn sm_count(&self) -> u32 {
        80
    }

    fn alloc(&mut self, bytes: usize) -> Result<DeviceBuffer, CudaError> {
        let address = self.memory.alloc("buffer", bytes);
        Ok(DeviceBuffer::new(
            address.map_err(|fault| error("alloc", fault))?,
            bytes,
        ))
    }

    fn reset(&mut self) -> Result<(), CudaError> {
        self.memory = Memory::new(1 << 30);
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
        self.compile(symbol)?;
        let module = &self.modules[symbol];
        let kernel = module
            .kernel(symbol)
            .ok_or_else(|| error(symbol, "not in its module"))?;
        let args: Vec<galvani_ptx::Arg<'_>> = args
            .iter()
            .map(|arg| match *arg {
                Arg::Ptr(value) => galvani_ptx::Arg::Ptr(value),
                Arg::U32(value) => galvani_ptx::Arg::U32(value),
                Arg::I32(value) => galvani_ptx::Arg::I32(value),
                Arg::F32(value) => galvani_ptx::Arg::F32(value),
                Arg::U64(value) => galvani_ptx::Arg::U64(value),
            })
            .collect();
        let launch = galvani_ptx::Launch {
            grid,
            block,
            shared_bytes,
            params: kernel.params(&args).map_err(|fault| error(symbol, fault))?,
        };
        let options = Options {
            mma: MmaOrder::EmulatedF32,
            approximate: Approximate::Refuse,
            threads: 2,
            steps_max: 1 << 24,
            races: true,
        };
        run(module, symbol, &launch, &mut self.memory, &options)
            .map(drop)
            .map_err(|fault| error(symbol, fault))
    }
}
