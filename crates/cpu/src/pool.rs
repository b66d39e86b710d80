//! The thread pool. A whole model step is one [`Pool::run`]: every thread runs the same closure with its own [`Worker`],
//! takes its share of each operation and meets the others at [`Worker::barrier`].
//!
//! The caller is worker 0, so a step costs no handover; the other threads are pinned to their own processors, spin
//! between steps for a moment and then sleep. A panic in one worker frees the others from their barriers and comes out
//! of `run`.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use crate::pack::AlignedBytes;

/// How long a thread looks for the next step before it sleeps. Covers the engine's sampling between two tokens.
const SPIN_BEFORE_SLEEP: Duration = Duration::from_micros(300);
/// Turns of a barrier's loop before it lets other threads of the machine run.
const SPINS_BEFORE_YIELD: u32 = 20_000;

type Job = *const (dyn Fn(&Worker<'_>) + Sync);

/// Keeps a hot atomic on cache lines of its own (two, as processors fetch lines in pairs).
#[repr(align(128))]
struct Padded<T>(T);

struct Shared {
    count: usize,
    /// Number of the current job; a change starts the threads.
    epoch: Padded<AtomicU64>,
    job: UnsafeCell<Option<Job>>,
    /// Threads still in the current job.
    running: Padded<AtomicUsize>,
    arrived: Padded<AtomicUsize>,
    generation: Padded<AtomicUsize>,
    poisoned: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    shutdown: AtomicBool,
    asleep: Vec<Padded<AtomicBool>>,
    scratch: Vec<UnsafeCell<AlignedBytes>>,
}

// SAFETY: `job` is written only by `run` while no thread is in a job (`running == 0`), and read after the epoch changes
// (release/acquire). `scratch[i]` is used only by worker i, or by `reserve_scratch` while no job runs.
unsafe impl Sync for Shared {}
// SAFETY: the raw job pointer is valid for the length of `run`, which outlives all uses.
unsafe impl Send for Shared {}

/// Threads that run one closure together.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<Thread>,
    handles: Vec<JoinHandle<()>>,
    /// Held for the length of a run: one job at a time.
    turn: Mutex<()>,
}

/// One thread's part in a [`Pool::run`].
pub struct Worker<'a> {
    /// Which thread, from 0.
    pub index: usize,
    /// How many threads.
    pub count: usize,
    shared: &'a Shared,
}

/// What a worker unwinds with when another one has panicked.
struct OtherPanicked;

thread_local! {
    static IN_RUN: Cell<bool> = const { Cell::new(false) };
}

impl Pool {
    /// A pool of `count` threads, the caller of [`Pool::run`] included.
    ///
    /// # Errors
    /// When a thread cannot be made.
    pub fn new(count: usize) -> io::Result<Pool> {
        let count = count.max(1);
        let shared = Arc::new(Shared {
            count,
            epoch: Padded(AtomicU64::new(0)),
            job: UnsafeCell::new(None),
            running: Padded(AtomicUsize::new(0)),
            arrived: Padded(AtomicUsize::new(0)),
            generation: Padded(AtomicUsize::new(0)),
            poisoned: AtomicBool::new(false),
            panic: Mutex::new(None),
            shutdown: AtomicBool::new(false),
            asleep: (0..count).map(|_| Padded(AtomicBool::new(false))).collect(),
            scratch: (0..count)
                .map(|_| UnsafeCell::new(AlignedBytes::empty()))
                .collect(),
        });
        let mut pool = Pool {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
            handles: Vec::new(),
            turn: Mutex::new(()),
        };
        for index in 1..count {
            let shared = Arc::clone(&shared);
            let handle = std::thread::Builder::new()
                .name(format!("galvani-cpu-{index}"))
                .spawn(move || {
                    affinity::pin(index, shared.count);
                    serve(&shared, index);
                })?;
            pool.threads.push(handle.thread().clone());
            pool.handles.push(handle);
        }
        Ok(pool)
    }

    /// How many threads run a job.
    pub fn count(&self) -> usize {
        self.shared.count
    }

    /// Runs `body` on every thread and returns when all are done.
    ///
    /// # Panics
    /// With the first panic of a worker; and when called from inside a run.
    pub fn run(&self, body: impl Fn(&Worker<'_>) + Sync) {
        assert!(!IN_RUN.get(), "Pool::run was called from inside a run");
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = &*self.shared;
        let body: &(dyn Fn(&Worker<'_>) + Sync) = &body;
        // SAFETY: only the lifetime changes; this function returns after every thread has left the job.
        let job: Job = unsafe { std::mem::transmute::<&(dyn Fn(&Worker<'_>) + Sync), Job>(body) };
        shared.arrived.0.store(0, Ordering::Relaxed);
        shared.poisoned.store(false, Ordering::Relaxed);
        shared.running.0.store(shared.count - 1, Ordering::Relaxed);
        // SAFETY: no thread reads it before the epoch changes below.
        unsafe { *shared.job.get() = Some(job) };
        shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for (asleep, thread) in shared.asleep[1..].iter().zip(&self.threads) {
            if asleep.0.swap(false, Ordering::SeqCst) {
                thread.unpark();
            }
        }
        shared.work(0, body);
        let mut spins = 0;
        while shared.running.0.load(Ordering::Acquire) != 0 {
            pause(&mut spins);
        }
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Makes each worker's scratch memory at least `bytes` long. Called while compiling, so that steps allocate nothing.
    ///
    /// # Errors
    /// When memory is short.
    pub fn reserve_scratch(&self, bytes: usize) -> Result<(), galvani_graph::BackendError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        for cell in &self.shared.scratch {
            // SAFETY: the turn is ours, so no job runs and nobody else holds the scratch.
            let scratch = unsafe { &mut *cell.get() };
            if scratch.len() < bytes {
                *scratch = AlignedBytes::zeroed(bytes, "kernel scratch")?;
            }
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, Ordering::SeqCst);
        self.shared.epoch.0.fetch_add(1, Ordering::SeqCst);
        for thread in &self.threads {
            thread.unpark();
        }
        for handle in self.handles.drain(..) {
            // A worker's panic was already given to the caller of `run`.
            drop(handle.join());
        }
    }
}

impl Worker<'_> {
    /// Waits until every worker of this run is here. Writes before it are seen by all after it.
    ///
    /// # Panics
    /// Unwinds when another worker has panicked.
    pub fn barrier(&self) {
        let shared = self.shared;
        if self.count == 1 {
            return;
        }
        let generation = shared.generation.0.load(Ordering::Acquire);
        if shared.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            shared.arrived.0.store(0, Ordering::Relaxed);
            shared
                .generation
                .0
                .store(generation.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut spins = 0;
        while shared.generation.0.load(Ordering::Acquire) == generation {
            if shared.poisoned.load(Ordering::Relaxed) {
                resume_unwind(Box::new(OtherPanicked));
            }
            pause(&mut spins);
        }
    }

    /// This worker's part of `0 .. n`, its borders at multiples of `multiple`. The parts of all workers cover `0 .. n`.
    pub fn share(&self, n: usize, multiple: usize) -> Range<usize> {
        share(n, multiple, self.index, self.count)
    }

    /// This worker's scratch memory, 64-byte aligned: (start, bytes). Contents are whatever the last user left.
    pub(crate) fn scratch(&self) -> (*mut u8, usize) {
        // SAFETY: only worker `index` of the one current run takes this cell.
        let scratch = unsafe { &mut *self.shared.scratch[self.index].get() };
        (scratch.as_mut_ptr(), scratch.len())
    }
}

fn share(n: usize, multiple: usize, index: usize, count: usize) -> Range<usize> {
    let units = n.div_ceil(multiple);
    let border = |i: usize| (units * i / count * multiple).min(n);
    border(index)..border(index + 1)
}

impl Shared {
    fn work(&self, index: usize, body: &(dyn Fn(&Worker<'_>) + Sync)) {
        let worker = Worker {
            index,
            count: self.count,
            shared: self,
        };
        IN_RUN.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| body(&worker)));
        IN_RUN.set(false);
        if let Err(payload) = result {
            self.poisoned.store(true, Ordering::Relaxed);
            if !payload.is::<OtherPanicked>() {
                let mut first = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
                first.get_or_insert(payload);
            }
        }
    }
}

fn serve(shared: &Shared, index: usize) {
    let mut seen = 0;
    loop {
        seen = await_epoch(shared, index, seen);
        if shared.shutdown.load(Ordering::SeqCst) {
            return;
        }
        // SAFETY: the epoch has changed, so `run` has set the job and waits for `running` to reach zero.
        let job = unsafe { (*shared.job.get()).expect("a new epoch has a job") };
        // SAFETY: the closure lives until `run` returns, which is after the decrement below.
        shared.work(index, unsafe { &*job });
        shared.running.0.fetch_sub(1, Ordering::Release);
    }
}

fn await_epoch(shared: &Shared, index: usize, seen: u64) -> u64 {
    let started = Instant::now();
    let mut spins = 0u32;
    loop {
        let epoch = shared.epoch.0.load(Ordering::Acquire);
        if epoch != seen {
            return epoch;
        }
        spins = spins.wrapping_add(1);
        std::hint::spin_loop();
        if spins.is_multiple_of(128) && started.elapsed() > SPIN_BEFORE_SLEEP {
            let asleep = &shared.asleep[index].0;
            asleep.store(true, Ordering::SeqCst);
            // The caller first changes the epoch, then looks at `asleep`: one of the two of us sees the other.
            while shared.epoch.0.load(Ordering::SeqCst) == seen && asleep.load(Ordering::SeqCst) {
                std::thread::park();
            }
            asleep.store(false, Ordering::SeqCst);
        }
    }
}

fn pause(spins: &mut u32) {
    *spins += 1;
    if *spins < SPINS_BEFORE_YIELD {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

mod affinity {
    /// Pins the calling thread to the `index`-th processor this process may use, if there is one for each of `count`
    /// threads; otherwise leaves placing to the system.
    #[cfg(target_os = "linux")]
    pub fn pin(index: usize, count: usize) {
        // SAFETY: a zeroed cpu_set_t is an empty set; the calls read and write only the sets given.
        unsafe {
            let mut allowed: libc::cpu_set_t = std::mem::zeroed();
            let size = std::mem::size_of::<libc::cpu_set_t>();
            if libc::sched_getaffinity(0, size, &mut allowed) != 0 {
                return;
            }
            let cpus: Vec<usize> = (0..libc::CPU_SETSIZE as usize)
                .filter(|&cpu| libc::CPU_ISSET(cpu, &allowed))
                .collect();
            if cpus.len() < count {
                return;
            }
            let mut own: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpus[index], &mut own);
            // A refusal leaves the thread where the system puts it, which is slower but right.
            libc::sched_setaffinity(0, size, &own);
        }
    }

    #[cfg(not(target_os = "linux"))]
    pub fn pin(_index: usize, _count: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for (n, multiple, count) in [
            (0, 16, 2),
            (1, 16, 2),
            (33, 16, 3),
            (160, 16, 4),
            (7, 1, 3),
            (5, 2, 8),
        ] {
            let mut next = 0;
            for index in 0..count {
                let part = share(n, multiple, index, count);
                assert_eq!(part.start, next, "n {n} multiple {multiple} index {index}");
                assert!(part.start.is_multiple_of(multiple) || part.start == n);
                next = part.end;
            }
            assert_eq!(next, n);
        }
    }

    #[test]
    fn barriers_order_writes_over_many_runs() {
        for count in 1..=3 {
            let pool = Pool::new(count).expect("threads");
            let cells: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            for run in 1..=50 {
                pool.run(|worker| {
                    for step in 0..20 {
                        let value = run * 100 + step;
                        cells[worker.index].store(value, Ordering::Relaxed);
                        worker.barrier();
                        for cell in &cells {
                            assert_eq!(cell.load(Ordering::Relaxed), value);
                        }
                        worker.barrier();
                    }
                });
            }
        }
    }

    #[test]
    fn sleeping_threads_wake() {
        let pool = Pool::new(2).expect("threads");
        let runs = AtomicUsize::new(0);
        for _ in 0..3 {
            std::thread::sleep(SPIN_BEFORE_SLEEP * 4);
            pool.run(|_| {
                runs.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(runs.load(Ordering::Relaxed), 6);
    }

    #[test]
    fn a_panic_frees_the_others_and_the_pool_lives_on() {
        let pool = Pool::new(3).expect("threads");
        for bad in 0..3 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(|worker| {
                    if worker.index == bad {
                        resume_unwind(Box::new("broken"));
                    }
                    worker.barrier();
                });
            }));
            let payload = result.expect_err("the panic comes out");
            assert_eq!(payload.downcast_ref::<&str>(), Some(&"broken"));
            let reached = AtomicUsize::new(0);
            pool.run(|worker| {
                worker.barrier();
                reached.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(reached.load(Ordering::Relaxed), 3);
        }
    }
}
