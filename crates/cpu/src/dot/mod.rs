//! One file a weight format: how its unit is packed, and how a block of it becomes codes and scales in registers.
//!
//! Every format is brought to one shape. A block is 32 numbers of 16 rows: eight groups of unsigned codes, each
//! `[16 rows][4]`, and
//!
//! `w[row][i] = scale[half][row] * (code[row][i] - OFFSET) (+ min[half][row])`
//!
//! where the half of number i is `i / 16` if the format has two scales a block, else 0. Multiplying in this order gives
//! bit for bit what the format's definition gives, and products of codes with int8 activations are exact integers.

pub mod iq4_nl;
pub mod iq4_xs;
pub mod mxfp4;
pub mod nvfp4;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;

use galvani_graph::Format;

use crate::pack::{BLOCK, GROUP_BYTES, UnitRows};
use crate::simd::Simd;

/// The codes of one block, group by group.
pub type Codes<S> = [<S as Simd>::B; 8];

// Closures (`map`, `from_fn`) are avoided in what runs per block: the compiler does not always inline them into the
// function that has the instructions enabled, and then every single operation becomes a call.

/// A packed format.
pub trait BlockFormat {
    /// Which.
    const FORMAT: Format;
    /// Blocks of 32 numbers in a unit.
    const UNIT_BLOCKS: usize;
    /// Bytes of a unit of 16 rows.
    const UNIT_BYTES: usize;
    /// What is subtracted from each code: zero or a power of two.
    const OFFSET: u8;
    /// Scales a block: 1 or 2.
    const SCALES: usize;
    /// Whether there is a constant added to each number, for each scale.
    const MIN: bool;
    /// Whether codes exceed seven bits.
    const WIDE: bool;

    /// Interleaves the raw blocks of one unit of 16 rows into `out`, which is zero.
    fn pack(rows: &UnitRows<'_>, out: &mut [u8]);

    /// The codes of block `block` of the unit.
    ///
    /// # Safety
    /// The contract of [`Simd`]; `unit` has `UNIT_BYTES`, `block < UNIT_BLOCKS`. Holds for all methods.
    unsafe fn codes<S: Simd>(unit: *const u8, block: usize) -> Codes<S>;

    /// The scales of 16 rows; the second is unused where `SCALES` is 1.
    ///
    /// # Safety
    /// See [`BlockFormat::codes`].
    unsafe fn scales<S: Simd>(unit: *const u8, block: usize) -> [S::F; 2];

    /// What is added to each number; unused unless `MIN`.
    ///
    /// # Safety
    /// See [`BlockFormat::codes`].
    #[inline(always)]
    unsafe fn mins<S: Simd>(_unit: *const u8, _block: usize) -> [S::F; 2] {
        // SAFETY: the caller's contract.
        unsafe { [S::splat_f(0.0); 2] }
    }
}

/// Numbers in a unit.
pub const fn unit_len<F: BlockFormat>() -> usize {
    F::UNIT_BLOCKS * BLOCK
}

/// Raw bytes of one row's part of a unit.
pub const fn unit_raw_bytes<F: BlockFormat>() -> usize {
    unit_len::<F>() / F::FORMAT.block_len() * F::FORMAT.block_bytes()
}

/// Calls `$with!(Type)` for the packed form of a format; `$else` for the formats that have none.
macro_rules! for_block_format {
    ($format:expr, $with:ident, $else:expr) => {
        match $format {
            Format::Q8_0 => $with!($crate::dot::q8_0::Q8_0),
            Format::Q4_0 => $with!($crate::dot::q4_0::Q4_0),
            Format::Q4_1 => $with!($crate::dot::q4_1::Q4_1),
            Format::Q5_0 => $with!($crate::dot::q5_0::Q5_0),
            Format::Q5_1 => $with!($crate::dot::q5_1::Q5_1),
            Format::Q2K => $with!($crate::dot::q2_k::Q2K),
            Format::Q3K => $with!($crate::dot::q3_k::Q3K),
            Format::Q4K => $with!($crate::dot::q4_k::Q4K),
            Format::Q5K => $with!($crate::dot::q5_k::Q5K),
            Format::Q6K => $with!($crate::dot::q6_k::Q6K),
            Format::Iq4Nl => $with!($crate::dot::iq4_nl::Iq4Nl),
            Format::Iq4Xs => $with!($crate::dot::iq4_xs::Iq4Xs),
            Format::Mxfp4 => $with!($crate::dot::mxfp4::Mxfp4),
            Format::Nvfp4 => $with!($crate::dot::nvfp4::Nvfp4),
            Format::F32
            | Format::F16
            | Format::BF16
            | Format::Iq1S
            | Format::Iq1M
            | Format::Iq2Xxs
            | Format::Iq2Xs
            | Format::Iq2S
            | Format::Iq3Xxs
            | Format::Iq3S
            | Format::Tq1_0
            | Format::Tq2_0 => $else,
        }
    };
}
pub(crate) use for_block_format;

/// The codes of 4-bit formats whose block is four groups of bytes: group g in the low nibbles of vector g, group g + 4
/// in the high ones.
///
/// # Safety
/// The contract of [`Simd`]; 256 bytes at `p`.
#[inline(always)]
unsafe fn nibbles<S: Simd>(p: *const u8) -> Codes<S> {
    // SAFETY: the caller's contract.
    unsafe {
        let mask = S::splat(15);
        let mut codes = [mask; 8];
        for g in 0..4 {
            let raw = S::load(p.add(g * GROUP_BYTES));
            codes[g] = S::and(raw, mask);
            codes[g + 4] = S::and(S::shr(raw, 4), mask);
        }
        codes
    }
}

/// Nibbles of eight vectors, all low or all high: a block of the formats that pair 32 numbers with the next 32.
///
/// # Safety
/// The contract of [`Simd`]; 512 bytes at `p`; `shift` is 0 or 4.
#[inline(always)]
unsafe fn nibble_rows<S: Simd>(p: *const u8, shift: u32) -> Codes<S> {
    // SAFETY: the caller's contract.
    unsafe {
        let mask = S::splat(15);
        let mut codes = [mask; 8];
        for (g, code) in codes.iter_mut().enumerate() {
            *code = S::and(S::shr(S::load(p.add(g * GROUP_BYTES)), shift), mask);
        }
        codes
    }
}

/// Codes through a table of 16.
///
/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn lookup<S: Simd>(table: &[u8; 16], mut codes: Codes<S>) -> Codes<S> {
    for code in &mut codes {
        // SAFETY: the caller's contract.
        *code = unsafe { S::lookup(table, *code) };
    }
    codes
}

/// Adds bit `from` of each byte of `bits` to `code` as bit `to`.
///
/// # Safety
/// The contract of [`Simd`].
#[inline(always)]
unsafe fn add_bit<S: Simd>(code: S::B, bits: S::B, from: u32, to: u32) -> S::B {
    // SAFETY: the caller's contract.
    unsafe {
        let moved = if from <= to {
            S::shl(bits, to - from)
        } else {
            S::shr(bits, from - to)
        };
        S::or_masked(code, moved, S::splat(1 << to))
    }
}
