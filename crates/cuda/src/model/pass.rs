//! What one pass of a kernel's main loop occupies, read from its machine code.

use crate::arch::Arch;
use crate::pack::sass::{self, Loop};

/// Machine instructions of one pass, by the pipe that they occupy.
///
/// Volta to Hopper have, in each quarter of a multiprocessor, sixteen lanes for integers and logic, sixteen or more for f32 and
/// integer multiplication, sixteen for pairs of halves, one tensor core, four for conversions and special functions; a
/// warp's instruction takes a pipe for 32 / lanes cycles ("Dissecting the NVIDIA Volta GPU Architecture via
/// Microbenchmarking", Jia et al., 2018; CUDA C++ Programming Guide, arithmetic instructions).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pass {
    /// All: one a cycle and quarter can be issued.
    pub issued: u32,
    /// Integers, logic, comparisons, selections, permutations.
    pub int: u32,
    /// f32, and integer multiplication (moves and shifts that are written as one too).
    pub fma: u32,
    /// Pairs of halves.
    pub half: u32,
    /// Steps of HMMA.884.
    pub volta_steps: u32,
    /// HMMA.1688 and 16816.
    pub tensor: u32,
    /// Conversions and special functions.
    pub quarter_rate: u32,
    /// Loads and stores.
    pub memory: u32,
}

/// The pass of the kernel's main loop: of the loops without another inside, the one with most tensor instructions, the shortest
/// of equals. `None` where no loop has any.
pub fn main_loop(code: &[u8], arch: Arch) -> Option<Pass> {
    let listing = sass::decode(code, arch);
    let words = code.as_chunks::<16>().0;
    let of = |body: &Loop| {
        let mut pass = Pass::default();
        for bytes in &words[body.start..=body.end] {
            let word = u128::from_le_bytes(*bytes);
            pass.add(word as u64, arch);
        }
        pass
    };
    let passes = listing.loops.iter().map(of);
    passes
        .filter(|pass| pass.volta_steps + pass.tensor > 0)
        .max_by_key(|pass| (pass.volta_steps + pass.tensor, u32::MAX - pass.issued))
}

impl Pass {
    /// From a table's fields, which stand in the order of the struct's.
    pub(super) const fn of_numbers(
        [issued, int, fma, half, volta_steps, tensor, quarter_rate, memory]: [u32; 8],
    ) -> Self {
        Self {
            issued,
            int,
            fma,
            half,
            volta_steps,
            tensor,
            quarter_rate,
            memory,
        }
    }

    /// The fields of a table.
    pub(super) const fn numbers(&self) -> [u32; 8] {
        [
            self.issued,
            self.int,
            self.fma,
            self.half,
            self.volta_steps,
            self.tensor,
            self.quarter_rate,
            self.memory,
        ]
    }

    /// Of code with Ampere's tensor instruction: issued, int, fma, half, tensor, as the tables of measurements have it.
    pub(super) const fn hopper([issued, int, fma, half, tensor]: [u32; 5]) -> Self {
        Self::of_numbers([issued, int, fma, half, 0, tensor, 0, 0])
    }

    /// Adds one instruction by its opcode (numbers read off nvdisasm's listings of sm_70 and sm_90 code).
    fn add(&mut self, low: u64, arch: Arch) {
        self.issued += 1;
        match low & 0x1ff {
            // Later architectures add integers under this number.
            0x036 if arch == Arch::Sm70 => self.volta_steps += 1,
            0x036 => self.int += 1,
            0x03c => self.tensor += 1,
            0x020..=0x027 => self.fma += 1,
            0x030..=0x035 => self.half += 1,
            0x002 | 0x005..=0x01f => self.int += 1,
            0x100..=0x10f => self.quarter_rate += 1,
            0x180..=0x18e | 0x1a3 | 0x1a6 | 0x1a8 | 0x1a9 => self.memory += 1,
            // Control, barriers, special registers: they cost their issue.
            _ => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loop_with_most_tensor_work_counts() {
        let branch = |from: i64, to: i64| {
            let words = ((to - from - 1) * 4) as u64 & ((1 << 48) - 1);
            [0x947 | words << 34, words >> 30]
        };
        let (hmma, lop, imad, hmul, ldg, f2f) = (
            [0x236, 0x5400],
            [0x812, 0],
            [0x824, 0],
            [0x232, 0],
            [0x381, 6 << 9],
            [0x304, 0],
        );
        // 0..=2 has one step; 3..=10 two, 11..=14 two and is shorter.
        let code = [
            hmma,
            lop,
            branch(2, 0),
            hmma,
            hmma,
            lop,
            lop,
            lop,
            lop,
            lop,
            branch(10, 3),
            hmma,
            ldg,
            hmma,
            branch(14, 11),
            imad,
            hmul,
            f2f,
        ];
        let bytes: Vec<u8> = code
            .iter()
            .flatten()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let want = Pass {
            issued: 4,
            volta_steps: 2,
            memory: 1,
            ..Pass::default()
        };
        assert_eq!(main_loop(&bytes, Arch::Sm70), Some(want));
        assert_eq!(main_loop(&bytes[15 * 16..], Arch::Sm70), None, "no loop");
    }
}
