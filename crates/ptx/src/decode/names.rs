//! Names and literals to slots.

use super::{Decoder, Symbol};
use crate::PtxError;
use crate::ast::Operand;
use crate::ir::{D, LaneMask, P, Preset, R, Slot, Special};

impl<'t> Decoder<'_, 't> {
    pub(super) fn fresh(&mut self, bits: u32, name: &str) -> Slot {
        let function = &mut self.function;
        let slot = match bits {
            1 => {
                function.preds += 1;
                Slot::Pred(P(function.preds - 1))
            }
            64 => {
                function.wides += 1;
                Slot::Wide(D(function.wides - 1))
            }
            _ => {
                function.words += 1;
                Slot::Word(R(function.words - 1))
            }
        };
        if !name.is_empty() {
            self.names.insert(slot, name.to_owned());
        }
        slot
    }

    pub(super) fn lookup(&mut self, name: &'t str) -> Option<Symbol> {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (prefix, number) = name.split_at(name.len() - digits);
        for at in (0..self.scopes.len()).rev() {
            if let Some(symbol) = self.scopes[at].names.get(name) {
                return Some(*symbol);
            }
            let Some((bits, count)) = self.scopes[at].ranges.get(prefix).copied() else {
                continue;
            };
            if number.parse::<u64>().is_ok_and(|number| number < count) {
                let slot = self.fresh(bits, name);
                let symbol = Symbol::Register { slot, bits };
                self.scopes[at].names.insert(name, symbol);
                return Some(symbol);
            }
        }
        let preset = *self.outer.variables.get(name)?;
        if let Some(end) = self.outer.shared_ends.get(name) {
            self.function.shared_end = self.function.shared_end.max(*end);
        }
        self.function.uses_dynamic |= matches!(preset, Preset::Dynamic(_));
        Some(Symbol::Variable(preset))
    }

    pub(super) fn unknown(&self, name: &str) -> PtxError {
        PtxError::UnknownName {
            line: self.line,
            name: name.to_owned(),
        }
    }

    /// A slot that holds the same for the whole run.
    pub(super) fn preset(&mut self, wide: bool, preset: Preset) -> Slot {
        if let Some(slot) = self.constants.get(&(wide, preset)) {
            return *slot;
        }
        let slot = self.fresh(if wide { 64 } else { 32 }, "");
        self.constants.insert((wide, preset), slot);
        self.function.presets.push((slot, preset));
        slot
    }

    fn register(&mut self, name: &'t str, read: bool) -> Result<(Slot, u32), PtxError> {
        match self.lookup(name) {
            Some(Symbol::Register { slot, bits }) => {
                if read {
                    self.reads.push(slot)
                } else {
                    self.writes.push(slot)
                }
                Ok((slot, bits))
            }
            Some(_) => Err(self.error(format!("`{name}` is a variable; a register is expected"))),
            None => Err(self.unknown(name)),
        }
    }

    /// A source of exactly `bits` bits.
    pub(super) fn src(&mut self, operand: &Operand<'t>, bits: u32) -> Result<Slot, PtxError> {
        let (slot, found) = self.src_any(operand, bits)?;
        if found != bits {
            return Err(self.error(format!(
                "operand {operand:?} has {found} bits, the instruction takes {bits}"
            )));
        }
        Ok(slot)
    }

    /// A source of any width, with its width; literals take `bits`.
    pub(super) fn src_any(&mut self, operand: &Operand<'t>, bits: u32) -> Result<(Slot, u32), PtxError> {
        let literal = match operand {
            Operand::Word(name) => return self.named_source(name, 0),
            Operand::Offset(name, offset) => return self.named_source(name, *offset),
            Operand::Int(value) => {
                let most = 1_i128 << bits;
                if *value >= most || *value < -(most / 2) {
                    return Err(self.error(format!("{value} does not fit {bits} bits")));
                }
                (*value as u64) & (u64::MAX >> (64 - bits))
            }
            Operand::F32(value) if bits == 32 => u64::from(*value),
            Operand::F64(value) if bits == 64 => *value,
            Operand::F64(value) if bits == 32 => u64::from((f64::from_bits(*value) as f32).to_bits()),
            _ => {
                return Err(self.error(format!(
                    "{operand:?} stands where a value of {bits} bits is expected"
                )));
            }
        };
        Ok((self.preset(bits == 64, Preset::Bits(literal)), bits))
    }

    fn named_source(&mut self, name: &'t str, offset: i64) -> Result<(Slot, u32), PtxError> {
        match self.lookup(name) {
            Some(Symbol::Register { slot, bits }) if offset == 0 => {
                self.reads.push(slot);
                Ok((slot, bits))
            }
            Some(Symbol::Register { .. }) => {
                Err(self.error(format!("`{name}` is a register: it takes no offset")))
            }
            Some(Symbol::Variable(preset)) => Ok((self.preset(true, moved(preset, offset)), 64)),
            Some(Symbol::Param { offset: at, .. }) => {
                let bits = i64::from(at).wrapping_add(offset) as u64;
                Ok((self.preset(true, Preset::Bits(bits)), 64))
            }
            None => match special(name) {
                Some(special) => Ok((self.preset(false, Preset::Special(special)), 32)),
                None => Err(self.unknown(name)),
            },
        }
    }

    pub(super) fn word(&mut self, operand: &Operand<'t>) -> Result<R, PtxError> {
        self.word_of(operand, 32)
    }

    /// A source of 16 or 32 bits.
    pub(super) fn word_of(&mut self, operand: &Operand<'t>, bits: u32) -> Result<R, PtxError> {
        match self.src(operand, bits)? {
            Slot::Word(slot) => Ok(slot),
            _ => Err(self.error("a register of 32 bits or less is expected")),
        }
    }

    pub(super) fn wide(&mut self, operand: &Operand<'t>) -> Result<D, PtxError> {
        match self.src(operand, 64)? {
            Slot::Wide(slot) => Ok(slot),
            _ => Err(self.error("a register of 64 bits is expected")),
        }
    }

    /// A register written, of any width.
    pub(super) fn dst_any(&mut self, operand: &Operand<'t>) -> Result<(Slot, u32), PtxError> {
        match operand {
            Operand::Word(name) => self.register(name, false),
            _ => Err(self.error(format!("{operand:?} stands where a register is written"))),
        }
    }

    pub(super) fn dst(&mut self, operand: &Operand<'t>, bits: u32) -> Result<Slot, PtxError> {
        let (slot, found) = self.dst_any(operand)?;
        if found != bits {
            return Err(self.error(format!(
                "{operand:?} has {found} bits, the instruction writes {bits}"
            )));
        }
        Ok(slot)
    }

    pub(super) fn dst_word(&mut self, operand: &Operand<'t>, bits: u32) -> Result<R, PtxError> {
        match self.dst(operand, bits)? {
            Slot::Word(slot) => Ok(slot),
            _ => Err(self.error("a register of 32 bits or less is expected")),
        }
    }

    pub(super) fn dst_wide(&mut self, operand: &Operand<'t>) -> Result<D, PtxError> {
        match self.dst(operand, 64)? {
            Slot::Wide(slot) => Ok(slot),
            _ => Err(self.error("a register of 64 bits is expected")),
        }
    }

    fn pred_slot(&self, slot: Slot) -> Result<P, PtxError> {
        match slot {
            Slot::Pred(pred) => Ok(pred),
            _ => Err(self.error("a predicate is expected")),
        }
    }

    pub(super) fn pred_named(&mut self, name: &'t str) -> Result<P, PtxError> {
        let (slot, _) = self.register(name, true)?;
        self.pred_slot(slot)
    }

    /// `%p` or `!%p`.
    pub(super) fn pred(&mut self, operand: &Operand<'t>) -> Result<(P, bool), PtxError> {
        match operand {
            Operand::Word(name) => Ok((self.pred_named(name)?, false)),
            Operand::Not(name) => Ok((self.pred_named(name)?, true)),
            // `mov.pred %p, -1`: a constant is never written, so its slot is made for each use.
            Operand::Int(value @ (-1..=1)) => {
                let slot = self.fresh(1, "");
                let bits = u64::from(*value != 0);
                self.function.presets.push((slot, Preset::Bits(bits)));
                Ok((self.pred_slot(slot)?, false))
            }
            _ => Err(self.error(format!("{operand:?} stands where a predicate is expected"))),
        }
    }

    pub(super) fn dst_pred(&mut self, name: &'t str) -> Result<Option<P>, PtxError> {
        if name == "_" {
            return Ok(None);
        }
        let (slot, _) = self.register(name, false)?;
        self.pred_slot(slot).map(Some)
    }
}

pub(super) fn moved(preset: Preset, by: i64) -> Preset {
    match preset {
        Preset::Bits(at) => Preset::Bits(at.wrapping_add_signed(by)),
        Preset::Const(at) => Preset::Const(at.wrapping_add_signed(by)),
        Preset::Global(index, at) => Preset::Global(index, at.wrapping_add(by)),
        Preset::Shared(at) => Preset::Shared(at.wrapping_add_signed(by)),
        Preset::Dynamic(at) => Preset::Dynamic(at.wrapping_add(by)),
        Preset::Local(at) => Preset::Local(at.wrapping_add_signed(by)),
        Preset::Special(special) => Preset::Special(special),
    }
}

fn special(name: &str) -> Option<Special> {
    let axis = |name: &str| {
        ["x", "y", "z"]
            .iter()
            .position(|axis| *axis == name)
            .map(|axis| axis as u8)
    };
    let name = name.strip_prefix('%')?;
    if let Some((vector, side)) = name.split_once('.') {
        let side = axis(side)?;
        return Some(match vector {
            "tid" => Special::Tid(side),
            "ntid" => Special::Ntid(side),
            "ctaid" => Special::Ctaid(side),
            "nctaid" => Special::Nctaid(side),
            _ => return None,
        });
    }
    Some(match name {
        "laneid" => Special::Lane,
        "warpid" => Special::Warp,
        "nwarpid" => Special::Warps,
        "lanemask_eq" => Special::LaneMask(LaneMask::Eq),
        "lanemask_lt" => Special::LaneMask(LaneMask::Lt),
        "lanemask_le" => Special::LaneMask(LaneMask::Le),
        "lanemask_gt" => Special::LaneMask(LaneMask::Gt),
        "lanemask_ge" => Special::LaneMask(LaneMask::Ge),
        "dynamic_smem_size" => Special::DynamicBytes,
        _ => return None,
    })
}
