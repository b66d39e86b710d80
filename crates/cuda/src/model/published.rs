//! Published V100 figures, one by one, beside the prediction for ours at the same shapes.
//!
//! Where a kernel's design is like ours (weights in the order of the tensor instruction, streamed once, warps splitting k), a ratio
//! far from 1 says that the model is off or that one of the two kernels has something that the other lacks; elsewhere it only says
//! how the designs compare.

use std::fmt::Write;

use super::{FIT, Gpu, V100, predict, skinny_loop};
use crate::ops::linear::divide::Device;
use crate::ops::linear::{Linear, OutType, Route, formats};

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
    format: &'static str,
    sxm2: bool,
    shapes: Vec<((u32, u32), u32)>,
    shape_name: &'static str,
    m: u32,
    value: f64,
    /// GB/s, or us.
    bandwidth: bool,
}

fn all() -> Vec<Published> {
    let lines = include_str!("published.tsv").lines();
    lines.filter(|line| !line.starts_with('#')).map(line).collect()
}

fn line(text: &'static str) -> Published {
    const HOLDS: &str = "published.tsv is in its own form";
    let fields: Vec<&'static str> = text.split('\t').collect();
    let [source, what, alike, format, board, shape_name, m, value, unit] = fields[..] else {
        panic!("{HOLDS}: {text}");
    };
    let shapes = match shape_name {
        "27b-tp4" => MIX_27B_TP4.to_vec(),
        one => {
            let (n, k) = one.split_once('x').expect(HOLDS);
            vec![((n.parse().expect(HOLDS), k.parse().expect(HOLDS)), 1)]
        }
    };
    Published {
        source,
        what,
        alike: alike == "yes",
        format,
        sxm2: board == "sxm2",
        shapes,
        shape_name,
        m: m.parse().expect(HOLDS),
        value: value.parse().expect(HOLDS),
        bandwidth: unit == "GB/s",
    }
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
        let device = Device {
            read_gb_s: gpu.read_gbs as u32,
            ..Device::V100
        };
        let known = formats().into_iter().find(|format| format.name == self.format);
        let format = known.expect("published.tsv names formats of the table");
        let (mut us, mut bytes) = (0.0, 0.0);
        for &((n, k), times) in &self.shapes {
            let linear = Linear {
                format,
                n,
                k,
                out: OutType::F16,
                bias: false,
                residual: false,
            };
            let plan = linear
                .plan(self.m, device)
                .expect("the shapes are inside the limits");
            let Route::Skinny {
                token_tiles,
                warps,
                parts,
            } = plan.route
            else {
                panic!("{}: published figures are for few tokens", self.what);
            };
            let kernel = skinny_loop(true, format.name, token_tiles);
            let work = linear.skinny_work(self.m, [token_tiles, warps, parts], &kernel);
            us += f64::from(times) * predict(&gpu, &work, &FIT).us;
            bytes += f64::from(times) * format.weight_bytes(n, k) as f64;
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
pub(super) fn table() -> String {
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
            p.format,
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
                p.format,
                p.m,
                p.ratio()
            );
        }
        assert_eq!(table().lines().count(), all.len() + 4);
    }

    /// Large shapes on the PCIe board: at least 80 % of 850 GB/s with one token, 72 % with eight (published best: 77 and 71).
    #[test]
    fn large_shapes_are_predicted_near_the_memory_limit() {
        for format in ["nvfp4", "int4_g128", "fp8"] {
            for shape_name in ["17408x5120", "5120x17408", "14336x4096"] {
                for (m, share) in [(1, 0.80), (8, 0.72)] {
                    let (n, k) = shape_name.split_once('x').unwrap();
                    let p = Published {
                        source: "",
                        what: "",
                        alike: true,
                        format,
                        sxm2: false,
                        shapes: vec![((n.parse().unwrap(), k.parse().unwrap()), 1)],
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
