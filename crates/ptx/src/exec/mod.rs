//! Running a launch: blocks are taken in order by host threads, each block's warps in turns.

mod access;
mod alu;
mod atomic;
mod bits;
mod block;
mod collective;
mod convert;
mod fpu;
mod loops;
mod mma;
mod step;
mod warp;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::banks::Banks;
use crate::counters::Counters;
use crate::fault::{Fault, FaultKind};
use crate::ir::{Function, Opcode};
use crate::memory::Memory;
use crate::module::{Module, SHARED_BYTES_MAX};
use crate::shared::Shared;
use crate::types::Space;

const BLOCK_THREADS_MAX: u64 = 1024;

/// Windows of the generic address space. Global addresses are their own.
pub(crate) mod windows {
    use crate::types::Space;

    const SHARED: u64 = 0x7e00_0000_0000;
    const LOCAL: u64 = 0x7d00_0000_0000;
    const CONST: u64 = 0x7c00_0000_0000;
    const SIZE: u64 = 1 << 24;

    pub(crate) fn base(space: Space) -> u64 {
        match space {
            Space::Shared => SHARED,
            Space::Local => LOCAL,
            Space::Const => CONST,
            Space::Global | Space::Param | Space::Generic => 0,
        }
    }

    /// The space that a generic address lies in.
    pub(crate) fn space_of(address: u64) -> Space {
        match address {
            _ if address.wrapping_sub(SHARED) < SIZE => Space::Shared,
            _ if address.wrapping_sub(LOCAL) < SIZE => Space::Local,
            _ if address.wrapping_sub(CONST) < SIZE => Space::Const,
            _ => Space::Global,
        }
    }
}

/// A kernel's launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
    /// Parameters as the kernel lays them out; see [`crate::Kernel::params`].
    pub params: Vec<u8>,
}

/// In which order `mma.m8n8k4` adds the four products and the accumulator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MmaOrder {
    /// What GPUs after Turing do, read in the machine code of an sm_90 build. f32 accumulators: fused multiply-adds in f32
    /// from zero over ascending k, then the accumulator. f16 accumulators: (c + (p0 + p1)) + (p2 + p3) in f32, rounded to
    /// f16 at the end.
    EmulatedF32,
    /// Exact products and the accumulator aligned to the largest of the five, cut off there, summed, cut to f32: a model
    /// of Volta's tensor core, whose width is not published.
    Volta,
}

/// What to do with instructions such as `ex2.approx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Approximate {
    /// Running one is a fault.
    Refuse,
    /// The correctly rounded result, counted in [`Counters::approximations`].
    Round,
}

/// How to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The tensor core's arithmetic.
    pub mma: MmaOrder,
    /// Approximate instructions.
    pub approximate: Approximate,
    /// Host threads; at least one is used.
    pub threads: usize,
    /// Instructions that a warp may run before it counts as hung.
    pub steps_max: u64,
    /// Look for races in shared memory.
    pub races: bool,
}

/// What all blocks of a launch see.
pub(crate) struct Machine<'a> {
    pub module: &'a Module,
    pub functions: &'a [Function],
    pub kernel: usize,
    pub launch: &'a Launch,
    pub memory: &'a Memory,
    pub options: Options,
    /// Addresses of the module's global variables.
    pub globals: Vec<u64>,
    pub dynamic_base: u64,
    pub shared_bytes: u32,
    /// First hint of each function's instructions.
    pub hint_starts: Vec<usize>,
}

/// What a host thread has of its own.
pub(crate) struct Core {
    pub shared: Shared,
    pub counters: Counters,
    /// The allocation that each instruction touched last.
    pub hints: Vec<u32>,
    pub banks: Banks,
}

/// Runs a kernel over its whole grid.
///
/// # Errors
/// The fault of the lowest faulting block; memory then holds what was written up to there, and by other blocks.
#[expect(clippy::result_large_err, reason = "a fault ends a launch: it is made once")]
pub fn run(
    module: &Module,
    kernel: &str,
    launch: &Launch,
    memory: &mut Memory,
    options: &Options,
) -> Result<Counters, Fault> {
    let refuse = |what: String| Fault {
        kind: FaultKind::Launch(what),
        kernel: kernel.to_owned(),
        line: 0,
        text: String::new(),
        block: [0; 3],
        thread: [0; 3],
    };
    let index = module
        .index(kernel)
        .ok_or_else(|| refuse("the module has no such kernel".to_owned()))?;
    let shape = module.check(index, launch).map_err(refuse)?;
    let globals = module
        .place_globals(memory)
        .map_err(|error| refuse(error.to_string()))?;
    memory.begin_launch();
    let functions = module.functions();
    let mut hint_starts = Vec::new();
    let mut hints = 0;
    for function in functions {
        hint_starts.push(hints);
        hints += function.code.len();
    }
    let machine = Machine {
        module,
        functions,
        kernel: index,
        launch,
        memory,
        options: *options,
        globals,
        dynamic_base: shape.dynamic_base,
        shared_bytes: shape.shared_bytes,
        hint_starts,
    };
    grid(&machine, hints).map_err(|fault| *fault)
}

/// What a launch's shared memory looks like.
pub(crate) struct Shape {
    pub dynamic_base: u64,
    pub shared_bytes: u32,
}

impl Module {
    fn check(&self, index: usize, launch: &Launch) -> Result<Shape, String> {
        let function = &self.functions()[index];
        let threads: u64 = launch.block.iter().map(|side| u64::from(*side)).product();
        if threads == 0 || threads > BLOCK_THREADS_MAX || launch.block[2] > 64 {
            return Err(format!(
                "block {:?}, allowed: 1 to {BLOCK_THREADS_MAX} threads, z to 64",
                launch.block
            ));
        }
        if let Some(most) = function.maxntid
            && threads > most.iter().map(|side| u64::from(*side)).product()
        {
            return Err(format!(
                "block {:?}, the kernel's launch bounds allow {most:?}",
                launch.block
            ));
        }
        let [x, y, z] = launch.grid;
        if x == 0 || y == 0 || z == 0 || x > i32::MAX as u32 || y > 65535 || z > 65535 {
            return Err(format!(
                "grid {:?}, allowed: 1 to 2147483647, 65535, 65535",
                launch.grid
            ));
        }
        if launch.params.len() != function.formal_bytes as usize {
            let (given, want) = (launch.params.len(), function.formal_bytes);
            return Err(format!("{given} bytes of parameters, the kernel takes {want}"));
        }
        let (static_end, _) = self.shared_of(index);
        let dynamic_base = static_end.next_multiple_of(16);
        let end = if launch.shared_bytes == 0 {
            static_end
        } else {
            dynamic_base + u64::from(launch.shared_bytes)
        };
        if end > SHARED_BYTES_MAX {
            return Err(format!(
                "{end} bytes of shared memory, allowed: {SHARED_BYTES_MAX}"
            ));
        }
        Ok(Shape {
            dynamic_base,
            shared_bytes: end as u32,
        })
    }
}

fn grid(machine: &Machine<'_>, hints: usize) -> Result<Counters, Box<Fault>> {
    let blocks: u64 = machine.launch.grid.iter().map(|side| u64::from(*side)).product();
    let threads = (machine.options.threads.max(1) as u64).min(blocks);
    let (next, worst) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let total = Mutex::new((Counters::default(), None::<(u64, Box<Fault>)>));
    let work = || {
        let granule = machine.options.races.then(|| granule(machine.functions));
        let mut core = Core {
            shared: Shared::new(machine.shared_bytes, granule),
            counters: Counters::default(),
            hints: vec![0; hints],
            banks: Banks::new(),
        };
        let mut block = block::Block::new(machine);
        let mut fault = None;
        loop {
            let index = next.fetch_add(1, Relaxed);
            // A block above a faulty one cannot change the answer.
            if index >= blocks || index > worst.load(Relaxed) {
                break;
            }
            if let Err(found) = block.run(machine, &mut core, index) {
                worst.fetch_min(index, Relaxed);
                fault = Some((index, found));
                break;
            }
        }
        let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
        total.0 += &core.counters;
        if let Some((index, found)) = fault
            && total.1.as_ref().is_none_or(|(worst, _)| index < *worst)
        {
            total.1 = Some((index, found));
        }
    };
    if threads == 1 {
        work();
    } else {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
    }
    match total.into_inner().unwrap_or_else(PoisonError::into_inner) {
        (_, Some((_, fault))) => Err(fault),
        (counters, None) => Ok(counters),
    }
}

/// The smallest access to what may be shared memory.
fn granule(functions: &[Function]) -> u32 {
    let may = |space: Space| matches!(space, Space::Shared | Space::Generic);
    functions
        .iter()
        .flat_map(|function| &function.code)
        .filter_map(|instr| match &instr.op {
            Opcode::Load(access) | Opcode::Store(access) if may(access.space) => Some(access.bytes()),
            Opcode::Atomic(atomic) if may(atomic.space) => Some(atomic.ty.bits() / 8),
            _ => None,
        })
        .min()
        .unwrap_or(4)
        .min(4)
}
