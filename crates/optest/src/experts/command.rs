//! The command line of the experts' tests and measurements.

use std::collections::BTreeSet;
use std::time::Instant;

use galvani_cuda::driver::Image;
use galvani_cuda::ops::experts::rows;
use galvani_cuda::pack::file::Pack;
use galvani_cuda::{CudaError, Launcher};

use crate::device::command::{Flags, none_left_out};
use crate::device::gpu::GpuExecutor;
use crate::device::interpreter::Interpreter;
use crate::device::random::{Kind, kinds};
use crate::experts::check::{check, plans};
use crate::experts::{Case, Data, bench, cases, count, oracle, run};

type Failure = Box<dyn std::error::Error>;

/// Memory of a GPU for tests, and for measurements.
const TEST_BYTES: usize = 512 << 20;
const BENCH_BYTES: usize = 4 << 30;

/// `optest experts ptx | cuda | bit-equal | bench | count`.
///
/// # Errors
/// Any failure; all are listed.
pub fn command(arguments: &[String]) -> Result<(), Failure> {
    let (name, rest) = arguments
        .split_first()
        .ok_or("experts needs one of ptx, cuda, bit-equal, bench, count")?;
    let flags = Flags::parse(rest)?;
    match name.as_str() {
        "ptx" => {
            let mut interpreter = Interpreter::new(Pack::read(&flags.pack)?, flags.mma, flags.threads);
            test(&mut interpreter, &flags)?;
            none_left_out(&flags, rows::rows(), |symbol| {
                interpreter.launched.contains_key(symbol)
            })
        }
        "cuda" => test(
            &mut GpuExecutor::open(&flags.pack, flags.image, TEST_BYTES)?,
            &flags,
        ),
        "bit-equal" => bit_equal(&flags),
        "bench" => measure(&flags),
        "count" => {
            let mut on = Interpreter::new(Pack::read(&flags.pack)?, flags.mma, flags.threads);
            Ok(count::print(&mut on)?)
        }
        _ => Err(format!("experts {name}, allowed: ptx, cuda, bit-equal, bench, count").into()),
    }
}

fn chosen(flags: &Flags) -> Result<Vec<Case>, Failure> {
    let mut cases = cases::all();
    cases.retain(|case| case.name().contains(&flags.filter));
    for case in &mut cases {
        case.seed += flags.seed;
    }
    if cases.is_empty() {
        return Err(format!("--filter {}: no case has it in its name", flags.filter).into());
    }
    Ok(cases)
}

fn test(on: &mut dyn Launcher, flags: &Flags) -> Result<(), Failure> {
    let (start, cases) = (Instant::now(), chosen(flags)?);
    let (mut worst, mut failures) = (0.0f64, Vec::new());
    for case in &cases {
        match check(on, case) {
            Ok(share) => worst = worst.max(share),
            Err(fault) => failures.push(format!("FAIL experts {}: {fault}", case.name())),
        }
    }
    println!(
        "experts: {} cases, worst error {:.0} % of what is allowed, {:.1} s",
        cases.len(),
        100.0 * worst,
        start.elapsed().as_secs_f64()
    );
    if failures.is_empty() {
        return Ok(());
    }
    Err(format!(
        "{}\n{} of {} cases failed",
        failures.join("\n"),
        failures.len(),
        cases.len()
    )
    .into())
}

/// A GPU's PTX against the interpreter, bit for bit.
fn bit_equal(flags: &Flags) -> Result<(), Failure> {
    let mut gpu = GpuExecutor::open(&flags.pack, Image::Ptx, TEST_BYTES)?;
    let mut interpreter = Interpreter::new(Pack::read(&flags.pack)?, flags.mma, flags.threads);
    let (mut runs, mut different) = (0, Vec::new());
    for case in chosen(flags)? {
        let mut data = Data::new(&case)?;
        data.poison(&case, &oracle::wanted(&case, &data).used(case.stack.experts));
        for plan in plans(&case)? {
            let once = |on: &mut dyn Launcher| run(on, &case, &data, &plan, 1);
            let (ours, theirs): (Result<_, CudaError>, _) = (once(&mut gpu), once(&mut interpreter));
            runs += 1;
            if ours? != theirs? {
                different.push(format!("{} {:?}", case.name(), plan.path));
            }
        }
    }
    println!(
        "{}: {runs} runs of {} rows, {} different",
        gpu.gpu.info().name,
        interpreter.launched.len(),
        different.len()
    );
    if !different.is_empty() {
        return Err(different.join("\n").into());
    }
    none_left_out(flags, rows::rows(), |symbol| {
        interpreter.launched.contains_key(symbol)
    })
}

fn measure(flags: &Flags) -> Result<(), Failure> {
    let mut gpu = GpuExecutor::open(&flags.pack, flags.image, BENCH_BYTES)?;
    let image = match flags.image {
        Image::Cubin => "cubin",
        Image::Ptx => "ptx",
    };
    let wanted = |kind: &Kind| {
        let name = Case::new([1, 1, 256, 256], 1, *kind).stack.gated.name;
        if flags.plan.formats.is_empty() {
            return *kind == Kind::Nvfp4;
        }
        flags.plan.formats.iter().any(|format| format == name)
    };
    let name = gpu.gpu.info().name.clone();
    let mut known = BTreeSet::new();
    for kind in kinds().into_iter().filter(wanted) {
        if !known.insert(Case::new([1, 1, 256, 256], 1, kind).stack.gated.name) {
            continue;
        }
        let (mut lines, mut found) = (Vec::new(), None);
        bench::run(&mut gpu, kind, &bench::TOKENS, &mut |limits, line| {
            eprintln!(
                "{} {} N={} {:.1} us {:.0} GB/s",
                line.model,
                line.format,
                line.tokens,
                line.us,
                line.gb_s()
            );
            found = Some(*limits);
            lines.push(line);
        })?;
        if let Some(limits) = found {
            println!("{}", bench::markdown(&name, image, &limits, &lines));
        }
    }
    if known.is_empty() {
        return Err(format!(
            "--format {:?}: no kind of weights has such a name",
            flags.plan.formats
        )
        .into());
    }
    Ok(())
}
