//! One plan on one launcher.

use galvani_cuda::ops::experts::{Choices, ExpertsPlan, Operands, RouterInput, SharedExpert};
use galvani_cuda::{CudaError, DeviceBuffer, Launcher};

use crate::experts::Case;
use crate::experts::data::{Data, POISON, floats, halves};

/// What came out.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// `[tokens, hidden]`, bits.
    pub out: Vec<u32>,
    /// `[live tokens, 2 top_k]`, bits.
    pub routes: Vec<u32>,
    /// The router's counters, which must be zero again.
    pub counters: Vec<u32>,
}

/// Uploads everything, launches the plan `times` times and downloads.
///
/// # Errors
/// The launcher's, or the plan's.
pub fn run(
    launcher: &mut dyn Launcher,
    case: &Case,
    data: &Data,
    plan: &ExpertsPlan,
    times: usize,
) -> Result<Run, CudaError> {
    launcher.reset()?;
    let operands = upload(launcher, case, data, plan)?;
    let work = plan.workspace();
    for time in 0..times {
        if time > 0 {
            launcher.upload(&operands.out, 0, &floats(&before(case, data)))?;
        }
        for launch in plan.launches(&operands)? {
            launcher.run(&launch)?;
        }
    }
    let mut words = |buffer: &DeviceBuffer, offset: usize, count: usize| {
        let mut bytes = vec![0; 4 * count];
        launcher.download(buffer, offset, &mut bytes)?;
        let words = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_le_bytes(*word));
        Ok::<Vec<u32>, CudaError>(words.collect())
    };
    Ok(Run {
        out: words(&operands.out, 0, (case.tokens * case.stack.hidden) as usize)?,
        routes: words(
            &operands.workspace,
            work.routes,
            case.live() * 2 * case.stack.top_k as usize,
        )?,
        counters: words(&operands.workspace, work.counters, work.logits / 4)?,
    })
}

/// What the output's buffer holds before a run.
fn before(case: &Case, data: &Data) -> Vec<f32> {
    match (&data.shared, &data.residual) {
        (Some(_), Some(residual)) => residual.clone(),
        _ => vec![POISON; (case.tokens * case.stack.hidden) as usize],
    }
}

/// Buffers of a case, filled.
///
/// # Errors
/// The launcher's.
pub(super) fn upload(
    launcher: &mut dyn Launcher,
    case: &Case,
    data: &Data,
    plan: &ExpertsPlan,
) -> Result<Operands, CudaError> {
    let mut put = |bytes: &[u8]| {
        let buffer = launcher.alloc(bytes.len())?;
        launcher.upload(&buffer, 0, bytes)?;
        Ok::<DeviceBuffer, CudaError>(buffer)
    };
    let (router, hidden) = (&case.stack.router, case.stack.hidden);
    let given = router.input == RouterInput::Logits;
    let matrix = if given {
        logits(case, data)
    } else {
        data.router.clone()
    };
    let out = put(&floats(&before(case, data)))?;
    let optional = |numbers: &Option<Vec<f32>>,
                    put: &mut dyn FnMut(&[u8]) -> Result<DeviceBuffer, CudaError>| {
        numbers.as_ref().map(|numbers| put(&floats(numbers))).transpose()
    };
    let shared = optional(&data.shared, &mut put)?;
    let gate = router.shared_gate && !given;
    Ok(Operands {
        x: put(&halves(&data.x[..(case.tokens * hidden) as usize]))?,
        x_stride: hidden,
        token_count: case.live.map(|live| put(&live.to_le_bytes())).transpose()?,
        router: put(&data.router_bytes(router.input, &matrix))?,
        shared_gate: gate
            .then(|| put(&data.router_bytes(router.input, &data.shared_gate)))
            .transpose()?,
        router_bias: optional(&data.router_bias, &mut put)?,
        choices: data
            .choices
            .as_ref()
            .map(|(table, row_of)| {
                Ok::<_, CudaError>(Choices {
                    table: put(&words(table))?,
                    row_of: put(&words(row_of))?,
                })
            })
            .transpose()?,
        gated: put(&data.gated.bytes)?,
        gated_scale: put(&floats(&data.gated.scales))?,
        gated_bias: optional(&data.gated.biases, &mut put)?,
        down: put(&data.down.bytes)?,
        down_scale: put(&floats(&data.down.scales))?,
        down_bias: optional(&data.down.biases, &mut put)?,
        shared: shared.map(|rows| SharedExpert { rows, stride: hidden }),
        residual: match (&data.shared, &data.residual) {
            (Some(_), Some(_)) => Some(out),
            (_, residual) => optional(residual, &mut put)?,
        },
        out,
        out_stride: hidden,
        workspace: workspace(launcher, plan)?,
    })
}

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A workspace with its counters zero and the rest unwritten.
fn workspace(launcher: &mut dyn Launcher, plan: &ExpertsPlan) -> Result<DeviceBuffer, CudaError> {
    let work = plan.workspace();
    let buffer = launcher.alloc(work.bytes)?;
    launcher.upload(&buffer, 0, &vec![0; work.logits])?;
    Ok(buffer)
}

/// Logits as another operation would give them, in f32.
fn logits(case: &Case, data: &Data) -> Vec<f32> {
    let hidden = case.stack.hidden as usize;
    let mut out = Vec::new();
    for x in data.x.chunks_exact(hidden).take(case.tokens as usize) {
        let gate = case
            .stack
            .router
            .shared_gate
            .then_some(data.shared_gate.as_slice());
        for row in data.router.chunks_exact(hidden).chain(gate) {
            out.push(
                x.iter()
                    .zip(row)
                    .map(|(a, b)| f64::from(*a) * f64::from(*b))
                    .sum::<f64>() as f32,
            );
        }
    }
    out
}
