//! `galvani-cuda kernels`: builds the pack and says what its code shows.

use std::path::PathBuf;
use std::time::Instant;

use crate::arch::Arch;
use crate::kernels::{self, KernelRow};
use crate::pack::build;
use crate::pack::facts::{self, Facts};
use crate::pack::file::Pack;
use crate::pack::nvrtc::Compiler;
use crate::pack::sass::{Class, Width};

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
    let built = build::build(&compiler, &jobs, &known);
    let (mut blobs, compiled) = (built.blobs, built.compiled);
    let reused = blobs.len() - compiled;
    // What this run did not ask for stays, if it still is what a row would give.
    let others = build::wanted(&rows, &Arch::ALL, "");
    let others = others.into_iter().filter(|(row, arch)| {
        !jobs
            .iter()
            .any(|(wanted, of)| wanted.symbol == row.symbol && of == arch)
    });
    blobs.extend(build::kept(&compiler, &others.collect::<Vec<_>>(), &known));
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
    for fault in &built.faults {
        println!("FAULT {fault}");
    }
    if !built.faults.is_empty() {
        return Err(format!("{} units did not compile", built.faults.len()));
    }
    if options.report {
        report(&rows, &pack, &jobs)?;
    }
    Ok(())
}

/// Prints a line for each kernel and architecture of this run.
fn report(rows: &[KernelRow], pack: &Pack, jobs: &[(&KernelRow, Arch)]) -> Result<(), String> {
    let width = rows.iter().map(|row| row.symbol.len()).max().unwrap_or(0);
    println!("\n{}", header(width));
    let (mut checked, mut faults) = (0, Vec::new());
    for (row, arch) in jobs.iter().filter(|(_, arch)| !arch.is_ptx()) {
        let (_, bytes) = pack
            .find(&row.symbol, *arch)
            .ok_or("the pack lacks what was just built")?;
        let facts =
            facts::look(row, *arch, bytes).map_err(|reason| format!("{} {arch}: {reason}", row.symbol))?;
        println!("{}", line(row, *arch, &facts, width));
        checked += 1;
        faults.extend(
            facts
                .faults
                .iter()
                .map(|fault| format!("{} {arch}: {fault}", row.symbol)),
        );
    }
    println!(
        "\nshared: static + dynamic at most. loads and stores: 128/64/32 bits a lane and narrower. hmma: steps of HMMA.884 on"
    );
    println!(
        "sm_70 and sm_75. loop: instructions of the longest innermost loop, with its hmma and global loads."
    );
    for fault in &faults {
        println!("FAULT {fault}");
    }
    println!("kernels: {checked} checked, {} faults", faults.len());
    if faults.is_empty() {
        Ok(())
    } else {
        Err(format!("{} faults", faults.len()))
    }
}

fn header(width: usize) -> String {
    format!(
        "{:<width$} {:<6} {:>4} {:>11} {:>5} {:>6} {:>5} {:>6} {:>5} {:>12} {:>9} {:>12} {:>9} {:>4} {:>4} {:>5} {:>5} {:>5} {:>5} {:>5} {:>4} {:>4}  {}",
        "kernel",
        "arch",
        "regs",
        "shared",
        "spill",
        "blocks",
        "warps",
        "instrs",
        "hmma",
        "ldg",
        "stg",
        "lds",
        "sts",
        "bar",
        "shfl",
        "ffma",
        "hfma2",
        "imad",
        "lop3",
        "prmt",
        "mufu",
        "atom",
        "loop"
    )
}

fn line(row: &KernelRow, arch: Arch, facts: &Facts, width: usize) -> String {
    let listing = &facts.listing;
    let count = |class| listing.count(class);
    let hmma = |counts: &dyn Fn(Class) -> u32| {
        counts(Class::Hmma884) + counts(Class::Hmma1688) + counts(Class::Hmma16816)
    };
    let widths = |class: fn(Width) -> Class| {
        let narrow = count(class(Width::B8)) + count(class(Width::B16));
        let wide = [Width::B128, Width::B64, Width::B32].map(|width| count(class(width)).to_string());
        let mut text = wide.join("/");
        if narrow > 0 {
            text += &format!("/{narrow}");
        }
        text
    };
    let body = listing.loops.first().map_or("-".to_owned(), |body| {
        let inside = |class| body.counts.get(&class).copied().unwrap_or(0);
        let loads: u32 = Width::ALL.iter().map(|width| inside(Class::Ldg(*width))).sum();
        format!("{} ({} hmma, {loads} ldg)", body.instructions(), hmma(&inside))
    });
    format!(
        "{:<width$} {arch:<6} {:>4} {:>11} {:>5} {:>6} {:>5} {:>6} {:>5} {:>12} {:>9} {:>12} {:>9} {:>4} {:>4} {:>5} {:>5} {:>5} {:>5} {:>5} {:>4} {:>4}  {body}",
        row.symbol,
        facts.resources.registers,
        format!("{}+{}", facts.resources.shared_static, row.shared_bytes),
        facts.resources.spilled(),
        facts.blocks,
        facts.warps,
        listing.instructions,
        hmma(&count),
        widths(Class::Ldg),
        widths(Class::Stg),
        widths(Class::Lds),
        widths(Class::Sts),
        count(Class::Bar),
        count(Class::Shfl),
        count(Class::Ffma),
        count(Class::Hfma2),
        count(Class::Imad),
        count(Class::Lop3),
        count(Class::Prmt),
        count(Class::Mufu),
        count(Class::Atom) + count(Class::Red),
    )
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
