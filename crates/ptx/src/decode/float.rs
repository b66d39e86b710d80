//! Float arithmetic: f32 with every rounding, f64 and halves to nearest.

use super::{Decoded, Decoder, Ins};
use crate::PtxError;
use crate::counters::Pipe;
use crate::ir::{Approx, Bin, FBin, FUn, Finish, Opcode, Test};
use crate::rounding::Round;
use crate::types::Ty;

impl<'t> Decoder<'_, 't> {
    fn finish_of(&mut self, ins: &mut Ins<'_, 't>) -> Finish {
        let round = ins.mods.round().unwrap_or(Round::Nearest);
        Finish {
            round,
            flush: ins.mods.take("ftz"),
            saturate: ins.mods.take("sat"),
        }
    }

    /// f64 and halves know no other direction here, and f64 no flush and no saturation.
    fn nearest_only(&self, ins: &Ins<'_, 't>, finish: Finish, plain: bool) -> Result<(), PtxError> {
        let extra = plain && (finish.flush || finish.saturate);
        if finish.round != Round::Nearest || extra {
            return Err(self.error(format!(
                "`{}`: a rounding or modifier that this type does not take",
                ins.mods.opcode()
            )));
        }
        Ok(())
    }

    pub(super) fn float_bin(&mut self, ins: &mut Ins<'_, 't>, ty: Ty, op: FBin) -> Decoded {
        let finish = self.finish_of(ins);
        let [d, a, b] = self.args(ins)?;
        let extreme = matches!(op, FBin::Min { .. } | FBin::Max { .. });
        Ok(match ty {
            Ty::F32 => {
                let (a, b) = (self.word(a)?, self.word(b)?);
                let pipe = if extreme { Pipe::Int } else { Pipe::Fp32 };
                (Opcode::F32Bin(op, finish, self.dst_word(d, 32)?, a, b), pipe)
            }
            Ty::F64 => {
                self.nearest_only(ins, finish, true)?;
                let (a, b) = (self.wide(a)?, self.wide(b)?);
                (Opcode::F64Bin(op, self.dst_wide(d)?, a, b), Pipe::Fp64)
            }
            Ty::F16 | Ty::F16x2 => {
                self.nearest_only(ins, finish, false)?;
                let (a, b) = (self.word_of(a, ty.bits())?, self.word_of(b, ty.bits())?);
                let d = self.dst_word(d, ty.bits())?;
                let (flush, saturate) = (finish.flush, finish.saturate);
                (
                    Opcode::HalfBin {
                        op,
                        pairs: ty == Ty::F16x2,
                        flush,
                        saturate,
                        d,
                        a,
                        b,
                    },
                    Pipe::Fp16,
                )
            }
            _ => return Err(self.bad_type(ins, ty)),
        })
    }

    pub(super) fn float_fma(&mut self, ins: &mut Ins<'_, 't>, ty: Ty) -> Decoded {
        let finish = self.finish_of(ins);
        let relu = ins.mods.take("relu");
        let [d, a, b, c] = self.args(ins)?;
        Ok(match ty {
            Ty::F32 if !relu => {
                let (a, b, c) = (self.word(a)?, self.word(b)?, self.word(c)?);
                (Opcode::F32Fma(finish, self.dst_word(d, 32)?, a, b, c), Pipe::Fp32)
            }
            Ty::F64 if !relu => {
                self.nearest_only(ins, finish, true)?;
                let (a, b, c) = (self.wide(a)?, self.wide(b)?, self.wide(c)?);
                (Opcode::F64Fma(self.dst_wide(d)?, a, b, c), Pipe::Fp64)
            }
            Ty::F16 | Ty::F16x2 => {
                self.nearest_only(ins, finish, false)?;
                let bits = ty.bits();
                let (a, b, c) = (
                    self.word_of(a, bits)?,
                    self.word_of(b, bits)?,
                    self.word_of(c, bits)?,
                );
                let d = self.dst_word(d, bits)?;
                let (flush, saturate) = (finish.flush, finish.saturate);
                (
                    Opcode::HalfFma {
                        pairs: ty == Ty::F16x2,
                        flush,
                        saturate,
                        relu,
                        d,
                        a,
                        b,
                        c,
                    },
                    Pipe::Fp16,
                )
            }
            _ => return Err(self.bad_type(ins, ty)),
        })
    }

    /// `neg` and `abs` of floats.
    pub(super) fn float_sign(&mut self, ins: &mut Ins<'_, 't>, ty: Ty, negate: bool) -> Decoded {
        let op = if negate { FUn::Neg } else { FUn::Abs };
        self.float_unary(ins, ty, op, Pipe::Fp32)
    }

    fn float_unary(&mut self, ins: &mut Ins<'_, 't>, ty: Ty, op: FUn, pipe: Pipe) -> Decoded {
        let finish = self.finish_of(ins);
        let [d, a] = self.args(ins)?;
        Ok(match ty {
            Ty::F32 => {
                self.nearest_only(ins, finish, false)?;
                let a = self.word(a)?;
                (Opcode::F32Un(op, finish, self.dst_word(d, 32)?, a), pipe)
            }
            Ty::F64 => {
                self.nearest_only(ins, finish, true)?;
                let a = self.wide(a)?;
                (
                    Opcode::F64Un(op, self.dst_wide(d)?, a),
                    if pipe == Pipe::Fp32 { Pipe::Fp64 } else { pipe },
                )
            }
            Ty::F16 | Ty::F16x2 if matches!(op, FUn::Neg | FUn::Abs) => {
                self.nearest_only(ins, finish, true)?;
                let a = self.word_of(a, ty.bits())?;
                (
                    Opcode::HalfUn {
                        op,
                        pairs: ty == Ty::F16x2,
                        d: self.dst_word(d, ty.bits())?,
                        a,
                    },
                    Pipe::Fp16,
                )
            }
            _ => return Err(self.bad_type(ins, ty)),
        })
    }

    pub(super) fn function_of_float(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        let name = ins.mods.name();
        let approximate = ins.mods.take("approx") | ins.mods.take("full");
        let test = ins.mods.one_of(&[
            ("finite", Test::Finite),
            ("infinite", Test::Infinite),
            ("number", Test::Number),
            ("notanumber", Test::NotANumber),
            ("normal", Test::Normal),
            ("subnormal", Test::Subnormal),
        ]);
        let ty = ins.mods.ty()?;
        if approximate {
            return self.approximate(ins, ty);
        }
        match (name, test) {
            ("div", None) if ty.is_integer() => {
                let op = if ty.is_signed() { Bin::DivS } else { Bin::DivU };
                Ok((self.binary(ins, ty, op)?.0, Pipe::Sequence))
            }
            ("rem", None) if ty.is_integer() => {
                let op = if ty.is_signed() { Bin::RemS } else { Bin::RemU };
                Ok((self.binary(ins, ty, op)?.0, Pipe::Sequence))
            }
            ("div", None) if matches!(ty, Ty::F32 | Ty::F64) => {
                let (op, _) = self.float_bin(ins, ty, FBin::Div)?;
                if let Opcode::F32Bin(_, finish, ..) = &op {
                    self.nearest_only(ins, *finish, false)?;
                }
                Ok((op, Pipe::Sequence))
            }
            ("sqrt", None) => self.float_unary(ins, ty, FUn::Sqrt, Pipe::Sequence),
            ("rcp", None) => self.float_unary(ins, ty, FUn::Reciprocal, Pipe::Sequence),
            ("copysign", None) => {
                // The first operand gives the sign.
                let [d, a, b] = self.args(ins)?;
                match ty {
                    Ty::F32 => {
                        let (a, b) = (self.word(a)?, self.word(b)?);
                        let d = self.dst_word(d, 32)?;
                        Ok((Opcode::F32Bin(FBin::Copysign, Finish::PLAIN, d, b, a), Pipe::Int))
                    }
                    Ty::F64 => {
                        let (a, b) = (self.wide(a)?, self.wide(b)?);
                        let d = self.dst_wide(d)?;
                        Ok((Opcode::F64Bin(FBin::Copysign, d, b, a), Pipe::IntWide))
                    }
                    _ => Err(self.bad_type(ins, ty)),
                }
            }
            ("testp", Some(test)) if matches!(ty, Ty::F32 | Ty::F64) => {
                let [d, a] = self.args(ins)?;
                let a = self.src(a, ty.bits())?;
                Ok((
                    Opcode::TestFinite {
                        ty,
                        test,
                        d: self.pred_written(d)?,
                        a,
                    },
                    Pipe::Int,
                ))
            }
            _ => Err(ins.mods.unknown()),
        }
    }

    fn approximate(&mut self, ins: &mut Ins<'_, 't>, ty: Ty) -> Decoded {
        if ty != Ty::F32 {
            return Err(self.bad_type(ins, ty));
        }
        let fun = match ins.mods.name() {
            "ex2" => Approx::Exp2,
            "lg2" => Approx::Log2,
            "sin" => Approx::Sin,
            "cos" => Approx::Cos,
            "tanh" => Approx::Tanh,
            "rcp" => Approx::Reciprocal,
            "sqrt" => Approx::Sqrt,
            "rsqrt" => Approx::ReciprocalSqrt,
            "div" => Approx::Divide,
            _ => return Err(ins.mods.unknown()),
        };
        let flush = ins.mods.take("ftz");
        let (d, a, b) = match ins.operands {
            [d, a] if fun != Approx::Divide => (d, a, None),
            [d, a, b] if fun == Approx::Divide => (d, a, Some(b)),
            _ => return Err(self.error(format!("`{}` has a wrong number of operands", ins.mods.opcode()))),
        };
        let a = self.word(a)?;
        let b = b.map(|b| self.word(b)).transpose()?;
        Ok((
            Opcode::Approximate {
                fun,
                flush,
                d: self.dst_word(d, 32)?,
                a,
                b,
            },
            Pipe::Special,
        ))
    }
}
