//! `optest test | bench | support`: this machine's kernels against the reference, their speed, and what there is.

use std::process::ExitCode;

use galvani_cpu::{CpuBackend, CpuMath, CpuOptions, Isa};
use galvani_graph::Format;
use galvani_optest::bench::{self, DECODERS, Plan};
use galvani_optest::device::command::{self, Flags};
use galvani_optest::{Closeness, Outcome, cases, check, wanted};

const USAGE: &str = "usage:
  optest test [NAME]       every case whose name contains NAME, on every instruction set, exact and fast
  optest test --backend ptx|cuda [--filter S] [--image cubin|ptx] [--mma f32|volta] [--seed N]
                           every CUDA kernel in the interpreter, or on a GPU
  optest bit-equal [--filter S] [--seed N]
                           a GPU's PTX against the interpreter
  optest bench-cuda [--image cubin|ptx] [--format S,S] [--shape NxK,NxK] [--tokens 1,8] [--ways near|planned]
                           [--json FILE]
  optest experts ptx|cuda|bit-equal|bench [--filter S] [--image cubin|ptx] [--mma f32|volta] [--seed N] [--format S,S]
                           the same three tests of the expert stack, and its speed
  optest plans [--format S] [--shape NxK] [--tokens 1,8]
                           what runs on a V100 and on an H200 (all take [--pack target/kernels/galvani.pack])
  optest bench [--shape qwen3-0.6b] [--format Q4_0] [--threads 2] [--isa NAME] [--prompt 512] [--decode 64]
  optest support           instruction sets and formats with their kernels";

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("test") if arguments.get(1).is_some_and(|flag| flag == "--backend") => backend(
            arguments.get(2).map_or("", String::as_str),
            &arguments[3.min(arguments.len())..],
        ),
        Some("test") => test(arguments.get(1).map_or("", String::as_str)),
        Some("bit-equal") => Flags::parse(&arguments[1..]).and_then(|flags| command::bit_equal(&flags)),
        Some("bench-cuda") => Flags::parse(&arguments[1..]).and_then(|flags| command::bench_cuda(&flags)),
        Some("experts") => galvani_optest::experts::command::command(&arguments[1..]),
        Some("plans") => Flags::parse(&arguments[1..]).and_then(|flags| command::plans(&flags)),
        Some("bench") => benchmark(&arguments[1..]),
        Some("support") => support(),
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn backend(name: &str, arguments: &[String]) -> Result<(), Failure> {
    let flags = Flags::parse(arguments)?;
    match name {
        "ptx" => command::test_ptx(&flags),
        "cuda" => command::test_cuda(&flags),
        _ => Err(format!("--backend {name}, allowed: ptx, cuda").into()),
    }
}

fn test(filter: &str) -> Result<(), Failure> {
    let mut failed = 0;
    for isa in Isa::available() {
        for (math, closeness) in [
            (CpuMath::Fast, Closeness::Fast),
            (CpuMath::Exact, Closeness::Exact),
        ] {
            let backend = CpuBackend::new(CpuOptions {
                threads: 2,
                math,
                isa: Some(isa),
            })?;
            for case in cases().iter().filter(|case| case.name.contains(filter)) {
                match check(&backend, case, &wanted(case)?, closeness) {
                    Outcome::Passed(error) => println!("ok   {isa} {math:?} {} {error:.1e}", case.name),
                    Outcome::Unsupported(reason) => println!("none {isa} {math:?} {}: {reason}", case.name),
                    Outcome::Failed(reason) => {
                        failed += 1;
                        println!("FAIL {isa} {math:?} {}: {reason}", case.name);
                    }
                }
            }
        }
    }
    if failed > 0 {
        Err(format!("{failed} failed").into())
    } else {
        Ok(())
    }
}

fn benchmark(arguments: &[String]) -> Result<(), Failure> {
    let mut plan = Plan {
        decoder: DECODERS[1],
        format: Format::Q4_0,
        threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
        isa: None,
        prompt: 512,
        decode: 64,
    };
    for pair in arguments.chunks(2) {
        let [flag, value] = pair else {
            return Err(USAGE.into());
        };
        let number = || value.parse::<usize>().map_err(|e| format!("{flag} {value}: {e}"));
        match flag.as_str() {
            "--shape" => {
                let names = DECODERS.map(|decoder| decoder.name).join(", ");
                let found = DECODERS.into_iter().find(|decoder| decoder.name == value);
                plan.decoder = found.ok_or(format!("--shape {value}: one of {names}"))?;
            }
            "--format" => {
                let found = Format::ALL
                    .into_iter()
                    .find(|format| format.name().eq_ignore_ascii_case(value));
                plan.format = found.ok_or(format!(
                    "--format {value}: one of {}",
                    Format::ALL.map(Format::name).join(", ")
                ))?;
            }
            "--threads" => plan.threads = number()?,
            "--isa" => plan.isa = Some(value.parse()?),
            "--prompt" => plan.prompt = number()?,
            "--decode" => plan.decode = number()?,
            _ => return Err(USAGE.into()),
        }
    }
    let peak = bench::memory_bandwidth(plan.threads);
    println!(
        "memory read: {:.1} GB/s with {} threads",
        peak / 1e9,
        plan.threads
    );
    let weights = bench::weight_bytes(&plan.decoder.graph(plan.format)?, plan.decoder.experts);
    for phase in bench::run(plan)? {
        let rate = phase.tokens as f64 / phase.seconds;
        println!(
            "\n{}: {} tokens, {:.1} ms, {rate:.1} tokens/s",
            phase.name,
            phase.tokens,
            phase.seconds * 1e3
        );
        println!(
            "{:<14} {:>8} {:>10} {:>7} {:>10} {:>7}",
            "op", "calls", "ms", "share", "GB/s", "of peak"
        );
        let total: u64 = phase.times.iter().map(|time| time.nanoseconds).sum();
        for time in &phase.times {
            let (ms, share) = (
                time.nanoseconds as f64 / 1e6,
                time.nanoseconds as f64 / total as f64 * 100.0,
            );
            print!("{:<14} {:>8} {ms:>10.2} {share:>6.1}%", time.op, time.count);
            // Prefill reads each weight once for all tokens: its limit is arithmetic.
            match weights.iter().find(|(op, _)| *op == time.op) {
                Some((_, bytes)) if phase.name == "decode" && *bytes > 0.0 => {
                    let speed = bytes * phase.tokens as f64 / (time.nanoseconds as f64 / 1e9);
                    println!(" {:>10.1} {:>6.0}%", speed / 1e9, speed / peak * 100.0);
                }
                _ => println!(),
            }
        }
    }
    Ok(())
}

fn support() -> Result<(), Failure> {
    let all: Vec<_> = Isa::available().iter().map(|isa| isa.name()).collect();
    println!("instruction sets: {}", all.join(", "));
    for format in Format::ALL {
        let case = cases()
            .into_iter()
            .find(|case| case.name.starts_with(&format!("linear {format} ")));
        let case = case.ok_or(format!("no case for {format}"))?;
        let kernels: Vec<String> = [CpuMath::Fast, CpuMath::Exact]
            .into_iter()
            .map(|math| kernel(math, &case))
            .collect::<Result<_, Failure>>()?;
        println!("{:<8} {}", format.name(), kernels.join("   "));
    }
    Ok(())
}

fn kernel(math: CpuMath, case: &galvani_optest::Case) -> Result<String, Failure> {
    use galvani_graph::Backend;
    let backend = CpuBackend::new(CpuOptions {
        threads: 1,
        math,
        isa: None,
    })?;
    let sequence = [galvani_optest::Sequence::counting(1, case.vocabulary)];
    let limits = galvani_optest::limits(&sequence, case.page_tokens);
    let program = backend.compile(&case.graph, &galvani_optest::RandomWeights::new(1), limits)?;
    let row = program.compiled().census.iter().find(|row| row.op == "linear");
    let row = row.ok_or("the case has no product")?;
    Ok(format!(
        "{}{}",
        row.kernel,
        if row.fallback { " (fallback)" } else { "" }
    ))
}
