//! What a launch did, counted: the input of a model of the hardware.

use std::ops::AddAssign;

/// Where an instruction is issued on Volta. A PTX instruction counts once, however many machine instructions it becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pipe {
    /// 32-bit integer and logic work, comparisons, selections, float minima.
    Int,
    /// 64-bit integer work: two or more machine instructions.
    IntWide,
    /// Integer multiplication, which goes through the multiply-add pipe.
    IntMultiply,
    /// f32 addition, multiplication, multiply-add.
    Fp32,
    /// Half-precision arithmetic, and half to f32.
    Fp16,
    /// f64.
    Fp64,
    /// m8n8k4; four HMMA steps each.
    Tensor,
    /// Conversions and bit counts at a quarter of the rate.
    Convert,
    /// Approximate functions.
    Special,
    /// Division, remainder, square root: sequences of machine instructions.
    Sequence,
    /// Global, shared, local and atomic accesses.
    Memory,
    /// Shuffles and matches.
    Shuffle,
    /// Branches, calls, barriers, fences, votes.
    Control,
    /// Moves, parameters and address-space conversions: mostly gone in machine code.
    Move,
}

/// All pipes, in the order of [`Counters::issued`].
pub const PIPES: [Pipe; 14] = [
    Pipe::Int,
    Pipe::IntWide,
    Pipe::IntMultiply,
    Pipe::Fp32,
    Pipe::Fp16,
    Pipe::Fp64,
    Pipe::Tensor,
    Pipe::Convert,
    Pipe::Special,
    Pipe::Sequence,
    Pipe::Memory,
    Pipe::Shuffle,
    Pipe::Control,
    Pipe::Move,
];

/// Traffic of one kind with global memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Instructions of warps, predicated off or not reaching global memory excepted.
    pub requests: u64,
    /// Distinct 32-byte sectors, summed over requests.
    pub sectors: u64,
    /// Of them those that nothing in this launch had touched before: DRAM, if nothing is in the L2 at the start.
    pub sectors_first: u64,
    /// Bytes that the lanes asked for.
    pub bytes: u64,
}

/// Traffic of one kind with shared memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SharedTraffic {
    /// Instructions of warps.
    pub requests: u64,
    /// Passes over the 32 banks; one a request if there are no conflicts and no lane asks for more than 4 bytes.
    pub wavefronts: u64,
    /// Passes that the width of the accesses needs at least.
    pub wavefronts_ideal: u64,
    /// Bytes that the lanes asked for.
    pub bytes: u64,
}

/// Sums over all warps of a launch; `+=` adds launches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counters {
    /// Warp instructions by pipe, in the order of [`PIPES`]. Predicated-off ones count.
    pub issued: [u64; 14],
    /// Instructions times active threads.
    pub thread_instructions: u64,
    /// Reads of global memory.
    pub global_loads: Traffic,
    /// Writes to global memory.
    pub global_stores: Traffic,
    /// Atomics on global memory.
    pub global_atomics: Traffic,
    /// Reads of shared memory.
    pub shared_loads: SharedTraffic,
    /// Writes to shared memory.
    pub shared_stores: SharedTraffic,
    /// Atomics on shared memory.
    pub shared_atomics: SharedTraffic,
    /// Accesses to local memory (spills, stacks, indexed arrays), as warp instructions.
    pub local_accesses: u64,
    /// m8n8k4 instructions.
    pub mma: u64,
    /// Times that a warp came to a block barrier.
    pub barrier_waits: u64,
    /// Branch instructions of warps.
    pub branches: u64,
    /// Of them those that took both ways.
    pub branches_divergent: u64,
    /// Approximate instructions run with a correctly rounded result in their place.
    pub approximations: u64,
    /// Blocks.
    pub blocks: u64,
    /// Warps.
    pub warps: u64,
    /// The largest number of warps in a block.
    pub block_warps_max: u64,
}

impl Counters {
    /// Warp instructions of a pipe.
    pub fn pipe(&self, pipe: Pipe) -> u64 {
        self.issued[pipe as usize]
    }

    /// All warp instructions.
    pub fn instructions(&self) -> u64 {
        self.issued.iter().sum()
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.sectors += other.sectors;
        self.sectors_first += other.sectors_first;
        self.bytes += other.bytes;
    }
}

impl AddAssign for SharedTraffic {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.wavefronts += other.wavefronts;
        self.wavefronts_ideal += other.wavefronts_ideal;
        self.bytes += other.bytes;
    }
}

impl AddAssign<&Counters> for Counters {
    fn add_assign(&mut self, other: &Counters) {
        for (sum, more) in self.issued.iter_mut().zip(other.issued) {
            *sum += more;
        }
        self.thread_instructions += other.thread_instructions;
        self.global_loads += other.global_loads;
        self.global_stores += other.global_stores;
        self.global_atomics += other.global_atomics;
        self.shared_loads += other.shared_loads;
        self.shared_stores += other.shared_stores;
        self.shared_atomics += other.shared_atomics;
        self.local_accesses += other.local_accesses;
        self.mma += other.mma;
        self.barrier_waits += other.barrier_waits;
        self.branches += other.branches;
        self.branches_divergent += other.branches_divergent;
        self.approximations += other.approximations;
        self.blocks += other.blocks;
        self.warps += other.warps;
        self.block_warps_max = self.block_warps_max.max(other.block_warps_max);
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        *self += &other;
    }
}
