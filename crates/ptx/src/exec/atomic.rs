//! Atomics: lane by lane in ascending order.

use super::access::Request;
use super::loops::{set_d, set_w};
use super::warp::{Frame, Own};
use super::{Core, Machine};
use crate::fault::{FaultKind, Outcome, Stop};
use crate::half;
use crate::ir::{AtomOp, Atomic, Slot};
use crate::lanes::lanes;
use crate::rounding::{canonical32, canonical64};
use crate::types::{Space, Ty};

impl Frame {
    pub(super) fn atomic(
        &mut self,
        machine: &Machine<'_>,
        core: &mut Core,
        own: &Own,
        atomic: &Atomic,
        mask: u32,
        hint: usize,
    ) -> Outcome {
        let b = self.values(atomic.b);
        let c = atomic.c.map_or([0; 32], |c| self.values(c));
        let mut old = [0_u64; 32];
        let addresses = self.addresses(atomic.addr);
        let bytes = atomic.ty.bits() / 8;
        Self::each_space(addresses, atomic.space, bytes, mask, |space, request| {
            request.aligned(machine, space)?;
            match space {
                Space::Global => on_global(machine, core, atomic, request, hint, (&b, &c), &mut old),
                Space::Shared => on_shared(core, own, atomic, request, (&b, &c), &mut old),
                Space::Local | Space::Const | Space::Param | Space::Generic => {
                    let what = format!("an atomic on {space} memory");
                    Err(Stop::new(
                        FaultKind::Unsupported(what),
                        request.mask.trailing_zeros(),
                    ))
                }
            }
        })?;
        match atomic.d {
            Some(Slot::Word(d)) => set_w!(self.registers, d, mask, |lane| old[lane] as u32),
            Some(Slot::Wide(d)) => set_d!(self.registers, d, mask, |lane| old[lane]),
            Some(Slot::Pred(_)) | None => {}
        }
        Ok(())
    }
}

/// A plain exchange whose old value nobody takes reads nothing.
fn reads(atomic: &Atomic) -> bool {
    atomic.op != AtomOp::Exchange || atomic.d.is_some()
}

fn on_global(
    machine: &Machine<'_>,
    core: &mut Core,
    atomic: &Atomic,
    request: &Request,
    hint: usize,
    (b, c): (&[u64; 32], &[u64; 32]),
    old: &mut [u64; 32],
) -> Outcome {
    let hint = &mut core.hints[hint];
    for lane in lanes(request.mask) {
        let (address, bytes) = (request.addresses[lane], request.bytes);
        let found = machine.memory.resolve(address, bytes, hint);
        let one = found.map_err(|kind| Stop::new(kind, lane as u32))?;
        let at = address - one.base;
        if reads(atomic) && !one.is_written(at, bytes) {
            let place = machine.memory.place_of(address);
            let kind = FaultKind::Uninitialised {
                space: Space::Global,
                address,
                bytes,
                place,
            };
            return Err(Stop::new(kind, lane as u32));
        }
        old[lane] = match bytes {
            8 => {
                // Two words: one at a time holds the lock of the address.
                let _lock = machine.memory.lock(address);
                let before = u64::from(one.word(at)) | u64::from(one.word(at + 4)) << 32;
                let after = apply(atomic, before, b[lane], c[lane]);
                one.set_word(at, after as u32);
                one.set_word(at + 4, (after >> 32) as u32);
                before
            }
            4 => u64::from(one.exchange(at, |old| apply(atomic, u64::from(old), b[lane], c[lane]) as u32)),
            _ => {
                let shift = at % 4 * 8;
                let word = one.exchange(at & !3, |word| {
                    let part = word >> shift & 0xffff;
                    let new = apply(atomic, u64::from(part), b[lane], c[lane]) as u32 & 0xffff;
                    word & !(0xffff << shift) | new << shift
                });
                u64::from(word >> shift & 0xffff)
            }
        };
        one.mark(at, bytes);
    }
    request.count(machine, hint, true, &mut core.counters.global_atomics);
    Ok(())
}

fn on_shared(
    core: &mut Core,
    own: &Own,
    atomic: &Atomic,
    request: &Request,
    (b, c): (&[u64; 32], &[u64; 32]),
    old: &mut [u64; 32],
) -> Outcome {
    request.inside(Space::Shared, u64::from(core.shared.bytes()))?;
    let bytes = request.bytes;
    let mut banks = [0_u64; 32];
    for lane in lanes(request.mask) {
        let at = request.addresses[lane] as u32;
        let thread = own.first_thread + lane as u32;
        let allowed = core.shared.atomic(at, bytes, thread, reads(atomic));
        allowed.map_err(|kind| Stop::new(kind, lane as u32))?;
        let shared = &mut core.shared;
        let before = match bytes {
            8 => u64::from(shared.word(at)) | u64::from(shared.word(at + 4)) << 32,
            _ => u64::from(shared.small(at, bytes)),
        };
        let after = apply(atomic, before, b[lane], c[lane]);
        shared.set(at, bytes.min(4), after as u32);
        if bytes == 8 {
            shared.set(at + 4, 4, (after >> 32) as u32);
        }
        old[lane] = before;
        banks[(at / 4 % 32) as usize] += 1;
    }
    // Atomics do not broadcast: lanes at one bank go one after the other.
    let traffic = &mut core.counters.shared_atomics;
    traffic.requests += 1;
    traffic.wavefronts += banks.iter().max().copied().unwrap_or_default();
    traffic.wavefronts_ideal += 1;
    traffic.bytes += u64::from(request.mask.count_ones() * bytes);
    Ok(())
}

/// The new value.
fn apply(atomic: &Atomic, old: u64, b: u64, c: u64) -> u64 {
    let (old32, b32) = (old as u32, b as u32);
    let signed = |smaller: bool| {
        let (x, y) = match atomic.ty.bits() {
            64 => (old as i64, b as i64),
            _ => (i64::from(old32 as i32), i64::from(b32 as i32)),
        };
        if (x < y) == smaller { old } else { b }
    };
    match atomic.op {
        AtomOp::Add => match atomic.ty {
            Ty::F32 => u64::from(canonical32(f32::from_bits(old32) + f32::from_bits(b32))),
            Ty::F64 => canonical64(f64::from_bits(old) + f64::from_bits(b)),
            Ty::F16 => u64::from(half::through(old32 & 0xffff, b32 & 0xffff, |a, b| a + b)),
            Ty::F16x2 => {
                let add = |a, b| half::through(a, b, |a, b| a + b);
                u64::from(add(old32 & 0xffff, b32 & 0xffff) | add(old32 >> 16, b32 >> 16) << 16)
            }
            Ty::Pred | Ty::Bits(_) | Ty::Unsigned(_) | Ty::Signed(_) => old.wrapping_add(b),
        },
        AtomOp::Min if atomic.ty.is_signed() => signed(true),
        AtomOp::Max if atomic.ty.is_signed() => signed(false),
        AtomOp::Min => old.min(b),
        AtomOp::Max => old.max(b),
        AtomOp::And => old & b,
        AtomOp::Or => old | b,
        AtomOp::Xor => old ^ b,
        AtomOp::Exchange => b,
        AtomOp::CompareSwap => {
            if old == b {
                c
            } else {
                old
            }
        }
        AtomOp::Increment => {
            if old32 >= b32 {
                0
            } else {
                u64::from(old32 + 1)
            }
        }
        AtomOp::Decrement => {
            if old32 == 0 || old32 > b32 {
                b
            } else {
                u64::from(old32 - 1)
            }
        }
    }
}
