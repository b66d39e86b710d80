//! Compiling many rows on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::Arch;
use crate::error::CudaError;
use crate::kernels::KernelRow;
use crate::pack::hash;
use crate::pack::nvrtc::Compiler;

/// The code of one row for one architecture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    /// The row.
    pub symbol: String,
    /// What it is for.
    pub arch: Arch,
    /// `hash::row` of what it was made from.
    pub made_from: String,
    /// ELF or PTX text.
    pub bytes: Vec<u8>,
}

/// The rows to build and for what: `only` is part of a symbol, `archs` limits each row's own list.
pub fn wanted<'a>(rows: &'a [KernelRow], archs: &[Arch], only: &str) -> Vec<(&'a KernelRow, Arch)> {
    rows.iter()
        .filter(|row| row.symbol.contains(only))
        .flat_map(|row| row.archs.iter().map(move |arch| (row, *arch)))
        .filter(|(_, arch)| archs.contains(arch))
        .collect()
}

/// What `known` has of a row for an architecture, without compiling.
pub fn kept(compiler: &Compiler, row: &KernelRow, arch: Arch, known: &Known) -> Option<Blob> {
    let made_from = made_from(compiler, row, arch);
    Some(Blob {
        symbol: row.symbol.clone(),
        arch,
        bytes: known(&row.symbol, arch, &made_from)?,
        made_from,
    })
}

/// Gives the code of a symbol and an architecture if it was made from what has this hash.
pub type Known<'a> = dyn Fn(&str, Arch, &str) -> Option<Vec<u8>> + Sync + 'a;

fn made_from(compiler: &Compiler, row: &KernelRow, arch: Arch) -> String {
    let options = Compiler::options(row, arch);
    hash::row(row, arch, &compiler.version, &options, &compiler.include)
}

/// Compiles each job, or takes what `known` gives for its hash. The second number is how many were compiled.
///
/// # Errors
/// All rows that do not compile, in one message.
pub fn build(
    compiler: &Compiler,
    jobs: &[(&KernelRow, Arch)],
    known: &Known,
) -> Result<(Vec<Blob>, usize), Vec<CudaError>> {
    let next = AtomicUsize::new(0);
    let compiled = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((row, arch)) = jobs.get(index).copied() else {
                break;
            };
            let made_from = made_from(compiler, row, arch);
            let bytes = match known(&row.symbol, arch, &made_from) {
                Some(bytes) => Ok(bytes),
                None => {
                    compiled.fetch_add(1, Ordering::Relaxed);
                    compiler
                        .compile(row, arch)
                        .map(|unit| unit.cubin.unwrap_or(unit.ptx))
                }
            };
            let blob = bytes.map(|bytes| Blob {
                symbol: row.symbol.clone(),
                arch,
                made_from,
                bytes,
            });
            results
                .lock()
                .expect("a worker that panics ends the build")
                .push((index, blob));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            scope.spawn(work);
        }
    });
    let mut results = results.into_inner().expect("all workers ended");
    results.sort_by_key(|(index, _)| *index);
    let mut blobs = Vec::with_capacity(results.len());
    let mut faults = Vec::new();
    for (_, result) in results {
        match result {
            Ok(blob) => blobs.push(blob),
            Err(error) => faults.push(error),
        }
    }
    if faults.is_empty() {
        Ok((blobs, compiled.into_inner()))
    } else {
        Err(faults)
    }
}
