//! Every operation of a backend against the plain reference, over a table of shapes that straddle edges.
//!
//! A [`Case`] is a graph of one operation between an embedding (whose table holds the random input) and its output.
//! [`wanted`] runs it on the reference, [`check`] on the backend under test, whole and in chunks: the numbers must be close to
//! the reference's, and no split may change a bit.

#![forbid(unsafe_code)]

pub mod bench;
mod cases;
pub mod device;
mod drive;
pub mod experts;
pub mod model;
mod weights;

pub use cases::{Case, cases};
pub use drive::{Machine, Sequence, Step, alone, limits};
pub use weights::RandomWeights;

use galvani_cpu::reference::Reference;
use galvani_graph::{Backend, BackendError};

/// How close a backend's numbers must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closeness {
    /// f32 arithmetic throughout.
    Exact,
    /// Activations in int8, keys and values in half floats.
    Fast,
}

/// What [`check`] found.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Close, and the same bits however split. The relative error is given.
    Passed(f64),
    /// The backend has no kernel and says so.
    Unsupported(String),
    /// What is wrong.
    Failed(String),
}

/// What the reference gives for `case`.
///
/// # Errors
/// When the case is not a valid graph.
pub fn wanted(case: &Case) -> Result<Vec<f32>, BackendError> {
    let weights = RandomWeights::new(case.seed);
    let sequence = [Sequence::counting(case.tokens, case.vocabulary)];
    let mut plain = Machine::new(&Reference, &case.graph, &weights, &sequence, case.page_tokens)?;
    Ok(plain
        .drive(&sequence, &alone(case.tokens, case.tokens))?
        .remove(0))
}

/// Holds `backend` against what the reference gave ([`wanted`]).
pub fn check<B: Backend>(backend: &B, case: &Case, wanted: &[f32], closeness: Closeness) -> Outcome {
    match compare(backend, case, wanted, closeness) {
        Ok(outcome) => outcome,
        Err(BackendError::Unsupported { reason, .. }) => Outcome::Unsupported(reason),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

fn compare<B: Backend>(
    backend: &B,
    case: &Case,
    wanted: &[f32],
    closeness: Closeness,
) -> Result<Outcome, BackendError> {
    let weights = RandomWeights::new(case.seed);
    let sequence = [Sequence::counting(case.tokens, case.vocabulary)];
    let whole_step = alone(case.tokens, case.tokens);
    let mut machine = Machine::new(backend, &case.graph, &weights, &sequence, case.page_tokens)?;
    let whole = machine.drive(&sequence, &whole_step)?.remove(0);
    for chunk in [1, 7] {
        let split = machine.drive(&sequence, &alone(case.tokens, chunk))?.remove(0);
        if let Some(at) = first_difference(&whole, &split) {
            let reason = format!(
                "chunks of {chunk}: number {at} is {} instead of {}",
                split[at], whole[at]
            );
            return Ok(Outcome::Failed(reason));
        }
    }
    if case.ids > 0 {
        return Ok(same_ids(case, &whole, wanted));
    }
    let error = relative_error(&whole, wanted);
    let most = case.tolerance(closeness);
    if error <= most {
        return Ok(Outcome::Passed(error));
    }
    Ok(Outcome::Failed(format!(
        "relative error {error:.3e}, allowed {most:.0e}"
    )))
}

/// Index of the first number whose bits differ.
pub fn first_difference(a: &[f32], b: &[f32]) -> Option<usize> {
    if a.len() != b.len() {
        return Some(a.len().min(b.len()));
    }
    a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits())
}

/// Root of the mean squared difference over that of the wanted numbers.
pub fn relative_error(got: &[f32], wanted: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let difference: f64 = got
        .iter()
        .zip(wanted)
        .map(|(&a, &b)| square(f64::from(a) - f64::from(b)))
        .sum();
    let size: f64 = wanted.iter().map(|&x| square(f64::from(x))).sum();
    if difference == 0.0 {
        return 0.0;
    }
    let error = (difference / size).sqrt();
    if error.is_nan() { f64::INFINITY } else { error }
}

/// Rows that begin with `case.ids` ids: these must be equal, the numbers after them close.
fn same_ids(case: &Case, got: &[f32], wanted: &[f32]) -> Outcome {
    let width = 2 * case.ids;
    for (row, (got, wanted)) in got
        .chunks_exact(width)
        .zip(wanted.chunks_exact(width))
        .enumerate()
    {
        let (ids, numbers) = got.split_at(case.ids);
        let (wanted_ids, wanted_numbers) = wanted.split_at(case.ids);
        if first_difference(ids, wanted_ids).is_some() || relative_error(numbers, wanted_numbers) > 1e-5 {
            return Outcome::Failed(format!("row {row}: {got:?} instead of {wanted:?}"));
        }
    }
    Outcome::Passed(0.0)
}
