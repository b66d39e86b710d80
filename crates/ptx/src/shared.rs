//! A block's shared memory: contents, what was written, and who touched what since which barrier.

use crate::fault::{FaultKind, RaceAccess};

/// Several threads.
const MANY: u32 = u32::MAX;

pub(crate) struct Shared {
    bytes: u32,
    words: Vec<u32>,
    /// A bit a byte.
    written: Vec<u32>,
    pub races: Option<Races>,
}

impl Shared {
    /// `granule` is the smallest access of the kernel: races are looked for at that size (1, 2 or 4 bytes).
    pub(crate) fn new(bytes: u32, races: Option<u32>) -> Self {
        let words = bytes.div_ceil(4) as usize;
        Self {
            bytes,
            words: vec![0; words],
            written: vec![0; words.div_ceil(8)],
            races: races.map(|granule| Races::new(bytes, granule)),
        }
    }

    pub(crate) fn begin_block(&mut self) {
        self.written.fill(0);
        if let Some(races) = &mut self.races {
            races.begin_block();
        }
    }

    pub(crate) fn bytes(&self) -> u32 {
        self.bytes
    }

    #[inline(always)]
    pub(crate) fn word(&self, at: u32) -> u32 {
        self.words[(at / 4) as usize]
    }

    #[inline(always)]
    pub(crate) fn small(&self, at: u32, bytes: u32) -> u32 {
        self.word(at) >> (at % 4 * 8) & u32::MAX >> (32 - bytes * 8)
    }

    #[inline(always)]
    pub(crate) fn set(&mut self, at: u32, bytes: u32, value: u32) {
        let mask = (u32::MAX >> (32 - bytes * 8)) << (at % 4 * 8);
        let word = &mut self.words[(at / 4) as usize];
        *word = *word & !mask | value << (at % 4 * 8) & mask;
    }

    #[inline(always)]
    pub(crate) fn is_written(&self, at: u32, bytes: u32) -> bool {
        let mask = (u32::MAX >> (32 - bytes)) << (at % 32);
        self.written[(at / 32) as usize] & mask == mask
    }

    #[inline(always)]
    pub(crate) fn mark(&mut self, at: u32, bytes: u32) {
        self.written[(at / 32) as usize] |= (u32::MAX >> (32 - bytes)) << (at % 32);
    }
}

#[derive(Clone, Copy, Default)]
struct Write {
    time: u32,
    thread: u32,
    atomic: bool,
}

#[derive(Clone, Copy, Default)]
struct Read {
    time: u32,
    /// A bit a warp.
    warps: u32,
    thread: u32,
}

/// Happens-before between warps, and inside one.
///
/// Time counts barriers. `order[w][v]` is the time before which all that warp v did is ordered before what warp w does
/// now: a block barrier moves it for all pairs of its warps, a warp barrier for the warp itself. Two accesses race if
/// neither is ordered before the other, they are of different threads, and one writes.
pub(crate) struct Races {
    granule: u32,
    now: u32,
    /// All accesses before this are ordered before all that comes.
    settled: u32,
    order: Vec<[u32; 32]>,
    writes: Vec<Write>,
    reads: Vec<Read>,
}

impl Races {
    fn new(bytes: u32, granule: u32) -> Self {
        let count = bytes.div_ceil(granule) as usize;
        Self {
            granule,
            now: 1,
            settled: 1,
            order: vec![[1; 32]; 32],
            writes: vec![Write::default(); count],
            reads: vec![Read::default(); count],
        }
    }

    fn begin_block(&mut self) {
        if self.now > 1 << 30 {
            self.writes.fill(Write::default());
            self.reads.fill(Read::default());
            self.now = 0;
        }
        self.now += 1;
        self.settled = self.now;
        self.order.fill([self.now; 32]);
    }

    pub(crate) fn warp_barrier(&mut self, warp: usize) {
        self.now += 1;
        self.order[warp][warp] = self.now;
    }

    /// A time for a warp that comes to a barrier without waiting there.
    pub(crate) fn arrive(&mut self) -> u32 {
        self.now += 1;
        self.now
    }

    /// A barrier completes: `waited` warps go on, `arrived` ones came by at their times.
    pub(crate) fn barrier(&mut self, waited: u32, arrived: &[(usize, u32)], all: bool) {
        self.now += 1;
        let mut known = [0; 32];
        for warp in crate::lanes::lanes(waited) {
            for (most, seen) in known.iter_mut().zip(self.order[warp]) {
                *most = seen.max(*most);
            }
            known[warp] = self.now;
        }
        for (warp, time) in arrived {
            known[*warp] = known[*warp].max(*time);
        }
        for warp in crate::lanes::lanes(waited) {
            self.order[warp] = known;
        }
        if all {
            self.settled = self.now;
        }
    }

    fn fault(at: u32, access: RaceAccess, other_access: RaceAccess, other: u32) -> FaultKind {
        let other = (other != MANY).then_some(other);
        FaultKind::SharedRace {
            address: u64::from(at),
            access,
            other_access,
            other,
        }
    }

    fn ordered(&self, warp: usize, time: u32, thread: u32) -> bool {
        if thread == MANY {
            return self.order[warp].iter().all(|seen| time < *seen);
        }
        time < self.order[warp][(thread / 32) as usize % 32]
    }

    /// A thread reads `bytes` bytes.
    #[inline(always)]
    pub(crate) fn read(&mut self, at: u32, bytes: u32, thread: u32) -> Result<(), FaultKind> {
        let warp = (thread / 32) as usize;
        for granule in at / self.granule..(at + bytes).div_ceil(self.granule) {
            let write = self.writes[granule as usize];
            if write.time >= self.settled
                && write.thread != thread
                && !self.ordered(warp, write.time, write.thread)
            {
                let other = if write.atomic {
                    RaceAccess::Atomic
                } else {
                    RaceAccess::Write
                };
                return Err(Self::fault(
                    granule * self.granule,
                    RaceAccess::Read,
                    other,
                    write.thread,
                ));
            }
            let now = self.now;
            let read = self.reads[granule as usize];
            // Reads that are ordered before this one say nothing that it does not: it stands for them.
            let alone = read.time < self.settled
                || read.thread != thread
                    && crate::lanes::lanes(read.warps).all(|reader| read.time < self.order[warp][reader]);
            self.reads[granule as usize] = if alone {
                Read {
                    time: now,
                    warps: 1 << warp,
                    thread,
                }
            } else {
                let thread = if read.thread == thread { thread } else { MANY };
                Read {
                    time: now,
                    warps: read.warps | 1 << warp,
                    thread,
                }
            };
        }
        Ok(())
    }

    /// A thread writes `bytes` bytes; `same` tells whether a granule already holds what is written.
    #[inline(always)]
    pub(crate) fn write(
        &mut self,
        at: u32,
        bytes: u32,
        thread: u32,
        atomic: bool,
        same: impl Fn(u32, u32) -> bool,
    ) -> Result<(), FaultKind> {
        let warp = (thread / 32) as usize;
        let access = if atomic {
            RaceAccess::Atomic
        } else {
            RaceAccess::Write
        };
        for granule in at / self.granule..(at + bytes).div_ceil(self.granule) {
            let place = granule * self.granule;
            let read = self.reads[granule as usize];
            if read.time >= self.settled && self.reads_race(warp, thread, read) {
                return Err(Self::fault(place, access, RaceAccess::Read, read.thread));
            }
            let write = self.writes[granule as usize];
            let recent = write.time >= self.settled && write.thread != thread;
            let both = atomic && write.atomic;
            if recent && !both && !self.ordered(warp, write.time, write.thread) {
                let harmless = !atomic && !write.atomic && same(place, self.granule);
                if !harmless {
                    let other = if write.atomic {
                        RaceAccess::Atomic
                    } else {
                        RaceAccess::Write
                    };
                    return Err(Self::fault(place, access, other, write.thread));
                }
            }
            let thread = if recent && both { MANY } else { thread };
            self.writes[granule as usize] = Write {
                time: self.now,
                thread,
                atomic,
            };
        }
        Ok(())
    }

    fn reads_race(&self, warp: usize, thread: u32, read: Read) -> bool {
        crate::lanes::lanes(read.warps).any(|reader| {
            let own = reader == warp && read.thread == thread;
            !own && read.time >= self.order[warp][reader]
        })
    }
}

impl Shared {
    /// Before aligned bytes inside are read: a fault if one was never written or another thread may be writing.
    #[inline(always)]
    pub(crate) fn readable(&mut self, at: u32, bytes: u32, thread: u32) -> Result<(), FaultKind> {
        if !self.is_written(at, bytes) {
            let (space, address) = (crate::Space::Shared, u64::from(at));
            return Err(FaultKind::Uninitialised {
                space,
                address,
                bytes,
                place: None,
            });
        }
        match &mut self.races {
            Some(races) => races.read(at, bytes, thread),
            None => Ok(()),
        }
    }

    #[inline(always)]
    pub(crate) fn store(
        &mut self,
        at: u32,
        bytes: u32,
        thread: u32,
        value: [u32; 4],
    ) -> Result<(), FaultKind> {
        let words = &self.words;
        if let Some(races) = &mut self.races {
            races.write(at, bytes, thread, false, |place, granule| {
                let part = |word: u32| word >> (place % 4 * 8) & u32::MAX >> (32 - granule * 8);
                let new = if bytes < 4 {
                    value[0] << (at % 4 * 8)
                } else {
                    value[((place - at) / 4) as usize]
                };
                part(words[(place / 4) as usize]) == part(new)
            })?;
        }
        self.mark(at, bytes);
        if bytes < 4 {
            self.set(at, bytes, value[0]);
        } else {
            let words = (bytes / 4) as usize;
            self.words[(at / 4) as usize..][..words].copy_from_slice(&value[..words]);
        }
        Ok(())
    }

    /// Before an atomic changes bytes: nobody else may touch them plainly. `reads`: the old value is wanted.
    pub(crate) fn atomic(&mut self, at: u32, bytes: u32, thread: u32, reads: bool) -> Result<(), FaultKind> {
        if reads && !self.is_written(at, bytes) {
            let (space, address) = (crate::Space::Shared, u64::from(at));
            return Err(FaultKind::Uninitialised {
                space,
                address,
                bytes,
                place: None,
            });
        }
        if let Some(races) = &mut self.races {
            races.write(at, bytes, thread, true, |_, _| false)?;
        }
        self.mark(at, bytes);
        Ok(())
    }
}
