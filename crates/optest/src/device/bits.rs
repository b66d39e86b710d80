//! A GPU against the interpreter: the same PTX, the same inputs, the same bits.

use std::collections::BTreeMap;

use galvani_cuda::ops::linear::OutType;
use galvani_cuda::ops::linear::divide::Device;
use half::f16;

use super::Executor;
use super::bits_rows::{self, Written};
use super::cases::{Division, LinearCase};
use super::check::Filled;

type Failure = Box<dyn std::error::Error>;

/// What was found of one row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Cases that it ran in.
    pub cases: u32,
    /// Of them those with other bits.
    pub different: u32,
    /// Steps of the result's type between the two, at most.
    pub ulp_max: u64,
}

impl Found {
    fn count(&mut self, different: bool, ulp: u64) {
        self.cases += 1;
        self.different += u32::from(different);
        self.ulp_max = self.ulp_max.max(ulp);
    }
}

/// Runs cases on both and compares their outputs, with inputs of this seed. Cases with a library's product are compared kernel by
/// kernel, since its order of sums is its own; the kernels that pack are tried with every kind of weight.
///
/// # Errors
/// Either's, with the case.
pub fn compare(
    gpu: &mut dyn Executor,
    interpreter: &mut dyn Executor,
    cases: &[LinearCase],
    seed: u64,
) -> Result<BTreeMap<String, Found>, Failure> {
    let mut all: BTreeMap<String, Found> = BTreeMap::new();
    for case in cases {
        let mut case = *case;
        case.seed ^= seed;
        let named = |error: Failure| format!("{}: {error}", case.name());
        let filled = Filled::new(case).map_err(named)?;
        if matches!(case.division, Division::Library(_)) {
            let ours = bits_rows::library(&filled, gpu).map_err(named)?;
            let theirs = bits_rows::library(&filled, interpreter).map_err(named)?;
            count_all(&mut all, &ours, &theirs);
            continue;
        }
        // One division for both: the plan of a V100.
        let ours = filled.run(gpu, Device::V100).map_err(named)?;
        let theirs = filled.run(interpreter, Device::V100).map_err(named)?;
        let ulp = distance(&ours.out, &theirs.out, case.linear.out);
        for symbol in ours.symbols {
            let different = ours.out != theirs.out;
            all.entry(symbol).or_default().count(different, ulp);
        }
    }
    let ours = bits_rows::packing(gpu, seed)?;
    let theirs = bits_rows::packing(interpreter, seed)?;
    count_all(&mut all, &ours, &theirs);
    Ok(all)
}

/// Bytes against bytes; their distance is not told.
fn count_all(all: &mut BTreeMap<String, Found>, ours: &Written, theirs: &Written) {
    assert_eq!(ours.len(), theirs.len(), "both did the same");
    for ((symbol, a), (_, b)) in ours.iter().zip(theirs) {
        all.entry(symbol.clone()).or_default().count(a != b, 0);
    }
}

fn distance(a: &[u8], b: &[u8], out: OutType) -> u64 {
    let numbers = a.chunks_exact(out.bytes()).zip(b.chunks_exact(out.bytes()));
    let steps = numbers.map(|(a, b)| match out {
        OutType::F16 => order16(a).abs_diff(order16(b)),
        OutType::F32 => order32(a).abs_diff(order32(b)),
    });
    steps.max().unwrap_or(0)
}

/// The place of a number among all of its type.
fn order16(bytes: &[u8]) -> i64 {
    let bits = f16::from_le_bytes([bytes[0], bytes[1]]).to_bits();
    let magnitude = i64::from(bits & 0x7fff);
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

fn order32(bytes: &[u8]) -> i64 {
    let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let magnitude = i64::from(bits & 0x7fff_ffff);
    if bits & 0x8000_0000 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_counted_in_steps() {
        let f = |number: f32| number.to_le_bytes();
        let one_more = f32::from_bits(1f32.to_bits() + 1);
        for (a, b, want) in [(1.0, 1.0, 0), (1.0, one_more, 1), (0.0, -0.0, 0)] {
            assert_eq!(distance(&f(a), &f(b), OutType::F32), want, "{a} {b}");
        }
        let h = |number: f32| f16::from_f32(number).to_le_bytes();
        assert_eq!(distance(&h(1.0), &h(-1.0), OutType::F16), 2 * 0x3c00);
    }
}
