//! One instruction that stays on its path: to the loops that do it.

use super::loops::{d1, set_d, set_w, w1};
use super::warp::{Frame, Own};
use super::{Core, Machine, MmaOrder};
use crate::fault::{FaultKind, Outcome, Stop};
use crate::ir::{Instr, Opcode, Slot};
use crate::types::Space;

impl Frame {
    #[inline(always)]
    pub(super) fn step(
        &mut self,
        machine: &Machine<'_>,
        core: &mut Core,
        own: &mut Own,
        instr: &Instr,
        mask: u32,
        hint: usize,
    ) -> Outcome {
        let regs = &mut self.registers;
        match &instr.op {
            Opcode::Nop | Opcode::Fence => {}
            Opcode::Bin32(op, d, a, b) => regs.bin32(*op, *d, *a, *b, mask)?,
            Opcode::Bin64(op, d, a, b) => regs.bin64(*op, *d, *a, *b, mask)?,
            Opcode::Bin16(op, d, a, b) => regs.bin16(*op, *d, *a, *b, mask)?,
            Opcode::Shift16(..) | Opcode::Shift32(..) | Opcode::Shift64(..) => regs.shift(&instr.op, mask),
            Opcode::Un16(..)
            | Opcode::Un32(..)
            | Opcode::Un64(..)
            | Opcode::Count32(..)
            | Opcode::Count64(..) => regs.unary(&instr.op, mask),
            Opcode::Mad16(..)
            | Opcode::Mad32(..)
            | Opcode::Mad64(..)
            | Opcode::MadWide16 { .. }
            | Opcode::MadWide32 { .. } => {
                regs.multiply(&instr.op, mask);
            }
            Opcode::Carry32 { .. } | Opcode::Carry64 { .. } | Opcode::CarryMad32 { .. } => {
                regs.carry(&instr.op, mask, &mut own.carry)
            }
            Opcode::Lop3 { .. } | Opcode::Permute { .. } | Opcode::Funnel { .. } => {
                regs.three(&instr.op, mask)
            }
            Opcode::Extract32 { .. }
            | Opcode::Extract64 { .. }
            | Opcode::Insert32 { .. }
            | Opcode::Insert64 { .. } => {
                regs.field(&instr.op, mask);
            }
            Opcode::Dot4 { .. } | Opcode::Dot2 { .. } => regs.dot(&instr.op, mask),
            Opcode::Mov32(d, a) => w1!(regs, *d, *a, mask, |a| a),
            Opcode::Mov64(d, a) => d1!(regs, *d, *a, mask, |a| a),
            Opcode::MovPred(d, a, negated) => {
                let bits = regs.pred(*a, *negated);
                regs.set_pred(*d, mask, bits);
            }
            Opcode::Logic(op, d, a, b) => {
                let bits = super::alu::logic(*op, regs.pred(*a, false), regs.pred(*b, false));
                regs.set_pred(*d, mask, bits);
            }
            Opcode::Pack16(..)
            | Opcode::Unpack16(..)
            | Opcode::Pack32(..)
            | Opcode::Unpack32(..)
            | Opcode::Pack4x16(..)
            | Opcode::Unpack4x16(..) => regs.pack(&instr.op, mask),
            Opcode::Select32(d, a, b, p, negated) => {
                let (a, b, p) = (regs.w(*a), regs.w(*b), regs.pred(*p, *negated));
                set_w!(regs, *d, mask, |lane| if p >> lane & 1 != 0 {
                    a[lane]
                } else {
                    b[lane]
                },);
            }
            Opcode::Select64(d, a, b, p, negated) => {
                let (a, b, p) = (regs.d(*a), regs.d(*b), regs.pred(*p, *negated));
                set_d!(regs, *d, mask, |lane| if p >> lane & 1 != 0 {
                    a[lane]
                } else {
                    b[lane]
                },);
            }
            Opcode::Compare(compare) => regs.compare(compare, mask),
            Opcode::F32Bin(op, finish, d, a, b) => regs.f32_bin(*op, *finish, *d, *a, *b, mask),
            Opcode::F32Fma(finish, d, a, b, c) => regs.f32_fma(*finish, *d, [*a, *b, *c], mask),
            Opcode::F32Un(op, finish, d, a) => regs.f32_un(*op, *finish, *d, *a, mask),
            Opcode::F64Bin(..) | Opcode::F64Fma(..) | Opcode::F64Un(..) => regs.f64_op(&instr.op, mask),
            Opcode::HalfBin { .. } | Opcode::HalfFma { .. } | Opcode::HalfUn { .. } => {
                regs.half_op(&instr.op, mask)
            }
            Opcode::Approximate { .. } => regs.approximate(machine, core, &instr.op, mask)?,
            Opcode::TestFinite { ty, test, d, a } => regs.test_float(*ty, *test, *d, *a, mask),
            Opcode::Convert { .. } => regs.convert(&instr.op, mask),
            Opcode::Load(access) => self.load(machine, core, own, access, mask, hint)?,
            Opcode::Store(access) => self.store(machine, core, own, access, mask, hint)?,
            Opcode::Atomic(atomic) => self.atomic(machine, core, own, atomic, mask, hint)?,
            Opcode::IsSpace(space, d, a) => {
                let a = regs.d(*a);
                let space = if *space == Space::Generic {
                    Space::Global
                } else {
                    *space
                };
                regs.test(*d, mask, |lane| super::windows::space_of(a[lane]) == space);
            }
            Opcode::Shuffle(_)
            | Opcode::Match { .. }
            | Opcode::Vote { .. }
            | Opcode::ActiveMask(_)
            | Opcode::WarpBarrier(_) => {
                self.together(core, own, instr, mask)?;
            }
            Opcode::Mma(mma) => {
                core.counters.mma += 1;
                if mask != u32::MAX {
                    let kind = FaultKind::WarpMask {
                        mask: u32::MAX,
                        active: mask,
                        live: own.live,
                    };
                    return Err(Stop::new(kind, mask.trailing_zeros()));
                }
                if mma.wide_c && mma.wide_d && machine.options.mma == MmaOrder::EmulatedF32 {
                    regs.mma_wide(mma);
                } else {
                    regs.mma(machine.options.mma, mma);
                }
            }
            // Control's own loop has these.
            Opcode::Branch { .. }
            | Opcode::Table { .. }
            | Opcode::Call(_)
            | Opcode::Return
            | Opcode::Exit
            | Opcode::Trap
            | Opcode::Barrier(_) => {}
        }
        Ok(())
    }

    /// A source slot as 64-bit values, sign not extended.
    pub(super) fn values(&self, slot: Slot) -> [u64; 32] {
        match slot {
            Slot::Word(r) => self.registers.w(r).map(u64::from),
            Slot::Wide(d) => self.registers.d(d),
            Slot::Pred(p) => std::array::from_fn(|lane| u64::from(self.registers.pred(p, false) >> lane & 1)),
        }
    }
}
