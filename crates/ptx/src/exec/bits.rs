//! Instructions on parts of registers: tables, bytes, fields, dot products, packing.

use super::alu::short;
use super::loops::{set_d, set_w, w2, w3};
use super::warp::Registers;
use crate::ir::{Opcode, PermuteMode};

impl Registers {
    #[inline(always)]
    pub(super) fn three(&mut self, op: &Opcode, mask: u32) {
        match *op {
            Opcode::Lop3 { d, a, b, c, table } => {
                // Each minterm of the table that is set.
                let on: [u32; 8] =
                    std::array::from_fn(|bit| if table >> bit & 1 != 0 { u32::MAX } else { 0 });
                w3!(self, d, [a, b, c], mask, |a, b, c| {
                    let low = (on[0] & !c | on[1] & c) & !b | (on[2] & !c | on[3] & c) & b;
                    let high = (on[4] & !c | on[5] & c) & !b | (on[6] & !c | on[7] & c) & b;
                    low & !a | high & a
                });
            }
            Opcode::Permute { mode, d, a, b, c } => {
                w3!(self, d, [a, b, c], mask, |a, b, c| permute(mode, a, b, c))
            }
            Opcode::Funnel {
                left,
                clamp,
                d,
                a,
                b,
                c,
            } => w3!(self, d, [a, b, c], mask, |a, b, c| {
                let amount = if clamp { c.min(32) } else { c & 31 };
                let both = u64::from(b) << 32 | u64::from(a);
                if left {
                    (both << amount >> 32) as u32
                } else {
                    (both >> amount) as u32
                }
            }),
            _ => unreachable!("`step` sends operations on three registers alone"),
        }
    }

    pub(super) fn field(&mut self, op: &Opcode, mask: u32) {
        match *op {
            Opcode::Extract32 {
                signed,
                d,
                a,
                at,
                count,
            } => w3!(self, d, [a, at, count], mask, |a, at, count| {
                let wide = if signed {
                    i64::from(a as i32) as u64
                } else {
                    u64::from(a)
                };
                extract(wide, at & 0xff, count & 0xff, signed, 32) as u32
            }),
            Opcode::Extract64 {
                signed,
                d,
                a,
                at,
                count,
            } => {
                let (a, at, count) = (self.d(a), self.w(at), self.w(count));
                set_d!(self, d, mask, |lane| {
                    extract(a[lane], at[lane] & 0xff, count[lane] & 0xff, signed, 64)
                });
            }
            Opcode::Insert32 { d, a, b, at, count } => {
                let (a, b, at, count) = (self.w(a), self.w(b), self.w(at), self.w(count));
                set_w!(self, d, mask, |lane| {
                    insert(
                        u64::from(a[lane]),
                        u64::from(b[lane]),
                        at[lane] & 0xff,
                        count[lane] & 0xff,
                    ) as u32
                });
            }
            Opcode::Insert64 { d, a, b, at, count } => {
                let (a, b, at, count) = (self.d(a), self.d(b), self.w(at), self.w(count));
                set_d!(self, d, mask, |lane| {
                    insert(a[lane], b[lane], at[lane] & 0xff, count[lane] & 0xff)
                });
            }
            _ => unreachable!("`step` sends bit fields alone"),
        }
    }

    pub(super) fn dot(&mut self, op: &Opcode, mask: u32) {
        let byte = |a: u32, index: u32, signed: bool| {
            let byte = (a >> (index * 8)) as u8;
            if signed {
                i32::from(byte as i8)
            } else {
                i32::from(byte)
            }
        };
        match *op {
            Opcode::Dot4 {
                a_signed,
                b_signed,
                d,
                a,
                b,
                c,
            } => w3!(self, d, [a, b, c], mask, |a, b, c| {
                let mut sum = c as i32;
                for index in 0..4 {
                    sum = sum.wrapping_add(byte(a, index, a_signed) * byte(b, index, b_signed));
                }
                sum as u32
            }),
            Opcode::Dot2 {
                a_signed,
                b_signed,
                high,
                d,
                a,
                b,
                c,
            } => w3!(self, d, [a, b, c], mask, |a, b, c| {
                let half = |index: u32| {
                    if a_signed {
                        short(a >> (index * 16))
                    } else {
                        i32::from((a >> (index * 16)) as u16)
                    }
                };
                let from = if high { 2 } else { 0 };
                let product = |index: u32| half(index).wrapping_mul(byte(b, from + index, b_signed));
                (c as i32).wrapping_add(product(0)).wrapping_add(product(1)) as u32
            }),
            _ => unreachable!("`step` sends dot products alone"),
        }
    }

    #[inline(always)]
    pub(super) fn pack(&mut self, op: &Opcode, mask: u32) {
        match *op {
            Opcode::Pack16(d, low, high) => {
                w2!(self, d, low, high, mask, |low, high| low & 0xffff | high << 16)
            }
            Opcode::Unpack16(low, high, a) => {
                let a = self.w(a);
                if let Some(low) = low {
                    set_w!(self, low, mask, |lane| a[lane] & 0xffff);
                }
                if let Some(high) = high {
                    set_w!(self, high, mask, |lane| a[lane] >> 16);
                }
            }
            Opcode::Pack32(d, low, high) => {
                let (low, high) = (self.w(low), self.w(high));
                set_d!(self, d, mask, |lane| u64::from(low[lane])
                    | u64::from(high[lane]) << 32);
            }
            Opcode::Unpack32(low, high, a) => {
                let a = self.d(a);
                if let Some(low) = low {
                    set_w!(self, low, mask, |lane| a[lane] as u32);
                }
                if let Some(high) = high {
                    set_w!(self, high, mask, |lane| (a[lane] >> 32) as u32);
                }
            }
            Opcode::Pack4x16(d, parts) => {
                let parts = parts.map(|part| self.w(part));
                let part = |index: usize, lane: usize| u64::from(parts[index][lane] & 0xffff) << (index * 16);
                set_d!(self, d, mask, |lane| {
                    part(0, lane) | part(1, lane) | part(2, lane) | part(3, lane)
                });
            }
            Opcode::Unpack4x16(parts, a) => {
                let a = self.d(a);
                for (index, part) in parts.iter().enumerate() {
                    if let Some(part) = part {
                        set_w!(self, *part, mask, |lane| (a[lane] >> (index * 16)) as u32
                            & 0xffff);
                    }
                }
            }
            _ => unreachable!("`step` sends moves between widths alone"),
        }
    }
}

#[inline(always)]
fn permute(mode: PermuteMode, a: u32, b: u32, c: u32) -> u32 {
    let both = u64::from(b) << 32 | u64::from(a);
    let byte = |index: u32| (both >> (index % 8 * 8)) as u32 & 0xff;
    let at = c & 3;
    let choose = |places: [u32; 4]| {
        byte(places[0]) | byte(places[1]) << 8 | byte(places[2]) << 16 | byte(places[3]) << 24
    };
    match mode {
        PermuteMode::Index => {
            let mut value = 0;
            for place in 0..4 {
                let select = c >> (place * 4);
                let picked = byte(select & 7);
                // The top bit of a selector copies the byte's sign over it.
                let sign = if picked & 0x80 != 0 { 0xff } else { 0 };
                value |= if select & 8 != 0 { sign } else { picked } << (place * 8);
            }
            value
        }
        PermuteMode::ForwardFour => choose([at, at + 1, at + 2, at + 3]),
        PermuteMode::BackwardFour => choose([at, at + 7, at + 6, at + 5]),
        PermuteMode::Replicate8 => choose([at; 4]),
        PermuteMode::EdgeLeft => choose([at, at.max(1), at.max(2), 3]),
        PermuteMode::EdgeRight => choose([0, at.min(1), at.min(2), at]),
        PermuteMode::Replicate16 => {
            let low = at % 2 * 2;
            choose([low, low + 1, low, low + 1])
        }
    }
}

/// `count` bits from `at` on; with a sign, what lies past the field is the field's top bit (PTX's definition of bfe).
fn extract(a: u64, at: u32, count: u32, signed: bool, bits: u32) -> u64 {
    if count == 0 {
        return 0;
    }
    let top = (at + count - 1).min(bits - 1);
    let sign = signed && a >> top & 1 != 0;
    let width = count.min(64);
    let field = u64::MAX >> (64 - width);
    let value = if at >= bits {
        0
    } else {
        (a & (u64::MAX >> (64 - bits))) >> at & field
    };
    // Bits that the field wants from beyond the register, and all above it, are the sign.
    let have = (bits.saturating_sub(at)).min(width);
    let keep = if have == 0 { 0 } else { u64::MAX >> (64 - have) };
    if sign { value | !keep } else { value & keep }
}

fn insert(a: u64, b: u64, at: u32, count: u32) -> u64 {
    if at >= 64 || count == 0 {
        return b;
    }
    let field = (u64::MAX >> (64 - count.min(64))) << at;
    b & !field | a << at & field
}
