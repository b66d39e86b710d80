//! The command line of the CUDA kernels' tests and measurements.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Instant;

use galvani_cuda::KernelRow;
use galvani_cuda::driver::Image;
use galvani_cuda::ops::linear::divide::Device;
use galvani_cuda::ops::linear::{FORMATS, plan, rows};
use galvani_cuda::pack::file::Pack;
use galvani_ptx::MmaOrder;

use super::cases::{LinearCase, linear_cases};
use super::check::Filled;
use super::gpu::GpuExecutor;
use super::interpreter::Interpreter;
use super::{Executor, bench, bits};

type Failure = Box<dyn std::error::Error>;

/// Memory of a GPU for tests, and for measurements with their copies.
const TEST_BYTES: usize = 512 << 20;
const BENCH_BYTES: usize = 4 << 30;

/// Flags that all commands here share; each takes those that it knows.
#[derive(Clone, Debug)]
pub struct Flags {
    /// Part of a case's or symbol's name.
    pub filter: String,
    /// One case of so many, in turn.
    pub sample: usize,
    /// The kernel pack.
    pub pack: PathBuf,
    /// Which code of it a GPU runs.
    pub image: Image,
    /// The interpreter's tensor core.
    pub mma: MmaOrder,
    /// Of the inputs.
    pub seed: u64,
    /// Host threads of the interpreter.
    pub threads: usize,
    /// A file for the measurements.
    pub json: Option<PathBuf>,
    /// What is measured.
    pub plan: bench::Plan,
}

impl Flags {
    /// Parses `--flag value` pairs.
    ///
    /// # Errors
    /// A flag or a value that there is not.
    pub fn parse(arguments: &[String]) -> Result<Self, Failure> {
        let mut flags = Self {
            filter: String::new(),
            sample: 1,
            pack: std::env::var_os("GALVANI_PACK")
                .map_or_else(|| PathBuf::from("target/kernels/galvani.pack"), PathBuf::from),
            image: Image::Cubin,
            mma: MmaOrder::EmulatedF32,
            seed: 0,
            threads: std::thread::available_parallelism().map_or(1, |count| count.get()),
            json: None,
            plan: bench::Plan::default(),
        };
        for pair in arguments.chunks(2) {
            let [flag, value] = pair else {
                return Err(format!("{} needs a value", pair[0]).into());
            };
            let one_of = |allowed: &str| format!("{flag} {value}, allowed: {allowed}");
            match flag.as_str() {
                "--filter" => flags.filter.clone_from(value),
                "--pack" => flags.pack = value.into(),
                "--json" => flags.json = Some(value.into()),
                "--seed" => flags.seed = value.parse().map_err(|_| one_of("a number"))?,
                "--sample" => {
                    flags.sample = value
                        .parse()
                        .ok()
                        .filter(|every| *every > 0)
                        .ok_or_else(|| one_of("1 and more"))?;
                }
                "--threads" => flags.threads = value.parse().map_err(|_| one_of("a number"))?,
                "--format" => flags.plan.formats = value.split(',').map(str::to_owned).collect(),
                "--tokens" => {
                    let tokens = value.split(',').map(str::parse);
                    flags.plan.tokens = tokens.collect::<Result<_, _>>().map_err(|_| one_of("1,2,8"))?;
                }
                "--shape" => flags.plan.shapes = value.split(',').map(shape).collect::<Result<_, _>>()?,
                "--ways" => {
                    flags.plan.sweep = match value.as_str() {
                        "near" => true,
                        "planned" => false,
                        _ => return Err(one_of("near, planned").into()),
                    }
                }
                "--image" => {
                    flags.image = match value.as_str() {
                        "cubin" => Image::Cubin,
                        "ptx" => Image::Ptx,
                        _ => return Err(one_of("cubin, ptx").into()),
                    }
                }
                "--mma" => {
                    flags.mma = match value.as_str() {
                        "f32" => MmaOrder::EmulatedF32,
                        "volta" => MmaOrder::Volta,
                        _ => return Err(one_of("f32, volta").into()),
                    }
                }
                _ => return Err(format!("flag `{flag}` is not known").into()),
            }
        }
        Ok(flags)
    }

    fn image_name(&self) -> &'static str {
        match self.image {
            Image::Cubin => "cubin",
            Image::Ptx => "ptx",
        }
    }

    /// Whether every case runs.
    fn all(&self) -> bool {
        self.filter.is_empty() && self.sample == 1
    }

    fn cases(&self) -> Result<Vec<LinearCase>, Failure> {
        let mut cases = linear_cases()?;
        cases.retain(|case| self.filter.is_empty() || names(case).contains(&self.filter));
        let mut cases: Vec<LinearCase> = cases.into_iter().step_by(self.sample).collect();
        for case in &mut cases {
            case.seed ^= self.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        if cases.is_empty() {
            return Err(format!("--filter {}: no case has it in its name", self.filter).into());
        }
        Ok(cases)
    }
}

fn names(case: &LinearCase) -> String {
    format!("linear_{} {}", case.linear.format.name, case.name())
}

fn shape(text: &str) -> Result<(u32, u32), Failure> {
    let fault = || format!("--shape {text}, allowed: 17408x5120,2048x5120");
    let (n, k) = text.split_once('x').ok_or_else(fault)?;
    Ok((n.parse().map_err(|_| fault())?, k.parse().map_err(|_| fault())?))
}

/// `optest test --backend ptx`: every row in the interpreter.
///
/// # Errors
/// Any failure; all are listed.
pub fn test_ptx(flags: &Flags) -> Result<(), Failure> {
    let start = Instant::now();
    let mut interpreter = Interpreter::new(Pack::read(&flags.pack)?, flags.mma, flags.threads);
    let cases = flags.cases()?;
    let volta = flags.mma == MmaOrder::Volta;
    let launched = test(&mut interpreter, &cases, Device::V100, volta)?;
    let instructions: u64 = interpreter
        .launched
        .values()
        .map(|(_, counters)| counters.instructions())
        .sum();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{:<32} {:>8} {:>12} {:>10} {:>14} {:>14}",
        "row", "launches", "instructions", "mma", "shared passes", "without conflicts"
    );
    for (symbol, (launches, counters)) in &interpreter.launched {
        let shared = counters.shared_loads.wavefronts + counters.shared_stores.wavefronts;
        let ideal = counters.shared_loads.wavefronts_ideal + counters.shared_stores.wavefronts_ideal;
        println!(
            "{symbol:<32} {launches:>8} {:>12} {:>10} {shared:>14} {ideal:>14}",
            counters.instructions(),
            counters.mma
        );
    }
    println!(
        "ptx: {} rows, {} cases, {:.1} million warp instructions, {seconds:.1} s ({:.1} million a second)",
        interpreter.launched.len(),
        cases.len(),
        instructions as f64 / 1e6,
        instructions as f64 / 1e6 / seconds
    );
    none_left_out(flags, rows::rows(), |symbol| launched.contains(symbol))
}

/// `optest test --backend cuda`: every row on a GPU.
///
/// # Errors
/// Any failure; all are listed.
pub fn test_cuda(flags: &Flags) -> Result<(), Failure> {
    let start = Instant::now();
    let mut gpu = GpuExecutor::open(&flags.pack, flags.image, TEST_BYTES)?;
    let cases = flags.cases()?;
    let device = gpu.device();
    let volta = gpu.gpu.info().sm == 70;
    let launched = test(&mut gpu, &cases, device, volta)?;
    println!(
        "cuda: {} ({}), {} rows, {} cases, {:.1} s",
        gpu.gpu.info().name,
        flags.image_name(),
        launched.len(),
        cases.len(),
        start.elapsed().as_secs_f64()
    );
    none_left_out(flags, rows::rows(), |symbol| launched.contains(symbol))
}

fn test(
    on: &mut dyn Executor,
    cases: &[LinearCase],
    device: Device,
    volta: bool,
) -> Result<BTreeSet<String>, Failure> {
    let mut launched = BTreeSet::new();
    let mut failures = Vec::new();
    let mut worst: BTreeMap<&str, f64> = BTreeMap::new();
    for case in cases {
        let result = Filled::new(*case).and_then(|filled| {
            let ran = filled.run(on, device)?;
            let error = filled.judge(&ran, volta)?;
            Ok((ran.symbols, error))
        });
        match result {
            Ok((symbols, error)) => {
                launched.extend(symbols);
                let most = worst.entry(case.linear.format.name).or_default();
                *most = most.max(error);
            }
            Err(error) => failures.push(format!(
                "FAIL linear_{} {}: {error}",
                case.linear.format.name,
                case.name()
            )),
        }
    }
    for (format, share) in worst {
        println!(
            "{format:<16} worst error {:.0} % of what is allowed",
            share * 100.0
        );
    }
    if failures.is_empty() {
        return Ok(launched);
    }
    Err(format!(
        "{}\n{} of {} cases failed",
        failures.join("\n"),
        failures.len(),
        cases.len()
    )
    .into())
}

/// Where every case runs, none of these rows may be left out.
pub(crate) fn none_left_out(
    flags: &Flags,
    rows: Vec<KernelRow>,
    ran: impl Fn(&str) -> bool,
) -> Result<(), Failure> {
    let missing: Vec<String> = rows
        .into_iter()
        .map(|row| row.symbol)
        .filter(|symbol| flags.all() && !ran(symbol))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("rows that no case ran: {}", missing.join(", ")).into())
}

/// `optest bit-equal`: a GPU's PTX against the interpreter.
///
/// # Errors
/// A difference, or either's own.
pub fn bit_equal(flags: &Flags) -> Result<(), Failure> {
    let mut gpu = GpuExecutor::open(&flags.pack, Image::Ptx, TEST_BYTES)?;
    let mut interpreter = Interpreter::new(Pack::read(&flags.pack)?, flags.mma, flags.threads);
    let found = bits::compare(&mut gpu, &mut interpreter, &flags.cases()?, flags.seed)?;
    let different = found.values().filter(|row| row.different > 0).count();
    for (symbol, row) in &found {
        println!(
            "{symbol:<32} {:>5} cases, {:>5} different, at most {} steps apart",
            row.cases, row.different, row.ulp_max
        );
    }
    println!(
        "{}: {} rows equal, {different} different",
        gpu.gpu.info().name,
        found.len() - different
    );
    if different > 0 {
        return Err(format!("{different} rows differ").into());
    }
    let elsewhere = |row: &KernelRow| {
        COMPARED_ELSEWHERE
            .iter()
            .any(|begin| row.symbol.starts_with(begin))
    };
    let mut compared = galvani_cuda::rows();
    compared.retain(|row| !elsewhere(row));
    none_left_out(flags, compared, |symbol| found.contains_key(symbol))
}

/// Rows that other commands hold against the interpreter: the experts' (`experts bit-equal`), and what the launch layer tries
/// itself with (`galvani-cuda selftest`).
const COMPARED_ELSEWHERE: [&str; 4] = ["experts_", "route_", "selftest", "measure_"];

/// `optest bench-cuda`: speed on a GPU.
///
/// # Errors
/// The driver's, or a file that cannot be written.
pub fn bench_cuda(flags: &Flags) -> Result<(), Failure> {
    let mut gpu = GpuExecutor::open(&flags.pack, flags.image, BENCH_BYTES)?;
    let mut lines = Vec::new();
    let limits = bench::run(&mut gpu, &flags.plan, &mut |limits, line| {
        eprintln!(
            "{:<16} {:>6} x {:<6} m{:<3} {:>8.1} us {:>6.0} GB/s {:>4.0} %",
            line.format,
            line.n,
            line.k,
            line.m,
            line.us,
            line.gb_s,
            100.0 * line.gb_s / limits.read_gb_s
        );
        lines.push(line.clone());
    })?;
    let name = gpu.gpu.info().name.clone();
    print!("{}", bench::markdown(&name, flags.image_name(), &limits, &lines));
    if let Some(path) = &flags.json {
        std::fs::write(path, bench::json(&name, flags.image_name(), &limits, &lines))?;
    }
    Ok(())
}

/// `optest plans`: what would run on a V100 and on an H200.
///
/// # Errors
/// A shape that no plan takes.
pub fn plans(flags: &Flags) -> Result<(), Failure> {
    for format in FORMATS {
        let chosen = flags.plan.formats.is_empty() && format.name == "nvfp4"
            || flags
                .plan
                .formats
                .iter()
                .any(|part| format.name.contains(part.as_str()));
        if !chosen {
            continue;
        }
        for (name, device) in [("V100", Device::V100), ("H200", Device::H200)] {
            let table = plan::table(*format, &flags.plan.shapes, &flags.plan.tokens, device)?;
            println!("{} on {name}\n\n{table}", format.name);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Flags, Failure> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Flags::parse(&words)
    }

    #[test]
    fn flags_are_read_or_refused_by_name() {
        let flags = parse("--image ptx --tokens 1,8 --shape 64x128 --mma volta --format q4_k,int4").unwrap();
        assert_eq!((flags.image, flags.mma), (Image::Ptx, MmaOrder::Volta));
        assert_eq!(
            (flags.plan.tokens, flags.plan.shapes),
            (vec![1, 8], vec![(64, 128)])
        );
        for text in [
            "--image elf",
            "--tokens x",
            "--shape 64",
            "--mma",
            "--what 1",
            "--seed -",
            "--sample 0",
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(
                error.contains(text.split_whitespace().next().unwrap()),
                "{text}: {error}"
            );
        }
    }
}
