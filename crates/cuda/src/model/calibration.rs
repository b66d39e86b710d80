//! Measured launches, which the model's constants are fitted to and held against.

use super::table::{self, Row};
use super::{Pass, Work};

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
    table::rows(include_str!("h200.tsv"))
        .map(|row| sample(&row))
        .collect()
}

fn sample(row: &Row) -> Sample {
    let format = row.format(0);
    let [n, k, m, token_tiles, warps, parts] = row.numbers(1);
    let (tiles, pieces) = (n.div_ceil(32), k.div_ceil(format.piece));
    Sample {
        name: format!("{} {n}x{k} m{m}", format.name),
        us: row.get(8),
        work: Work {
            tiles,
            parts,
            warps,
            pieces,
            piece: format.piece,
            piece_bytes: row.get::<f64>(7) / f64::from(tiles) / f64::from(pieces),
            tokens: m.min(8 * token_tiles),
            token_tiles,
            registers: row.get(14),
            shared_bytes: warps * token_tiles * 1024 + 1040,
            pass: Pass::hopper(row.numbers(9)),
        },
    }
}
