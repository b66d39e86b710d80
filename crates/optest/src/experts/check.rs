//! Holds a case on a launcher against the oracle.

use galvani_cuda::ops::experts::{ExpertsPlan, Path};
use galvani_cuda::{CudaError, Launcher};

use crate::experts::{Case, Data, POISON, Run, oracle, run};

/// Every path of a case.
///
/// # Errors
/// A size that no plan takes.
pub fn plans(case: &Case) -> Result<Vec<ExpertsPlan>, CudaError> {
    let grouped = galvani_cuda::ops::experts::rows::ROW_TILES.map(|row_tiles| Path::Grouped { row_tiles });
    // What tiled kernels do for a few rows they do for more.
    let tiled = (case.tokens >= 9).then_some(Path::Tiled);
    let paths = [Path::Direct].into_iter().chain(grouped).chain(tiled);
    paths
        .map(|path| case.stack.plan_path(case.tokens, path))
        .collect()
}

/// Runs a case on every path, the first one twice: close to the oracle, the same bits on the direct and the grouped path, experts that nobody chose
/// never read, counters zero again, rows of tokens that do not exist as they were. Gives the largest share of the bound
/// that any number is off.
///
/// # Errors
/// What is wrong.
pub fn check(on: &mut dyn Launcher, case: &Case) -> Result<f64, String> {
    let show = |error: CudaError| error.to_string();
    let mut data = Data::new(case).map_err(show)?;
    let wanted = oracle::wanted(case, &data);
    data.poison(case, &wanted.used(case.stack.experts));
    let (mut first, mut tiled): (Option<Run>, f64) = (None, 0.0);
    for plan in plans(case).map_err(show)? {
        let times = if first.is_none() { 2 } else { 1 };
        let found =
            run(on, case, &data, &plan, times).map_err(|error| format!("{:?}: {error}", plan.path))?;
        if found.counters.iter().any(|count| *count != 0) {
            return Err(format!("{:?}: counters {:?}", plan.path, found.counters));
        }
        if plan.path == Path::Tiled {
            let worst = compare(case, &data, &wanted, &found).map_err(|fault| format!("tiled: {fault}"))?;
            tiled = tiled.max(worst);
            continue;
        }
        if let Some(first) = &first
            && (first.out != found.out || first.routes != found.routes)
        {
            let at = first.out.iter().zip(&found.out).position(|(a, b)| a != b);
            return Err(format!(
                "{:?}: other bits than on the direct path, number {at:?}",
                plan.path
            ));
        }
        first.get_or_insert(found);
    }
    let first = first.expect("every case has a direct path");
    Ok(compare(case, &data, &wanted, &first)?.max(tiled))
}

fn compare(case: &Case, data: &Data, wanted: &oracle::Wanted, found: &Run) -> Result<f64, String> {
    let top_k = case.stack.top_k as usize;
    let rows = found.routes.chunks_exact(2 * top_k);
    for (token, (routes, row)) in wanted.routes.iter().zip(rows).enumerate() {
        let ids: Vec<usize> = row[..top_k].iter().map(|id| *id as usize).collect();
        if ids != routes.ids {
            return Err(format!("token {token} chose {ids:?}, wanted {:?}", routes.ids));
        }
        for (bits, weight) in row[top_k..].iter().zip(&routes.weights) {
            let found = f32::from_bits(*bits);
            let off = (f64::from(found) - weight).abs();
            if off > routes.bound || off.is_nan() {
                return Err(format!("token {token}: weight {found}, wanted {weight}"));
            }
        }
    }
    let (live, padded) = found.out.split_at(case.live() * case.stack.hidden as usize);
    let untouched = |at: usize| match (&data.shared, &data.residual) {
        (Some(_), Some(residual)) => residual[live.len() + at],
        _ => POISON,
    };
    let written = padded
        .iter()
        .enumerate()
        .position(|(at, bits)| *bits != untouched(at).to_bits());
    if let Some(at) = written {
        return Err(format!("number {at} behind the last token was written"));
    }
    let mut worst = 0.0f64;
    for (at, (bits, (want, bound))) in live.iter().zip(wanted.out.iter().zip(&wanted.bounds)).enumerate() {
        let got = f64::from(f32::from_bits(*bits));
        let off = (got - want).abs();
        if off > *bound || off.is_nan() {
            return Err(format!("number {at} is {got}, wanted {want} within {bound:.1e}"));
        }
        if off > 0.0 {
            worst = worst.max(off / bound);
        }
    }
    Ok(worst)
}
