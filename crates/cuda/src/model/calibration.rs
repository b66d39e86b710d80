//! Measured launches, which the model's constants are fitted to and held against.

use super::table::{self, Row};
use super::{LoopRow, Pass, Work};
use crate::ops::linear::Linear;
use crate::ops::linear::plan::Skinny;
use crate::ops::linear::rows::SkinnyShape;

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

/// `linear_skinny` on an H200: every format at one token and some at 8, 16 and 32, four shapes, in many ways each.
pub fn samples() -> Vec<Sample> {
    table::rows(include_str!("h200.tsv"))
        .map(|row| sample(&row))
        .collect()
}

fn sample(row: &Row) -> Sample {
    let format = row.format(0);
    let [n, k, m, columns, token_tiles, warps, parts] = row.numbers(1);
    let shape = SkinnyShape { columns, token_tiles };
    let kernel = LoopRow {
        pass: Pass::hopper(row.numbers(9)),
        registers: row.get(14),
        shared_static: 1024 + 16,
    };
    let skinny = Skinny { shape, warps, parts };
    Sample {
        name: format!("{} {n}x{k} m{m}", format.name),
        us: row.get(8),
        work: Linear::plain(format, n, k).skinny_work_of(m, skinny, false, &kernel),
    }
}
