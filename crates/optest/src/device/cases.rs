//! The cases of the linears: shapes that straddle the edges of tiles, pieces, parts and routes.

use galvani_cuda::ops::linear::divide::{self, Device};
use galvani_cuda::ops::linear::plan::SKINNY_TOKENS_MAX;
use galvani_cuda::ops::linear::rows::tiled_span;
use galvani_cuda::ops::linear::{Linear, LinearFormat, LinearPlan, OutType, Route};
use galvani_cuda::{CudaError, ops::linear};

use super::random::{Kind, RandomWeight, kinds};

/// How the work is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    /// As the plan says.
    Planned,
    /// One of the ways in which the device can run the skinny kernel, by number (of more than there are, the remainder counts).
    Way(u32),
    /// The tiled kernel, so many parts of k.
    Tiled(u32),
    /// The library's route, so many columns at a time.
    Library(u32),
}

/// One case.
#[derive(Clone, Copy, Debug)]
pub struct LinearCase {
    /// How the weights come.
    pub kind: Kind,
    /// Tokens.
    pub m: u32,
    /// The product.
    pub linear: Linear,
    /// How it is divided.
    pub division: Division,
    /// Halves that a row of x is longer than it must be.
    pub x_gap: u32,
    /// Numbers that a row of the result is longer than it must be.
    pub out_gap: u32,
    /// Of its numbers.
    pub seed: u64,
}

/// Tokens: around eights, around the ends of the routes, and one more than a tiled block.
const TOKENS: [u32; 11] = [1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 65];
/// Columns around tiles; 129 is one more than a tiled block.
const COLUMNS: [u32; 5] = [1, 31, 33, 65, 129];

impl LinearCase {
    /// For reports.
    pub fn name(&self) -> String {
        let Linear { n, k, out, .. } = self.linear;
        let and = |has: bool, text: &'static str| if has { text } else { "" };
        format!(
            "{:?} m{} n{n} k{k} {out:?}{}{} {:?} gaps {} {}",
            self.kind,
            self.m,
            and(self.linear.bias, " bias"),
            and(self.linear.residual, " residual"),
            self.division,
            self.x_gap,
            self.out_gap
        )
    }

    /// The plan.
    ///
    /// # Errors
    /// A size outside its limits.
    pub fn plan(&self, device: Device) -> Result<LinearPlan, CudaError> {
        match self.division {
            Division::Planned => self.linear.plan(self.m, device),
            Division::Way(number) => {
                let mut plan = self.linear.plan(self.m, device)?;
                let ways = self.linear.skinny_ways(self.m, device);
                plan.route = Route::Skinny(ways[number as usize % ways.len()]);
                Ok(plan)
            }
            Division::Tiled(parts) => {
                let mut plan = self.linear.plan(self.m, device)?;
                plan.route = Route::Tiled { parts };
                Ok(plan)
            }
            Division::Library(columns) => {
                let mut plan = self.linear.plan_library(self.m, device)?;
                plan.route = Route::Library { columns };
                Ok(plan)
            }
        }
    }
}

/// All cases, by format.
///
/// # Errors
/// A kind that has no packed form.
pub fn linear_cases() -> Result<Vec<LinearCase>, CudaError> {
    let mut all = Vec::new();
    for format in linear::FORMATS {
        let mut sources = Vec::new();
        for kind in kinds() {
            let name = RandomWeight::new(kind, 1, 256, 1)
                .weight()?
                .packed_format()?
                .row()
                .name;
            if name == format.name {
                sources.push(kind);
            }
        }
        if sources.is_empty() {
            return Err(CudaError::Executor {
                symbol: format.name.to_owned(),
                reason: "no kind of weight is packed to it".to_owned(),
            });
        }
        format_cases(format, &sources, &mut all);
    }
    Ok(all)
}

/// Lengths of a row: the shortest, one that ends in a piece where it can, and one with more pieces than a block has warps.
fn lengths(format: &LinearFormat) -> [u32; 3] {
    let tail = if format.k_multiple < format.stripe {
        format.k_multiple
    } else {
        0
    };
    let long = (9 * format.piece).next_multiple_of(format.stripe);
    [format.k_multiple, format.stripe + tail, long + tail]
}

fn format_cases(format: &LinearFormat, sources: &[Kind], all: &mut Vec<LinearCase>) {
    let mut index = 0u32;
    let mut push = |m: u32, n: u32, k: u32, library: Option<u32>| {
        let i = index;
        index += 1;
        let linear = Linear {
            format: *format,
            n,
            k,
            out: if i.is_multiple_of(2) {
                OutType::F16
            } else {
                OutType::F32
            },
            bias: i.is_multiple_of(3),
            residual: i % 5 < 2,
        };
        let parts = i / 2 % 4;
        let divides = |volta| divide::valid(k.div_ceil(tiled_span(volta)), parts);
        // Few tokens take either kernel.
        let skinny = m <= SKINNY_TOKENS_MAX && !i.is_multiple_of(3);
        let division = match library {
            Some(columns) => Division::Library(columns),
            None if parts == 0 => Division::Planned,
            // Steps of a prime, so that a format meets ways of all kinds.
            None if skinny => Division::Way(i * 37),
            None if divides(true) && divides(false) => Division::Tiled(parts),
            None => Division::Tiled(1),
        };
        let able: Vec<Kind> = sources
            .iter()
            .copied()
            .filter(|kind| k.is_multiple_of(kind.k_multiple()))
            .collect();
        all.push(LinearCase {
            kind: able[i as usize % able.len()],
            m,
            linear,
            division,
            x_gap: k.next_multiple_of(8) - k + 8 * (i % 3),
            out_gap: i % 4,
            seed: u64::from(i) + 1,
        });
    };
    for (row, k) in lengths(format).into_iter().enumerate() {
        for (place, n) in COLUMNS.into_iter().enumerate() {
            for (number, m) in TOKENS.into_iter().enumerate() {
                // The widest shapes need not meet every length.
                if n < 100 || (row + number + place) % 3 == 0 {
                    push(m, n, k, None);
                }
            }
        }
        push(1, 65, k, Some(32));
        push(9, 33, k, Some(64));
    }
}
