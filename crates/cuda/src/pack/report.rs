//! `galvani-cuda kernels`: builds the pack and says what its code shows.

use std::path::PathBuf;
use std::time::Instant;

use crate::arch::Arch;
use crate::kernels;
use crate::pack::build;
use crate::pack::file::Pack;
use crate::pack::nvrtc::Compiler;

struct Options {
    report: bool,
    require: bool,
    archs: Vec<Arch>,
    only: String,
    out: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// A flag that is not known, a row that does not compile, or one that breaks its limits.
pub fn command(arguments: &[String]) -> Result<(), String> {
    let options = Options::parse(arguments)?;
    let compiler = match Compiler::find() {
        Ok(compiler) => compiler,
        Err(error) if options.require => return Err(error.to_string()),
        Err(error) => {
            println!("skipped: no kernel was compiled or checked. {error}");
            return Ok(());
        }
    };
    let rows = kernels::rows();
    let jobs = build::wanted(&rows, &options.archs, &options.only);
    if jobs.is_empty() {
        return Err(format!("--only {}: no such row", options.only));
    }
    let start = Instant::now();
    // A pack that cannot be read only means that everything is compiled.
    let old = Pack::read(&options.out).ok();
    let known = |symbol: &str, arch: Arch, made_from: &str| {
        let (entry, code) = old.as_ref()?.find(symbol, arch)?;
        (entry.made_from == made_from).then(|| code.to_vec())
    };
    let (mut blobs, compiled) = build::build(&compiler, &jobs, &known).map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
        format!(
            "{}\n{} of {} did not compile",
            lines.join("\n"),
            errors.len(),
            jobs.len()
        )
    })?;
    let reused = blobs.len() - compiled;
    // What this run did not ask for stays, if it still is what a row would give.
    let others = build::wanted(&rows, &Arch::ALL, "");
    let others = others.into_iter().filter(|(row, arch)| {
        !jobs
            .iter()
            .any(|(wanted, of)| wanted.symbol == row.symbol && of == arch)
    });
    blobs.extend(others.filter_map(|(row, arch)| build::kept(&compiler, row, arch, &known)));
    let pack = Pack::new(&compiler.version, &rows, &blobs).map_err(|error| error.to_string())?;
    pack.write(&options.out).map_err(|error| error.to_string())?;
    println!(
        "kernels: {compiled} compiled, {reused} unchanged, {} in {} ({:.1} MB, NVRTC {}), {:.1} s",
        blobs.len(),
        options.out.display(),
        pack.bytes().len() as f64 / 1e6,
        compiler.version,
        start.elapsed().as_secs_f64()
    );
    Ok(())
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
            report: false,
            require: false,
            archs: Arch::ALL.to_vec(),
            only: String::new(),
            out: PathBuf::from("target/kernels").join(crate::pack::file::NAME),
        };
        let mut rest = arguments.iter();
        while let Some(flag) = rest.next() {
            let mut value = || rest.next().ok_or_else(|| format!("{flag} needs a value"));
            match flag.as_str() {
                "--report" => options.report = true,
                "--require" => options.require = true,
                "--only" => options.only.clone_from(value()?),
                "--out" => options.out = PathBuf::from(value()?),
                "--arch" => {
                    let archs = value()?.split(',').map(str::parse);
                    options.archs = archs.collect::<Result<_, _>>()?;
                }
                _ => {
                    let known = "--report, --require, --arch LIST, --only SUBSTRING, --out FILE";
                    return Err(format!("flag `{flag}`, allowed: {known}"));
                }
            }
        }
        Ok(options)
    }
}
