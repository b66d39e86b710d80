//! Where the bits of a cell's eight codes lie: chosen so that few instructions make pairs of adjacent k of them.
//!
//! A cell is read as 16-bit halves, the lower code of a pair from one half, the upper one from the other, at the same place.
//! Codes are numbered 0..8 by k; pair j is codes 2 j and 2 j + 1.

/// Eight codes of a cell, as bytes without sign.
pub type Cell = [u8; 8];

/// Four-bit codes: pair j at bits 4 j of each half.
pub fn nibbles(codes: &Cell) -> [u8; 4] {
    let mut word = 0u32;
    for (i, &code) in codes.iter().enumerate() {
        word |= u32::from(code & 15) << (16 * (i % 2) + 4 * (i / 2));
    }
    word.to_le_bytes()
}

/// Back from [`nibbles`].
pub fn from_nibbles(bytes: [u8; 4]) -> Cell {
    let word = u32::from_le_bytes(bytes);
    std::array::from_fn(|i| (word >> (16 * (i % 2) + 4 * (i / 2)) & 15) as u8)
}

/// Eight-bit codes: in each word of four, a pair in the low bytes of the halves, the next in the high ones.
pub fn bytes(codes: &Cell) -> [u8; 8] {
    std::array::from_fn(|byte| codes[byte_code(byte)])
}

/// Back from [`bytes`].
pub fn from_bytes(bytes: [u8; 8]) -> Cell {
    let mut codes = [0; 8];
    for (byte, &code) in bytes.iter().enumerate() {
        codes[byte_code(byte)] = code;
    }
    codes
}

/// The code in a byte of a cell of bytes.
fn byte_code(byte: usize) -> usize {
    4 * (byte / 4) + [0, 2, 1, 3][byte % 4]
}

/// Indices of a table of 16, as the selectors of a byte permutation: nibble i picks byte i of [`bytes`]' order.
pub fn selectors(codes: &Cell) -> [u8; 4] {
    let codes = bytes(codes);
    std::array::from_fn(|i| (codes[2 * i] & 15) | (codes[2 * i + 1] & 15) << 4)
}

/// Back from [`selectors`].
pub fn from_selectors(packed: [u8; 4]) -> Cell {
    from_bytes(std::array::from_fn(|i| packed[i / 2] >> (4 * (i % 2)) & 15))
}

/// Two-bit codes: the first byte has codes 0, 2, 4, 6, the second 1, 3, 5, 7, each with pair `order[i]` at bits 2 i.
pub fn two_bits(codes: &Cell, order: [usize; 4]) -> [u8; 2] {
    std::array::from_fn(|half| {
        order.iter().enumerate().fold(0, |byte, (i, pair)| {
            byte | (codes[2 * pair + half] & 3) << (2 * i)
        })
    })
}

/// Back from [`two_bits`].
pub fn from_two_bits(bytes: [u8; 2], order: [usize; 4]) -> Cell {
    let mut codes = [0; 8];
    for (half, byte) in bytes.iter().enumerate() {
        for (i, pair) in order.iter().enumerate() {
            codes[2 * pair + half] = byte >> (2 * i) & 3;
        }
    }
    codes
}

/// One-bit codes in a byte: pair `order[i]` at bits 2 i (the lower code) and 2 i + 1.
pub fn one_bit(codes: &Cell, order: [usize; 4]) -> u8 {
    order.iter().enumerate().fold(0, |byte, (i, pair)| {
        byte | (codes[2 * pair] & 1) << (2 * i) | (codes[2 * pair + 1] & 1) << (2 * i + 1)
    })
}

/// Back from [`one_bit`].
pub fn from_one_bit(byte: u8, order: [usize; 4]) -> Cell {
    let mut codes = [0; 8];
    for (i, pair) in order.iter().enumerate() {
        codes[2 * pair] = byte >> (2 * i) & 1;
        codes[2 * pair + 1] = byte >> (2 * i + 1) & 1;
    }
    codes
}

/// e2m1: sign at 15, 12, 14, 13 and magnitude from 9, 6, 3, 0 on of each half.
pub fn e2m1(codes: &Cell) -> [u8; 4] {
    let mut word = 0u32;
    for (i, &code) in codes.iter().enumerate() {
        let (sign, magnitude) = E2M1[i / 2];
        let half = u32::from(code >> 3 & 1) << sign | u32::from(code & 7) << magnitude;
        word |= half << (16 * (i % 2));
    }
    word.to_le_bytes()
}

/// Back from [`e2m1`].
pub fn from_e2m1(bytes: [u8; 4]) -> Cell {
    let word = u32::from_le_bytes(bytes);
    std::array::from_fn(|i| {
        let (sign, magnitude) = E2M1[i / 2];
        let half = word >> (16 * (i % 2));
        ((half >> sign & 1) << 3 | (half >> magnitude & 7)) as u8
    })
}

/// (sign, magnitude) of each pair.
const E2M1: [(u32, u32); 4] = [(15, 9), (12, 6), (14, 3), (13, 0)];

/// e4m3, in each word of four a pair with its sign at 15 and the rest at 13..7 of each half, the next at 14 and 6..0.
pub fn e4m3(codes: &Cell) -> [u8; 8] {
    let mut out = [0; 8];
    for word in 0..2 {
        for half in 0..2 {
            let (a, b) = (
                u16::from(codes[4 * word + half]),
                u16::from(codes[4 * word + 2 + half]),
            );
            let bits = (a & 0x80) << 8 | (a & 0x7F) << 7 | (b & 0x80) << 7 | (b & 0x7F);
            out[4 * word + 2 * half..][..2].copy_from_slice(&bits.to_le_bytes());
        }
    }
    out
}

/// Back from [`e4m3`].
pub fn from_e4m3(bytes: [u8; 8]) -> Cell {
    let mut codes = [0; 8];
    for word in 0..2 {
        for half in 0..2 {
            let at = 4 * word + 2 * half;
            let bits = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            codes[4 * word + half] = (bits >> 8 & 0x80 | bits >> 7 & 0x7F) as u8;
            codes[4 * word + 2 + half] = (bits >> 7 & 0x80 | bits & 0x7F) as u8;
        }
    }
    codes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each way there and back, with codes that differ in every bit.
    #[test]
    fn codes_come_back() {
        for seed in 0..64u8 {
            let codes: Cell =
                std::array::from_fn(|i| (seed.wrapping_mul(37) ^ (i as u8).wrapping_mul(91)).rotate_left(3));
            let below = |bits: u32| codes.map(|code| code & ((1u16 << bits) - 1) as u8);
            assert_eq!(from_nibbles(nibbles(&codes)), below(4));
            assert_eq!(from_selectors(selectors(&codes)), below(4));
            assert_eq!(from_e2m1(e2m1(&codes)), below(4));
            assert_eq!(from_bytes(bytes(&codes)), codes);
            assert_eq!(from_e4m3(e4m3(&codes)), codes);
            for order in [[0, 1, 2, 3], [1, 3, 0, 2], [3, 0, 1, 2]] {
                assert_eq!(from_two_bits(two_bits(&codes, order), order), below(2));
                assert_eq!(from_one_bit(one_bit(&codes, order), order), below(1));
            }
        }
    }
}
