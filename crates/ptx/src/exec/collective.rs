//! What the lanes of a warp do together: shuffles, votes, matches, the warp's barrier.

use super::Core;
use super::loops::{bits, set_w};
use super::warp::{Frame, Own};
use crate::fault::{FaultKind, Outcome, Stop};
use crate::ir::{Instr, Opcode, R, Shuffle, ShuffleMode, Slot, VoteMode};
use crate::lanes::lanes;

impl Frame {
    pub(super) fn together(&mut self, core: &mut Core, own: &mut Own, instr: &Instr, active: u32) -> Outcome {
        match &instr.op {
            Opcode::ActiveMask(d) => set_w!(self.registers, *d, active, |_| active),
            Opcode::WarpBarrier(mask) => {
                self.groups(*mask, active, own)?;
                if let Some(races) = &mut core.shared.races {
                    races.warp_barrier(own.index as usize);
                }
            }
            Opcode::Shuffle(shuffle) => self.shuffle(shuffle, active, own)?,
            Opcode::Vote {
                mode,
                d,
                a,
                negated,
                mask,
            } => {
                let groups = self.groups(*mask, active, own)?;
                let yes = self.registers.pred(*a, *negated);
                let vote = |lane: usize| {
                    let group = groups[lane] & active;
                    match mode {
                        VoteMode::All => yes & group == group,
                        VoteMode::Any => yes & group != 0,
                        VoteMode::Uniform => yes & group == 0 || yes & group == group,
                        VoteMode::Ballot => false,
                    }
                };
                match d {
                    Slot::Pred(p) => self.registers.test(*p, active, vote),
                    Slot::Word(d) => set_w!(self.registers, *d, active, |lane| yes & groups[lane] & active),
                    Slot::Wide(_) => {}
                }
            }
            Opcode::Match {
                all,
                d,
                same,
                a,
                mask,
            } => {
                let groups = self.groups(*mask, active, own)?;
                let values = self.values(*a);
                let equal = |lane: usize| bits(|other| values[other] == values[lane]) & groups[lane] & active;
                let found: [u32; 32] = std::array::from_fn(|lane| {
                    let equal = equal(lane);
                    if *all && equal != groups[lane] & active {
                        0
                    } else {
                        equal
                    }
                });
                set_w!(self.registers, *d, active, |lane| found[lane]);
                if let Some(p) = same {
                    self.registers.test(*p, active, |lane| found[lane] != 0);
                }
            }
            // Fences and waits change nothing: memory is in order.
            Opcode::Fence | Opcode::Nop => {}
            _ => unreachable!("the warp's loop sends collective operations alone"),
        }
        Ok(())
    }

    /// Each lane's mask. A mask names its own lane, all that it names and that still live run this instruction, and they
    /// give the same mask.
    fn groups(&self, mask: R, active: u32, own: &Own) -> Outcome<[u32; 32]> {
        let masks = self.registers.w(mask);
        for lane in lanes(active) {
            let mask = masks[lane];
            let whole = mask >> lane & 1 != 0 && mask & own.live & !active == 0;
            if !whole || lanes(mask & active).any(|other| masks[other] != mask) {
                return Err(Stop::new(
                    FaultKind::WarpMask {
                        mask,
                        active,
                        live: own.live,
                    },
                    lane as u32,
                ));
            }
            // The usual case: one mask for all, looked at once.
            if mask & active == active {
                break;
            }
        }
        Ok(masks)
    }

    fn shuffle(&mut self, shuffle: &Shuffle, active: u32, own: &Own) -> Outcome {
        let groups = self.groups(shuffle.mask, active, own)?;
        let (a, b, c) = (
            self.registers.w(shuffle.a),
            self.registers.w(shuffle.b),
            self.registers.w(shuffle.c),
        );
        let mut from = [0_usize; 32];
        let mut valid = 0_u32;
        for lane in lanes(active) {
            let (me, by, clamp, segment) = (
                lane as i32,
                (b[lane] & 31) as i32,
                (c[lane] & 31) as i32,
                (c[lane] >> 8 & 31) as i32,
            );
            let last = me & segment | clamp & !segment;
            let (source, inside) = match shuffle.mode {
                ShuffleMode::Up => (me - by, me - by >= last),
                ShuffleMode::Down => (me + by, me + by <= last),
                ShuffleMode::Butterfly => (me ^ by, me ^ by <= last),
                ShuffleMode::Index => {
                    let source = me & segment | by & !segment;
                    (source, source <= last)
                }
            };
            let source = if inside { source } else { me };
            if groups[lane] & active & 1 << source == 0 {
                let kind = FaultKind::ShuffleSource {
                    source: source as u32,
                    active,
                };
                return Err(Stop::new(kind, lane as u32));
            }
            from[lane] = source as usize;
            valid |= u32::from(inside) << lane;
        }
        set_w!(self.registers, shuffle.d, active, |lane| a[from[lane]]);
        if let Some(p) = shuffle.valid {
            self.registers.set_pred(p, active, valid);
        }
        Ok(())
    }
}
