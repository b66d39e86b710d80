//! Loads, stores, atomics and fences.

use super::move_ops::SPACES;
use super::names::moved;
use super::{Decoded, Decoder, Ins, Symbol};
use crate::PtxError;
use crate::ast::Operand;
use crate::counters::Pipe;
use crate::ir::{Access, Addr, AtomOp, Atomic, Opcode, Preset, Slot};
use crate::types::{Space, Ty};

/// Orders, scopes and cache hints: memory here is one, coherent and in order.
const HINTS: [&str; 36] = [
    "weak",
    "volatile",
    "relaxed",
    "acquire",
    "release",
    "acq_rel",
    "sc",
    "gpu",
    "gl",
    "cta",
    "cluster",
    "sys",
    "ca",
    "cg",
    "cs",
    "lu",
    "cv",
    "wb",
    "wt",
    "nc",
    "noftz",
    "L1",
    "L2",
    "L1::evict_normal",
    "L1::evict_unchanged",
    "L1::evict_first",
    "L1::evict_last",
    "L1::no_allocate",
    "L2::64B",
    "L2::128B",
    "L2::256B",
    "L2::evict_first",
    "L2::evict_last",
    "L2::evict_normal",
    "uniform",
    "aligned",
];

impl<'t> Decoder<'_, 't> {
    pub(super) fn access(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        ins.mods.ignore(&HINTS);
        match ins.mods.name() {
            "membar" | "fence" => {
                let [] = self.args(ins)?;
                Ok((Opcode::Fence, Pipe::Control))
            }
            "prefetch" | "prefetchu" => {
                let space = ins.mods.one_of(&SPACES).unwrap_or(Space::Generic);
                let [a] = self.args(ins)?;
                self.address(a, space)?;
                Ok((Opcode::Nop, Pipe::Memory))
            }
            "atom" | "red" => self.atomic(ins),
            name => {
                let count = ins.mods.one_of(&[("v2", 2), ("v4", 4)]).unwrap_or(1);
                let space = ins.mods.one_of(&SPACES).unwrap_or(Space::Generic);
                let ty = ins.mods.ty()?;
                if ty == Ty::Pred || ty.bits() as usize * count > 128 {
                    return Err(self.bad_type(ins, ty));
                }
                let load = name != "st";
                let [first, second] = self.args(ins)?;
                let (address, data) = if load { (second, first) } else { (first, second) };
                let (addr, space, kernel_param) = self.address(address, space)?;
                if !load && (space == Space::Const || kernel_param) {
                    return Err(
                        self.error(format!("`{}` writes memory that is only read", ins.mods.opcode()))
                    );
                }
                let (slots, register_bits) = self.data(data, count, ty.bits(), load)?;
                let (bits, signed) = (ty.bits(), ty.is_signed());
                let access = Box::new(Access {
                    space,
                    kernel_param,
                    addr,
                    register_bits,
                    bits,
                    signed,
                    slots,
                });
                let pipe = if space == Space::Param {
                    Pipe::Move
                } else {
                    Pipe::Memory
                };
                Ok((
                    if load {
                        Opcode::Load(access)
                    } else {
                        Opcode::Store(access)
                    },
                    pipe,
                ))
            }
        }
    }

    /// One register or `count` in braces, all of one width, none narrower than an element.
    fn data(
        &mut self,
        operand: &Operand<'t>,
        count: usize,
        bits: u32,
        load: bool,
    ) -> Result<(Vec<Option<Slot>>, u32), PtxError> {
        let one = std::slice::from_ref(operand);
        let list = match operand {
            Operand::Vector(list) => list.as_slice(),
            _ => one,
        };
        if list.len() != count {
            return Err(self.error(format!("{} registers for {count} elements", list.len())));
        }
        let mut slots = Vec::new();
        let mut width = None;
        for item in list {
            if load && *item == Operand::Word("_") {
                slots.push(None);
                continue;
            }
            let (slot, found) = if load {
                self.dst_any(item)?
            } else {
                self.src_any(item, bits)?
            };
            if found < bits || width.is_some_and(|width| width != found) || matches!(slot, Slot::Pred(_)) {
                return Err(self.error(format!("{item:?} has {found} bits, elements have {bits}")));
            }
            width = Some(found);
            slots.push(Some(slot));
        }
        Ok((slots, width.unwrap_or(bits)))
    }

    /// The address, its space (a variable's own if the instruction names none), and whether it is a kernel's parameter.
    fn address(&mut self, operand: &Operand<'t>, space: Space) -> Result<(Addr, Space, bool), PtxError> {
        let Operand::Address(base, offset) = operand else {
            return Err(self.error(format!("{operand:?} stands where an address is expected")));
        };
        let Some(name) = base else {
            let base = self.preset(true, Preset::Bits(*offset as u64));
            return Ok((
                Addr { base, offset: 0 },
                space,
                self.function.entry && space == Space::Param,
            ));
        };
        match self.lookup(name) {
            Some(Symbol::Register { slot, bits: 32 | 64 }) => {
                self.reads.push(slot);
                let kernel = self.function.entry && space == Space::Param;
                Ok((
                    Addr {
                        base: slot,
                        offset: *offset,
                    },
                    space,
                    kernel,
                ))
            }
            Some(Symbol::Register { bits, .. }) => {
                Err(self.error(format!("`{name}` has {bits} bits: not an address")))
            }
            Some(Symbol::Param {
                offset: at, kernel, ..
            }) => {
                if space != Space::Param {
                    return Err(self.error(format!(
                        "`{name}` is a parameter, the instruction's space is {space}"
                    )));
                }
                let base = self.preset(true, Preset::Bits(i64::from(at).wrapping_add(*offset) as u64));
                Ok((Addr { base, offset: 0 }, space, kernel))
            }
            Some(Symbol::Variable(preset)) => {
                let own = match preset {
                    Preset::Const(_) => Space::Const,
                    Preset::Shared(_) | Preset::Dynamic(_) => Space::Shared,
                    Preset::Local(_) => Space::Local,
                    Preset::Global(..) | Preset::Bits(_) | Preset::Special(_) => Space::Global,
                };
                if space != own && space != Space::Generic {
                    return Err(self.error(format!(
                        "`{name}` lies in {own}, the instruction's space is {space}"
                    )));
                }
                let base = self.preset(true, moved(preset, *offset));
                Ok((Addr { base, offset: 0 }, own, false))
            }
            None => Err(self.unknown(name)),
        }
    }

    fn atomic(&mut self, ins: &mut Ins<'_, 't>) -> Decoded {
        let op = ins.mods.one_of(&[
            ("add", AtomOp::Add),
            ("min", AtomOp::Min),
            ("max", AtomOp::Max),
            ("and", AtomOp::And),
            ("or", AtomOp::Or),
            ("xor", AtomOp::Xor),
            ("exch", AtomOp::Exchange),
            ("cas", AtomOp::CompareSwap),
            ("inc", AtomOp::Increment),
            ("dec", AtomOp::Decrement),
        ]);
        let op = op.ok_or_else(|| ins.mods.unknown())?;
        let space = ins.mods.one_of(&SPACES).unwrap_or(Space::Generic);
        let ty = ins.mods.ty()?;
        let float = matches!(ty, Ty::F16 | Ty::F16x2 | Ty::F32 | Ty::F64);
        let fits = match op {
            AtomOp::Add => float || matches!(ty, Ty::Unsigned(32 | 64) | Ty::Signed(32)),
            AtomOp::Min | AtomOp::Max => matches!(ty, Ty::Unsigned(32 | 64) | Ty::Signed(32 | 64)),
            AtomOp::And | AtomOp::Or | AtomOp::Xor | AtomOp::Exchange => matches!(ty, Ty::Bits(32 | 64)),
            AtomOp::CompareSwap => matches!(ty, Ty::Bits(16 | 32 | 64)),
            AtomOp::Increment | AtomOp::Decrement => ty == Ty::Unsigned(32),
        };
        if !fits {
            return Err(self.bad_type(ins, ty));
        }
        let returns = ins.mods.name() == "atom";
        let (d, rest) = match ins.operands {
            [d, rest @ ..] if returns => (Some(d), rest),
            rest => (None, rest),
        };
        let (address, b, c) = match (rest, op) {
            ([address, b, c], AtomOp::CompareSwap) => (address, b, Some(c)),
            ([address, b], _) if op != AtomOp::CompareSwap => (address, b, None),
            _ => return Err(self.error(format!("`{}` has a wrong number of operands", ins.mods.opcode()))),
        };
        let (addr, space, _) = self.address(address, space)?;
        if !matches!(space, Space::Global | Space::Shared | Space::Generic) {
            return Err(self.error(format!(
                "atomics work on global and shared memory, not on {space}"
            )));
        }
        let b = self.src(b, ty.bits())?;
        let c = c.map(|c| self.src(c, ty.bits())).transpose()?;
        let d = match d {
            Some(Operand::Word("_")) | None => None,
            Some(d) => Some(self.dst(d, ty.bits())?),
        };
        Ok((
            Opcode::Atomic(Box::new(Atomic {
                op,
                ty,
                space,
                addr,
                d,
                b,
                c,
            })),
            Pipe::Memory,
        ))
    }
}
