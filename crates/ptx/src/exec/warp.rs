//! A warp: frames of registers, a stack of diverged paths each, and the loop over instructions.
//!
//! A path is a place, the place where it ends by meeting the others, and its lanes. A branch that both ways are taken of
//! splits the topmost path; the paths below wait at the branch's immediate post-dominator.

use super::{Core, Machine};
use crate::counters::Pipe;
use crate::fault::{FaultKind, Outcome, Stop};
use crate::ir::{Call, Function, Instr, LaneMask, Opcode, P, Preset, Reduce, Slot, Special};
use crate::lanes::{LaneMemory, Wides, Words};

const FRAMES_MAX: usize = 256;
/// Leaves no path to meet: the function's end.
const NEVER: u32 = u32::MAX;

/// What ends a warp's turn.
pub(crate) enum Event {
    Turn,
    Done,
    Barrier(Arrival),
}

pub(crate) struct Arrival {
    pub id: u32,
    pub threads: Option<u32>,
    pub arrive: bool,
    pub reduce: Option<(Reduce, u32, Slot)>,
}

#[derive(Debug, Clone, Copy)]
struct Path {
    at: u32,
    rejoin: u32,
    mask: u32,
}

/// The registers of one frame.
pub(crate) struct Registers {
    pub words: Vec<Words>,
    pub wides: Vec<Wides>,
    pub preds: Vec<u32>,
    /// Lanes that wrote each watched register.
    written: Vec<u32>,
}

pub(crate) struct Frame {
    pub(super) function: usize,
    pub registers: Registers,
    paths: Vec<Path>,
    pub params: LaneMemory,
    pub(super) local_base: u32,
    /// Lanes that entered.
    entered: u32,
}

/// What instructions see of a warp beside registers.
pub(crate) struct Own {
    /// Number of the first thread.
    pub first_thread: u32,
    pub index: u32,
    /// Index of the block.
    pub block: [u32; 3],
    /// Lanes that have not left the kernel.
    pub live: u32,
    pub local: LaneMemory,
    pub carry: u32,
}

pub(crate) struct Warp {
    pub own: Own,
    /// Lanes that the block has threads for.
    pub initial: u32,
    frames: Vec<Frame>,
    steps: u64,
    /// Of the last instruction.
    pub line: u32,
}

impl Registers {
    fn new(function: &Function) -> Self {
        Self {
            words: vec![Words([0; 32]); function.words as usize],
            wides: vec![Wides([0; 32]); function.wides as usize],
            preds: vec![0; function.preds as usize],
            written: vec![0; function.watched.len()],
        }
    }

    /// Sets a slot for all lanes; a value by lane for words.
    fn preset(&mut self, slot: Slot, value: impl Fn(u32) -> u64) {
        match slot {
            Slot::Word(r) => {
                self.words[r.0 as usize].0 = std::array::from_fn(|lane| value(lane as u32) as u32)
            }
            Slot::Wide(d) => self.wides[d.0 as usize].0 = std::array::from_fn(|lane| value(lane as u32)),
            Slot::Pred(p) => self.preds[p.0 as usize] = if value(0) != 0 { u32::MAX } else { 0 },
        }
    }

    #[inline(always)]
    pub(crate) fn pred(&self, p: P, negated: bool) -> u32 {
        let bits = self.preds[p.0 as usize];
        if negated { !bits } else { bits }
    }

    #[inline(always)]
    pub(crate) fn set_pred(&mut self, p: P, mask: u32, bits: u32) {
        let old = &mut self.preds[p.0 as usize];
        *old = *old & !mask | bits & mask;
    }
}

impl Warp {
    pub(crate) fn new(machine: &Machine<'_>, index: u32, threads: u32) -> Self {
        let count = (threads - index * 32).min(32);
        let initial = u32::MAX >> (32 - count);
        let own = Own {
            first_thread: index * 32,
            index,
            block: [0; 3],
            live: initial,
            local: LaneMemory::default(),
            carry: 0,
        };
        let mut warp = Self {
            own,
            initial,
            frames: Vec::new(),
            steps: 0,
            line: 0,
        };
        warp.frames.push(Frame::new(machine, machine.kernel));
        warp
    }

    /// Ready for a block: at the kernel's first instruction.
    pub(crate) fn begin(&mut self, machine: &Machine<'_>, block: [u32; 3]) {
        self.own.live = self.initial;
        self.own.block = block;
        self.own.carry = 0;
        self.steps = 0;
        self.frames.truncate(1);
        let frame = &mut self.frames[0];
        frame.enter(machine, &mut self.own, 0, self.initial);
        frame.specials(machine, &self.own, block);
    }

    pub(crate) fn turn(
        &mut self,
        machine: &Machine<'_>,
        core: &mut Core,
        most: u64,
        fast: bool,
    ) -> Outcome<Event> {
        #[cfg(target_arch = "x86_64")]
        if fast {
            // SAFETY: `fast` says that the processor has AVX2 and FMA.
            return unsafe { self.turn_fast(machine, core, most) };
        }
        let _ = fast;
        self.go(machine, core, most)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
    fn turn_fast(&mut self, machine: &Machine<'_>, core: &mut Core, most: u64) -> Outcome<Event> {
        self.go(machine, core, most)
    }

    /// Runs up to `most` instructions.
    #[inline(always)]
    fn go(&mut self, machine: &Machine<'_>, core: &mut Core, most: u64) -> Outcome<Event> {
        let end = self.steps + most;
        loop {
            let frame = self
                .frames
                .last_mut()
                .expect("the kernel's frame is popped only at the end");
            let function = &machine.functions[frame.function];
            let Some(path) = frame.paths.last_mut() else {
                if self.leave(machine) {
                    return Ok(Event::Done);
                }
                continue;
            };
            if path.at == path.rejoin || path.mask == 0 {
                frame.paths.pop();
                continue;
            }
            if self.steps >= end {
                return Ok(Event::Turn);
            }
            let instr = &function.code[path.at as usize];
            self.line = instr.line;
            self.steps += 1;
            if self.steps > machine.options.steps_max {
                let lane = path.mask.trailing_zeros();
                return Err(Stop::new(
                    FaultKind::StepsExceeded {
                        most: machine.options.steps_max,
                    },
                    lane,
                ));
            }
            let mask = match instr.guard {
                Some((p, negated)) => path.mask & frame.registers.pred(p, negated),
                None => path.mask,
            };
            if !instr.checks.is_empty() {
                frame.registers.check(function, instr, path.mask, mask)?;
            }
            core.counters.issued[instr.pipe as usize] += 1;
            core.counters.thread_instructions += u64::from(mask.count_ones());
            if !instr.marks.is_empty() {
                frame.registers.mark(instr, mask);
            }
            if instr.pipe == Pipe::Control {
                if let Some(event) = self.control(machine, core, instr, mask)? {
                    return Ok(event);
                }
                continue;
            }
            let hint = machine.hint_starts[frame.function] + path.at as usize;
            path.at += 1;
            if mask != 0 {
                frame.step(machine, core, &mut self.own, instr, mask, hint)?;
            }
        }
    }

    /// Branches, calls, barriers. `mask` is the lanes that the guard lets through, perhaps none.
    #[inline(never)]
    fn control(
        &mut self,
        machine: &Machine<'_>,
        core: &mut Core,
        instr: &Instr,
        mask: u32,
    ) -> Outcome<Option<Event>> {
        let frame = self.frames.last_mut().expect("an instruction runs in a frame");
        let path = frame.paths.last_mut().expect("an instruction runs on a path");
        let lane = mask.trailing_zeros().min(31);
        match &instr.op {
            Opcode::Branch { target, rejoin } => {
                core.counters.branches += 1;
                let fall = path.mask & !mask;
                core.counters.branches_divergent += u64::from(fall != 0 && mask != 0);
                let next = path.at + 1;
                frame.split(&[(next, fall), (*target, mask)], *rejoin);
                return Ok(None);
            }
            Opcode::Table {
                index,
                targets,
                rejoin,
            } => {
                core.counters.branches += 1;
                let mut ways = vec![(path.at + 1, path.mask & !mask)];
                for lane in crate::lanes::lanes(mask) {
                    let index = frame.registers.words[index.0 as usize].0[lane];
                    let Some(target) = targets.get(index as usize) else {
                        let kind = FaultKind::TableIndex {
                            index,
                            targets: targets.len() as u32,
                        };
                        return Err(Stop::new(kind, lane as u32));
                    };
                    match ways.iter_mut().skip(1).find(|(at, _)| at == target) {
                        Some((_, lanes)) => *lanes |= 1 << lane,
                        None => ways.push((*target, 1 << lane)),
                    }
                }
                core.counters.branches_divergent +=
                    u64::from(ways.iter().filter(|(_, lanes)| *lanes != 0).count() > 1);
                frame.split(&ways, *rejoin);
                return Ok(None);
            }
            _ => {}
        }
        path.at += 1;
        if mask == 0 {
            return Ok(None);
        }
        match &instr.op {
            Opcode::Call(call) => self.call(machine, call, mask)?,
            Opcode::Return => frame.drop_lanes(mask),
            Opcode::Exit => {
                self.own.live &= !mask;
                for frame in &mut self.frames {
                    frame.drop_lanes(mask);
                }
            }
            Opcode::Trap => return Err(Stop::new(FaultKind::Trap, lane)),
            Opcode::Barrier(barrier) => {
                let registers = &frame.registers;
                if mask != self.initial {
                    return Err(self.missing(mask));
                }
                let value = |r: crate::ir::R| registers.words[r.0 as usize].0[0];
                return Ok(Some(Event::Barrier(Arrival {
                    id: value(barrier.id),
                    threads: barrier.threads.map(value),
                    arrive: barrier.arrive,
                    reduce: barrier
                        .reduce
                        .map(|(op, p, negated, d)| (op, registers.pred(p, negated) & mask, d)),
                })));
            }
            _ => frame.together(core, &mut self.own, instr, mask)?,
        }
        Ok(None)
    }

    fn missing(&self, mask: u32) -> Box<Stop> {
        let (left, elsewhere) = (self.initial & !self.own.live, self.own.live & !mask);
        let what = format!(
            "warp {}: lanes 0x{left:08x} have left the kernel, lanes 0x{elsewhere:08x} are on another path",
            self.own.index
        );
        Stop::new(FaultKind::DivergentBarrier { what }, mask.trailing_zeros())
    }

    fn call(&mut self, machine: &Machine<'_>, call: &Call, mask: u32) -> Outcome {
        let lane = mask.trailing_zeros();
        let overflow = |what: String| Err(Stop::new(FaultKind::StackOverflow { what }, lane));
        if self.frames.len() >= FRAMES_MAX {
            return overflow(format!("{FRAMES_MAX} calls inside each other"));
        }
        let caller = self.frames.last().expect("an instruction runs in a frame");
        let used = caller.local_base + machine.functions[caller.function].local_bytes;
        let base = used.next_multiple_of(16);
        let end = u64::from(base) + u64::from(machine.functions[call.function].local_bytes);
        if end > crate::decode::LOCAL_BYTES_MAX {
            return overflow(format!(
                "{end} bytes of local memory, allowed: {}",
                crate::decode::LOCAL_BYTES_MAX
            ));
        }
        let mut frame = Frame::new(machine, call.function);
        frame.enter(machine, &mut self.own, base, mask);
        // Special registers stay what they are in the kernel: every frame of a block sees the same.
        frame.specials(machine, &self.own, self.own.block);
        let caller = self.frames.last().expect("it was there a line ago");
        for (from, to, bytes) in &call.arguments {
            LaneMemory::copy(&caller.params, *from, &mut frame.params, *to, *bytes, mask);
        }
        self.frames.push(frame);
        Ok(())
    }

    /// Ends the topmost frame; whether that was the kernel's.
    fn leave(&mut self, machine: &Machine<'_>) -> bool {
        if self.frames.len() == 1 {
            return true;
        }
        let done = self.frames.pop().expect("there are two at least");
        let caller = self.frames.last_mut().expect("there was one more");
        // The call stands just before the place where the caller goes on.
        let at = caller.paths.last().map(|path| path.at as usize - 1);
        if let Some(at) = at
            && let Opcode::Call(call) = &machine.functions[caller.function].code[at].op
        {
            let mask = done.entered & self.own.live;
            for (here, there, bytes) in &call.results {
                LaneMemory::copy(&done.params, *there, &mut caller.params, *here, *bytes, mask);
            }
        }
        false
    }

    /// A barrier's reduction.
    pub(crate) fn give(&mut self, _machine: &Machine<'_>, slot: Slot, value: u32) {
        let frame = self.frames.last_mut().expect("a waiting warp has a frame");
        frame.registers.preset(slot, |_| u64::from(value));
    }
}

impl Registers {
    /// Lanes that read what they never wrote. A copy passes the state on and is no read.
    fn check(&mut self, function: &Function, instr: &Instr, path: u32, mask: u32) -> Outcome {
        if matches!(instr.op, Opcode::Mov32(..) | Opcode::Mov64(..)) && instr.guard.is_none() {
            return Ok(());
        }
        for index in &instr.checks {
            let (slot, name) = &function.watched[*index as usize];
            // All lanes of the path read the guard, those that it lets through the rest.
            let guard = instr.guard.is_some_and(|(p, _)| *slot == Slot::Pred(p));
            let missing = if guard { path } else { mask } & !self.written[*index as usize];
            if missing != 0 {
                let register = name.clone();
                return Err(Stop::new(
                    FaultKind::UnwrittenRegister { register },
                    missing.trailing_zeros(),
                ));
            }
        }
        Ok(())
    }

    fn mark(&mut self, instr: &Instr, mask: u32) {
        let copied = match (&instr.op, instr.checks.first()) {
            (Opcode::Mov32(..) | Opcode::Mov64(..), Some(source)) if instr.guard.is_none() => {
                self.written[*source as usize]
            }
            _ => u32::MAX,
        };
        for index in &instr.marks {
            let written = &mut self.written[*index as usize];
            *written = *written & !mask | copied & mask;
        }
    }
}

impl Frame {
    fn new(machine: &Machine<'_>, function: usize) -> Self {
        let code = &machine.functions[function];
        let mut registers = Registers::new(code);
        for (slot, preset) in &code.presets {
            let value = match preset {
                Preset::Bits(bits) => *bits,
                Preset::Const(at) | Preset::Shared(at) => *at,
                Preset::Global(index, by) => machine.globals[*index as usize].wrapping_add_signed(*by),
                Preset::Dynamic(by) => machine.dynamic_base.wrapping_add_signed(*by),
                Preset::Special(_) | Preset::Local(_) => continue,
            };
            registers.preset(*slot, |_| value);
        }
        let mut params = LaneMemory::default();
        params.reserve(code.param_bytes);
        Self {
            function,
            registers,
            paths: Vec::new(),
            params,
            local_base: 0,
            entered: 0,
        }
    }

    fn enter(&mut self, machine: &Machine<'_>, own: &mut Own, local_base: u32, mask: u32) {
        let code = &machine.functions[self.function];
        self.paths.clear();
        self.paths.push(Path {
            at: 0,
            rejoin: NEVER,
            mask,
        });
        self.registers.written.fill(0);
        self.entered = mask;
        self.local_base = local_base;
        if code.local_bytes > 0 {
            own.local.reserve(local_base + code.local_bytes);
            own.local.forget(local_base, code.local_bytes, mask);
        }
        for (slot, preset) in &code.presets {
            if let Preset::Local(at) = preset {
                self.registers
                    .preset(*slot, |_| u64::from(local_base).wrapping_add(*at));
            }
        }
    }

    fn specials(&mut self, machine: &Machine<'_>, own: &Own, block: [u32; 3]) {
        let [x, y, _] = machine.launch.block;
        let threads: u32 = machine.launch.block.iter().product();
        for (slot, preset) in &machine.functions[self.function].presets {
            let Preset::Special(special) = preset else {
                continue;
            };
            self.registers.preset(*slot, |lane| {
                let thread = own.first_thread + lane;
                u64::from(match special {
                    Special::Tid(0) => thread % x,
                    Special::Tid(1) => thread / x % y,
                    Special::Tid(_) => thread / x / y,
                    Special::Ntid(side) => machine.launch.block[usize::from(*side)],
                    Special::Ctaid(side) => block[usize::from(*side)],
                    Special::Nctaid(side) => machine.launch.grid[usize::from(*side)],
                    Special::Lane => lane,
                    Special::Warp => own.index,
                    Special::Warps => threads.div_ceil(32),
                    Special::LaneMask(LaneMask::Eq) => 1 << lane,
                    Special::LaneMask(LaneMask::Lt) => (1 << lane) - 1,
                    Special::LaneMask(LaneMask::Le) => u32::MAX >> (31 - lane),
                    Special::LaneMask(LaneMask::Gt) => !(u32::MAX >> (31 - lane)),
                    Special::LaneMask(LaneMask::Ge) => u32::MAX << lane,
                    Special::DynamicBytes => machine.launch.shared_bytes,
                })
            });
        }
    }

    /// Sends the topmost path's lanes to several places; they meet again at `rejoin`.
    #[inline(always)]
    fn split(&mut self, ways: &[(u32, u32)], rejoin: u32) {
        let path = self.paths.last_mut().expect("an instruction runs on a path");
        let mut taken = ways.iter().filter(|(_, mask)| *mask != 0);
        let first = taken.next();
        if let (Some((at, _)), None) = (first, taken.next()) {
            path.at = *at;
            return;
        }
        // The lanes wait at the meeting place, unless the path ends there anyway.
        if path.rejoin == rejoin || rejoin == NEVER {
            self.paths.pop();
        } else {
            path.at = rejoin;
        }
        for (at, mask) in ways {
            if *mask != 0 && *at != rejoin {
                self.paths.push(Path {
                    at: *at,
                    rejoin,
                    mask: *mask,
                });
            }
        }
    }

    fn drop_lanes(&mut self, mask: u32) {
        for path in &mut self.paths {
            path.mask &= !mask;
        }
    }
}
