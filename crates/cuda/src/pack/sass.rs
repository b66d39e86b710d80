//! Machine code of Volta to Hopper, decoded as far as counting what a kernel is made of.
//!
//! An instruction is 128 bits. NVIDIA publishes no encoding; what is used here was read off nvdisasm 12.8's text beside
//! its hexadecimal words for code of NVRTC 12.9, and `tests/decoder.rs` holds it against nvdisasm again:
//! - bits 0..9 are the operation, bits 9..12 the form of its operands (register, constant, immediate, uniform);
//! - bits 73..76 of a load or store are its width: 0 to 3 for one and two bytes, 4, 5, 6 for 32, 64 and 128 bits;
//! - operation 0x036 in form 1 is HMMA.884 (in form 4 it is VIADD); 0x03c is the larger HMMA, bits 74..77 its shape;
//! - a branch's distance in words of four bytes from the next instruction is the signed number in bits 34..82, and on
//!   Hopper that number times 256 plus bits 16..24.

use std::collections::BTreeMap;
use std::fmt;

use crate::arch::Arch;

/// Bits that one lane moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Width {
    /// One byte.
    B8,
    /// Two bytes.
    B16,
    /// A word.
    B32,
    /// Two words.
    B64,
    /// Four words.
    B128,
}

impl Width {
    /// All, narrow first.
    pub const ALL: [Self; 5] = [Self::B8, Self::B16, Self::B32, Self::B64, Self::B128];
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// One step of Volta's matrix product; `mma.m8n8k4` is four of them.
    Hmma884,
    /// Turing's.
    Hmma1688,
    /// Ampere's.
    Hmma16816,
    /// Global load.
    Ldg(Width),
    /// Global store.
    Stg(Width),
    /// Shared load.
    Lds(Width),
    /// Shared store.
    Sts(Width),
    /// Load from a thread's own memory: a spill.
    Ldl,
    /// Store to it.
    Stl,
    /// Load or store whose space the compiler does not know.
    Generic,
    /// Barrier of a block.
    Bar,
    /// Shuffle.
    Shfl,
    /// f32 multiply-add.
    Ffma,
    /// Two f16 multiply-adds.
    Hfma2,
    /// Integer multiply-add, and the moves and shifts that are written as one.
    Imad,
    /// Bit logic of three inputs.
    Lop3,
    /// Byte permutation.
    Prmt,
    /// Special function.
    Mufu,
    /// Atomic with a result.
    Atom,
    /// Atomic without.
    Red,
    /// Branch.
    Bra,
    /// Call.
    Call,
    /// Anything else.
    Other,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{self:?}").to_ascii_uppercase();
        f.pad(&text.replace("(B", ".").replace(')', ""))
    }
}

/// A piece of code that runs again: from a branch's target to the branch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loop {
    /// First instruction's index.
    pub start: usize,
    /// The branch's index.
    pub end: usize,
    /// What is in it.
    pub counts: BTreeMap<Class, u32>,
}

impl Loop {
    /// Instructions in the body.
    pub fn instructions(&self) -> usize {
        self.end - self.start + 1
    }
}

/// What a kernel's code is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Instructions, without the filling after the end.
    pub instructions: usize,
    /// By class.
    pub counts: BTreeMap<Class, u32>,
    /// Loops that have no other inside, longest first.
    pub loops: Vec<Loop>,
}

impl Listing {
    /// How often a class occurs.
    pub fn count(&self, class: Class) -> u32 {
        self.counts.get(&class).copied().unwrap_or(0)
    }
}

const OPCODE_NOP: u64 = 0x918;

/// Decodes the code of one kernel.
pub fn decode(code: &[u8], arch: Arch) -> Listing {
    let words: Vec<[u64; 2]> = code
        .as_chunks::<16>()
        .0
        .iter()
        .map(|bytes| {
            let word = u128::from_le_bytes(*bytes);
            [word as u64, (word >> 64) as u64]
        })
        .collect();
    let filling = words
        .iter()
        .rev()
        .take_while(|word| word[0] & 0xfff == OPCODE_NOP)
        .count();
    let words = &words[..words.len() - filling];
    let classes: Vec<Class> = words.iter().map(|word| class(*word)).collect();
    let mut backward: Vec<(usize, usize)> = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let target = target(index, *word, arch).filter(|_| classes[index] == Class::Bra);
        // A branch to itself is the stop after the end.
        if let Some(target) = target.filter(|target| *target < index) {
            backward.push((target, index));
        }
    }
    let inner = |of: &&(usize, usize)| {
        let inside = |other: &&(usize, usize)| *other != *of && other.0 >= of.0 && other.1 <= of.1;
        backward.iter().find(inside).is_none()
    };
    let mut loops: Vec<Loop> = backward
        .iter()
        .filter(inner)
        .map(|&(start, end)| Loop {
            start,
            end,
            counts: histogram(&classes[start..=end]),
        })
        .collect();
    loops.sort_by_key(|body| (usize::MAX - body.instructions(), body.start));
    Listing {
        instructions: words.len(),
        counts: histogram(&classes),
        loops,
    }
}

fn histogram(classes: &[Class]) -> BTreeMap<Class, u32> {
    let mut counts = BTreeMap::new();
    for class in classes {
        *counts.entry(*class).or_insert(0) += 1;
    }
    counts
}

/// The class of one instruction.
pub fn class([low, high]: [u64; 2]) -> Class {
    let form = low >> 9 & 7;
    let width = match high >> 9 & 7 {
        0 | 1 => Width::B8,
        2 | 3 => Width::B16,
        5 => Width::B64,
        6 => Width::B128,
        _ => Width::B32,
    };
    match low & 0x1ff {
        0x036 if form == 1 => Class::Hmma884,
        0x03c if high >> 10 & 7 == 4 => Class::Hmma1688,
        0x03c if high >> 10 & 7 == 6 => Class::Hmma16816,
        0x181 => Class::Ldg(width),
        0x186 => Class::Stg(width),
        0x184 => Class::Lds(width),
        0x188 => Class::Sts(width),
        0x183 => Class::Ldl,
        0x187 => Class::Stl,
        0x180 | 0x185 => Class::Generic,
        0x11d => Class::Bar,
        0x189 => Class::Shfl,
        0x023 => Class::Ffma,
        0x031 | 0x035 => Class::Hfma2,
        0x024 | 0x025 | 0x027 => Class::Imad,
        0x012 => Class::Lop3,
        0x016 => Class::Prmt,
        0x108 => Class::Mufu,
        0x18a..=0x18d | 0x1a3 | 0x1a8 | 0x1a9 => Class::Atom,
        0x18e | 0x1a6 => Class::Red,
        0x147 => Class::Bra,
        0x143 | 0x144 => Class::Call,
        _ => Class::Other,
    }
}

/// Where a branch goes, as an instruction's index.
fn target(index: usize, [low, high]: [u64; 2], arch: Arch) -> Option<usize> {
    // Bits 34..82 to the top, then down again with the sign.
    let field = low >> 34 | high << 30;
    let number = (field << 16) as i64 >> 16;
    let words = match arch {
        Arch::Sm70 | Arch::Sm75 | Arch::Sm80 | Arch::Sm86 | Arch::Sm89 | Arch::Compute70 => number,
        Arch::Sm90 => number.checked_mul(256)? | (low >> 16 & 0xff) as i64,
    };
    let next = i64::try_from(index).ok()? + 1;
    usize::try_from(next.checked_add(words / 4)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words of nvdisasm's listing of sm_70 and sm_90 code.
    #[test]
    fn classes_of_words() {
        for (low, high, want, text) in [
            (
                0x0000_0a00_ff01_7624,
                0x000f_e400_078e_00ff,
                Class::Imad,
                "IMAD.MOV.U32 R1, RZ, RZ, c[0x0][0x28]",
            ),
            (
                0x0000_00ff_ffff_f389,
                0x000f_e200_000e_00ff,
                Class::Shfl,
                "SHFL.IDX PT, RZ, RZ, RZ, RZ",
            ),
            (
                0x0000_0000_0006_7919,
                0x000e_2200_0000_2100,
                Class::Other,
                "S2R R6, SR_TID.X",
            ),
            (
                0x0000_0008_0060_8947,
                0x018f_ec00_0380_0000,
                Class::Bra,
                "@!P0 BRA",
            ),
            (
                0x0000_0004_00d0_7944,
                0x021f_ea00_03c0_0000,
                Class::Call,
                "CALL.REL.NOINC",
            ),
        ] {
            assert_eq!(class([low, high]), want, "{text}");
        }
    }

    #[test]
    fn branches_of_hopper() {
        for (at, low, high, want) in [
            (0x840, 0x0000_0008_0060_8947, 0x018f_ec00_0380_0000, 0x11d0),
            (0xf10, 0xffff_fff8_0074_1947, 0x000f_ec00_0383_ffff, 0x8f0),
            (0x1220, 0x0000_0004_00d0_7944, 0x021f_ea00_03c0_0000, 0x1970),
        ] {
            assert_eq!(
                target(at / 16, [low, high], Arch::Sm90),
                Some(want / 16),
                "{at:#x}"
            );
        }
    }

    #[test]
    fn loops_are_the_innermost() {
        let branch = |from: i64, to: i64| {
            let words = ((to - from - 1) * 4) as u64 & ((1 << 48) - 1);
            [0x947 | words << 34, words >> 30]
        };
        let nop = [OPCODE_NOP, 0];
        let fma = [0x223, 0];
        // 1..=3 lies in 0..=4; 5 goes forward; 6 is the stop; 7 is filling.
        let code = [
            fma,
            fma,
            fma,
            branch(3, 1),
            branch(4, 0),
            branch(5, 6),
            branch(6, 6),
            nop,
        ];
        let bytes: Vec<u8> = code
            .iter()
            .flatten()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let listing = decode(&bytes, Arch::Sm70);
        assert_eq!(
            (
                listing.instructions,
                listing.count(Class::Ffma),
                listing.count(Class::Bra)
            ),
            (7, 3, 4)
        );
        let bodies: Vec<_> = listing.loops.iter().map(|body| (body.start, body.end)).collect();
        assert_eq!(bodies, [(1, 3)]);
        assert_eq!(listing.loops[0].counts[&Class::Ffma], 2);
    }

    #[test]
    fn any_words_decode() {
        let mut state = 1u64;
        let mut bytes = Vec::new();
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            bytes.extend_from_slice(&(state >> 11).to_le_bytes());
        }
        for arch in Arch::ALL {
            let listing = decode(&bytes, arch);
            assert_eq!(
                listing.counts.values().sum::<u32>() as usize,
                listing.instructions
            );
        }
    }
}
