//! Moves, selections, comparisons, conversions.

use super::{Decoded, Decoder, Ins};
use crate::PtxError;
use crate::ast::Operand;
use crate::counters::Pipe;
use crate::exec::windows;
use crate::ir::{Bin, Cmp, Compare, CompareOut, Finish, Logic, Opcode, Preset, R, SetAs, Slot};
use crate::rounding::Round;
use crate::types::{Space, Ty};

pub(super) const LOGIC: [(&str, Logic); 3] = [("and", Logic::And), ("or", Logic::Or), ("xor", Logic::Xor)];

const COMPARISONS: [(&str, Cmp); 18] = [
    ("eq", Cmp::Eq),
    ("ne", Cmp::Ne),
    ("lt", Cmp::Lt),
    ("le", Cmp::Le),
    ("gt", Cmp::Gt),
    ("ge", Cmp::Ge),
    ("lo", Cmp::Lt),
    ("ls", Cmp::Le),
    ("hi", Cmp::Gt),
    ("hs", Cmp::Ge),
    ("equ", Cmp::Equ),
    ("neu", Cmp::Neu),
    ("ltu", Cmp::Ltu),
    ("leu", Cmp::Leu),
    ("gtu", Cmp::Gtu),
    ("geu", Cmp::Geu),
    ("num", Cmp::Num),
    ("nan", Cmp::Nan),
];

pub(super) const SPACES: [(&str, Space); 8] = [
    ("global", Space::Global),
    ("shared", Space::Shared),
    ("shared::cta", Space::Shared),
    ("local", Space::Local),
    ("const", Space::Const),
    ("param", Space::Param),
    ("param::entry", Space::Param),
    ("param::func", Space::Param),
];

impl<'t> Decoder<'_, 't> {
    pub(super) fn moves(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        match ins.mods.name() {
            "mov" => self.mov(ins),
            "selp" => {
                let ty = ins.mods.ty()?;
                let [d, a, b, p] = self.args(ins)?;
                let (p, negated) = self.pred(p)?;
                if ty.bits() == 64 {
                    let (a, b) = (self.wide(a)?, self.wide(b)?);
                    return Ok((
                        Opcode::Select64(self.dst_wide(d)?, a, b, p, negated),
                        Pipe::IntWide,
                    ));
                }
                let (a, b) = (self.word_of(a, ty.bits())?, self.word_of(b, ty.bits())?);
                Ok((
                    Opcode::Select32(self.dst_word(d, ty.bits())?, a, b, p, negated),
                    Pipe::Int,
                ))
            }
            "setp" | "set" => self.compare(ins),
            "cvt" => self.convert(ins),
            "cvta" => self.cvta(ins),
            _ => {
                let space = ins.mods.one_of(&SPACES).ok_or_else(|| ins.mods.unknown())?;
                let [d, a] = self.args(ins)?;
                let a = self.wide(a)?;
                Ok((Opcode::IsSpace(space, self.pred_written(d)?, a), Pipe::Int))
            }
        }
    }

    fn mov(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        let ty = ins.mods.ty()?;
        let [d, a] = self.args(ins)?;
        let op = match (d, a) {
            (Operand::Vector(list), a) => self.unpack(ty, list, a)?,
            (d, Operand::Vector(list)) => self.pack(ty, d, list)?,
            _ if ty == Ty::Pred => {
                let (a, negated) = self.pred(a)?;
                let d = self.pred_written(d)?;
                return Ok((Opcode::MovPred(d, a, negated), Pipe::Int));
            }
            _ if ty.bits() == 64 => {
                let a = self.wide(a)?;
                Opcode::Mov64(self.dst_wide(d)?, a)
            }
            _ => {
                let a = self.word_of(a, ty.bits())?;
                Opcode::Mov32(self.dst_word(d, ty.bits())?, a)
            }
        };
        Ok((op, Pipe::Move))
    }

    fn pack(&mut self, ty: Ty, d: &Operand<'t>, list: &[Operand<'t>]) -> Result<Opcode, PtxError> {
        let bits = ty.bits() / list.len().max(1) as u32;
        let mut slots = Vec::new();
        for item in list {
            slots.push(self.word_of(item, bits)?);
        }
        Ok(match (ty.bits(), slots.as_slice()) {
            (32, [low, high]) => Opcode::Pack16(self.dst_word(d, 32)?, *low, *high),
            (64, [low, high]) => Opcode::Pack32(self.dst_wide(d)?, *low, *high),
            (64, [a, b, c, e]) => Opcode::Pack4x16(self.dst_wide(d)?, [*a, *b, *c, *e]),
            _ => return Err(self.error("a vector of these sizes does not fit the destination")),
        })
    }

    fn unpack(&mut self, ty: Ty, list: &[Operand<'t>], a: &Operand<'t>) -> Result<Opcode, PtxError> {
        let bits = ty.bits() / list.len().max(1) as u32;
        let mut slots: Vec<Option<R>> = Vec::new();
        for item in list {
            slots.push(if *item == Operand::Word("_") {
                None
            } else {
                Some(self.dst_word(item, bits)?)
            });
        }
        Ok(match (ty.bits(), slots.as_slice()) {
            (32, [low, high]) => Opcode::Unpack16(*low, *high, self.word(a)?),
            (64, [low, high]) => Opcode::Unpack32(*low, *high, self.wide(a)?),
            (64, [a0, a1, a2, a3]) => Opcode::Unpack4x16([*a0, *a1, *a2, *a3], self.wide(a)?),
            _ => return Err(self.error("a vector of these sizes does not fit the source")),
        })
    }

    fn compare(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        let set = ins.mods.name() == "set";
        let cmp = ins.mods.one_of(&COMPARISONS).ok_or_else(|| ins.mods.unknown())?;
        let logic = ins.mods.one_of(&LOGIC);
        let flush = ins.mods.take("ftz");
        let result = if set { Some(ins.mods.ty()?) } else { None };
        let ty = ins.mods.ty()?;
        let plain = matches!(cmp, Cmp::Eq | Cmp::Ne | Cmp::Lt | Cmp::Le | Cmp::Gt | Cmp::Ge);
        if ty == Ty::Pred || ty.bits() == 8 || ty.is_integer() && !plain {
            return Err(self.bad_type(ins, ty));
        }
        let (d, a, b, c) = match (ins.operands, logic) {
            ([d, a, b], None) => (d, a, b, None),
            ([d, a, b, c], Some(logic)) => (d, a, b, Some((logic, c))),
            _ => return Err(self.error(format!("`{}` has a wrong number of operands", ins.mods.opcode()))),
        };
        let (a, b) = (self.src(a, ty.bits())?, self.src(b, ty.bits())?);
        let combine = match c {
            Some((logic, c)) => {
                let (p, negated) = self.pred(c)?;
                Some((logic, p, negated))
            }
            None => None,
        };
        let out = match (result, d) {
            (None, Operand::Word(p)) if ty != Ty::F16x2 => CompareOut::Preds(self.dst_pred(p)?, None),
            (None, Operand::Pair(p, q)) => CompareOut::Preds(self.dst_pred(p)?, self.dst_pred(q)?),
            (Some(Ty::F32), d) => CompareOut::Word(self.dst_word(d, 32)?, SetAs::F32),
            (Some(Ty::F16), d) => CompareOut::Word(self.dst_word(d, 16)?, SetAs::F16),
            (Some(Ty::F16x2), d) if ty == Ty::F16x2 => CompareOut::Word(self.dst_word(d, 32)?, SetAs::F16x2),
            (Some(to @ (Ty::Unsigned(16 | 32) | Ty::Signed(16 | 32))), d) => {
                CompareOut::Word(self.dst_word(d, to.bits())?, SetAs::Ones(to.bits()))
            }
            _ => return Err(self.error(format!("`{}` cannot write {d:?}", ins.mods.opcode()))),
        };
        let pipe = match ty {
            Ty::F16 | Ty::F16x2 => Pipe::Fp16,
            Ty::F64 => Pipe::Fp64,
            _ if ty.bits() == 64 => Pipe::IntWide,
            _ => Pipe::Int,
        };
        Ok((
            Opcode::Compare(Box::new(Compare {
                ty,
                cmp,
                flush,
                a,
                b,
                combine,
                out,
            })),
            pipe,
        ))
    }

    fn convert(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        let integral = ins.mods.one_of(&[
            ("rni", Round::Nearest),
            ("rzi", Round::Zero),
            ("rmi", Round::Down),
            ("rpi", Round::Up),
        ]);
        let round = ins.mods.round();
        let (flush, saturate) = (ins.mods.take("ftz"), ins.mods.take("sat"));
        let (to, from) = (ins.mods.ty()?, ins.mods.ty()?);
        let float = |ty: Ty| matches!(ty, Ty::F16 | Ty::F32 | Ty::F64);
        if !(float(to) || to.is_integer()) || !(float(from) || from.is_integer()) {
            return Err(self.bad_type(ins, to));
        }
        let narrows = float(to) && (!float(from) || to.bits() < from.bits());
        let allowed = match (integral, round) {
            // To an integer, or to one in the same float format.
            (Some(_), None) => float(from) && (!float(to) || to == from),
            (None, Some(_)) => narrows,
            (None, None) => !narrows && (float(to) || !float(from)),
            (Some(_), Some(_)) => false,
        };
        if !allowed {
            return Err(self.error(format!("`{}`: wrong rounding for these types", ins.mods.opcode())));
        }
        let [d, a] = self.args(ins)?;
        let (a, a_bits) = self.src_any(a, from.bits())?;
        let (d, d_bits) = self.dst_any(d)?;
        let exact = |ty: Ty, bits: u32| {
            if ty.is_integer() {
                bits >= ty.bits()
            } else {
                bits == ty.bits()
            }
        };
        if !exact(from, a_bits)
            || !exact(to, d_bits)
            || matches!(d, Slot::Pred(_))
            || matches!(a, Slot::Pred(_))
        {
            return Err(self.error(format!(
                "`{}`: a register's width does not fit",
                ins.mods.opcode()
            )));
        }
        let finish = Finish {
            round: integral.or(round).unwrap_or(Round::Nearest),
            flush,
            saturate,
        };
        let pipe = match (float(to), float(from)) {
            (false, false) if to.bits().max(from.bits()) == 64 || to.bits() == from.bits() => Pipe::Move,
            (false, false) => Pipe::Int,
            (true, true) if from == Ty::F16 && to == Ty::F32 => Pipe::Fp16,
            (true, true) if to == from && integral.is_none() => Pipe::Fp32,
            _ => Pipe::Convert,
        };
        Ok((
            Opcode::Convert {
                to,
                from,
                integral: integral.is_some(),
                finish,
                d,
                a,
                d_bits,
            },
            pipe,
        ))
    }

    /// Generic addresses are those of global memory; the other spaces are windows above it.
    fn cvta(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        let to = ins.mods.take("to");
        let space = ins.mods.one_of(&SPACES).ok_or_else(|| ins.mods.unknown())?;
        let ty = ins.mods.ty()?;
        if ty != Ty::Unsigned(64) || space == Space::Param {
            return Err(self.bad_type(ins, ty));
        }
        let [d, a] = self.args(ins)?;
        let a = self.wide(a)?;
        let d = self.dst_wide(d)?;
        let base = windows::base(space);
        if base == 0 {
            return Ok((Opcode::Mov64(d, a), Pipe::Move));
        }
        let base = match self.preset(true, Preset::Bits(base)) {
            Slot::Wide(slot) => slot,
            _ => return Err(self.error("a wide preset has a wide slot")),
        };
        Ok((
            Opcode::Bin64(if to { Bin::Sub } else { Bin::Add }, d, a, base),
            Pipe::Move,
        ))
    }
}
