//! A graph compiled for this machine: a list of stages that all workers walk together.
//!
//! A stage is one operation with every choice made: addresses in the arena, packed weights, kernel. Each worker takes
//! its share of a stage and goes on; where the next stage reads what another worker wrote, the stage says so and all
//! meet at a barrier first ([`barriers`]). A step is one [`Pool::run`] over the list, and allocates nothing.

mod barriers;
mod compile;
mod experts;
mod resources;
mod run;
mod stage;

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use galvani_graph::{Compiled, LimitsSpec, RopeSpec};

use crate::lanes::Set;
use crate::ops::attention::Item;
use crate::ops::cache::KvPool;
use crate::ops::route::Groups;
use crate::pack::{AlignedBytes, PackedMatrix};
use crate::pool::Pool;
use crate::quantise::ActRows;
use stage::Stage;

pub(crate) use compile::{Target, compile};
pub use run::OpTime;

/// A graph compiled by [`crate::CpuBackend`].
pub struct CpuProgram {
    pool: Arc<Pool>,
    set: Set,
    limits: LimitsSpec,
    vocabulary: usize,
    /// Numbers in a row of logits.
    logits_len: usize,
    stages: Vec<Stage>,
    /// Planned activations, then tables and slots ([`compile`] says where).
    arena: AlignedBytes,
    matrices: Vec<PackedMatrix>,
    vectors: Vec<Vec<f32>>,
    ropes: Vec<Rope>,
    caches: Vec<KvPool>,
    /// Quantised inputs, one buffer for each row length; consumers of one value share it.
    acts: Vec<ActRows>,
    /// Attention work of the current step, by (group, kv_heads).
    work: Vec<Work>,
    /// One a stage that hands out work.
    counters: Vec<AtomicUsize>,
    groups: Option<Shared<Groups>>,
    scratch: Vec<AlignedBytes>,
    times: Option<Vec<OpTime>>,
    compiled: Compiled,
}

struct Rope {
    frequencies: Vec<f32>,
    magnitude: f32,
}

impl Rope {
    fn new(spec: &RopeSpec) -> Self {
        Rope {
            frequencies: spec.frequencies(),
            magnitude: spec.magnitude(),
        }
    }
}

/// Items of all attention nodes with these head counts.
struct Work {
    group: usize,
    kv_heads: usize,
    items: Vec<Item>,
}

/// Something that one worker at a time changes, with barriers in between.
struct Shared<T>(UnsafeCell<T>);

// SAFETY: every use of `get` and `get_mut` is in a stage whose contract says which worker touches it between which
// barriers.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn new(value: T) -> Self {
        Shared(UnsafeCell::new(value))
    }

    /// # Safety
    /// Nobody changes it until the next barrier.
    unsafe fn get(&self) -> &T {
        // SAFETY: passed on from the caller.
        unsafe { &*self.0.get() }
    }

    /// # Safety
    /// This worker alone touches it until the next barrier.
    #[allow(
        clippy::mut_from_ref,
        reason = "the point of this type; exclusiveness is the caller's promise"
    )]
    unsafe fn get_mut(&self) -> &mut T {
        // SAFETY: passed on from the caller.
        unsafe { &mut *self.0.get() }
    }
}

impl CpuProgram {
    /// What the program is and takes.
    pub fn compiled(&self) -> &Compiled {
        &self.compiled
    }

    /// Starts (or stops) measuring the time of each kind of operation.
    pub fn measure(&mut self, on: bool) {
        self.times = on.then(Vec::new);
    }

    /// Time by kind of operation since measuring began, the longest first: worker 0's, waiting for the others included.
    pub fn times(&self) -> Vec<OpTime> {
        let mut times = self.times.clone().unwrap_or_default();
        times.sort_by_key(|time| std::cmp::Reverse(time.nanoseconds));
        times
    }
}
