//! A model of kernel times: what a launch moves and computes, over a GPU's rates. It predicts V100 times, since no V100 is at
//! hand; `docs/v100-model.md` says how far it can be trusted. Every number that it gives is a prediction.
//!
//! Three things bound a launch, and a smooth maximum of their times is its own: all its bytes from memory; all its bytes from the
//! second-level cache (weights and activations); and the busiest multiprocessor's blocks. Of these as many run at one time as
//! fit, in waves; a block takes rounds, in each of which every warp waits for one piece of weights and multiplies it, and a time of its
//! own to begin and to add its warps' sums up. A round takes the longer of one warp's chain (latency, then its instructions one after
//! the other) and of all warps' instructions on the busiest pipe.

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
    /// Blocks of one part: tiles of columns, or halves of them.
    pub blocks: u32,
    /// Parts of k.
    pub parts: u32,
    /// Warps of a block.
    pub warps: u32,
    /// Pieces of k that the warps of a block's column of parts take, one at a time.
    pub pieces: u32,
    /// Numbers of k in a piece.
    pub piece: u32,
    /// Bytes of a piece of weights, of the block's columns.
    pub piece_bytes: f64,
    /// Tokens whose activations a warp reads.
    pub tokens: u32,
    /// Sums that a block keeps, in bytes.
    pub sums_bytes: u32,
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
    /// What a launch takes whatever it does, in us.
    pub fixed_us: f64,
    /// Added where parts of k meet, in us.
    pub meeting_us: f64,
    /// A block's begin and end, in us.
    pub block_us: f64,
    /// Time until a warp's bytes come, in us.
    pub latency_us: f64,
    /// Cycles from one instruction of a warp to its next.
    pub step_cycles: f64,
    /// Exponent of the smooth maximum.
    pub sharpness: f64,
    /// Share of a full wave's time that a wave with few blocks takes at least.
    pub last_wave: f64,
}

/// Fitted by random search to the runs that `h200.tsv` is a part of: least root mean square of the logarithms, plus three times the mean
/// logarithm of what the way that is predicted to be fastest takes over the fastest.
pub const FIT: Fit = Fit {
    fixed_us: 1.910,
    meeting_us: 1.466,
    block_us: 1.699,
    latency_us: 0.443,
    step_cycles: 4.833,
    sharpness: 2.692,
    last_wave: 0.755,
};

/// Registers of a multiprocessor, the warps and the blocks that it holds, and the unit a warp's registers are given out by: the same from Volta to Hopper.
const REGISTERS: u32 = 65536;
const WARPS_MAX: u32 = 64;
const BLOCKS_MAX: u32 = 32;

/// The time of a launch.
pub fn predict(gpu: &Gpu, work: &Work, fit: &Fit) -> Prediction {
    let all = f64::from(work.blocks) * f64::from(work.parts);
    let busiest = (all / f64::from(gpu.sms)).ceil();
    let by_registers = REGISTERS / (work.registers.next_multiple_of(8) * 32 * work.warps);
    let cap = by_registers
        .min(gpu.shared_bytes / work.shared_bytes.max(1))
        .min(WARPS_MAX / work.warps)
        .clamp(1, BLOCKS_MAX);
    let at_once = f64::from(cap).min(busiest);
    let warps = at_once * f64::from(work.warps);
    let waves = waves(busiest / at_once, fit.last_wave);
    let rounds = work.pieces.div_ceil(work.parts).div_ceil(work.warps);

    let chain = fit.latency_us + fit.step_cycles * f64::from(work.pass.issued) / gpu.clock_ghz / 1e3;
    let pipes = warps / 4.0 * gpu.cycles(&work.pass) / gpu.clock_ghz / 1e3;
    let pieces = f64::from(work.blocks) * f64::from(work.pieces);
    let activations = f64::from(work.piece * work.tokens * 2);
    let terms = [
        (Bound::Dram, pieces * work.piece_bytes / gpu.read_gbs / 1e3),
        (
            Bound::L2,
            pieces * (work.piece_bytes + activations) / gpu.l2_gbs / 1e3,
        ),
        (
            if chain > pipes {
                Bound::Latency
            } else {
                Bound::Compute
            },
            waves * (f64::from(rounds) * chain.max(pipes) + fit.block_us),
        ),
    ];
    let power: f64 = terms.iter().map(|(_, us)| us.powf(fit.sharpness)).sum();
    let moving = power.powf(1.0 / fit.sharpness);
    let fixed = fit.fixed_us
        + if work.parts > 1 {
            meeting(gpu, work, fit)
        } else {
            0.0
        };
    let largest = terms
        .into_iter()
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .expect("three terms");
    Prediction {
        us: fixed + moving,
        bound: if fixed > moving { Bound::Fixed } else { largest.0 },
        warps: warps as u32,
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
    let skinny = plan.skinny().expect("the tables' tokens are few");
    predict(gpu, &linear.skinny_work(m, skinny, device), &FIT).us
}

/// Parts of k meet: their sums are written and read once.
fn meeting(gpu: &Gpu, work: &Work, fit: &Fit) -> f64 {
    let sums = f64::from(work.blocks) * f64::from(work.parts * work.sums_bytes);
    fit.meeting_us + 2.0 * sums / gpu.l2_gbs / 1e3
}

/// Full waves, and the last one, which takes some time however few its blocks.
fn waves(exact: f64, floor: f64) -> f64 {
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
        let samples = samples();
        assert!(samples.len() > 1000, "{} samples", samples.len());
        let ratios: Vec<f64> = samples
            .iter()
            .map(|sample| predict(&H200, &sample.work, &FIT).us / sample.us)
            .collect();
        let near = ratios.iter().filter(|ratio| (0.8..1.25).contains(*ratio)).count();
        assert!(near * 20 >= 19 * samples.len(), "{near} within a quarter");
        let squares: f64 = ratios.iter().map(|ratio| ratio.ln().powi(2)).sum();
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
                "blocks",
                Work {
                    blocks: base.blocks * 2,
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
