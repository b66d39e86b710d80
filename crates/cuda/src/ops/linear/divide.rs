//! How a product's work is divided: into how many parts of k, so that the device's multiprocessors are busy in whole waves.
//!
//! The estimate knows rounds. In one round each warp of a full device takes one piece of weights; all of them together are
//! bound by memory or by the tensor cores. Blocks come in waves of as many as the device holds. A wave that is not full is
//! faster in proportion, down to the time that one warp takes for its piece with the device to itself. Cutting k makes
//! waves fuller and costs a meeting. The tiled kernel is planned so; the skinny one by `crate::model`, which knows its loops.

use crate::model::{self, Gpu};

/// What of a device plans depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Multiprocessors.
    pub sm_count: u32,
    /// What it can read, GB/s.
    pub read_gb_s: u32,
    /// Whether kernels run with Volta's tensor instruction (its own machine code, or its PTX on a later device).
    pub volta: bool,
}

impl Device {
    /// Tesla V100.
    pub const V100: Self = Self {
        sm_count: 80,
        read_gb_s: 850,
        volta: true,
    };
    /// H200.
    pub const H200: Self = Self {
        sm_count: 132,
        read_gb_s: 4200,
        volta: false,
    };

    /// The rates that the model of times takes for it: those of the nearest device that it knows.
    pub fn rates(self) -> Gpu {
        let near = if self.volta { model::V100 } else { model::H200 };
        let read_gbs = f64::from(self.read_gb_s);
        Gpu {
            sms: self.sm_count,
            read_gbs,
            l2_gbs: near.l2_gbs / near.read_gbs * read_gbs,
            ..near
        }
    }
}

/// Parts of k at most.
pub const PARTS_MAX: u32 = 16;

/// Share that a last wave after full ones, which it overlaps, takes beyond what its blocks ask for.
const LAST_WAVE_START: f64 = 0.25;
/// Time for the parts of k to meet, in ns.
const MEETING_NS: f64 = 2000.0;

/// The work of one launch, before k is cut.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Blocks of one part.
    pub blocks: u32,
    /// Blocks that the device holds at once.
    pub resident: u32,
    /// Blocks count as so many together: the multiprocessors where each is bound by its own work, one where all are by memory.
    pub together: u32,
    /// Pieces of k.
    pub pieces: u32,
    /// Pieces that a block takes at once: its warps, or one where all warps share it.
    pub pieces_round: u32,
    /// Time of a round of a full device, in ns.
    pub round_ns: f64,
    /// Time of a round of one block that has the device to itself, in ns.
    pub latency_ns: f64,
    /// Time to write and read one part's sums, in ns.
    pub part_ns: f64,
}

/// One candidate, for the printed table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Parts of k.
    pub parts: u32,
    /// Waves of blocks, the last one as a fraction.
    pub waves: f64,
    /// Rounds of a block.
    pub rounds: u32,
    /// The estimate, in ns.
    pub ns: f64,
}

/// The estimate for a number of parts.
pub fn estimate(work: &Work, parts: u32) -> Choice {
    let rounds = work.pieces.div_ceil(parts).div_ceil(work.pieces_round);
    let blocks = (u64::from(work.blocks) * u64::from(parts)).next_multiple_of(u64::from(work.together));
    let waves = blocks as f64 / f64::from(work.resident);
    let last = waves.fract();
    let last = match (last > 0.0, waves >= 1.0) {
        (false, _) => 0.0,
        (true, true) => LAST_WAVE_START + (1.0 - LAST_WAVE_START) * last,
        (true, false) => last.max(work.latency_ns / work.round_ns),
    };
    let mut ns = (waves.floor() + last) * f64::from(rounds) * work.round_ns;
    if parts > 1 {
        ns += MEETING_NS + f64::from(parts) * work.part_ns;
    }
    Choice {
        parts,
        waves,
        rounds,
        ns,
    }
}

/// All candidates: each part has a piece, and fewer parts with as many pieces each are no candidate.
pub fn candidates(work: &Work) -> Vec<Choice> {
    (1..=PARTS_MAX.min(work.pieces).max(1))
        .filter(|parts| valid(work.pieces, *parts))
        .map(|parts| estimate(work, parts))
        .collect()
}

/// Whether each of `parts` parts has a piece.
pub const fn valid(pieces: u32, parts: u32) -> bool {
    parts == 1 || (parts > 0 && (parts - 1) * pieces.div_ceil(parts) < pieces)
}

/// The fastest candidate; the fewest parts among equals.
pub fn choose(work: &Work) -> Choice {
    let all = candidates(work);
    let best = all.iter().min_by(|a, b| a.ns.total_cmp(&b.ns));
    *best.expect("one part is always a candidate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_a_piece() {
        for pieces in 1..200 {
            let work = Work {
                blocks: 3,
                resident: 320,
                together: 1,
                pieces,
                pieces_round: 8,
                round_ns: 1000.0,
                latency_ns: 700.0,
                part_ns: 1.0,
            };
            for choice in candidates(&work) {
                let each = pieces.div_ceil(choice.parts);
                assert!((choice.parts - 1) * each < pieces, "{pieces} in {}", choice.parts);
                assert!(choice.parts * each >= pieces);
            }
        }
        assert!(!valid(10, 6), "five parts of two take all ten");
        assert!(valid(10, 5) && valid(1, 1) && !valid(1, 2) && !valid(4, 0));
    }

    #[test]
    fn waves_that_are_not_full_cost_more() {
        let work = |blocks| Work {
            blocks,
            resident: 100,
            together: 1,
            pieces: 8,
            pieces_round: 8,
            round_ns: 1000.0,
            latency_ns: 700.0,
            part_ns: 0.0,
        };
        for (blocks, want) in [
            (100, 1000.0),
            (1, 700.0),
            (90, 900.0),
            (101, 1257.5),
            (150, 1625.0),
            (200, 2000.0),
        ] {
            assert!((estimate(&work(blocks), 1).ns - want).abs() < 1e-6, "{blocks}");
        }
    }
}
