//! `cvt` between all widths of integers and floats.

use super::loops::{set_d, set_w, w1};
use super::warp::Registers;
use crate::half;
use crate::ir::{Finish, Opcode, Slot};
use crate::rounding::{self, F16, F32, F64, Format, Round, canonical32, flush32, saturate32};
use crate::types::Ty;

impl Registers {
    #[inline(always)]
    pub(super) fn convert(&mut self, op: &Opcode, mask: u32) {
        let Opcode::Convert {
            to,
            from,
            integral,
            finish,
            d,
            a,
            d_bits,
        } = *op
        else {
            unreachable!("`step` sends conversions alone");
        };
        let plain = finish == Finish::PLAIN && !integral;
        match (to, from, d, a) {
            (Ty::F32, Ty::F16, Slot::Word(d), Slot::Word(a)) if plain => {
                w1!(self, d, a, mask, |a| half::to_f32(a))
            }
            (Ty::F16, Ty::F32, Slot::Word(d), Slot::Word(a)) if plain => {
                w1!(self, d, a, mask, |a| half::from_f32(a))
            }
            (Ty::F32, Ty::Signed(32), Slot::Word(d), Slot::Word(a)) if plain => {
                w1!(self, d, a, mask, |a| (a as i32 as f32).to_bits());
            }
            (Ty::F32, Ty::Unsigned(32), Slot::Word(d), Slot::Word(a)) if plain => {
                w1!(self, d, a, mask, |a| (a as f32).to_bits());
            }
            (Ty::Unsigned(64), Ty::Unsigned(32), Slot::Wide(d), Slot::Word(a)) => {
                let a = self.w(a);
                set_d!(self, d, mask, |lane| u64::from(a[lane]));
            }
            (Ty::Signed(64), Ty::Signed(32), Slot::Wide(d), Slot::Word(a)) => {
                let a = self.w(a);
                set_d!(self, d, mask, |lane| i64::from(a[lane] as i32) as u64);
            }
            (Ty::Unsigned(32), Ty::Unsigned(64), Slot::Word(d), Slot::Wide(a)) if !finish.saturate => {
                let a = self.d(a);
                set_w!(self, d, mask, |lane| a[lane] as u32);
            }
            _ => self.convert_any(to, from, integral, finish, (d, d_bits, a), mask),
        }
    }

    fn convert_any(
        &mut self,
        to: Ty,
        from: Ty,
        integral: bool,
        finish: Finish,
        (d, d_bits, a): (Slot, u32, Slot),
        mask: u32,
    ) {
        let a = match a {
            Slot::Word(a) => self.w(a).map(u64::from),
            Slot::Wide(a) => self.d(a),
            Slot::Pred(_) => return,
        };
        let value = |lane: usize| convert(a[lane], to, from, integral, finish);
        match d {
            Slot::Word(d) => set_w!(self, d, mask, |lane| value(lane) as u32
                & u32::MAX >> (32 - d_bits)),
            Slot::Wide(d) => set_d!(self, d, mask, |lane| value(lane)),
            Slot::Pred(_) => {}
        }
    }
}

fn format(ty: Ty) -> Option<Format> {
    match ty {
        Ty::F16 => Some(F16),
        Ty::F32 => Some(F32),
        Ty::F64 => Some(F64),
        Ty::F16x2 | Ty::Pred | Ty::Bits(_) | Ty::Unsigned(_) | Ty::Signed(_) => None,
    }
}

fn low(value: u64, bits: u32) -> u64 {
    value & u64::MAX >> (64 - bits)
}

/// An integer of `bits` bits as 64.
fn extended(value: u64, ty: Ty) -> u64 {
    let shift = 64 - ty.bits();
    if ty.is_signed() {
        ((value << shift) as i64 >> shift) as u64
    } else {
        low(value, ty.bits())
    }
}

fn float(value: u64, ty: Ty) -> f64 {
    match ty {
        Ty::F16 => f64::from(f32::from_bits(half::to_f32(value as u32 & 0xffff))),
        Ty::F32 => f64::from(f32::from_bits(value as u32)),
        _ => f64::from_bits(value),
    }
}

/// One value; the result is extended to 64 bits by its own sign.
fn convert(value: u64, to: Ty, from: Ty, integral: bool, finish: Finish) -> u64 {
    let value = if finish.flush && from == Ty::F32 {
        u64::from(flush32(value as u32))
    } else {
        value
    };
    let result = match (format(to), format(from)) {
        (Some(format), Some(_)) => {
            let exact = float(value, from);
            let exact = if integral {
                rounding::integral(exact, finish.round)
            } else {
                exact
            };
            let round = if integral { Round::Nearest } else { finish.round };
            rounding::from_f64(exact, format, round)
        }
        (Some(format), None) => {
            rounding::from_integer(extended(value, from), from.is_signed(), format, finish.round)
        }
        (None, Some(_)) => {
            return rounding::to_integer(float(value, from), to.bits(), to.is_signed(), finish.round);
        }
        (None, None) => return integer(extended(value, from), to, from, finish.saturate),
    };
    match to {
        Ty::F32 => {
            let bits = canonical32(f32::from_bits(result as u32));
            let bits = if finish.flush { flush32(bits) } else { bits };
            u64::from(if finish.saturate { saturate32(bits) } else { bits })
        }
        Ty::F16 if finish.saturate => u64::from(half::saturate(result as u32)),
        Ty::F64 if finish.saturate => {
            let value = f64::from_bits(result);
            if value > 0.0 { value.min(1.0).to_bits() } else { 0 }
        }
        _ => result,
    }
}

fn integer(value: u64, to: Ty, from: Ty, saturate: bool) -> u64 {
    if !saturate {
        return extended(value, to);
    }
    let wide = if from.is_signed() {
        i128::from(value as i64)
    } else {
        i128::from(value)
    };
    let (least, most) = if to.is_signed() {
        (-(1_i128 << (to.bits() - 1)), (1_i128 << (to.bits() - 1)) - 1)
    } else {
        (0, (1_i128 << to.bits()) - 1)
    };
    wide.clamp(least, most) as u64
}
