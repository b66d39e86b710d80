//! A model of kernel times: what a launch moves and computes, over a GPU's rates. It predicts V100 times, since no V100 is at
//! hand; `docs/v100-model.md` says how far it can be trusted. Every number that it gives is a prediction.
//!
//! The model knows rounds. In one round every warp that a multiprocessor holds takes one piece of weights: it waits for
//! its bytes, then multiplies. Four things bound a round: bytes from memory for all warps, bytes from the second-level cache for
//! all warps (weights, and the activations that the first level misses), the longest chain of one warp (latency, then its
//! instructions at the pace at which warps take turns), and issue slots or pipes for all warps. A smooth maximum of the
//! four is the round's time; rounds times waves of blocks, plus what a launch takes whatever it does, is the launch's.

mod calibration;
mod experts;
mod loops;
mod pass;
mod published;
mod rates;
mod report;
mod table;
mod token;

pub use calibration::{Sample, samples};
pub use loops::{LoopRow, skinny_loop};
pub use pass::{Pass, main_loop};
pub use rates::{Gpu, H200, V100};
pub use report::command;

use crate::ops::linear::Linear;
use crate::ops::linear::divide::Device;

/// One launch of `linear_skinny`, as the model sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Tiles of 32 columns.
    pub tiles: u32,
    /// Parts of k.
    pub parts: u32,
    /// Warps of a block.
    pub warps: u32,
    /// Pieces of k of a tile.
    pub pieces: u32,
    /// Numbers of k in a piece.
    pub piece: u32,
    /// Bytes of a piece of weights.
    pub piece_bytes: f64,
    /// Tokens whose activations a warp reads.
    pub tokens: u32,
    /// Tiles of eight tokens whose sums a block keeps.
    pub token_tiles: u32,
    /// Registers a thread.
    pub registers: u32,
    /// Shared memory of a block, in bytes.
    pub shared_bytes: u32,
    /// One pass of the main loop: one piece.
    pub pass: Pass,
}

/// What binds a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Bytes from memory.
    Dram,
    /// Bytes from the second-level cache.
    L2,
    /// One warp's chain: too few warps, or too long a loop.
    Latency,
    /// Issue slots or a pipe.
    Compute,
    /// What a launch takes whatever it does.
    Fixed,
}

/// A predicted time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// The whole, in us.
    pub us: f64,
    /// The largest term.
    pub bound: Bound,
    /// Warps that a multiprocessor holds.
    pub warps: u32,
    /// Waves of blocks.
    pub waves: f64,
}

/// The fitted constants: what no data sheet says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// From a launch's start to its first bytes, and from its last bytes to the next launch, in us.
    pub fixed_us: f64,
    /// Added where parts of k meet, in us.
    pub meeting_us: f64,
    /// Time until a warp's bytes come from an idle memory, in us.
    pub latency_us: f64,
    /// Cycles an instruction of one warp takes while the other warps take turns with it.
    pub turn_cycles: f64,
    /// Share of the activations that the first-level cache misses.
    pub activation_misses: f64,
    /// Exponent of the smooth maximum.
    pub sharpness: f64,
    /// Share of a full wave's time that a wave with few blocks takes at least.
    pub last_wave: f64,
}

/// Fitted to `h200.tsv` by random search over the mean square of the logarithms.
pub const FIT: Fit = Fit {
    fixed_us: 3.147,
    meeting_us: 2.416,
    latency_us: 0.227,
    turn_cycles: 11.8,
    activation_misses: 0.552,
    sharpness: 4.936,
    last_wave: 0.453,
};

/// Registers of a multiprocessor, and the warps and the unit a warp's registers are given out by: the same from Volta to Hopper.
const REGISTERS: u32 = 65536;
const WARPS_MAX: u32 = 64;

/// The time of a launch.
pub fn predict(gpu: &Gpu, work: &Work, fit: &Fit) -> Prediction {
    let share = f64::from(work.tiles * work.parts) / f64::from(gpu.sms);
    let by_registers = REGISTERS / (work.registers.next_multiple_of(8) * 32 * work.warps);
    let cap = by_registers
        .min(gpu.shared_bytes / work.shared_bytes.max(1))
        .min(WARPS_MAX / work.warps)
        .max(1);
    let blocks = cap.min(share.ceil() as u32);
    let warps = f64::from(blocks * work.warps);
    let waves = waves(share / f64::from(blocks), fit.last_wave);
    let rounds = (f64::from(work.pieces) / f64::from(work.parts * work.warps)).max(1.0);

    let activations = f64::from(work.piece * work.tokens * 2) * fit.activation_misses;
    let per_sm = |gbs: f64| gbs * 1e3 / f64::from(gpu.sms);
    let terms = [
        (Bound::Dram, warps * work.piece_bytes / per_sm(gpu.read_gbs)),
        (
            Bound::L2,
            warps * (work.piece_bytes + activations) / per_sm(gpu.l2_gbs),
        ),
        (
            Bound::Latency,
            fit.latency_us + fit.turn_cycles * f64::from(work.pass.issued) / gpu.clock_ghz / 1e3,
        ),
        (
            Bound::Compute,
            warps / 4.0 * gpu.cycles(&work.pass) / gpu.clock_ghz / 1e3,
        ),
    ];
    let power: f64 = terms.iter().map(|(_, us)| us.powf(fit.sharpness)).sum();
    let moving = waves * rounds * power.powf(1.0 / fit.sharpness);
    let fixed = fit.fixed_us
        + if work.parts > 1 {
            meeting(gpu, work, fit)
        } else {
            0.0
        };
    let largest = terms
        .into_iter()
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .expect("four terms");
    Prediction {
        us: fixed + moving,
        bound: if fixed > moving { Bound::Fixed } else { largest.0 },
        warps: blocks * work.warps,
        waves,
    }
}

/// Time in us of a product for few tokens, as it is planned for a V100 of this bandwidth.
fn volta_us(gpu: &Gpu, linear: &Linear, m: u32) -> f64 {
    let device = Device {
        read_gb_s: gpu.read_gbs as u32,
        ..Device::V100
    };
    let plan = linear
        .plan(m, device)
        .expect("the tables' shapes are inside the limits");
    let numbers = plan.skinny().expect("the tables' tokens are few");
    let kernel = skinny_loop(true, linear.format.name, numbers[0]);
    predict(gpu, &linear.skinny_work(m, numbers, &kernel), &FIT).us
}

/// Parts of k meet: their sums (32 columns x 8 tokens a tile, f32) are written and read once.
fn meeting(gpu: &Gpu, work: &Work, fit: &Fit) -> f64 {
    let sums = f64::from(work.tiles) * f64::from(work.parts * work.token_tiles * 1024);
    fit.meeting_us + 2.0 * sums / gpu.l2_gbs / 1e3
}

/// Full waves, and the last one, which takes some time however few its blocks.
fn waves(exact: f64, floor: f64) -> f64 {
    if exact <= 1.0 {
        return exact.max(floor);
    }
    let last = exact.fract();
    let last = if last < 1e-9 {
        0.0
    } else {
        floor + (1.0 - floor) * last
    };
    exact.floor() + last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fit_holds_its_samples() {
        let mut squares = 0.0;
        let samples = samples();
        assert!(samples.len() > 300, "{} samples", samples.len());
        for sample in &samples {
            let ratio = predict(&H200, &sample.work, &FIT).us / sample.us;
            assert!((0.65..1.45).contains(&ratio), "{}: {ratio:.2}", sample.name);
            squares += ratio.ln().powi(2);
        }
        let error = (squares / samples.len() as f64).sqrt();
        assert!(error < 0.125, "root mean square of the logarithms: {error:.3}");
    }

    #[test]
    fn more_of_anything_is_never_faster() {
        let base = samples()[0].work;
        let time = |work: Work| predict(&V100, &work, &FIT).us;
        let least = time(base);
        for (what, work) in [
            (
                "tiles",
                Work {
                    tiles: base.tiles * 2,
                    ..base
                },
            ),
            (
                "pieces",
                Work {
                    pieces: base.pieces * 2,
                    ..base
                },
            ),
            (
                "bytes",
                Work {
                    piece_bytes: base.piece_bytes * 2.0,
                    ..base
                },
            ),
            ("tokens", Work { tokens: 64, ..base }),
        ] {
            assert!(time(work) >= least, "{what}");
        }
    }
}
