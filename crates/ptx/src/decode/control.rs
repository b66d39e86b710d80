//! Branches, calls, barriers, and what a warp does together.

use super::{Decoded, Decoder, Ins, Pending, Symbol};
use crate::PtxError;
use crate::ast::Operand;
use crate::counters::Pipe;
use crate::ir::{Barrier, Call, Formal, Mma, Opcode, R, Reduce, Shuffle, ShuffleMode, Slot, VoteMode};
use crate::types::Ty;

const TABLE_TARGETS_MAX: u64 = 4096;

impl<'t> Decoder<'_, 't> {
    pub(super) fn control(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        let op = match ins.mods.name() {
            "bra" => self.branch(ins)?,
            "brx" => self.table(ins)?,
            "call" => self.call(ins)?,
            "ret" | "exit" | "trap" => {
                ins.mods.ignore(&["uni"]);
                let [] = self.args(ins)?;
                match ins.mods.name() {
                    "ret" if self.function.entry => Opcode::Exit,
                    "ret" => Opcode::Return,
                    "exit" => Opcode::Exit,
                    _ => Opcode::Trap,
                }
            }
            "nanosleep" => {
                ins.mods.ty()?;
                let [time] = self.args(ins)?;
                self.word(time)?;
                Opcode::Nop
            }
            "bar" | "barrier" => self.barrier(ins)?,
            "shfl" => return Ok((self.shuffle(ins)?, Pipe::Shuffle)),
            "vote" => self.vote(ins)?,
            "match" => return Ok((self.match_any(ins)?, Pipe::Shuffle)),
            "activemask" => {
                ins.mods.ty()?;
                let [d] = self.args(ins)?;
                Opcode::ActiveMask(self.dst_word(d, 32)?)
            }
            "mma" => return Ok((self.mma(ins)?, Pipe::Tensor)),
            _ => return Err(ins.mods.unknown()),
        };
        Ok((op, Pipe::Control))
    }

    fn later(&mut self, label: &'t str, entry: usize) {
        let scopes = self.scopes.iter().rev().map(|scope| scope.id).collect();
        let (instr, line) = (self.function.code.len(), self.line);
        self.pending.push(Pending {
            instr,
            entry,
            label,
            scopes,
            line,
        });
    }

    fn branch(&mut self, ins: &mut Ins<'_, 't>) -> Result<Opcode, PtxError> {
        ins.mods.ignore(&["uni"]);
        let [Operand::Word(label)] = self.args(ins)? else {
            return Err(self.error("a label is expected"));
        };
        self.later(label, 0);
        Ok(Opcode::Branch {
            target: 0,
            rejoin: u32::MAX,
        })
    }

    fn table(&mut self, ins: &mut Ins<'_, 't>) -> Result<Opcode, PtxError> {
        ins.mods.ignore(&["uni"]);
        let ([index, Operand::Word(label)], true) = (self.args(ins)?, ins.mods.take("idx")) else {
            return Err(ins.mods.unknown());
        };
        let index = self.word(index)?;
        let Some(targets) = self.tables.get(label).cloned() else {
            return Err(self.unknown(label));
        };
        super::limit(
            self.line,
            "the number of branch targets",
            targets.len() as u64,
            TABLE_TARGETS_MAX,
        )?;
        for (entry, target) in targets.iter().enumerate() {
            self.later(target, entry);
        }
        Ok(Opcode::Table {
            index,
            targets: vec![0; targets.len()].into(),
            rejoin: u32::MAX,
        })
    }

    fn call(&mut self, ins: &mut Ins<'_, 't>) -> Result<Opcode, PtxError> {
        ins.mods.ignore(&["uni"]);
        let none: &[Operand<'t>] = &[];
        let (results, name, arguments) = match ins.operands {
            [
                Operand::Group(results),
                Operand::Word(name),
                Operand::Group(arguments),
            ] => (results.as_slice(), name, arguments.as_slice()),
            [Operand::Group(results), Operand::Word(name)] => (results.as_slice(), name, none),
            [Operand::Word(name), Operand::Group(arguments)] => (none, name, arguments.as_slice()),
            [Operand::Word(name)] => (none, name, none),
            _ => return Err(self.error("a call of a function by its name is expected")),
        };
        let Some(function) = self.outer.functions.get(name).copied() else {
            return Err(self.unknown(name));
        };
        let (returned, formals) = &self.outer.formals[function];
        let (results, arguments) = (self.passed(results, returned)?, self.passed(arguments, formals)?);
        self.function.calls.push(function);
        Ok(Opcode::Call(Box::new(Call {
            function,
            arguments,
            results,
        })))
    }

    /// Where each passed parameter lies here and in the function called.
    fn passed(
        &mut self,
        given: &[Operand<'t>],
        formals: &[Formal],
    ) -> Result<Vec<(u32, u32, u32)>, PtxError> {
        if given.len() != formals.len() {
            return Err(self.error(format!(
                "{} parameters for {} formals",
                given.len(),
                formals.len()
            )));
        }
        let mut copies = Vec::new();
        for (operand, formal) in given.iter().zip(formals) {
            let symbol = match operand {
                Operand::Word(name) => self.lookup(name),
                _ => None,
            };
            match symbol {
                Some(Symbol::Param {
                    offset,
                    bytes,
                    kernel: false,
                }) if bytes == formal.bytes => {
                    copies.push((offset, formal.offset, bytes));
                }
                _ => {
                    let what = format!("{operand:?} is not a .param variable of {} bytes", formal.bytes);
                    return Err(self.error(what));
                }
            }
        }
        Ok(copies)
    }

    fn barrier(&mut self, ins: &mut Ins<'_, 't>) -> Result<Opcode, PtxError> {
        ins.mods.ignore(&["aligned", "cta"]);
        if ins.mods.take("warp") {
            let ([mask], true) = (self.args(ins)?, ins.mods.take("sync")) else {
                return Err(ins.mods.unknown());
            };
            return Ok(Opcode::WarpBarrier(self.word(mask)?));
        }
        let kind = ins
            .mods
            .one_of(&[("sync", 0), ("arrive", 1), ("red", 2)])
            .ok_or_else(|| ins.mods.unknown())?;
        if kind == 2 {
            let reduce =
                ins.mods
                    .one_of(&[("and", Reduce::And), ("or", Reduce::Or), ("popc", Reduce::Count)]);
            let (Some(reduce), ty) = (reduce, ins.mods.ty()?) else {
                return Err(ins.mods.unknown());
            };
            let (d, id, threads, p) = match ins.operands {
                [d, id, p] => (d, id, None, p),
                [d, id, threads, p] => (d, id, Some(threads), p),
                _ => return Err(self.error("bar.red takes 3 or 4 operands")),
            };
            if (ty == Ty::Pred) == (reduce == Reduce::Count) {
                return Err(self.bad_type(ins, ty));
            }
            let (p, negated) = self.pred(p)?;
            let d = self.dst(d, ty.bits())?;
            let id = self.word(id)?;
            let threads = threads.map(|threads| self.word(threads)).transpose()?;
            return Ok(Opcode::Barrier(Box::new(Barrier {
                id,
                threads,
                arrive: false,
                reduce: Some((reduce, p, negated, d)),
            })));
        }
        let (id, threads) = match ins.operands {
            [id] if kind == 0 => (id, None),
            [id, threads] => (id, Some(threads)),
            _ => return Err(self.error(format!("`{}` has a wrong number of operands", ins.mods.opcode()))),
        };
        let id = self.word(id)?;
        let threads = threads.map(|threads| self.word(threads)).transpose()?;
        Ok(Opcode::Barrier(Box::new(Barrier {
            id,
            threads,
            arrive: kind == 1,
            reduce: None,
        })))
    }

    fn synchronised(&self, ins: &mut Ins<'_, 't>) -> Result<(), PtxError> {
        if ins.mods.take("sync") {
            Ok(())
        } else {
            Err(ins.mods.unknown())
        }
    }

    fn shuffle(&mut self, ins: &mut Ins<'_, 't>) -> Result<Opcode, PtxError> {
        self.synchronised(ins)?;
        let mode = ins.mods.one_of(&[
            ("up", ShuffleMode::Up),
            ("down", ShuffleMode::Down),
            ("bfly", ShuffleMode::Butterfly),
            ("idx", ShuffleMode::Index),
        ]);
        let (Some(mode), Ty::Bits(32)) = (mode, ins.mods.ty()?) else {
            return Err(ins.mods.unknown());
        };
        let [d, a, b, c, mask] = self.args(ins)?;
        let (a, b, c, mask) = (self.word(a)?, self.word(b)?, self.word(c)?, self.word(mask)?);
        let (d, valid) = match d {
            Operand::Pair(d, p) => (Operand::Word(d), self.dst_pred(p)?),
            d => (d.clone(), None),
        };
        let d = self.dst_word(&d, 32)?;
        Ok(Opcode::Shuffle(Box::new(Shuffle {
            mode,
            d,
            valid,
            a,
            b,
            c,
            mask,
        })))
    }

    fn vote(&mut self, ins: &mut Ins<'_, 't>) -> Result<Opcode, PtxError> {
        self.synchronised(ins)?;
        let mode = ins.mods.one_of(&[
            ("all", VoteMode::All),
            ("any", VoteMode::Any),
            ("uni", VoteMode::Uniform),
            ("ballot", VoteMode::Ballot),
        ]);
        let mode = mode.ok_or_else(|| ins.mods.unknown())?;
        let ty = ins.mods.ty()?;
        if (ty == Ty::Bits(32)) != (mode == VoteMode::Ballot) || !matches!(ty, Ty::Bits(32) | Ty::Pred) {
            return Err(self.bad_type(ins, ty));
        }
        let [d, a, mask] = self.args(ins)?;
        let (a, negated) = self.pred(a)?;
        let mask = self.word(mask)?;
        Ok(Opcode::Vote {
            mode,
            d: self.dst(d, ty.bits())?,
            a,
            negated,
            mask,
        })
    }

    fn match_any(&mut self, ins: &mut Ins<'_, 't>) -> Result<Opcode, PtxError> {
        self.synchronised(ins)?;
        let all = ins
            .mods
            .one_of(&[("any", false), ("all", true)])
            .ok_or_else(|| ins.mods.unknown())?;
        let ty = ins.mods.ty()?;
        if !matches!(ty, Ty::Bits(32 | 64)) {
            return Err(self.bad_type(ins, ty));
        }
        let [d, a, mask] = self.args(ins)?;
        let a: Slot = self.src(a, ty.bits())?;
        let mask = self.word(mask)?;
        let (d, same) = match d {
            Operand::Pair(d, p) if all => (Operand::Word(d), self.dst_pred(p)?),
            d => (d.clone(), None),
        };
        Ok(Opcode::Match {
            all,
            d: self.dst_word(&d, 32)?,
            same,
            a,
            mask,
        })
    }

    fn mma(&mut self, ins: &mut Ins<'_, 't>) -> Result<Opcode, PtxError> {
        self.synchronised(ins)?;
        let layouts = [("row", false), ("col", true)];
        let shape = ins.mods.take("aligned") && ins.mods.take("m8n8k4");
        let (Some(a_columns), Some(b_columns), true) =
            (ins.mods.one_of(&layouts), ins.mods.one_of(&layouts), shape)
        else {
            return Err(ins.mods.unknown());
        };
        let types = [ins.mods.ty()?, ins.mods.ty()?, ins.mods.ty()?, ins.mods.ty()?];
        let [
            d_ty @ (Ty::F16 | Ty::F32),
            Ty::F16,
            Ty::F16,
            c_ty @ (Ty::F16 | Ty::F32),
        ] = types
        else {
            return Err(ins.mods.unknown());
        };
        let (wide_d, wide_c) = (d_ty == Ty::F32, c_ty == Ty::F32);
        let [d, a, b, c] = self.args(ins)?;
        let pair = |list: Vec<R>| [list[0], list[1]];
        let (a, b) = (pair(self.word_list(a, 2, 32)?), pair(self.word_list(b, 2, 32)?));
        let c = self.word_list(c, if wide_c { 8 } else { 4 }, 32)?;
        let d = match d {
            Operand::Vector(list) if list.len() == if wide_d { 8 } else { 4 } => list
                .iter()
                .map(|item| self.dst_word(item, 32))
                .collect::<Result<Vec<_>, _>>()?,
            _ => return Err(self.error("the destination has a wrong number of registers")),
        };
        Ok(Opcode::Mma(Box::new(Mma {
            a_columns,
            b_columns,
            wide_c,
            wide_d,
            a,
            b,
            c,
            d,
        })))
    }
}
