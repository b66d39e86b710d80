//! Global memory: allocations far apart, with a map of what was written and of what a launch touched.
//!
//! All words are atomics with relaxed order, so blocks may run on several threads and race as kernels may: what a racing
//! plain access sees is the kernel's fault, never undefined behaviour.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use crate::PtxError;
use crate::fault::{FaultKind, Place};
use crate::types::Space;

const FIRST: u64 = 1 << 36;
/// Distance between allocations at least, so that an address past one's end lies in none.
const GAP: u64 = 1 << 28;
const LOCKS: usize = 64;

/// Device memory.
pub struct Memory {
    bytes_max: u64,
    bytes_used: u64,
    next: u64,
    allocations: Vec<Allocation>,
    /// Global variables of modules that ran: the module's number and their addresses.
    pub(crate) statics: Vec<(u64, Vec<u64>)>,
    /// 64-bit atomics take two words: a lock by address.
    locks: Vec<Mutex<()>>,
}

pub(crate) struct Allocation {
    pub name: String,
    pub base: u64,
    pub bytes: u64,
    pub freed: bool,
    /// Every byte is written: nothing more to look up.
    full: AtomicBool,
    words: Vec<AtomicU32>,
    /// A bit a byte; a word is a sector.
    written: Vec<AtomicU32>,
    /// A bit a sector: read or written in this launch, written in this launch.
    touched: [Vec<AtomicU32>; 2],
}

impl Allocation {
    fn place(&self, address: u64) -> Place {
        Place {
            name: self.name.clone(),
            bytes: self.bytes,
            offset: address.wrapping_sub(self.base) as i64,
        }
    }

    pub(crate) fn holds(&self, address: u64, bytes: u64) -> bool {
        address >= self.base
            && address - self.base <= self.bytes
            && self.bytes - (address - self.base) >= bytes
    }

    /// `at` is a multiple of 4.
    #[inline(always)]
    pub(crate) fn word(&self, at: u64) -> u32 {
        self.words[(at / 4) as usize].load(Relaxed)
    }

    /// `bytes` (1, 2 or 4) at a multiple of their number.
    #[inline(always)]
    pub(crate) fn small(&self, at: u64, bytes: u32) -> u32 {
        let word = self.word(at & !3) >> (at % 4 * 8);
        word & u32::MAX >> (32 - bytes * 8)
    }

    #[inline(always)]
    pub(crate) fn set_word(&self, at: u64, value: u32) {
        self.words[(at / 4) as usize].store(value, Relaxed);
    }

    pub(crate) fn set_small(&self, at: u64, bytes: u32, value: u32) {
        if bytes == 4 {
            return self.set_word(at, value);
        }
        let (shift, mask) = (at % 4 * 8, u32::MAX >> (32 - bytes * 8));
        let change = |old: u32| Some(old & !(mask << shift) | (value & mask) << shift);
        // Neighbours may be written by other threads: the word is exchanged whole.
        let _ = self.words[(at / 4) as usize].fetch_update(Relaxed, Relaxed, change);
    }

    pub(crate) fn exchange(&self, at: u64, change: impl Fn(u32) -> u32) -> u32 {
        self.words[(at / 4) as usize]
            .fetch_update(Relaxed, Relaxed, |old| Some(change(old)))
            .unwrap_or_else(|old| old)
    }

    /// Whether all of `bytes` (at most 32, inside one sector) are written.
    #[inline(always)]
    pub(crate) fn is_written(&self, at: u64, bytes: u32) -> bool {
        let wanted = mask(at, bytes);
        self.full.load(Relaxed) || self.written[(at / 32) as usize].load(Relaxed) & wanted == wanted
    }

    #[inline(always)]
    pub(crate) fn mark(&self, at: u64, bytes: u32) {
        let wanted = mask(at, bytes);
        let map = &self.written[(at / 32) as usize];
        if map.load(Relaxed) & wanted != wanted {
            map.fetch_or(wanted, Relaxed);
        }
    }

    #[inline(always)]
    pub(crate) fn all_written(&self) -> bool {
        self.full.load(Relaxed)
    }

    /// Marks sectors as touched: bit i of `bits` is sector `first` + i. How many of them this is the first read of (or, for
    /// a write, the first write).
    #[inline(always)]
    pub(crate) fn touch(&self, first: u64, bits: u64, write: bool) -> u64 {
        let (word, shifted) = ((first / 32) as usize, u128::from(bits) << (first % 32));
        let mut fresh = 0;
        for part in 0..3 {
            let bits = (shifted >> (32 * part)) as u32;
            if bits == 0 {
                continue;
            }
            let set = |map: &AtomicU32| {
                if map.load(Relaxed) & bits == bits {
                    0
                } else {
                    bits & !map.fetch_or(bits, Relaxed)
                }
            };
            let any = set(&self.touched[0][word + part]);
            let new = if write {
                set(&self.touched[1][word + part])
            } else {
                any
            };
            fresh += u64::from(new.count_ones());
        }
        fresh
    }

    /// The words from `at` (a multiple of 4) on.
    #[inline(always)]
    pub(crate) fn words_from(&self, at: u64) -> &[AtomicU32] {
        &self.words[(at / 4) as usize..]
    }

    fn mark_range(&mut self, at: u64, bytes: u64, written: bool) {
        let whole = bytes == self.bytes;
        self.full
            .store(written && (whole || self.full.load(Relaxed)), Relaxed);
        let mut position = at;
        while position < at + bytes {
            let end = (position / 32 * 32 + 32).min(at + bytes);
            let bits = mask(position, (end - position) as u32);
            let map = self.written[(position / 32) as usize].get_mut();
            *map = if written { *map | bits } else { *map & !bits };
            position = end;
        }
    }
}

/// `bytes` bits from `at` on, inside a sector.
fn mask(at: u64, bytes: u32) -> u32 {
    (u32::MAX >> (32 - bytes)) << (at % 32)
}

fn zeros(count: u64) -> Vec<AtomicU32> {
    (0..count).map(|_| AtomicU32::new(0)).collect()
}

impl Memory {
    /// Memory of at most `bytes_max` bytes in all allocations together.
    pub fn new(bytes_max: u64) -> Self {
        Self {
            bytes_max,
            bytes_used: 0,
            next: FIRST,
            allocations: Vec::new(),
            statics: Vec::new(),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
        }
    }

    /// A new allocation whose bytes count as not written; its device address, a multiple of 512.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn alloc(&mut self, name: &str, bytes: usize) -> Result<u64, PtxError> {
        let bytes = bytes as u64;
        let end = self.next.checked_add(bytes).filter(|end| *end < 1 << 46);
        let (true, Some(end)) = (bytes <= self.bytes_max - self.bytes_used, end) else {
            let (used, most) = (self.bytes_used, self.bytes_max);
            return Err(PtxError::OutOfMemory {
                name: name.to_owned(),
                bytes,
                used,
                most,
            });
        };
        let base = self.next;
        self.next = (end + GAP).next_multiple_of(GAP);
        self.bytes_used += bytes;
        let sectors = bytes.div_ceil(32);
        self.allocations.push(Allocation {
            name: name.to_owned(),
            base,
            bytes,
            freed: false,
            full: AtomicBool::new(false),
            words: zeros(bytes.div_ceil(4)),
            written: zeros(sectors),
            touched: [zeros(sectors.div_ceil(32)), zeros(sectors.div_ceil(32))],
        });
        Ok(base)
    }

    /// Ends an allocation; its addresses are never given again, and using them is a fault.
    ///
    /// # Errors
    /// If `address` is not the first of a living allocation.
    pub fn free(&mut self, address: u64) -> Result<(), PtxError> {
        let at = self
            .find(address)
            .filter(|at| self.allocations[*at].base == address && !self.allocations[*at].freed);
        let Some(at) = at else {
            return Err(PtxError::Host {
                what: format!("0x{address:x} is not an allocation to free"),
            });
        };
        let allocation = &mut self.allocations[at];
        allocation.freed = true;
        self.bytes_used -= allocation.bytes;
        (allocation.words, allocation.written) = (Vec::new(), Vec::new());
        allocation.touched = [Vec::new(), Vec::new()];
        Ok(())
    }

    /// Copies bytes to the device.
    ///
    /// # Errors
    /// If the range is not inside one living allocation.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), PtxError> {
        let (allocation, at) = self.range(address, bytes.len() as u64)?;
        let mut rest = bytes;
        let mut position = at;
        while !rest.is_empty() {
            let inside = (position % 4) as usize;
            let count = (4 - inside).min(rest.len());
            let word = allocation.words[(position / 4) as usize].get_mut();
            let mut value = word.to_le_bytes();
            value[inside..inside + count].copy_from_slice(&rest[..count]);
            *word = u32::from_le_bytes(value);
            rest = &rest[count..];
            position += count as u64;
        }
        allocation.mark_range(at, bytes.len() as u64, true);
        Ok(())
    }

    /// Copies bytes from the device.
    ///
    /// # Errors
    /// If the range is not inside one living allocation, or holds bytes that nothing wrote; the first is named.
    pub fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), PtxError> {
        let count = bytes.len() as u64;
        let at = self.find(address);
        let Some(allocation) = at
            .map(|at| &self.allocations[at])
            .filter(|one| !one.freed && one.holds(address, count))
        else {
            return Err(self.outside(address, count));
        };
        let start = address - allocation.base;
        for (position, byte) in (start..).zip(bytes.iter_mut()) {
            if !allocation.is_written(position, 1) {
                let place = allocation.place(allocation.base + position);
                return Err(PtxError::Host {
                    what: format!("{count} bytes are read from 0x{address:x}, but {place} was never written"),
                });
            }
            *byte = allocation.small(position, 1) as u8;
        }
        Ok(())
    }

    /// Declares bytes written without writing them (they hold what they held, zero at first).
    ///
    /// # Errors
    /// If the range is not inside one living allocation.
    pub fn mark_initialised(&mut self, address: u64, bytes: usize) -> Result<(), PtxError> {
        let (allocation, at) = self.range(address, bytes as u64)?;
        allocation.mark_range(at, bytes as u64, true);
        Ok(())
    }

    /// Declares bytes never written: reading them is a fault again.
    ///
    /// # Errors
    /// If the range is not inside one living allocation.
    pub fn poison(&mut self, address: u64, bytes: usize) -> Result<(), PtxError> {
        let (allocation, at) = self.range(address, bytes as u64)?;
        allocation.mark_range(at, bytes as u64, false);
        Ok(())
    }

    fn outside(&self, address: u64, bytes: u64) -> PtxError {
        let near = self
            .near(address)
            .map_or_else(String::new, |place| format!("; nearest is {place}"));
        PtxError::Host {
            what: format!("{bytes} bytes at 0x{address:x} are outside every allocation{near}"),
        }
    }

    fn range(&mut self, address: u64, bytes: u64) -> Result<(&mut Allocation, u64), PtxError> {
        match self
            .find(address)
            .filter(|at| !self.allocations[*at].freed && self.allocations[*at].holds(address, bytes))
        {
            Some(at) => {
                let allocation = &mut self.allocations[at];
                let offset = address - allocation.base;
                Ok((allocation, offset))
            }
            None => Err(self.outside(address, bytes)),
        }
    }

    /// The last allocation that begins at or before the address.
    fn find(&self, address: u64) -> Option<usize> {
        self.allocations
            .partition_point(|one| one.base <= address)
            .checked_sub(1)
    }

    fn near(&self, address: u64) -> Option<Place> {
        let at = self
            .find(address)
            .or_else(|| (!self.allocations.is_empty()).then_some(0))?;
        let after = self.allocations.get(at + 1);
        let here = &self.allocations[at];
        // The one after is nearer if the address lies just before it.
        let nearer =
            after.filter(|after| after.base - address < address.saturating_sub(here.base + here.bytes));
        Some(nearer.unwrap_or(here).place(address))
    }

    /// Forgets what the launch before touched.
    pub(crate) fn begin_launch(&mut self) {
        for allocation in &mut self.allocations {
            for map in allocation.touched.iter_mut().flatten() {
                *map.get_mut() = 0;
            }
        }
    }

    /// The allocation of an access; `hint` is where the last one like it was found.
    #[inline(always)]
    pub(crate) fn resolve(&self, address: u64, bytes: u32, hint: &mut u32) -> Result<&Allocation, FaultKind> {
        if let Some(one) = self.allocations.get(*hint as usize)
            && one.holds(address, u64::from(bytes))
            && !one.freed
        {
            return Ok(one);
        }
        self.resolve_slow(address, bytes, hint)
    }

    fn resolve_slow(&self, address: u64, bytes: u32, hint: &mut u32) -> Result<&Allocation, FaultKind> {
        let at = self
            .find(address)
            .filter(|at| self.allocations[*at].holds(address, u64::from(bytes)));
        let Some(at) = at else {
            let near = self.near(address);
            return Err(FaultKind::OutOfBounds {
                space: Space::Global,
                address,
                bytes,
                near,
            });
        };
        let one = &self.allocations[at];
        if one.freed {
            return Err(FaultKind::UseAfterFree {
                address,
                place: one.place(address),
            });
        }
        *hint = at as u32;
        Ok(one)
    }

    pub(crate) fn place_of(&self, address: u64) -> Option<Place> {
        self.near(address)
    }

    pub(crate) fn lock(&self, address: u64) -> std::sync::MutexGuard<'_, ()> {
        let lock = &self.locks[(address / 8) as usize % LOCKS];
        lock.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
