//! The table of kernels: one row is one translation unit, compiled for each of its architectures.

use crate::arch::Arch;
use crate::ops::{experts, linear, measure};
use crate::repack;
use crate::selftest;

/// One kernel: what the compiler is given and what its result must keep to.
#[derive(Clone, Debug)]
pub struct KernelRow {
    /// `extern "C"` name, op_format_shape: `linear_nvfp4_skinny_mt1`. Unique; given as the macro SYMBOL.
    pub symbol: String,
    /// A file of `device/`, as `sources` embeds it.
    pub source: &'static str,
    /// The row's template arguments as macros; a source names no other.
    pub defines: Vec<(&'static str, String)>,
    /// Threads of a block at most: first launch bound, macro THREADS.
    pub threads: u32,
    /// Blocks that must fit one multiprocessor: second launch bound, macro MIN_BLOCKS.
    pub min_blocks: u32,
    /// Dynamic shared memory of a block at most, in bytes.
    pub shared_bytes: u32,
    /// Budget of registers a thread, on every architecture.
    pub registers_max: u32,
    /// What it is built for.
    pub archs: &'static [Arch],
    /// What the machine code must show.
    pub requires: &'static [Fact],
}

impl KernelRow {
    /// A row without dynamic shared memory, for every architecture, that needs no call; its budget of registers follows from
    /// the launch bounds. What differs is said by the caller with `..`.
    pub fn plain(
        symbol: String,
        source: &'static str,
        defines: Vec<(&'static str, String)>,
        threads: u32,
        min_blocks: u32,
    ) -> Self {
        Self {
            symbol,
            source,
            defines,
            threads,
            min_blocks,
            shared_bytes: 0,
            registers_max: registers_for(threads, min_blocks),
            archs: &Arch::ALL,
            requires: &[Fact::NoCall],
        }
    }

    /// All macros of the row.
    pub fn macros(&self) -> Vec<(&str, String)> {
        let mut all = vec![
            ("SYMBOL", self.symbol.clone()),
            ("THREADS", self.threads.to_string()),
            ("MIN_BLOCKS", self.min_blocks.to_string()),
        ];
        all.extend(self.defines.iter().cloned());
        all
    }
}

/// Registers a thread if so many blocks are to fit: 65536 on a multiprocessor, given out by eights a thread.
const fn registers_for(threads: u32, blocks: u32) -> u32 {
    let most = 65536 / (threads * blocks) / 8 * 8;
    if most > 255 { 255 } else { most }
}

/// Something that the machine code of a row must show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// Volta's tensor core instruction. Later than Turing the compiler emulates `mma.m8n8k4`: not asked there.
    Hmma884,
    /// Some global load of 128 bits a lane.
    Ldg128,
    /// Some global store of 128 bits a lane.
    Stg128,
    /// Some shared load of 128 bits a lane.
    Lds128,
    /// No call: everything is inlined. The emulation of `mma.m8n8k4` is a call, so this too is asked up to Turing.
    NoCall,
}

impl Fact {
    /// Whether it can be asked of this architecture's machine code.
    pub const fn applies(self, arch: Arch) -> bool {
        match self {
            // Turing has it too, but rows may use its own wider product there.
            Self::Hmma884 => matches!(arch, Arch::Sm70),
            Self::NoCall => matches!(arch, Arch::Sm70 | Arch::Sm75),
            Self::Ldg128 | Self::Stg128 | Self::Lds128 => !arch.is_ptx(),
        }
    }
}

/// Every row. A new operation adds its table here.
pub fn rows() -> Vec<KernelRow> {
    let tables: [fn() -> Vec<KernelRow>; 5] = [
        selftest::rows,
        measure::rows,
        linear::rows::rows,
        experts::rows::rows,
        repack::device::rows,
    ];
    tables.iter().flat_map(|table| table()).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::sources;

    #[test]
    fn budgets_follow_from_the_launch_bounds() {
        for (threads, blocks, want) in [
            (256, 4, 64),
            (256, 3, 80),
            (256, 2, 128),
            (128, 3, 168),
            (128, 1, 255),
        ] {
            assert_eq!(registers_for(threads, blocks), want, "{threads} x {blocks}");
        }
    }

    #[test]
    fn rows_are_well_formed() {
        let rows = rows();
        let symbols: BTreeSet<_> = rows.iter().map(|row| &row.symbol).collect();
        assert_eq!(symbols.len(), rows.len(), "symbols are unique");
        for row in &rows {
            let name = &row.symbol;
            assert!(
                name.bytes()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_'),
                "{name}: a C name in lower case"
            );
            assert!(
                sources::find(row.source).is_some(),
                "{name}: {} is not embedded",
                row.source
            );
            assert!(
                (32..=1024).contains(&row.threads) && row.threads % 32 == 0,
                "{name}"
            );
            assert!(
                row.min_blocks >= 1 && (1..=255).contains(&row.registers_max),
                "{name}"
            );
            // Volta's opt-in limit; no later architecture has less, but Turing.
            assert!(row.shared_bytes <= 96 * 1024, "{name}");
            assert!(
                row.archs.contains(&Arch::Sm70) && row.archs.contains(&Arch::Compute70),
                "{name}"
            );
            for (key, _) in &row.defines {
                assert!(
                    !["SYMBOL", "THREADS", "MIN_BLOCKS"].contains(key),
                    "{name}: {key}"
                );
            }
        }
    }
}
