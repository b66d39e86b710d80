//! Loads and stores in all spaces.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::loops::{set_d, set_w};
use super::warp::{Frame, Own};
use super::{Core, Machine, windows};
use crate::banks::sectors;
use crate::counters::Traffic;
use crate::fault::{FaultKind, Outcome, Stop};
use crate::ir::{Access, Addr, Slot};
use crate::lanes::{Data, lanes};
use crate::memory::Allocation;
use crate::types::Space;

/// An access of a warp: where each lane goes.
pub(super) struct Request {
    pub addresses: [u64; 32],
    pub mask: u32,
    pub bytes: u32,
}

impl Request {
    /// Every active lane's address is a multiple of the bytes.
    pub(super) fn aligned(&self, machine: &Machine<'_>, space: Space) -> Outcome {
        let all = lanes(self.mask).fold(0, |all, lane| all | self.addresses[lane]);
        if all & u64::from(self.bytes - 1) == 0 {
            return Ok(());
        }
        let bad = |lane: &usize| self.addresses[*lane] & u64::from(self.bytes - 1) != 0;
        let lane = lanes(self.mask).find(bad).unwrap_or_default();
        let address = self.addresses[lane];
        let place = if space == Space::Global {
            machine.memory.place_of(address)
        } else {
            None
        };
        Err(Stop::new(
            FaultKind::Misaligned {
                space,
                address,
                bytes: self.bytes,
                place,
            },
            lane as u32,
        ))
    }

    /// Every active lane stays below `end`.
    pub(super) fn inside(&self, space: Space, end: u64) -> Outcome {
        let past = |lane: &usize| {
            self.addresses[*lane]
                .checked_add(u64::from(self.bytes))
                .is_none_or(|at| at > end)
        };
        match lanes(self.mask).find(past) {
            None => Ok(()),
            Some(lane) => {
                let near = crate::Place {
                    name: format!("{space} memory"),
                    bytes: end,
                    offset: self.addresses[lane] as i64,
                };
                let (address, bytes) = (self.addresses[lane], self.bytes);
                Err(Stop::new(
                    FaultKind::OutOfBounds {
                        space,
                        address,
                        bytes,
                        near: Some(near),
                    },
                    lane as u32,
                ))
            }
        }
    }

    /// The one allocation that holds all active lanes, if there is one.
    #[inline(always)]
    fn span<'m>(&self, machine: &Machine<'m>, hint: &mut u32) -> Option<&'m Allocation> {
        let (mut low, mut high) = (u64::MAX, 0);
        for lane in lanes(self.mask) {
            low = low.min(self.addresses[lane]);
            high = high.max(self.addresses[lane]);
        }
        let one = machine.memory.resolve(low, self.bytes, hint).ok()?;
        one.holds(high, u64::from(self.bytes)).then_some(one)
    }

    /// Adds the request to a traffic counter.
    pub(super) fn count(&self, machine: &Machine<'_>, hint: &mut u32, write: bool, traffic: &mut Traffic) {
        traffic.requests += 1;
        traffic.bytes += u64::from(self.mask.count_ones() * self.bytes);
        sectors(&self.addresses, self.mask, |first, bits| {
            traffic.sectors += u64::from(bits.count_ones());
            // Sectors of one run lie so near that one allocation holds them; the access was checked before.
            if let Ok(one) = machine.memory.resolve(first * 32, 1, hint) {
                traffic.sectors_first += one.touch((first * 32 - one.base) / 32, bits, write);
            }
        });
    }
}

impl Frame {
    #[inline(always)]
    pub(super) fn addresses(&self, addr: Addr) -> [u64; 32] {
        let mut addresses = [0; 32];
        match addr.base {
            Slot::Wide(base) => {
                let base = &self.registers.wides[base.0 as usize].0;
                for (address, base) in addresses.iter_mut().zip(base) {
                    *address = base.wrapping_add_signed(addr.offset);
                }
            }
            Slot::Word(base) => {
                let base = &self.registers.words[base.0 as usize].0;
                for (address, base) in addresses.iter_mut().zip(base) {
                    *address = u64::from(base.wrapping_add(addr.offset as u32));
                }
            }
            Slot::Pred(_) => {}
        }
        addresses
    }

    /// The lanes by space; addresses inside their space. One round for all but mixed generic accesses.
    #[inline(always)]
    pub(super) fn each_space(
        addresses: [u64; 32],
        space: Space,
        bytes: u32,
        mask: u32,
        mut visit: impl FnMut(Space, &Request) -> Outcome,
    ) -> Outcome {
        if space != Space::Generic {
            return visit(
                space,
                &Request {
                    addresses,
                    mask,
                    bytes,
                },
            );
        }
        let mut rest = mask;
        while rest != 0 {
            let space = windows::space_of(addresses[rest.trailing_zeros() as usize]);
            let same = lanes(rest).filter(|lane| windows::space_of(addresses[*lane]) == space);
            let group = same.fold(0, |group, lane| group | 1 << lane);
            let base = windows::base(space);
            visit(
                space,
                &Request {
                    addresses: addresses.map(|at| at.wrapping_sub(base)),
                    mask: group,
                    bytes,
                },
            )?;
            rest &= !group;
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn load(
        &mut self,
        machine: &Machine<'_>,
        core: &mut Core,
        own: &mut Own,
        access: &Access,
        mask: u32,
        hint: usize,
    ) -> Outcome {
        let mut data: Data = [[0; 32]; 4];
        let addresses = self.addresses(access.addr);
        Self::each_space(addresses, access.space, access.bytes(), mask, |space, request| {
            request.aligned(machine, space)?;
            match space {
                Space::Global => load_global(machine, core, request, hint, &mut data),
                Space::Shared => load_shared(core, own, request, &mut data),
                Space::Local => self.load_local(machine, core, own, request, &mut data),
                Space::Const => load_bytes(machine.module.constants(), Space::Const, request, &mut data),
                Space::Param | Space::Generic if access.kernel_param => {
                    load_bytes(&machine.launch.params, Space::Param, request, &mut data)
                }
                Space::Param | Space::Generic => {
                    let end = u64::from(machine.functions[self.function].param_bytes);
                    request.inside(Space::Param, end)?;
                    load_lanes(&self.params, Space::Param, request, &mut data)
                }
            }
        })?;
        self.scatter(access, mask, &data);
        Ok(())
    }

    #[inline(always)]
    pub(super) fn store(
        &mut self,
        machine: &Machine<'_>,
        core: &mut Core,
        own: &mut Own,
        access: &Access,
        mask: u32,
        hint: usize,
    ) -> Outcome {
        let data = self.gather(access);
        let addresses = self.addresses(access.addr);
        let local_end = self.local_end(machine);
        let params = &mut self.params;
        let param_end = u64::from(machine.functions[self.function].param_bytes);
        Self::each_space(addresses, access.space, access.bytes(), mask, |space, request| {
            request.aligned(machine, space)?;
            match space {
                Space::Global => store_global(machine, core, request, hint, &data),
                Space::Shared => store_shared(core, own, request, &data),
                Space::Local => {
                    core.counters.local_accesses += 1;
                    request.inside(Space::Local, local_end)?;
                    for lane in lanes(request.mask) {
                        own.local
                            .store(lane, request.addresses[lane], request.bytes, &data);
                    }
                    Ok(())
                }
                Space::Param | Space::Generic => {
                    request.inside(Space::Param, param_end)?;
                    for lane in lanes(request.mask) {
                        params.store(lane, request.addresses[lane], request.bytes, &data);
                    }
                    Ok(())
                }
                Space::Const => {
                    let what = "a store to constant memory".to_owned();
                    Err(Stop::new(
                        FaultKind::Unsupported(what),
                        request.mask.trailing_zeros(),
                    ))
                }
            }
        })
    }

    fn local_end(&self, machine: &Machine<'_>) -> u64 {
        u64::from(self.local_base) + u64::from(machine.functions[self.function].local_bytes)
    }

    fn load_local(
        &self,
        machine: &Machine<'_>,
        core: &mut Core,
        own: &Own,
        request: &Request,
        data: &mut Data,
    ) -> Outcome {
        core.counters.local_accesses += 1;
        request.inside(Space::Local, self.local_end(machine))?;
        load_lanes(&own.local, Space::Local, request, data)
    }

    /// Loaded bytes to registers, extended to their width.
    #[inline(always)]
    fn scatter(&mut self, access: &Access, mask: u32, data: &Data) {
        for (index, slot) in access.slots.iter().enumerate() {
            let at = index * access.bits as usize;
            let (word, shift) = (at / 32, at % 32);
            let unused = 32 - access.bits.min(32);
            let part = |lane: usize| {
                let bits = data[word][lane] >> shift << unused;
                if access.signed {
                    (bits as i32 >> unused) as u32
                } else {
                    bits >> unused
                }
            };
            match slot {
                Some(Slot::Word(d)) if access.bits == 32 => {
                    set_w!(self.registers, *d, mask, |lane| data[word][lane])
                }
                Some(Slot::Word(d)) => {
                    let keep = u32::MAX >> (32 - access.register_bits);
                    set_w!(self.registers, *d, mask, |lane| part(lane) & keep);
                }
                Some(Slot::Wide(d)) if access.bits == 64 => {
                    let both =
                        |lane: usize| u64::from(data[word][lane]) | u64::from(data[word + 1][lane]) << 32;
                    set_d!(self.registers, *d, mask, |lane| both(lane));
                }
                Some(Slot::Wide(d)) if access.signed => {
                    set_d!(self.registers, *d, mask, |lane| i64::from(part(lane) as i32)
                        as u64);
                }
                Some(Slot::Wide(d)) => set_d!(self.registers, *d, mask, |lane| u64::from(part(lane))),
                Some(Slot::Pred(_)) | None => {}
            }
        }
    }

    /// Registers to the bytes that are stored.
    #[inline(always)]
    fn gather(&self, access: &Access) -> Data {
        let mut data: Data = [[0; 32]; 4];
        for (index, slot) in access.slots.iter().enumerate() {
            let at = index * access.bits as usize;
            let (word, shift) = (at / 32, at % 32);
            let keep = u32::MAX >> (32 - access.bits.min(32));
            match slot {
                Some(Slot::Word(a)) => {
                    let a = self.registers.w(*a);
                    for (lane, to) in data[word].iter_mut().enumerate() {
                        *to |= (a[lane] & keep) << shift;
                    }
                }
                Some(Slot::Wide(a)) => {
                    let a = self.registers.d(*a);
                    for lane in 0..32 {
                        data[word][lane] |= (a[lane] as u32 & keep) << shift;
                        if access.bits == 64 {
                            data[word + 1][lane] = (a[lane] >> 32) as u32;
                        }
                    }
                }
                Some(Slot::Pred(_)) | None => {}
            }
        }
        data
    }
}

/// The place of one lane in global memory.
#[inline(always)]
fn resolve<'m>(
    machine: &Machine<'m>,
    request: &Request,
    lane: usize,
    hint: &mut u32,
) -> Outcome<&'m Allocation> {
    let found = machine
        .memory
        .resolve(request.addresses[lane], request.bytes, hint);
    found.map_err(|kind| Stop::new(kind, lane as u32))
}

#[inline(never)]
fn load_global(
    machine: &Machine<'_>,
    core: &mut Core,
    request: &Request,
    hint: usize,
    data: &mut Data,
) -> Outcome {
    let hint = &mut core.hints[hint];
    if let Some(one) = request.span(machine, hint)
        && one.all_written()
        && request.bytes >= 4
    {
        // The usual case: nothing more to check, one loop a size.
        let words = one.words_from(0);
        let at = |lane: usize| ((request.addresses[lane] - one.base) / 4) as usize;
        match request.bytes {
            4 => copy::<1>(words, request.mask, at, data),
            8 => copy::<2>(words, request.mask, at, data),
            _ => copy::<4>(words, request.mask, at, data),
        }
        request.count(machine, hint, false, &mut core.counters.global_loads);
        return Ok(());
    }
    for lane in lanes(request.mask) {
        let one = resolve(machine, request, lane, hint)?;
        let at = request.addresses[lane] - one.base;
        if !one.is_written(at, request.bytes) {
            let (space, address, bytes) = (Space::Global, request.addresses[lane], request.bytes);
            let place = machine.memory.place_of(address);
            return Err(Stop::new(
                FaultKind::Uninitialised {
                    space,
                    address,
                    bytes,
                    place,
                },
                lane as u32,
            ));
        }
        if request.bytes < 4 {
            data[0][lane] = one.small(at, request.bytes);
        } else {
            for (word, to) in data.iter_mut().enumerate().take((request.bytes / 4) as usize) {
                to[lane] = one.word(at + word as u64 * 4);
            }
        }
    }
    request.count(machine, hint, false, &mut core.counters.global_loads);
    Ok(())
}

#[inline(always)]
fn copy<const WORDS: usize>(words: &[AtomicU32], mask: u32, at: impl Fn(usize) -> usize, data: &mut Data) {
    for lane in lanes(mask) {
        let from = &words[at(lane)..][..WORDS];
        for word in 0..WORDS {
            data[word][lane] = from[word].load(Relaxed);
        }
    }
}

#[inline(never)]
fn store_global(
    machine: &Machine<'_>,
    core: &mut Core,
    request: &Request,
    hint: usize,
    data: &Data,
) -> Outcome {
    let hint = &mut core.hints[hint];
    let span = request.span(machine, hint);
    for lane in lanes(request.mask) {
        let one = match span {
            Some(one) => one,
            None => resolve(machine, request, lane, hint)?,
        };
        let at = request.addresses[lane] - one.base;
        if request.bytes < 4 {
            one.set_small(at, request.bytes, data[0][lane]);
        } else {
            for (word, from) in data.iter().enumerate().take((request.bytes / 4) as usize) {
                one.set_word(at + word as u64 * 4, from[lane]);
            }
        }
        if !one.all_written() {
            one.mark(at, request.bytes);
        }
    }
    request.count(machine, hint, true, &mut core.counters.global_stores);
    Ok(())
}

fn load_shared(core: &mut Core, own: &Own, request: &Request, data: &mut Data) -> Outcome {
    request.inside(Space::Shared, u64::from(core.shared.bytes()))?;
    for lane in lanes(request.mask) {
        let thread = own.first_thread + lane as u32;
        let at = request.addresses[lane] as u32;
        let allowed = core.shared.readable(at, request.bytes, thread);
        allowed.map_err(|kind| Stop::new(kind, lane as u32))?;
        if request.bytes < 4 {
            data[0][lane] = core.shared.small(at, request.bytes);
        } else {
            for word in 0..request.bytes / 4 {
                data[word as usize][lane] = core.shared.word(at + word * 4);
            }
        }
    }
    let (wavefronts, ideal) = core
        .banks
        .wavefronts(&request.addresses, request.mask, request.bytes);
    let traffic = &mut core.counters.shared_loads;
    traffic.requests += 1;
    traffic.wavefronts += wavefronts;
    traffic.wavefronts_ideal += ideal;
    traffic.bytes += u64::from(request.mask.count_ones() * request.bytes);
    Ok(())
}

fn store_shared(core: &mut Core, own: &Own, request: &Request, data: &Data) -> Outcome {
    request.inside(Space::Shared, u64::from(core.shared.bytes()))?;
    for lane in lanes(request.mask) {
        let thread = own.first_thread + lane as u32;
        let value = [data[0][lane], data[1][lane], data[2][lane], data[3][lane]];
        let stored = core
            .shared
            .store(request.addresses[lane] as u32, request.bytes, thread, value);
        stored.map_err(|kind| Stop::new(kind, lane as u32))?;
    }
    let (wavefronts, ideal) = core
        .banks
        .wavefronts(&request.addresses, request.mask, request.bytes);
    let traffic = &mut core.counters.shared_stores;
    traffic.requests += 1;
    traffic.wavefronts += wavefronts;
    traffic.wavefronts_ideal += ideal;
    traffic.bytes += u64::from(request.mask.count_ones() * request.bytes);
    Ok(())
}

/// Stack or parameters of the lanes; the range is checked already.
fn load_lanes(
    memory: &crate::lanes::LaneMemory,
    space: Space,
    request: &Request,
    data: &mut Data,
) -> Outcome {
    for lane in lanes(request.mask) {
        let (address, bytes) = (request.addresses[lane], request.bytes);
        if !memory.load(lane, address, bytes, data) {
            return Err(Stop::new(
                FaultKind::Uninitialised {
                    space,
                    address,
                    bytes,
                    place: None,
                },
                lane as u32,
            ));
        }
    }
    Ok(())
}

/// Constants and kernel parameters.
fn load_bytes(from: &[u8], space: Space, request: &Request, data: &mut Data) -> Outcome {
    request.inside(space, from.len() as u64)?;
    for lane in lanes(request.mask) {
        let bytes = &from[request.addresses[lane] as usize..][..request.bytes as usize];
        for (word, part) in bytes.chunks(4).enumerate() {
            let mut value = [0; 4];
            value[..part.len()].copy_from_slice(part);
            data[word][lane] = u32::from_le_bytes(value);
        }
    }
    Ok(())
}
