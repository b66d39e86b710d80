//! Published V100 figures, one by one, beside the prediction for ours at the same shapes.
//!
//! Where a kernel's design is like ours (weights in the order of the tensor instruction, streamed once, warps splitting k), a ratio
//! far from 1 says that the model is off or that one of the two kernels has something that the other lacks; elsewhere it only says
//! how the designs compare.

use std::fmt::Write;

use super::table::{self, Row};
use super::{Gpu, V100, volta_us};
use crate::ops::linear::{Linear, LinearFormat};

/// The linears of Qwen3.8-27B on each of four boards, with how often a step has them: gate and up, down, the input and output of its
/// linear attention, and of its full attention (64 layers, each fourth of them full).
const MIX_27B_TP4: [((u32, u32), u32); 6] = [
    ((8704, 5120), 64),
    ((5120, 4352), 64),
    ((4096, 5120), 48),
    ((5120, 1536), 48),
    ((3584, 5120), 16),
    ((5120, 1536), 16),
];

/// One figure.
struct Published {
    source: &'static str,
    what: &'static str,
    alike: bool,
    format: LinearFormat,
    sxm2: bool,
    shapes: Vec<((u32, u32), u32)>,
    shape_name: &'static str,
    m: u32,
    value: f64,
    /// GB/s, or us.
    bandwidth: bool,
}

fn all() -> Vec<Published> {
    table::rows(include_str!("published.tsv"))
        .map(|row| published(&row))
        .collect()
}

fn published(row: &Row) -> Published {
    let shape_name = row.text(5);
    Published {
        source: row.text(0),
        what: row.text(1),
        alike: row.text(2) == "yes",
        format: row.format(3),
        sxm2: row.text(4) == "sxm2",
        shapes: shapes(shape_name),
        shape_name,
        m: row.get(6),
        value: row.get(7),
        bandwidth: row.text(8) == "GB/s",
    }
}

fn shapes(name: &str) -> Vec<((u32, u32), u32)> {
    const HOLDS: &str = "published.tsv names shapes as 27b-tp4 or 17408x5120";
    if name == "27b-tp4" {
        return MIX_27B_TP4.to_vec();
    }
    let (n, k) = name.split_once('x').expect(HOLDS);
    vec![((n.parse().expect(HOLDS), k.parse().expect(HOLDS)), 1)]
}

/// V100 on the SXM2 board: 1.53 GHz, 879 GB/s (a user's read loop); its second-level cache runs with the clock.
fn board(sxm2: bool) -> Gpu {
    if !sxm2 {
        return V100;
    }
    Gpu {
        name: "V100 SXM2",
        clock_ghz: 1.53,
        read_gbs: 879.0,
        l2_gbs: V100.l2_gbs * 1.53 / V100.clock_ghz,
        ..V100
    }
}

impl Published {
    /// Ours in the published figure's unit.
    fn predicted(&self) -> f64 {
        let gpu = board(self.sxm2);
        let (mut us, mut bytes) = (0.0, 0.0);
        for &((n, k), times) in &self.shapes {
            us += f64::from(times) * volta_us(&gpu, &Linear::plain(self.format, n, k), self.m);
            bytes += f64::from(times) * self.format.weight_bytes(n, k) as f64;
        }
        if self.bandwidth { bytes / us / 1e3 } else { us }
    }

    /// How much faster ours is predicted to be.
    fn ratio(&self) -> f64 {
        let ratio = self.predicted() / self.value;
        if self.bandwidth { ratio } else { 1.0 / ratio }
    }
}

/// The list as a Markdown table, and what the ones alike say together.
pub(super) fn markdown() -> String {
    let mut text = String::from(
        "| published by | kernel | like ours | format | N x K | M | published | ours, predicted | ours / theirs |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    let all = all();
    for p in &all {
        let unit = if p.bandwidth { "GB/s" } else { "us" };
        writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} {unit} | {:.0} {unit} | {:.2} |",
            p.source,
            p.what,
            if p.alike { "yes" } else { "no" },
            p.format.name,
            p.shape_name,
            p.m,
            p.value,
            p.predicted(),
            p.ratio()
        )
        .expect("to memory");
    }
    let (mean, spread, count) = alike(&all);
    writeln!(
        text,
        "\n{count} figures of kernels like ours: ours / theirs {mean:.2} in the mean, root mean square distance from 1 {:.0} %",
        100.0 * spread
    )
    .expect("to memory");
    text
}

/// Geometric mean of the ratios of kernels like ours, the root mean square of their logarithms, and how many there are.
fn alike(all: &[Published]) -> (f64, f64, usize) {
    let logarithms: Vec<f64> = all.iter().filter(|p| p.alike).map(|p| p.ratio().ln()).collect();
    let count = logarithms.len() as f64;
    let mean = logarithms.iter().sum::<f64>() / count;
    let square = logarithms.iter().map(|log| log * log).sum::<f64>() / count;
    (mean.exp(), square.sqrt(), logarithms.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::linear::formats::named;

    #[test]
    fn kernels_like_ours_are_near_their_published_figures() {
        let all = all();
        let (mean, spread, count) = alike(&all);
        assert!(count >= 10, "{count} figures");
        assert!(
            (0.9..1.25).contains(&mean) && spread < 0.25,
            "{mean:.3} {spread:.3}"
        );
        for p in all.iter().filter(|p| p.alike) {
            assert!(
                (0.75..1.5).contains(&p.ratio()),
                "{} {} M={}: {:.2}",
                p.what,
                p.format.name,
                p.m,
                p.ratio()
            );
        }
        assert_eq!(markdown().lines().count(), all.len() + 4);
    }

    /// Large shapes on the PCIe board: at least 80 % of 850 GB/s with one token, 72 % with eight (published best: 77 and 71).
    #[test]
    fn large_shapes_are_predicted_near_the_memory_limit() {
        for format in ["nvfp4", "int4_g128", "fp8"] {
            for shape_name in ["17408x5120", "5120x17408", "14336x4096"] {
                for (m, share) in [(1, 0.80), (8, 0.72)] {
                    let p = Published {
                        source: "",
                        what: "",
                        alike: true,
                        format: named(format).unwrap(),
                        sxm2: false,
                        shapes: shapes(shape_name),
                        shape_name,
                        m,
                        value: V100.read_gbs,
                        bandwidth: true,
                    };
                    assert!(
                        p.ratio() >= share,
                        "{format} {shape_name} M={m}: {:.2}",
                        p.ratio()
                    );
                }
            }
        }
    }
}
