//! `galvani bench`

use crate::bench::{Plan, Report, measure, read_bandwidth, svg};
use crate::direct::Direct;
use crate::error::CliError;
use crate::flags::{BenchArgs, ReportForm};
use crate::load::{self, Fit, Wish};
use crate::machine::{Machine, peak_bytes};

/// Measures and reports.
pub fn bench(arguments: &BenchArgs) -> Result<(), CliError> {
    let plan = plan(arguments)?;
    let opened = load::open(
        &arguments.model,
        arguments.positional.as_ref(),
        arguments.compute.strict,
    )?;
    let machine = Machine::read();
    let wish = Wish {
        sequences: plan.sequences(),
        queue: 1,
        context: Some(plan.context()),
    };
    let fit = Fit::derive(&opened, &arguments.compute, &wish, &machine)?;
    let ready = load::compile(
        &opened,
        &arguments.compute,
        fit,
        arguments.model.store.quiet,
        |_| {},
    )?;
    let mut direct = Direct::new(ready, plan.sequences());
    let rows = measure(&mut direct, &opened, &plan)?;
    let threads = direct.ready().fit.threads;
    let formats: Vec<&str> = opened.info.formats.iter().map(|(name, _)| *name).collect();
    // Taken before the yardstick fills memory of its own.
    let peak_bytes = peak_bytes();
    let report = Report {
        model: opened.name.clone(),
        formats: formats.join(", "),
        weight_bytes: opened.info.weight_bytes,
        parameters: opened.info.parameter_count,
        threads,
        backend: direct.ready().describe.clone(),
        processor: machine.processor,
        bandwidth: read_bandwidth(threads),
        peak_bytes,
        rows,
    };
    if let Some(path) = &arguments.svg {
        std::fs::write(path, svg(&report)).map_err(CliError::io(path))?;
    }
    match arguments.output {
        ReportForm::Table => print!("{}", report.table()),
        ReportForm::Json => println!("{}", report.json()),
        ReportForm::Markdown => print!("{}", report.markdown()),
    }
    Ok(())
}

fn plan(arguments: &BenchArgs) -> Result<Plan, CliError> {
    let wrong = |flag: &str, got: usize, allowed: &str| {
        CliError::Usage(format!("{flag}: got {got}, allowed: {allowed}"))
    };
    if !(1..=1000).contains(&arguments.repetitions) {
        return Err(wrong("--repetitions", arguments.repetitions, "1 to 1000"));
    }
    if let Some(streams) = arguments
        .streams
        .iter()
        .find(|streams| !(1..=1024).contains(*streams))
    {
        return Err(wrong("--streams", *streams, "1 to 1024"));
    }
    let plan = Plan {
        prefill: arguments.prefill.clone(),
        decode: arguments.decode.clone(),
        streams: arguments.streams.clone(),
        depth: arguments.depth,
        repetitions: arguments.repetitions,
    };
    if plan.prefill.iter().chain(&plan.decode).all(|count| *count == 0) {
        return Err(CliError::Usage(
            "--prefill and --decode are both 0: nothing to measure".into(),
        ));
    }
    Ok(plan)
}
