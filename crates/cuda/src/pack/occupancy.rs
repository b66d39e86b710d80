//! How many blocks of a kernel one multiprocessor holds, by the rules and limits of CUDA's programming guide
//! (compute capabilities) and of its occupancy calculator.

use crate::arch::Arch;

/// The limits of one multiprocessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Warps.
    pub warps: u32,
    /// Blocks.
    pub blocks: u32,
    /// Shared memory for all blocks, in bytes.
    pub shared: u32,
    /// Shared memory that one block may have with opt-in.
    pub shared_block: u32,
    /// Shared memory is given in multiples of this.
    pub shared_unit: u32,
    /// Shared memory that the system takes for each block.
    pub shared_reserved: u32,
}

/// Registers of a multiprocessor, the same since Volta.
const REGISTERS: u32 = 65_536;
/// A warp gets registers in multiples of this.
const REGISTER_UNIT: u32 = 256;
/// Warps are dealt to four schedulers, each with its quarter of the registers.
const SCHEDULERS: u32 = 4;

/// The limits of an architecture; PTX has none.
pub const fn limits(arch: Arch) -> Option<Limits> {
    let (warps, blocks, shared, shared_block, shared_unit, shared_reserved) = match arch {
        Arch::Sm70 => (64, 32, 96, 96, 256, 0),
        Arch::Sm75 => (32, 16, 64, 64, 256, 0),
        Arch::Sm80 => (64, 32, 164, 163, 128, 1024),
        Arch::Sm86 => (48, 16, 100, 99, 128, 1024),
        Arch::Sm89 => (48, 24, 100, 99, 128, 1024),
        Arch::Sm90 => (64, 32, 228, 227, 128, 1024),
        Arch::Compute70 => return None,
    };
    Some(Limits {
        warps,
        blocks,
        shared: shared * 1024,
        shared_block: shared_block * 1024,
        shared_unit,
        shared_reserved,
    })
}

/// Blocks of this size that one multiprocessor holds at once; 0 if not even one fits.
pub fn blocks(limits: &Limits, threads: u32, registers: u32, shared: u32) -> u32 {
    let warps = threads.div_ceil(32).max(1);
    let by_warps = limits.warps / warps;
    let by_registers = if registers == 0 {
        u32::MAX
    } else {
        let warp_registers = (registers * 32).next_multiple_of(REGISTER_UNIT);
        let held = REGISTERS / SCHEDULERS / warp_registers * SCHEDULERS;
        held / warps
    };
    let by_shared = if shared > limits.shared_block {
        0
    } else {
        let taken = (shared + limits.shared_reserved).next_multiple_of(limits.shared_unit);
        limits.shared.checked_div(taken).unwrap_or(u32::MAX)
    };
    limits.blocks.min(by_warps).min(by_registers).min(by_shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked by hand from the guide's table.
    #[test]
    fn blocks_by_each_limit() {
        for (arch, threads, registers, shared, want, by) in [
            (Arch::Sm70, 128, 32, 0, 16, "warps"),
            (Arch::Sm70, 32, 16, 0, 32, "blocks"),
            (Arch::Sm70, 128, 64, 0, 8, "registers"),
            (
                Arch::Sm70,
                128,
                65,
                0,
                7,
                "registers, rounded up to 72 a thread: 28 warps",
            ),
            (Arch::Sm70, 1024, 64, 0, 1, "registers: 32 warps"),
            (Arch::Sm70, 1024, 65, 0, 0, "28 warps do not hold one block"),
            (Arch::Sm70, 128, 255, 0, 2, "registers: 8 warps"),
            (
                Arch::Sm70,
                32,
                255,
                0,
                8,
                "registers: a block of one warp takes one scheduler's",
            ),
            (Arch::Sm70, 128, 32, 48 * 1024, 2, "shared"),
            (Arch::Sm70, 128, 32, 96 * 1024, 1, "shared"),
            (Arch::Sm70, 128, 32, 96 * 1024 + 1, 0, "shared"),
            (Arch::Sm70, 128, 32, 12 * 1024 + 1, 7, "shared in units of 256"),
            (Arch::Sm75, 128, 32, 0, 8, "warps"),
            (Arch::Sm75, 32, 32, 0, 16, "blocks"),
            (Arch::Sm86, 1024, 32, 0, 1, "warps: 48"),
            (
                Arch::Sm80,
                128,
                32,
                81 * 1024,
                2,
                "shared with 1 KiB a block for the system",
            ),
            (Arch::Sm80, 128, 32, 81 * 1024 + 1, 1, "shared"),
            (Arch::Sm90, 128, 32, 227 * 1024, 1, "shared"),
            (Arch::Sm90, 128, 32, 113 * 1024, 2, "shared"),
        ] {
            let limits = limits(arch).unwrap();
            assert_eq!(
                blocks(&limits, threads, registers, shared),
                want,
                "{arch} {threads} {registers} {shared}: {by}"
            );
        }
        assert!(limits(Arch::Compute70).is_none());
    }
}
