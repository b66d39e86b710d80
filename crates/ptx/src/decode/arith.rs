//! Integer arithmetic, bit work, and the arithmetic that integers and floats share by name.

use super::{Decoded, Decoder, Ins};
use crate::PtxError;
use crate::ast::Operand;
use crate::counters::Pipe;
use crate::ir::{Bin, Count, FBin, Half, Opcode, PermuteMode, R, Shift, Slot, Un};
use crate::types::Ty;

const HALVES: [(&str, bool); 2] = [("lo", false), ("hi", true)];

impl<'t> Decoder<'_, 't> {
    pub(super) fn arithmetic(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        let name = ins.mods.name();
        let carry = ins.mods.take("cc");
        if carry || matches!(name, "addc" | "subc" | "madc") {
            return self.carry(ins, carry);
        }
        match name {
            "mul" | "mad" => {
                let wide = ins.mods.take("wide");
                let half = ins.mods.one_of(&HALVES);
                let ty = ins.mods.ty()?;
                if !ty.is_integer() {
                    return if name == "mul" {
                        self.float_bin(ins, ty, FBin::Mul)
                    } else {
                        self.float_fma(ins, ty)
                    };
                }
                match (wide, half) {
                    (true, None) => self.multiply_wide(ins, ty),
                    (false, Some(high)) => self.multiply(ins, ty, high),
                    _ => Err(self.error(format!("`{}` has no .lo, .hi or .wide", ins.mods.opcode()))),
                }
            }
            "fma" => {
                let ty = ins.mods.ty()?;
                self.float_fma(ins, ty)
            }
            "neg" | "abs" => {
                let ty = ins.mods.ty()?;
                match ty {
                    Ty::Signed(_) => self.unary(ins, ty, if name == "neg" { Un::Neg } else { Un::Abs }),
                    _ => self.float_sign(ins, ty, name == "neg"),
                }
            }
            _ => {
                let ty = ins.mods.ty()?;
                if !ty.is_integer() {
                    let strict = ins.mods.take("NaN");
                    let op = match name {
                        "add" => FBin::Add,
                        "sub" => FBin::Sub,
                        "min" => FBin::Min { strict },
                        _ => FBin::Max { strict },
                    };
                    return self.float_bin(ins, ty, op);
                }
                let saturate = ins.mods.take("sat");
                if saturate && ty != Ty::Signed(32) {
                    return Err(self.bad_type(ins, ty));
                }
                let op = match (name, ty.is_signed()) {
                    ("add", _) => {
                        if saturate {
                            Bin::AddSat
                        } else {
                            Bin::Add
                        }
                    }
                    ("sub", _) => {
                        if saturate {
                            Bin::SubSat
                        } else {
                            Bin::Sub
                        }
                    }
                    ("min", false) => Bin::MinU,
                    ("min", true) => Bin::MinS,
                    (_, false) => Bin::MaxU,
                    (_, true) => Bin::MaxS,
                };
                self.binary(ins, ty, op)
            }
        }
    }

    /// d, a, b of one width; `Int` or `IntWide`.
    pub(super) fn binary(&mut self, ins: &Ins<'_, 't>, ty: Ty, op: Bin) -> Decoded {
        let [d, a, b] = self.args(ins)?;
        Ok(match ty.bits() {
            64 => (
                Opcode::Bin64(op, self.dst_wide(d)?, self.wide(a)?, self.wide(b)?),
                Pipe::IntWide,
            ),
            32 => (
                Opcode::Bin32(op, self.dst_word(d, 32)?, self.word(a)?, self.word(b)?),
                Pipe::Int,
            ),
            16 => {
                let (a, b) = (self.word_of(a, 16)?, self.word_of(b, 16)?);
                (Opcode::Bin16(op, self.dst_word(d, 16)?, a, b), Pipe::Int)
            }
            _ => return Err(self.bad_type(ins, ty)),
        })
    }

    fn unary(&mut self, ins: &Ins<'_, 't>, ty: Ty, op: Un) -> Decoded {
        let [d, a] = self.args(ins)?;
        Ok(match ty.bits() {
            64 => (Opcode::Un64(op, self.dst_wide(d)?, self.wide(a)?), Pipe::IntWide),
            32 => (Opcode::Un32(op, self.dst_word(d, 32)?, self.word(a)?), Pipe::Int),
            16 => (
                Opcode::Un16(op, self.dst_word(d, 16)?, self.word_of(a, 16)?),
                Pipe::Int,
            ),
            _ => return Err(self.bad_type(ins, ty)),
        })
    }

    fn multiply(&mut self, ins: &mut Ins<'_, 't>, ty: Ty, high: bool) -> Decoded {
        let pipe = Pipe::IntMultiply;
        let half = match (high, ty.is_signed()) {
            (false, _) => Half::Low,
            (true, false) => Half::HighU,
            (true, true) => Half::HighS,
        };
        if ins.mods.name() == "mul" {
            let op = match half {
                Half::Low => Bin::Mul,
                Half::HighU => Bin::MulHighU,
                Half::HighS => Bin::MulHighS,
            };
            return Ok((self.binary(ins, ty, op)?.0, pipe));
        }
        let [d, a, b, c] = self.args(ins)?;
        let op = match ty.bits() {
            64 => {
                let (a, b, c) = (self.wide(a)?, self.wide(b)?, self.wide(c)?);
                Opcode::Mad64(half, self.dst_wide(d)?, a, b, c)
            }
            bits @ (16 | 32) => {
                let (a, b, c) = (
                    self.word_of(a, bits)?,
                    self.word_of(b, bits)?,
                    self.word_of(c, bits)?,
                );
                let d = self.dst_word(d, bits)?;
                if bits == 32 {
                    Opcode::Mad32(half, d, a, b, c)
                } else {
                    Opcode::Mad16(half, d, a, b, c)
                }
            }
            _ => return Err(self.bad_type(ins, ty)),
        };
        Ok((op, pipe))
    }

    fn multiply_wide(&mut self, ins: &Ins<'_, 't>, ty: Ty) -> Decoded {
        let (d, a, b, c) = match ins.operands {
            [d, a, b] => (d, a, b, None),
            [d, a, b, c] if ins.mods.name() == "mad" => (d, a, b, Some(c)),
            _ => return Err(self.error(format!("`{}` has a wrong number of operands", ins.mods.opcode()))),
        };
        let signed = ty.is_signed();
        let op = match ty.bits() {
            32 => {
                let (a, b) = (self.word(a)?, self.word(b)?);
                let c = c.map(|c| self.wide(c)).transpose()?;
                Opcode::MadWide32 {
                    signed,
                    d: self.dst_wide(d)?,
                    a,
                    b,
                    c,
                }
            }
            16 => {
                let (a, b) = (self.word_of(a, 16)?, self.word_of(b, 16)?);
                let c = c.map(|c| self.word(c)).transpose()?;
                Opcode::MadWide16 {
                    signed,
                    d: self.dst_word(d, 32)?,
                    a,
                    b,
                    c,
                }
            }
            _ => return Err(self.bad_type(ins, ty)),
        };
        Ok((op, Pipe::IntMultiply))
    }

    fn carry(&mut self, ins: &mut Ins<'_, 't>, sets: bool) -> Decoded {
        let name = ins.mods.name();
        let uses = name.ends_with('c');
        let high = ins.mods.one_of(&HALVES);
        let ty = ins.mods.ty()?;
        if let (Some(high), "mad" | "madc", 32) = (high, name, ty.bits()) {
            let half = match (high, ty.is_signed()) {
                (false, _) => Half::Low,
                (true, false) => Half::HighU,
                (true, true) => Half::HighS,
            };
            let [d, a, b, c] = self.args(ins)?;
            let (a, b, c) = (self.word(a)?, self.word(b)?, self.word(c)?);
            let d = self.dst_word(d, 32)?;
            return Ok((
                Opcode::CarryMad32 {
                    half,
                    uses,
                    sets,
                    d,
                    a,
                    b,
                    c,
                },
                Pipe::IntMultiply,
            ));
        }
        let subtract = name.starts_with("sub");
        if high.is_some() || !(subtract || name.starts_with("add")) {
            return Err(self.bad_type(ins, ty));
        }
        let [d, a, b] = self.args(ins)?;
        match ty.bits() {
            32 => {
                let (a, b) = (self.word(a)?, self.word(b)?);
                Ok((
                    Opcode::Carry32 {
                        subtract,
                        uses,
                        sets,
                        d: self.dst_word(d, 32)?,
                        a,
                        b,
                    },
                    Pipe::Int,
                ))
            }
            64 => {
                let (a, b) = (self.wide(a)?, self.wide(b)?);
                Ok((
                    Opcode::Carry64 {
                        subtract,
                        uses,
                        sets,
                        d: self.dst_wide(d)?,
                        a,
                        b,
                    },
                    Pipe::IntWide,
                ))
            }
            _ => Err(self.bad_type(ins, ty)),
        }
    }

    pub(super) fn bits(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        match ins.mods.name() {
            name @ ("and" | "or" | "xor") => self.logic(ins, name),
            "not" | "cnot" | "brev" => {
                let ty = ins.mods.ty()?;
                if ty == Ty::Pred {
                    return self.not_pred(ins);
                }
                let op = match ins.mods.name() {
                    "not" => Un::Not,
                    "cnot" => Un::Cnot,
                    _ => Un::Reverse,
                };
                let (decoded, pipe) = self.unary(ins, ty, op)?;
                Ok((decoded, if op == Un::Reverse { Pipe::Convert } else { pipe }))
            }
            "shl" | "shr" => self.shift(ins),
            "lop3" | "prmt" | "shf" => self.three(ins),
            "bfe" | "bfi" => self.field(ins),
            "dp4a" | "dp2a" => self.dot(ins),
            _ => self.count(ins),
        }
    }

    fn logic(&mut self, ins: &mut Ins<'_, 't>, name: &str) -> Decoded {
        let ty = ins.mods.ty()?;
        if ty == Ty::Pred {
            let op = super::move_ops::LOGIC
                .iter()
                .find(|(known, _)| *known == name)
                .expect("and, or, xor")
                .1;
            let [d, a, b] = self.args(ins)?;
            let (a, b) = (self.pred(a)?, self.pred(b)?);
            if a.1 || b.1 {
                return Err(self.error("a negated predicate is not allowed here"));
            }
            let d = self.pred_written(d)?;
            return Ok((Opcode::Logic(op, d, a.0, b.0), Pipe::Int));
        }
        if !matches!(ty, Ty::Bits(_)) {
            return Err(self.bad_type(ins, ty));
        }
        let op = match name {
            "and" => Bin::And,
            "or" => Bin::Or,
            _ => Bin::Xor,
        };
        self.binary(ins, ty, op)
    }

    fn not_pred(&mut self, ins: &Ins<'_, 't>) -> Decoded {
        let [d, a] = self.args(ins)?;
        let (a, negated) = self.pred(a)?;
        let d = self.pred_written(d)?;
        Ok((Opcode::MovPred(d, a, !negated), Pipe::Int))
    }

    fn shift(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        let left = ins.mods.name() == "shl";
        let ty = ins.mods.ty()?;
        let op = match (left, ty.is_signed()) {
            (true, _) => Shift::Left,
            (false, false) => Shift::RightU,
            (false, true) => Shift::RightS,
        };
        let [d, a, b] = self.args(ins)?;
        Ok(match ty.bits() {
            64 => {
                let (a, b) = (self.wide(a)?, self.word(b)?);
                (Opcode::Shift64(op, self.dst_wide(d)?, a, b), Pipe::IntWide)
            }
            32 => {
                let (a, b) = (self.word(a)?, self.word(b)?);
                (Opcode::Shift32(op, self.dst_word(d, 32)?, a, b), Pipe::Int)
            }
            16 => {
                let (a, b) = (self.word_of(a, 16)?, self.word(b)?);
                (Opcode::Shift16(op, self.dst_word(d, 16)?, a, b), Pipe::Int)
            }
            _ => return Err(self.bad_type(ins, ty)),
        })
    }

    fn three(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        let name = ins.mods.name();
        let mode = ins.mods.one_of(&[
            ("f4e", PermuteMode::ForwardFour),
            ("b4e", PermuteMode::BackwardFour),
            ("rc8", PermuteMode::Replicate8),
            ("ecl", PermuteMode::EdgeLeft),
            ("ecr", PermuteMode::EdgeRight),
            ("rc16", PermuteMode::Replicate16),
        ]);
        let left = ins.mods.one_of(&[("l", true), ("r", false)]);
        let clamp = ins.mods.one_of(&[("clamp", true), ("wrap", false)]);
        let ty = ins.mods.ty()?;
        if ty != Ty::Bits(32) {
            return Err(self.bad_type(ins, ty));
        }
        let (d, a, b, c, table) = match ins.operands {
            [d, a, b, c] if name != "lop3" => (d, a, b, c, 0),
            [d, a, b, c, Operand::Int(table @ 0..=255)] if name == "lop3" => (d, a, b, c, *table as u8),
            _ => return Err(self.error(format!("`{}` has wrong operands", ins.mods.opcode()))),
        };
        let (a, b, c) = (self.word(a)?, self.word(b)?, self.word(c)?);
        let d = self.dst_word(d, 32)?;
        let op = match (name, left, clamp) {
            ("lop3", None, None) if mode.is_none() => Opcode::Lop3 { d, a, b, c, table },
            ("prmt", None, None) => Opcode::Permute {
                mode: mode.unwrap_or(PermuteMode::Index),
                d,
                a,
                b,
                c,
            },
            ("shf", Some(left), Some(clamp)) if mode.is_none() => Opcode::Funnel {
                left,
                clamp,
                d,
                a,
                b,
                c,
            },
            _ => return Err(ins.mods.unknown()),
        };
        Ok((op, Pipe::Int))
    }

    fn field(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        let ty = ins.mods.ty()?;
        let signed = ty.is_signed();
        let insert = ins.mods.name() == "bfi";
        let (d, a, b, at, count) = match ins.operands {
            [d, a, at, count] if !insert => (d, a, None, at, count),
            [d, a, b, at, count] if insert => (d, a, Some(b), at, count),
            _ => return Err(self.error(format!("`{}` has a wrong number of operands", ins.mods.opcode()))),
        };
        let (at, count) = (self.word(at)?, self.word(count)?);
        let op = match (ty.bits(), b) {
            (32, None) => {
                let a = self.word(a)?;
                Opcode::Extract32 {
                    signed,
                    d: self.dst_word(d, 32)?,
                    a,
                    at,
                    count,
                }
            }
            (32, Some(b)) => {
                let (a, b) = (self.word(a)?, self.word(b)?);
                Opcode::Insert32 {
                    d: self.dst_word(d, 32)?,
                    a,
                    b,
                    at,
                    count,
                }
            }
            (64, None) => {
                let a = self.wide(a)?;
                Opcode::Extract64 {
                    signed,
                    d: self.dst_wide(d)?,
                    a,
                    at,
                    count,
                }
            }
            (64, Some(b)) => {
                let (a, b) = (self.wide(a)?, self.wide(b)?);
                Opcode::Insert64 {
                    d: self.dst_wide(d)?,
                    a,
                    b,
                    at,
                    count,
                }
            }
            _ => return Err(self.bad_type(ins, ty)),
        };
        Ok((op, if ty.bits() == 64 { Pipe::IntWide } else { Pipe::Int }))
    }

    fn dot(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        let high = ins.mods.one_of(&HALVES);
        let (a_ty, b_ty) = (ins.mods.ty()?, ins.mods.ty()?);
        if a_ty.bits() != 32 || b_ty.bits() != 32 {
            return Err(self.bad_type(ins, a_ty));
        }
        let (a_signed, b_signed) = (a_ty.is_signed(), b_ty.is_signed());
        let [d, a, b, c] = self.args(ins)?;
        let (a, b, c) = (self.word(a)?, self.word(b)?, self.word(c)?);
        let d = self.dst_word(d, 32)?;
        let op = match (ins.mods.name(), high) {
            ("dp4a", None) => Opcode::Dot4 {
                a_signed,
                b_signed,
                d,
                a,
                b,
                c,
            },
            ("dp2a", Some(high)) => Opcode::Dot2 {
                a_signed,
                b_signed,
                high,
                d,
                a,
                b,
                c,
            },
            _ => return Err(ins.mods.unknown()),
        };
        Ok((op, Pipe::IntMultiply))
    }

    fn count(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        let shift = ins.mods.take("shiftamt");
        let ty = ins.mods.ty()?;
        let op = match ins.mods.name() {
            "popc" if !shift => Count::Ones,
            "clz" if !shift => Count::LeadingZeros,
            "bfind" => Count::Find {
                signed: ty.is_signed(),
                shift,
            },
            _ => return Err(ins.mods.unknown()),
        };
        let [d, a] = self.args(ins)?;
        let op = match ty.bits() {
            32 => {
                let a = self.word(a)?;
                Opcode::Count32(op, self.dst_word(d, 32)?, a)
            }
            64 => {
                let a = self.wide(a)?;
                Opcode::Count64(op, self.dst_word(d, 32)?, a)
            }
            _ => return Err(self.bad_type(ins, ty)),
        };
        Ok((op, Pipe::Convert))
    }

    pub(super) fn pred_written(&mut self, operand: &Operand<'t>) -> Result<crate::ir::P, PtxError> {
        match self.dst(operand, 1)? {
            Slot::Pred(pred) => Ok(pred),
            _ => Err(self.error("a predicate is expected")),
        }
    }

    /// The two registers of `{a, b}` as sources.
    pub(super) fn word_list(
        &mut self,
        operand: &Operand<'t>,
        count: usize,
        bits: u32,
    ) -> Result<Vec<R>, PtxError> {
        match operand {
            Operand::Vector(list) if list.len() == count => {
                list.iter().map(|item| self.word_of(item, bits)).collect()
            }
            _ => Err(self.error(format!(
                "{operand:?} stands where {count} registers in braces are expected"
            ))),
        }
    }
}
