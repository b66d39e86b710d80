//! One block: its warps run in turns, each to its next barrier.

use super::warp::{Arrival, Event, Warp};
use super::{Core, Machine};
use crate::fault::{Fault, FaultKind, Stop};
use crate::ir::{Reduce, Slot};
use crate::lanes::lanes;

/// Instructions that a warp runs before the next has its turn, so that one may wait for another in a loop.
const TURN: u64 = 20_000;
const BARRIERS: usize = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    Waiting,
    Done,
}

/// What a warp brings to a reduction: the operation, its lanes' votes, where the result goes.
type Vote = (Reduce, u32, Slot);

/// A named barrier while warps come to it.
#[derive(Debug, Clone, Default)]
struct Gate {
    /// Bits of warps that wait, and with what for a reduction.
    waiting: Vec<(usize, Option<Vote>)>,
    arrived: Vec<(usize, u32)>,
    warps: usize,
}

/// Reused for all blocks that a host thread runs.
pub(crate) struct Block {
    warps: Vec<Warp>,
    states: Vec<State>,
    gates: Vec<Gate>,
    threads: u32,
    /// Fused multiply-adds and wide vectors are there.
    fast: bool,
}

impl Block {
    pub(crate) fn new(machine: &Machine<'_>) -> Self {
        let threads: u32 = machine.launch.block.iter().product();
        let count = threads.div_ceil(32) as usize;
        #[cfg(target_arch = "x86_64")]
        let fast = std::is_x86_feature_detected!("avx2")
            && std::is_x86_feature_detected!("fma")
            && std::is_x86_feature_detected!("popcnt")
            && std::is_x86_feature_detected!("lzcnt")
            && std::is_x86_feature_detected!("bmi1")
            && std::is_x86_feature_detected!("bmi2");
        #[cfg(not(target_arch = "x86_64"))]
        let fast = false;
        Self {
            warps: (0..count)
                .map(|index| Warp::new(machine, index as u32, threads))
                .collect(),
            states: vec![State::Ready; count],
            gates: vec![Gate::default(); BARRIERS],
            threads,
            fast,
        }
    }

    pub(crate) fn run(
        &mut self,
        machine: &Machine<'_>,
        core: &mut Core,
        index: u64,
    ) -> Result<(), Box<Fault>> {
        let [x, y, _] = machine.launch.grid.map(u64::from);
        let block = [index % x, index / x % y, index / x / y].map(|side| side as u32);
        core.shared.begin_block();
        core.counters.blocks += 1;
        core.counters.warps += self.warps.len() as u64;
        core.counters.block_warps_max = core.counters.block_warps_max.max(self.warps.len() as u64);
        for warp in &mut self.warps {
            warp.begin(machine, block);
        }
        self.states.fill(State::Ready);
        self.gates.fill(Gate::default());
        loop {
            let mut ran = false;
            for at in 0..self.warps.len() {
                if self.states[at] != State::Ready {
                    continue;
                }
                ran = true;
                let event = self.warps[at].turn(machine, core, TURN, self.fast);
                let result = match event {
                    Ok(event) => self.take(machine, core, at, event),
                    Err(stop) => Err(stop),
                };
                result.map_err(|stop| self.fault(machine, at, *stop, block))?;
            }
            if self.states.iter().all(|state| *state == State::Done) {
                return Ok(());
            }
            if !ran {
                return Err(self.stuck(machine, block));
            }
        }
    }

    fn take(
        &mut self,
        machine: &Machine<'_>,
        core: &mut Core,
        at: usize,
        event: Event,
    ) -> Result<(), Box<Stop>> {
        match event {
            Event::Turn => Ok(()),
            Event::Done => {
                self.states[at] = State::Done;
                Ok(())
            }
            Event::Barrier(arrival) => self.arrive(machine, core, at, arrival),
        }
    }

    fn arrive(
        &mut self,
        machine: &Machine<'_>,
        core: &mut Core,
        at: usize,
        arrival: Arrival,
    ) -> Result<(), Box<Stop>> {
        core.counters.barrier_waits += u64::from(!arrival.arrive);
        let refuse = |what: String| Err(Stop::new(FaultKind::DivergentBarrier { what }, 0));
        if arrival.id as usize >= BARRIERS {
            return refuse(format!("barrier {}, allowed: 0 to {}", arrival.id, BARRIERS - 1));
        }
        let warps = match arrival.threads {
            None => self.warps.len(),
            Some(threads)
                if threads > 0 && threads % 32 == 0 && threads <= self.threads.next_multiple_of(32) =>
            {
                (threads / 32) as usize
            }
            Some(threads) => {
                return refuse(format!(
                    "{threads} threads, allowed: multiples of 32 up to the block's {}",
                    self.threads
                ));
            }
        };
        let gate = &mut self.gates[arrival.id as usize];
        let first = gate.waiting.is_empty() && gate.arrived.is_empty();
        if !first && gate.warps != warps {
            return refuse(format!(
                "{} and {warps} warps wanted at barrier {}",
                gate.warps, arrival.id
            ));
        }
        gate.warps = warps;
        if arrival.arrive {
            let time = core.shared.races.as_mut().map_or(0, |races| races.arrive());
            gate.arrived.push((at, time));
        } else {
            gate.waiting.push((at, arrival.reduce));
            self.states[at] = State::Waiting;
        }
        if gate.waiting.len() + gate.arrived.len() == warps {
            let gate = std::mem::take(gate);
            self.open(machine, core, &gate);
        }
        Ok(())
    }

    fn open(&mut self, machine: &Machine<'_>, core: &mut Core, gate: &Gate) {
        let waited = gate
            .waiting
            .iter()
            .fold(0_u32, |mask, (warp, _)| mask | 1 << warp);
        if let Some(races) = &mut core.shared.races {
            let all = gate.waiting.len() == self.warps.len();
            races.barrier(waited, &gate.arrived, all);
        }
        let votes = || {
            gate.waiting
                .iter()
                .filter_map(|(warp, reduce)| reduce.map(|(_, votes, _)| (*warp, votes)))
        };
        let count: u32 = votes().map(|(_, votes)| votes.count_ones()).sum();
        let every = votes().all(|(warp, votes)| votes == self.warps[warp].initial);
        for warp in lanes(waited) {
            self.states[warp] = State::Ready;
        }
        for (warp, reduce) in &gate.waiting {
            if let Some((reduce, _, slot)) = reduce {
                let result = match reduce {
                    Reduce::And => u32::from(every),
                    Reduce::Or => u32::from(count > 0),
                    Reduce::Count => count,
                };
                self.warps[*warp].give(machine, *slot, result);
            }
        }
    }

    /// No warp can go on: some wait at a barrier that the others will not come to.
    fn stuck(&self, machine: &Machine<'_>, block: [u32; 3]) -> Box<Fault> {
        let waiting = self
            .states
            .iter()
            .position(|state| *state == State::Waiting)
            .unwrap_or_default();
        let done = self.states.iter().filter(|state| **state == State::Done).count();
        let elsewhere = self.states.len() - done - 1;
        let what = format!(
            "warp {waiting} waits; of the block's other warps {done} have left the kernel and {elsewhere} wait at this or other barriers"
        );
        self.fault(
            machine,
            waiting,
            Stop {
                kind: FaultKind::DivergentBarrier { what },
                lane: 0,
            },
            block,
        )
    }

    fn fault(&self, machine: &Machine<'_>, at: usize, stop: Stop, block: [u32; 3]) -> Box<Fault> {
        let line = self.warps[at].line;
        let [x, y, _] = machine.launch.block;
        let thread = at as u32 * 32 + stop.lane;
        Box::new(Fault {
            kind: stop.kind,
            kernel: machine.functions[machine.kernel].name.clone(),
            line,
            text: machine.module.line(line).to_owned(),
            block,
            thread: [thread % x, thread / x % y, thread / x / y],
        })
    }
}
