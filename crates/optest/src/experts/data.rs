//! Random operands of a case.

use galvani_cuda::CudaError;
use galvani_cuda::ops::experts::{ExpertBytes, RouterInput, Selection};
use galvani_cuda::repack::{repack, unpack};
use galvani_graph::{Format, Weight, WeightSource};
use galvani_weights::quant;
use half::f16;

use crate::RandomWeights;
use crate::device::random::{Kind, RandomWeight};
use crate::experts::{Added, Case, Choice};

/// What rows of the output hold before a run, where nothing may be written.
pub const POISON: f32 = 12345.0;

/// Experts of one matrix, or of gate and up.
#[derive(Debug)]
pub struct Experts {
    /// Packed bytes.
    pub bytes: Vec<u8>,
    /// Column factors.
    pub scales: Vec<f32>,
    /// Biases, laid out as the factors.
    pub biases: Option<Vec<f32>>,
    /// The numbers that kernels multiply by, `[matrix][expert, n, k]`.
    pub numbers: Vec<Vec<f32>>,
}

/// All operands.
#[derive(Debug)]
pub struct Data {
    /// `[tokens, hidden]`, exact in f16.
    pub x: Vec<f32>,
    /// `[experts, hidden]`, exact in f16.
    pub router: Vec<f32>,
    /// `[hidden]`
    pub shared_gate: Vec<f32>,
    /// `[experts]`
    pub router_bias: Option<Vec<f32>>,
    /// A table of choices, `[rows, top_k]`, and each token's row.
    pub choices: Option<(Vec<u32>, Vec<u32>)>,
    /// Gate and up.
    pub gated: Experts,
    /// Down.
    pub down: Experts,
    /// `[tokens, hidden]`
    pub shared: Option<Vec<f32>>,
    /// `[tokens, hidden]`
    pub residual: Option<Vec<f32>>,
}

/// A weight of whole rows.
fn weight(name: &str, dims: &[usize], format: Format) -> Weight {
    Weight {
        name: name.to_owned(),
        dims: dims.to_vec(),
        format,
        row_range: None,
        column_range: None,
    }
}

/// Its numbers.
fn numbers(source: &RandomWeights, weight: &Weight) -> Vec<f32> {
    let bytes = source
        .rows(weight, 0..weight.row_count())
        .expect("random rows of any format");
    let mut out = vec![0.0; weight.row_count() * weight.row_len()];
    quant::dequantize(weight.format, &bytes, &mut out).expect("rows are whole blocks");
    out
}

impl Data {
    /// Makes them.
    ///
    /// # Errors
    /// A weight that cannot be packed.
    pub fn new(case: &Case) -> Result<Self, CudaError> {
        let source = RandomWeights::new(case.seed);
        let stack = &case.stack;
        let (experts, hidden) = (stack.experts as usize, stack.hidden as usize);
        let inner = stack.inner as usize;
        let rows = |name: &str, count: usize| numbers(&source, &weight(name, &[count, hidden], Format::F16));
        let mut router = rows("router", experts);
        if case.choice == Choice::Ties {
            for pair in router.chunks_exact_mut(2 * hidden) {
                pair.copy_within(0..hidden, hidden);
            }
        }
        let mut router_bias = stack
            .router
            .bias
            .then(|| numbers(&source, &weight("router_bias", &[experts], Format::F32)));
        if let (Choice::OneForAll, Some(bias)) = (case.choice, &mut router_bias) {
            bias[experts / 2] = 100.0;
        }
        let (shared, residual) = match case.added {
            Added::Nothing => (None, None),
            Added::Residual => (None, Some(rows("input_residual", case.tokens as usize))),
            Added::SharedInPlace => {
                let tokens = case.tokens as usize;
                (
                    Some(rows("input_shared", tokens)),
                    Some(rows("input_residual", tokens)),
                )
            }
        };
        Ok(Self {
            x: rows("input0", case.tokens as usize),
            router,
            shared_gate: rows("shared_gate", 1),
            router_bias,
            choices: choices(case),
            gated: pack(case.kinds[0], [inner, hidden], stack.gated_bytes(), case)?,
            down: pack(case.kinds[1], [hidden, inner], stack.down_bytes(), case)?,
            shared,
            residual,
        })
    }

    /// Makes every expert that `used` leaves out not a number: whoever reads it shows.
    pub fn poison(&mut self, case: &Case, used: &[bool]) {
        let unused = used
            .iter()
            .enumerate()
            .filter(|(_, used)| !**used)
            .map(|(expert, _)| expert);
        for expert in unused {
            for (experts, sizes) in [
                (&mut self.gated, case.stack.gated_bytes()),
                (&mut self.down, case.stack.down_bytes()),
            ] {
                let bytes = sizes.expert_bytes();
                experts.bytes[expert * bytes..][..bytes].fill(0xFF);
                let scales = sizes.column_scales() / sizes.experts;
                experts.scales[expert * scales..][..scales].fill(f32::NAN);
            }
        }
    }

    /// The router's matrix as it is uploaded.
    pub(super) fn router_bytes(&self, input: RouterInput, numbers: &[f32]) -> Vec<u8> {
        match input {
            RouterInput::F16 => halves(numbers),
            RouterInput::F32 | RouterInput::Logits => floats(numbers),
        }
    }
}

/// A table in which the experts of a row differ and follow no order, and rows that tokens share.
fn choices(case: &Case) -> Option<(Vec<u32>, Vec<u32>)> {
    let Selection::Table { rows } = case.stack.router.selection else {
        return None;
    };
    let experts = case.stack.experts;
    // Odd, and experts of these cases are powers of two: a step round all of them.
    let step = experts / 2 - 1;
    let row = |row: u32| (0..case.stack.top_k).map(move |rank| (row * 37 + rank * step) % experts);
    let table: Vec<u32> = (0..rows).flat_map(row).collect();
    case.stack.check_choices(&table).expect("experts of a row differ");
    Some((table, (0..case.tokens).map(|token| token * 7 % rows).collect()))
}

/// Experts whose matrices are [n, k].
fn pack(kind: Kind, [n, k]: [usize; 2], sizes: ExpertBytes, case: &Case) -> Result<Experts, CudaError> {
    let mut bytes = vec![0; sizes.bytes()];
    let mut scales = vec![0.0; sizes.column_scales()];
    let mut all = vec![Vec::new(); sizes.matrices];
    for (matrix, numbers) in all.iter_mut().enumerate() {
        for expert in 0..sizes.experts {
            let seed = case.seed.wrapping_mul(1 << 20) + (expert * 3 + matrix + sizes.matrices) as u64;
            let weight = RandomWeight::new(kind, n, k, seed);
            let packed = repack(&weight.weight()?)?;
            numbers.extend(unpack(&packed));
            let to = (bytes.as_mut_slice(), scales.as_mut_slice());
            sizes.place(expert, matrix, (&packed.bytes, &packed.column_scales), to)?;
        }
    }
    let source = RandomWeights::new(case.seed);
    let name = format!("input_bias{}", sizes.matrices);
    let biases = weight(&name, &[1, sizes.column_scales()], Format::F16);
    Ok(Experts {
        bytes,
        scales,
        biases: case.expert_bias.then(|| numbers(&source, &biases)),
        numbers: all,
    })
}

/// Little-endian f16.
pub(super) fn halves(numbers: &[f32]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| f16::from_f32(*number).to_le_bytes())
        .collect()
}

/// Little-endian f32.
pub(super) fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}
