//! Integer instructions.

use super::loops::{d1, d2, set_d, set_w, w1, w2, w3};
use super::warp::Registers;
use crate::fault::{FaultKind, Outcome, Stop};
use crate::ir::{Bin, Count, D, Half, Logic, Opcode, R, Shift, Un};
use crate::lanes::lanes;

#[inline(always)]
pub(super) fn logic(op: Logic, a: u32, b: u32) -> u32 {
    match op {
        Logic::And => a & b,
        Logic::Or => a | b,
        Logic::Xor => a ^ b,
    }
}

/// Sign extension of a 16-bit register.
#[inline(always)]
pub(super) fn short(a: u32) -> i32 {
    i32::from(a as u16 as i16)
}

fn no_zero(mask: u32, zero: impl Fn(usize) -> bool) -> Outcome {
    match lanes(mask).find(|lane| zero(*lane)) {
        Some(lane) => Err(Stop::new(FaultKind::DivisionByZero, lane as u32)),
        None => Ok(()),
    }
}

impl Registers {
    #[inline(always)]
    pub(super) fn bin32(&mut self, op: Bin, d: R, a: R, b: R, mask: u32) -> Outcome {
        match op {
            Bin::Add => w2!(self, d, a, b, mask, |a, b| a.wrapping_add(b)),
            Bin::Sub => w2!(self, d, a, b, mask, |a, b| a.wrapping_sub(b)),
            Bin::Mul => w2!(self, d, a, b, mask, |a, b| a.wrapping_mul(b)),
            Bin::MulHighU => w2!(self, d, a, b, mask, |a, b| ((u64::from(a) * u64::from(b)) >> 32)
                as u32),
            Bin::MulHighS => {
                w2!(self, d, a, b, mask, |a, b| {
                    ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32
                });
            }
            Bin::MinU => w2!(self, d, a, b, mask, |a, b| a.min(b)),
            Bin::MinS => w2!(self, d, a, b, mask, |a, b| (a as i32).min(b as i32) as u32),
            Bin::MaxU => w2!(self, d, a, b, mask, |a, b| a.max(b)),
            Bin::MaxS => w2!(self, d, a, b, mask, |a, b| (a as i32).max(b as i32) as u32),
            Bin::And => w2!(self, d, a, b, mask, |a, b| a & b),
            Bin::Or => w2!(self, d, a, b, mask, |a, b| a | b),
            Bin::Xor => w2!(self, d, a, b, mask, |a, b| a ^ b),
            Bin::AddSat => w2!(self, d, a, b, mask, |a, b| (a as i32).saturating_add(b as i32)
                as u32),
            Bin::SubSat => w2!(self, d, a, b, mask, |a, b| (a as i32).saturating_sub(b as i32)
                as u32),
            Bin::DivU | Bin::DivS | Bin::RemU | Bin::RemS => {
                let divisor = self.w(b);
                no_zero(mask, |lane| divisor[lane] == 0)?;
                match op {
                    Bin::DivU => w2!(self, d, a, b, mask, |a, b| a / b.max(1)),
                    Bin::RemU => w2!(self, d, a, b, mask, |a, b| a % b.max(1)),
                    Bin::DivS => w2!(self, d, a, b, mask, |a, b| {
                        (a as i32).wrapping_div(some(b as i32)) as u32
                    }),
                    _ => w2!(self, d, a, b, mask, |a, b| {
                        (a as i32).wrapping_rem(some(b as i32)) as u32
                    }),
                }
            }
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn bin64(&mut self, op: Bin, d: D, a: D, b: D, mask: u32) -> Outcome {
        match op {
            Bin::Add => d2!(self, d, a, b, mask, |a, b| a.wrapping_add(b)),
            Bin::Sub => d2!(self, d, a, b, mask, |a, b| a.wrapping_sub(b)),
            Bin::Mul => d2!(self, d, a, b, mask, |a, b| a.wrapping_mul(b)),
            Bin::MulHighU => d2!(
                self,
                d,
                a,
                b,
                mask,
                |a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64
            ),
            Bin::MulHighS => {
                d2!(self, d, a, b, mask, |a, b| {
                    ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64
                });
            }
            Bin::MinU => d2!(self, d, a, b, mask, |a, b| a.min(b)),
            Bin::MinS => d2!(self, d, a, b, mask, |a, b| (a as i64).min(b as i64) as u64),
            Bin::MaxU => d2!(self, d, a, b, mask, |a, b| a.max(b)),
            Bin::MaxS => d2!(self, d, a, b, mask, |a, b| (a as i64).max(b as i64) as u64),
            Bin::And => d2!(self, d, a, b, mask, |a, b| a & b),
            Bin::Or => d2!(self, d, a, b, mask, |a, b| a | b),
            Bin::Xor => d2!(self, d, a, b, mask, |a, b| a ^ b),
            Bin::AddSat => d2!(self, d, a, b, mask, |a, b| (a as i64).saturating_add(b as i64)
                as u64),
            Bin::SubSat => d2!(self, d, a, b, mask, |a, b| (a as i64).saturating_sub(b as i64)
                as u64),
            Bin::DivU | Bin::DivS | Bin::RemU | Bin::RemS => {
                let divisor = self.d(b);
                no_zero(mask, |lane| divisor[lane] == 0)?;
                match op {
                    Bin::DivU => d2!(self, d, a, b, mask, |a, b| a / b.max(1)),
                    Bin::RemU => d2!(self, d, a, b, mask, |a, b| a % b.max(1)),
                    Bin::DivS => d2!(self, d, a, b, mask, |a, b| {
                        (a as i64).wrapping_div(some64(b as i64)) as u64
                    }),
                    _ => d2!(self, d, a, b, mask, |a, b| {
                        (a as i64).wrapping_rem(some64(b as i64)) as u64
                    }),
                }
            }
        }
        Ok(())
    }

    pub(super) fn bin16(&mut self, op: Bin, d: R, a: R, b: R, mask: u32) -> Outcome {
        let divides = matches!(op, Bin::DivU | Bin::DivS | Bin::RemU | Bin::RemS);
        let divisor = self.w(b);
        if divides {
            no_zero(mask, |lane| divisor[lane] as u16 == 0)?;
        }
        let f = move |a: u32, b: u32| match op {
            Bin::Add => a.wrapping_add(b),
            Bin::Sub => a.wrapping_sub(b),
            Bin::Mul => a.wrapping_mul(b),
            Bin::MulHighU => (a * b) >> 16,
            Bin::MulHighS => ((short(a) * short(b)) >> 16) as u32,
            Bin::MinU => a.min(b),
            Bin::MinS => short(a).min(short(b)) as u32,
            Bin::MaxU => a.max(b),
            Bin::MaxS => short(a).max(short(b)) as u32,
            Bin::And => a & b,
            Bin::Or => a | b,
            Bin::Xor => a ^ b,
            Bin::DivU => a / b.max(1),
            Bin::RemU => a % b.max(1),
            Bin::DivS => short(a).wrapping_div(some(short(b))) as u32,
            Bin::RemS => short(a).wrapping_rem(some(short(b))) as u32,
            Bin::AddSat => (short(a) + short(b)).clamp(-0x8000, 0x7fff) as u32,
            Bin::SubSat => (short(a) - short(b)).clamp(-0x8000, 0x7fff) as u32,
        };
        w2!(self, d, a, b, mask, |a, b| f(a, b) & 0xffff);
        Ok(())
    }

    /// Amounts past the width give zero, or the sign.
    #[inline(always)]
    pub(super) fn shift(&mut self, op: &Opcode, mask: u32) {
        match *op {
            Opcode::Shift32(Shift::Left, d, a, b) => {
                w2!(self, d, a, b, mask, |a, b| if b < 32 { a << (b & 31) } else { 0 })
            }
            Opcode::Shift32(Shift::RightU, d, a, b) => {
                w2!(self, d, a, b, mask, |a, b| if b < 32 { a >> (b & 31) } else { 0 });
            }
            Opcode::Shift32(Shift::RightS, d, a, b) => {
                w2!(self, d, a, b, mask, |a, b| (a as i32 >> b.min(31)) as u32)
            }
            Opcode::Shift64(op, d, a, b) => {
                let (a, b) = (self.d(a), self.w(b));
                set_d!(self, d, mask, |lane| {
                    let (a, b) = (a[lane], b[lane]);
                    match op {
                        Shift::Left if b < 64 => a << (b & 63),
                        Shift::RightU if b < 64 => a >> (b & 63),
                        Shift::Left | Shift::RightU => 0,
                        Shift::RightS => (a as i64 >> b.min(63)) as u64,
                    }
                });
            }
            Opcode::Shift16(op, d, a, b) => w2!(self, d, a, b, mask, |a, b| {
                let value = match op {
                    Shift::Left => a << b.min(16),
                    Shift::RightU => a >> b.min(16),
                    Shift::RightS => (short(a) >> b.min(15)) as u32,
                };
                value & 0xffff
            }),
            _ => unreachable!("`step` sends shifts alone"),
        }
    }

    pub(super) fn unary(&mut self, op: &Opcode, mask: u32) {
        match *op {
            Opcode::Un32(op, d, a) => w1!(self, d, a, mask, |a| match op {
                Un::Not => !a,
                Un::Neg => a.wrapping_neg(),
                Un::Abs => (a as i32).wrapping_abs() as u32,
                Un::Cnot => u32::from(a == 0),
                Un::Reverse => a.reverse_bits(),
            }),
            Opcode::Un64(op, d, a) => d1!(self, d, a, mask, |a| match op {
                Un::Not => !a,
                Un::Neg => a.wrapping_neg(),
                Un::Abs => (a as i64).wrapping_abs() as u64,
                Un::Cnot => u64::from(a == 0),
                Un::Reverse => a.reverse_bits(),
            }),
            Opcode::Un16(op, d, a) => w1!(self, d, a, mask, |a| {
                let value = match op {
                    Un::Not => !a,
                    Un::Neg => a.wrapping_neg(),
                    Un::Abs => short(a).wrapping_abs() as u32,
                    Un::Cnot => u32::from(a as u16 == 0),
                    Un::Reverse => u32::from((a as u16).reverse_bits()),
                };
                value & 0xffff
            }),
            Opcode::Count32(op, d, a) => w1!(self, d, a, mask, |a| match op {
                Count::Ones => a.count_ones(),
                Count::LeadingZeros => a.leading_zeros(),
                Count::Find { signed, shift } => find(
                    u64::from(if signed && (a as i32) < 0 { !a } else { a }),
                    32,
                    shift,
                ),
            }),
            Opcode::Count64(op, d, a) => {
                let a = self.d(a);
                set_w!(self, d, mask, |lane| match op {
                    Count::Ones => a[lane].count_ones(),
                    Count::LeadingZeros => a[lane].leading_zeros(),
                    Count::Find { signed, shift } => find(
                        if signed && (a[lane] as i64) < 0 {
                            !a[lane]
                        } else {
                            a[lane]
                        },
                        64,
                        shift,
                    ),
                });
            }
            _ => unreachable!("`step` sends operations on one register alone"),
        }
    }

    #[inline(always)]
    pub(super) fn multiply(&mut self, op: &Opcode, mask: u32) {
        match *op {
            Opcode::Mad32(Half::Low, d, a, b, c) => {
                w3!(self, d, [a, b, c], mask, |a, b, c| a
                    .wrapping_mul(b)
                    .wrapping_add(c));
            }
            Opcode::Mad32(half, d, a, b, c) => {
                w3!(self, d, [a, b, c], mask, |a, b, c| high(half, a, b)
                    .wrapping_add(c))
            }
            Opcode::MadWide32 {
                signed: false,
                d,
                a,
                b,
                c,
            } => {
                let (a, b) = (self.w(a), self.w(b));
                let c = c.map_or([0; 32], |c| self.d(c));
                set_d!(self, d, mask, |lane| {
                    (u64::from(a[lane]) * u64::from(b[lane])).wrapping_add(c[lane])
                });
            }
            Opcode::MadWide32 {
                signed: true,
                d,
                a,
                b,
                c,
            } => {
                let (a, b) = (self.w(a), self.w(b));
                let c = c.map_or([0; 32], |c| self.d(c));
                let product = |lane: usize| i64::from(a[lane] as i32) * i64::from(b[lane] as i32);
                set_d!(self, d, mask, |lane| (product(lane) as u64).wrapping_add(c[lane]));
            }
            Opcode::MadWide16 { signed, d, a, b, c } => {
                let c = c.map_or([0; 32], |c| self.w(c));
                let (a, b) = (self.w(a), self.w(b));
                set_w!(self, d, mask, |lane| {
                    let (a, b) = (a[lane], b[lane]);
                    let product = if signed {
                        (short(a) * short(b)) as u32
                    } else {
                        a.wrapping_mul(b)
                    };
                    product.wrapping_add(c[lane])
                });
            }
            Opcode::Mad16(half, d, a, b, c) => w3!(self, d, [a, b, c], mask, |a, b, c| {
                let product = match half {
                    Half::Low => a.wrapping_mul(b),
                    Half::HighU => a.wrapping_mul(b) >> 16,
                    Half::HighS => ((short(a) * short(b)) >> 16) as u32,
                };
                product.wrapping_add(c) & 0xffff
            }),
            Opcode::Mad64(half, d, a, b, c) => {
                let (a, b, c) = (self.d(a), self.d(b), self.d(c));
                set_d!(self, d, mask, |lane| {
                    let (a, b) = (a[lane], b[lane]);
                    let product = match half {
                        Half::Low => a.wrapping_mul(b),
                        Half::HighU => ((u128::from(a) * u128::from(b)) >> 64) as u64,
                        Half::HighS => ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64,
                    };
                    product.wrapping_add(c[lane])
                });
            }
            _ => unreachable!("`step` sends multiplications alone"),
        }
    }

    /// The carry flag is a bit a lane; after a subtraction it holds the borrow.
    pub(super) fn carry(&mut self, op: &Opcode, mask: u32, flag: &mut u32) {
        let out: u32;
        let old = *flag;
        let taken = |uses: bool, lane: usize| u64::from(uses && old >> lane & 1 != 0);
        let sets = match *op {
            Opcode::Carry32 {
                subtract,
                uses,
                sets,
                d,
                a,
                b,
            } => {
                let (a, b) = (self.w(a), self.w(b));
                let full: [u64; 32] = std::array::from_fn(|lane| {
                    let (a, b, c) = (u64::from(a[lane]), u64::from(b[lane]), taken(uses, lane));
                    if subtract {
                        a.wrapping_sub(b).wrapping_sub(c)
                    } else {
                        a + b + c
                    }
                });
                out = super::loops::bits(|lane| full[lane] >> 32 != 0);
                set_w!(self, d, mask, |lane| full[lane] as u32);
                sets
            }
            Opcode::CarryMad32 {
                half,
                uses,
                sets,
                d,
                a,
                b,
                c,
            } => {
                let (a, b, c) = (self.w(a), self.w(b), self.w(c));
                let full: [u64; 32] = std::array::from_fn(|lane| {
                    u64::from(high(half, a[lane], b[lane])) + u64::from(c[lane]) + taken(uses, lane)
                });
                out = super::loops::bits(|lane| full[lane] >> 32 != 0);
                set_w!(self, d, mask, |lane| full[lane] as u32);
                sets
            }
            Opcode::Carry64 {
                subtract,
                uses,
                sets,
                d,
                a,
                b,
            } => {
                let (a, b) = (self.d(a), self.d(b));
                let full: [(u64, bool); 32] = std::array::from_fn(|lane| {
                    let (a, b, c) = (
                        u128::from(a[lane]),
                        u128::from(b[lane]),
                        u128::from(taken(uses, lane)),
                    );
                    let value = if subtract {
                        a.wrapping_sub(b).wrapping_sub(c)
                    } else {
                        a + b + c
                    };
                    (value as u64, value >> 64 != 0)
                });
                out = super::loops::bits(|lane| full[lane].1);
                set_d!(self, d, mask, |lane| full[lane].0);
                sets
            }
            _ => unreachable!("`step` sends additions with a carry alone"),
        };
        if sets {
            *flag = old & !mask | out & mask;
        }
    }
}

/// Inactive lanes may hold anything; what they compute is thrown away.
#[inline(always)]
fn some(divisor: i32) -> i32 {
    if divisor == 0 { 1 } else { divisor }
}

#[inline(always)]
fn some64(divisor: i64) -> i64 {
    if divisor == 0 { 1 } else { divisor }
}

#[inline(always)]
fn high(half: Half, a: u32, b: u32) -> u32 {
    match half {
        Half::Low => a.wrapping_mul(b),
        Half::HighU => ((u64::from(a) * u64::from(b)) >> 32) as u32,
        Half::HighS => ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32,
    }
}

/// Place of the highest set bit, or how far it is from the top; all ones if there is none.
fn find(value: u64, bits: u32, shift: bool) -> u32 {
    if value == 0 {
        return u32::MAX;
    }
    let place = 63 - value.leading_zeros();
    if shift { bits - 1 - place } else { place }
}
