//! Measured launches, which the model's constants are fitted to and held against.

use super::{Pass, Work};
use crate::ops::linear::formats;

/// One measured launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// `nvfp4 17408x5120 m1`
    pub name: String,
    /// What ran.
    pub work: Work,
    /// How long it took, in us.
    pub us: f64,
}

/// `linear_skinny` on an H200: every format, four shapes, 1, 8, 16 and 32 tokens. Rows whose sm_90 code spills are left out.
pub fn samples() -> Vec<Sample> {
    let lines = include_str!("h200.tsv").lines();
    lines.filter(|line| !line.starts_with('#')).map(sample).collect()
}

fn sample(line: &str) -> Sample {
    let fields: Vec<&str> = line.split('\t').collect();
    let number = |index: usize| -> f64 {
        fields[index]
            .parse()
            .expect("h200.tsv holds numbers after the format")
    };
    let whole = |index: usize| number(index) as u32;
    let (name, n, k, m) = (fields[0], whole(1), whole(2), whole(3));
    let (token_tiles, warps, parts) = (whole(4), whole(5), whole(6));
    let known = formats().into_iter().find(|format| format.name == name);
    let piece = known.expect("h200.tsv names formats of the table").piece;
    let (tiles, pieces) = (n.div_ceil(32), k.div_ceil(piece));
    Sample {
        name: format!("{name} {n}x{k} m{m}"),
        us: number(8),
        work: Work {
            tiles,
            parts,
            warps,
            pieces,
            piece,
            piece_bytes: number(7) / f64::from(tiles) / f64::from(pieces),
            tokens: m.min(8 * token_tiles),
            token_tiles,
            registers: whole(14),
            shared_bytes: warps * token_tiles * 1024 + 1040,
            pass: Pass {
                issued: whole(9),
                int: whole(10),
                fma: whole(11),
                half: whole(12),
                tensor: whole(13),
                ..Pass::default()
            },
        },
    }
}
