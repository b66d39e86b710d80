//! Runs a case and judges its result.

use galvani_cuda::layout::PackedFormat as F;
use galvani_cuda::ops::linear::divide::Device;
use galvani_cuda::ops::linear::{LinearPlan, Operands, OutType, Step};
use galvani_cuda::repack::{Packed, repack, unpack};
use galvani_cuda::{CudaError, DeviceBuffer};
use half::f16;

use super::cases::LinearCase;
use super::random::RandomWeight;
use super::{Executor, decode};
use crate::weights::Random;

type Failure = Box<dyn std::error::Error>;

/// Bytes behind each buffer that nothing may touch.
const GUARD_BYTES: usize = 64;
/// What no result is: each half and float of it is not a number.
const POISON: u8 = 0xff;

/// A case with its numbers.
pub struct Filled {
    /// The case.
    pub case: LinearCase,
    packed: Packed,
    /// What the file's definition makes of the weights // [n, k]
    numbers: Vec<f64>,
    /// [m, k]
    x: Vec<f16>,
    bias: Vec<f16>,
    residual: Vec<f32>,
}

/// What a run left: the whole of the output buffer, guard and all.
pub struct Ran {
    /// Bytes // [m, out_stride]
    pub out: Vec<u8>,
    /// Symbols in their order.
    pub symbols: Vec<String>,
}

impl Filled {
    /// Makes a case's numbers.
    ///
    /// # Errors
    /// Weights that cannot be packed or decoded.
    pub fn new(case: LinearCase) -> Result<Self, Failure> {
        let (m, n, k) = (case.m as usize, case.linear.n as usize, case.linear.k as usize);
        let source = RandomWeight::new(case.kind, n, k, case.seed);
        let weight = source.weight()?;
        let mut random = Random(case.seed << 20 | 0x5eed_0001);
        let mut halves =
            |count: usize| -> Vec<f16> { (0..count).map(|_| f16::from_f32(random.normal())).collect() };
        Ok(Self {
            case,
            packed: repack(&weight)?,
            numbers: decode::numbers(&weight)?,
            x: halves(m * k),
            bias: halves(n),
            residual: halves(m * n).into_iter().map(f32::from).collect(),
        })
    }

    /// Runs it.
    ///
    /// # Errors
    /// The plan's and the executor's.
    pub fn run(&self, on: &mut dyn Executor, device: Device) -> Result<Ran, Failure> {
        on.reset()?;
        let plan = self.case.plan(device)?;
        let at = self.place(on, &plan)?;
        let mut symbols = Vec::new();
        for step in plan.steps(&at)? {
            match step {
                Step::Kernel(launch) => {
                    on.run(&launch)?;
                    symbols.push(launch.symbol);
                }
                Step::Product(product) => on.product(&product)?,
            }
        }
        self.untouched(on, &at)?;
        let mut out = vec![0; at.out.bytes()];
        on.download(&at.out, 0, &mut out)?;
        if let (Some(counters), true) = (at.counters, plan.workspace().counters_bytes > 0) {
            let mut bytes = vec![0; plan.workspace().counters_bytes];
            on.download(&counters, 0, &mut bytes)?;
            if bytes.iter().any(|byte| *byte != 0) {
                return Err("the counters are not zero again".into());
            }
        }
        Ok(Ran { out, symbols })
    }

    pub(super) fn place(&self, on: &mut dyn Executor, plan: &LinearPlan) -> Result<Operands, Failure> {
        let linear = plan.linear;
        let (n, k) = (linear.n as usize, linear.k as usize);
        let (x_stride, out_stride) = (k + self.case.x_gap as usize, n + self.case.out_gap as usize);
        let residual: Vec<u8> = self
            .residual
            .iter()
            .flat_map(|number| number.to_le_bytes())
            .collect();
        let scales: Vec<u8> = self
            .packed
            .column_scales
            .iter()
            .flat_map(|s| s.to_le_bytes())
            .collect();
        let memory = plan.workspace();
        let zeros = vec![0; memory.counters_bytes];
        let empty = |bytes: usize| (bytes > 0).then_some(bytes);
        let (has_bias, has_residual) = (linear.bias, linear.residual);
        Ok(Operands {
            x: rows(on, &halves(&self.x), k * 2, x_stride * 2)?,
            x_stride: x_stride as u32,
            weights: filled(on, &self.packed.bytes)?,
            column_scale: filled(on, &scales)?,
            bias: has_bias.then(|| filled(on, &halves(&self.bias))).transpose()?,
            residual: has_residual
                .then(|| rows(on, &residual, n * 4, out_stride * 4))
                .transpose()?,
            out: poisoned(on, self.case.m as usize * out_stride * linear.out.bytes())?,
            out_stride: out_stride as u32,
            sums: empty(memory.sums_bytes)
                .map(|bytes| unwritten(on, bytes))
                .transpose()?,
            counters: empty(memory.counters_bytes)
                .map(|_| filled(on, &zeros))
                .transpose()?,
            rows: empty(memory.rows_bytes)
                .map(|bytes| unwritten(on, bytes))
                .transpose()?,
        })
    }

    /// Every guard is as it was. (The interpreter needs none: a write there is a fault.)
    fn untouched(&self, on: &mut dyn Executor, at: &Operands) -> Result<(), Failure> {
        if on.checks() {
            return Ok(());
        }
        let optional = [
            ("bias", at.bias),
            ("residual", at.residual),
            ("sums", at.sums),
            ("rows", at.rows),
        ];
        let mut buffers = vec![
            ("x", at.x),
            ("weights", at.weights),
            ("column scale", at.column_scale),
            ("out", at.out),
        ];
        buffers.extend(
            optional
                .into_iter()
                .filter_map(|(name, buffer)| Some((name, buffer?))),
        );
        for (name, buffer) in buffers {
            let whole = DeviceBuffer::new(buffer.address(), buffer.bytes() + GUARD_BYTES);
            let mut guard = vec![0; GUARD_BYTES];
            on.download(&whole, buffer.bytes(), &mut guard)?;
            if guard.iter().any(|byte| *byte != POISON) {
                return Err(format!("bytes behind {name} were written").into());
            }
        }
        Ok(())
    }

    /// Judges a result: the worst error as a share of what is allowed.
    ///
    /// # Errors
    /// The first number that is off, and how many are.
    pub fn judge(&self, ran: &Ran, volta: bool) -> Result<f64, Failure> {
        let linear = self.case.linear;
        let (n, k) = (linear.n as usize, linear.k as usize);
        let stride = n + self.case.out_gap as usize;
        let exact: Vec<f64> = unpack(&self.packed).into_iter().map(f64::from).collect();
        self.compare_weights(&exact)?;
        let (mut worst, mut wrong, mut first) = (0f64, 0usize, None);
        for (place, bytes) in ran.out.chunks_exact(linear.out.bytes()).enumerate() {
            let (token, column) = (place / stride, place % stride);
            if column >= n {
                if bytes.iter().any(|byte| *byte != POISON) {
                    return Err(format!("token {token}: the gap behind the row was written").into());
                }
                continue;
            }
            let x = &self.x[token * k..][..k];
            let terms = x
                .iter()
                .zip(&exact[column * k..][..k])
                .map(|(x, w)| f64::from(*x) * w);
            let (mut want, mut magnitude) =
                terms.fold((0.0, 0.0), |(sum, all), term| (sum + term, all + term.abs()));
            let bias = if linear.bias {
                f64::from(self.bias[column])
            } else {
                0.0
            };
            let residual = if linear.residual {
                f64::from(self.residual[token * n + column])
            } else {
                0.0
            };
            want += bias + residual;
            magnitude += bias.abs() + residual.abs();
            let got = match linear.out {
                OutType::F16 => f64::from(f16::from_le_bytes([bytes[0], bytes[1]])),
                OutType::F32 => f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])),
            };
            let allowed = bound(k, magnitude, want, linear.out, volta);
            let error = (got - want).abs();
            if !within(error, allowed) {
                wrong += 1;
                first.get_or_insert((token, column, got, want, allowed));
            }
            worst = worst.max(error / allowed);
        }
        match first {
            None => Ok(worst),
            Some((token, column, got, want, allowed)) => Err(format!(
                "{wrong} of {} wrong, first [{token}, {column}]: {got:e}, wanted {want:e} +- {allowed:.1e}",
                self.case.m as usize * n
            )
            .into()),
        }
    }

    /// Holds what the kernels multiply by against the format's definition. Roundings to half are at most two, and scales
    /// far below their column's largest lose bits. Where a weight is a difference, what is rounded is at most twice its column's
    /// largest, in these numbers. `repack` states and tests the exact bounds; a number in the wrong place is off by far more.
    fn compare_weights(&self, exact: &[f64]) -> Result<(), Failure> {
        let k = self.case.linear.k as usize;
        for (row, (packed, numbers)) in exact
            .chunks_exact(k)
            .zip(self.numbers.chunks_exact(k))
            .enumerate()
        {
            let largest = numbers.iter().fold(0f64, |most, number| most.max(number.abs()));
            let difference = matches!(self.case.linear.format.packed, F::Q2K | F::Q4K | F::Q5K);
            let allowed = |number: f64| {
                let rounded = if difference { 4.0 * largest } else { number.abs() };
                2f64.powi(-10) * rounded + 2f64.powi(-15) * largest
            };
            let pairs = packed.iter().zip(numbers).enumerate();
            if let Some((at, (packed, number))) = pairs
                .into_iter()
                .find(|(_, (a, b))| !within((*a - *b).abs(), allowed(**b)))
            {
                let fault = format!("weight [{row}, {at}] is packed as {packed:e}, the file says {number:e}");
                return Err(fault.into());
            }
        }
        Ok(())
    }
}

/// How far a result may be from the exact sum of the products of the halves that the kernel multiplies.
///
/// Each of the k products is exact in f32 or rounded once, and passes at most as many additions as there are terms, each
/// rounded by 2^-24 of what it gives; the sums of warps and parts, the column's factor, bias and residual are the rest: (k + 40)
/// 2^-24 of the sum of all magnitudes. Volta's tensor core cuts off where others round: twice that, and five terms are aligned to
/// the largest: twice again. Then one rounding to the result's type, whose smallest step is 2^-24 for a half.
pub fn bound(k: usize, magnitude: f64, want: f64, out: OutType, volta: bool) -> f64 {
    let sums = (k as f64 + 40.0) * 2f64.powi(-24) * magnitude * if volta { 4.0 } else { 1.0 };
    let rounding = match out {
        OutType::F16 => 2f64.powi(-11) * (want.abs() + sums) + 2f64.powi(-25),
        OutType::F32 => 2f64.powi(-24) * (want.abs() + sums) + 2f64.powi(-150),
    };
    sums + rounding
}

/// What is not a number is not within anything.
fn within(error: f64, allowed: f64) -> bool {
    error <= allowed
}

fn halves(numbers: &[f16]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A buffer of `bytes` bytes, poisoned with what follows it where the executor does not check by itself.
fn poisoned(on: &mut dyn Executor, bytes: usize) -> Result<DeviceBuffer, CudaError> {
    let guard = if on.checks() { 0 } else { GUARD_BYTES };
    let buffer = on.alloc(bytes + guard)?;
    on.upload(&buffer, 0, &vec![POISON; bytes + guard])?;
    Ok(DeviceBuffer::new(buffer.address(), bytes))
}

/// The same, but never written where the executor knows that.
fn unwritten(on: &mut dyn Executor, bytes: usize) -> Result<DeviceBuffer, CudaError> {
    if on.checks() {
        on.alloc(bytes)
    } else {
        poisoned(on, bytes)
    }
}

fn filled(on: &mut dyn Executor, bytes: &[u8]) -> Result<DeviceBuffer, CudaError> {
    let buffer = unwritten(on, bytes.len())?;
    on.upload(&buffer, 0, bytes)?;
    Ok(buffer)
}

/// Rows of `row` bytes, each `stride` bytes after the one before; nothing is written between them, or behind the last.
fn rows(on: &mut dyn Executor, bytes: &[u8], row: usize, stride: usize) -> Result<DeviceBuffer, CudaError> {
    let count = bytes.len() / row;
    let buffer = unwritten(on, (count - 1) * stride + row)?;
    for (index, bytes) in bytes.chunks_exact(row).enumerate() {
        on.upload(&buffer, index * stride, bytes)?;
    }
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use galvani_cuda::layout::PackedFormat;
    use galvani_cuda::ops::linear::{Linear, LinearFormat};

    use super::*;
    use crate::device::cases::Division;
    use crate::device::random::Kind;

    fn filled(out: OutType) -> Filled {
        let linear = Linear {
            format: LinearFormat::of(PackedFormat::Nvfp4.row()),
            n: 5,
            k: 80,
            out,
            bias: true,
            residual: true,
        };
        Filled::new(LinearCase {
            kind: Kind::Nvfp4,
            m: 3,
            linear,
            division: Division::Planned,
            x_gap: 0,
            out_gap: 1,
            seed: 7,
        })
        .unwrap()
    }

    /// What a perfect kernel leaves.
    fn perfect(filled: &Filled) -> Ran {
        let linear = filled.case.linear;
        let weights = unpack(&filled.packed);
        let mut out = Vec::new();
        for token in 0..3 {
            for column in 0..5 {
                let row = weights[column * 80..][..80]
                    .iter()
                    .zip(&filled.x[token * 80..][..80]);
                let sum: f64 = row.map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                let more = f64::from(filled.bias[column]) + f64::from(filled.residual[token * 5 + column]);
                match linear.out {
                    OutType::F16 => out.extend(f16::from_f64(sum + more).to_le_bytes()),
                    OutType::F32 => out.extend(((sum + more) as f32).to_le_bytes()),
                }
            }
            out.resize(out.len() + linear.out.bytes(), POISON);
        }
        Ran {
            out,
            symbols: Vec::new(),
        }
    }

    #[test]
    fn a_wrong_number_is_seen_wherever_it_is() {
        for out in [OutType::F16, OutType::F32] {
            let filled = filled(out);
            let good = perfect(&filled);
            assert!(filled.judge(&good, false).unwrap() <= 1.0);
            let width = out.bytes();
            for place in 0..3 * 6 {
                let mut bad = perfect(&filled);
                // The top byte: another exponent, or the gap behind a row.
                bad.out[place * width + width - 1] ^= 8;
                let error = filled.judge(&bad, false).unwrap_err().to_string();
                let gap = place % 6 == 5;
                assert!(
                    error.contains(if gap { "gap" } else { "1 of 15 wrong" }),
                    "{place}: {error}"
                );
                bad.out[place * width..][..width].fill(0xff);
                assert_eq!(filled.judge(&bad, false).is_err(), !gap, "{place} is no number");
            }
        }
    }

    #[test]
    fn a_weight_in_the_wrong_place_is_seen() {
        let mut filled = filled(OutType::F32);
        let good = perfect(&filled);
        filled.numbers.rotate_left(1);
        let error = filled.judge(&good, false).unwrap_err().to_string();
        assert!(error.contains("weight [0, "), "{error}");
    }

    #[test]
    fn the_bound_grows_as_it_is_written() {
        let f32_bound = bound(24, 2.0, 0.0, OutType::F32, false);
        assert!((f32_bound / (64.0 * 2f64.powi(-23)) - 1.0).abs() < 1e-6);
        assert!(bound(24, 2.0, 0.0, OutType::F32, true) > 3.9 * f32_bound);
        assert!(bound(24, 2.0, 1.0, OutType::F16, false) > 2f64.powi(-11));
    }
}
