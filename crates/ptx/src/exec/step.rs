//! One instruction that stays on its path: to the loops that do it.

use super::loops::{d1, set_d, set_w, w1};
use super::warp::{Frame, Own};
use super::{Core, Machine, MmaOrder};
use crate::fault::{FaultKind, Outcome, Stop};
use crate::ir::{Instr, Op, Slot};
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
            Op::Nop | Op::Fence => {}
            Op::Bin32(op, d, a, b) => regs.bin32(*op, *d, *a, *b, mask)?,
            Op::Bin64(op, d, a, b) => regs.bin64(*op, *d, *a, *b, mask)?,
            Op::Bin16(op, d, a, b) => regs.bin16(*op, *d, *a, *b, mask)?,
            Op::Shift16(..) | Op::Shift32(..) | Op::Shift64(..) => regs.shift(&instr.op, mask),
            Op::Un16(..) | Op::Un32(..) | Op::Un64(..) | Op::Count32(..) | Op::Count64(..) => {
                regs.unary(&instr.op, mask)
            }
            Op::Mad16(..) | Op::Mad32(..) | Op::Mad64(..) | Op::MadWide16 { .. } | Op::MadWide32 { .. } => {
                regs.multiply(&instr.op, mask);
            }
            Op::Carry32 { .. } | Op::Carry64 { .. } | Op::CarryMad32 { .. } => {
                regs.carry(&instr.op, mask, &mut own.carry)
            }
            Op::Lop3 { .. } | Op::Permute { .. } | Op::Funnel { .. } => regs.three(&instr.op, mask),
            Op::Extract32 { .. } | Op::Extract64 { .. } | Op::Insert32 { .. } | Op::Insert64 { .. } => {
                regs.field(&instr.op, mask);
            }
            Op::Dot4 { .. } | Op::Dot2 { .. } => regs.dot(&instr.op, mask),
            Op::Mov32(d, a) => w1!(regs, *d, *a, mask, |a| a),
            Op::Mov64(d, a) => d1!(regs, *d, *a, mask, |a| a),
            Op::MovPred(d, a, negated) => {
                let bits = regs.pred(*a, *negated);
                regs.set_pred(*d, mask, bits);
            }
            Op::Logic(op, d, a, b) => {
                let bits = super::alu::logic(*op, regs.pred(*a, false), regs.pred(*b, false));
                regs.set_pred(*d, mask, bits);
            }
            Op::Pack16(..)
            | Op::Unpack16(..)
            | Op::Pack32(..)
            | Op::Unpack32(..)
            | Op::Pack4x16(..)
            | Op::Unpack4x16(..) => regs.pack(&instr.op, mask),
            Op::Select32(d, a, b, p, negated) => {
                let (a, b, p) = (regs.w(*a), regs.w(*b), regs.pred(*p, *negated));
                set_w!(regs, *d, mask, |lane| if p >> lane & 1 != 0 {
                    a[lane]
                } else {
                    b[lane]
                },);
            }
            Op::Select64(d, a, b, p, negated) => {
                let (a, b, p) = (regs.d(*a), regs.d(*b), regs.pred(*p, *negated));
                set_d!(regs, *d, mask, |lane| if p >> lane & 1 != 0 {
                    a[lane]
                } else {
                    b[lane]
                },);
            }
            Op::Compare(compare) => regs.compare(compare, mask),
            Op::F32Bin(op, finish, d, a, b) => regs.f32_bin(*op, *finish, *d, *a, *b, mask),
            Op::F32Fma(finish, d, a, b, c) => regs.f32_fma(*finish, *d, [*a, *b, *c], mask),
            Op::F32Un(op, finish, d, a) => regs.f32_un(*op, *finish, *d, *a, mask),
            Op::F64Bin(..) | Op::F64Fma(..) | Op::F64Un(..) => regs.f64_op(&instr.op, mask),
            Op::HalfBin { .. } | Op::HalfFma { .. } | Op::HalfUn { .. } => regs.half_op(&instr.op, mask),
            Op::Approximate { .. } => regs.approximate(machine, core, &instr.op, mask)?,
            Op::TestFinite { ty, test, d, a } => regs.test_float(*ty, *test, *d, *a, mask),
            Op::Convert { .. } => regs.convert(&instr.op, mask),
            Op::Load(access) => self.load(machine, core, own, access, mask, hint)?,
            Op::Store(access) => self.store(machine, core, own, access, mask, hint)?,
            Op::Atomic(atomic) => self.atomic(machine, core, own, atomic, mask, hint)?,
            Op::IsSpace(space, d, a) => {
                let a = regs.d(*a);
                let space = if *space == Space::Generic {
                    Space::Global
                } else {
                    *space
                };
                regs.test(*d, mask, |lane| super::windows::space_of(a[lane]) == space);
            }
            Op::Shuffle(_) | Op::Match { .. } | Op::Vote { .. } | Op::ActiveMask(_) | Op::WarpBarrier(_) => {
                self.together(core, own, instr, mask)?;
            }
            Op::Mma(mma) => {
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
            Op::Branch { .. }
            | Op::Table { .. }
            | Op::Call(_)
            | Op::Return
            | Op::Exit
            | Op::Trap
            | Op::Barrier(_) => {}
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
