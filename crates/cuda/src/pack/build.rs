//! Compiling many rows on all cores.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::arch::Arch;
use crate::error::CudaError;
use crate::kernels::KernelRow;
use crate::pack::nvrtc::{self, Compiler};
use crate::pack::{facts, hash};

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

/// Gives the code of a symbol and an architecture if it was made from what has this hash.
pub type Known<'a> = dyn Fn(&str, Arch, &str) -> Option<Vec<u8>> + 'a;

/// A row for an architecture.
pub type Job<'a> = (&'a KernelRow, Arch);

/// The rows to build and for what: `only` is part of a symbol, `archs` limits each row's own list.
pub fn wanted<'a>(rows: &'a [KernelRow], archs: &[Arch], only: &str) -> Vec<Job<'a>> {
    rows.iter()
        .filter(|row| row.symbol.contains(only))
        .flat_map(|row| row.archs.iter().map(move |arch| (row, *arch)))
        .filter(|(_, arch)| archs.contains(arch))
        .collect()
}

/// What `known` has of the jobs, without compiling.
pub fn kept(compiler: &Compiler, jobs: &[Job], known: &Known) -> Vec<Blob> {
    made(prepare(compiler, jobs, known))
}

/// What came of a build.
pub struct Built {
    /// In the order of the jobs, without those that failed.
    pub blobs: Vec<Blob>,
    /// How many were compiled now.
    pub compiled: usize,
    /// One for each unit that did not compile.
    pub faults: Vec<CudaError>,
}

/// Compiles each job, or takes what `known` gives for its hash. A row that does not compile does not cost the others
/// their code.
pub fn build(compiler: &Compiler, jobs: &[Job], known: &Known) -> Built {
    let mut tasks = prepare(compiler, jobs, known);
    let units = units(&tasks);
    let next = AtomicUsize::new(0);
    let results = Mutex::new(Vec::new());
    let work = || {
        while let Some(unit) = units.get(next.fetch_add(1, Ordering::Relaxed)) {
            let task = &tasks[unit.code.unwrap_or(unit.first())];
            let result = compile(compiler, task.row, task.arch);
            results
                .lock()
                .expect("a worker that panics ends the build")
                .push((unit, result));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..threads.min(units.len()) {
            scope.spawn(work);
        }
    });
    let mut faults = Vec::new();
    let mut compiled = 0;
    let mut results = results.into_inner().expect("all workers ended");
    results.sort_by_key(|(unit, _)| unit.first());
    for (unit, result) in results {
        match result {
            Ok(made) => {
                for (index, bytes) in [(unit.code, made.cubin), (unit.text, Some(made.ptx))] {
                    if let Some(index) = index {
                        tasks[index].bytes = bytes;
                        compiled += 1;
                    }
                }
            }
            Err(error) => faults.push(error),
        }
    }
    Built {
        blobs: made(tasks),
        compiled,
        faults,
    }
}

/// Launch bounds are made for Volta. Where a later architecture's code would spill within them, it gets fewer blocks.
fn compile(compiler: &Compiler, row: &KernelRow, arch: Arch) -> Result<nvrtc::Unit, CudaError> {
    let mut row = row.clone();
    loop {
        let made = compiler.compile(&row, arch)?;
        let may = facts::relaxes(arch) && row.min_blocks > 1;
        let spills = |bytes: &Vec<u8>| {
            // What cannot be read is reported where the pack is made.
            facts::look(&row, arch, bytes).is_ok_and(|facts| facts.spills())
        };
        if !(may && made.cubin.as_ref().is_some_and(spills)) {
            return Ok(made);
        }
        row.min_blocks -= 1;
    }
}

/// The tasks that have their code.
fn made(tasks: Vec<Task>) -> Vec<Blob> {
    let with_code = tasks.into_iter().filter_map(|task| {
        Some(Blob {
            symbol: task.row.symbol.clone(),
            arch: task.arch,
            made_from: task.made_from,
            bytes: task.bytes?,
        })
    });
    with_code.collect()
}

struct Task<'a> {
    row: &'a KernelRow,
    arch: Arch,
    made_from: String,
    bytes: Option<Vec<u8>>,
}

/// One run of the compiler: the tasks that get its machine code and its PTX.
#[derive(Debug, PartialEq, Eq)]
struct Unit {
    code: Option<usize>,
    text: Option<usize>,
}

impl Unit {
    fn first(&self) -> usize {
        self.code.or(self.text).expect("a unit has a task")
    }
}

fn prepare<'a>(compiler: &Compiler, jobs: &[Job<'a>], known: &Known) -> Vec<Task<'a>> {
    let mut sources: BTreeMap<&str, String> = BTreeMap::new();
    let task = |&(row, arch): &Job<'a>| {
        let source = sources
            .entry(row.source)
            .or_insert_with(|| hash::source(row.source, &compiler.include));
        let mut options = Compiler::options(row, arch);
        if facts::relaxes(arch) {
            options.push("fewer blocks where it spills".to_owned());
        }
        let made_from = hash::row(row, arch, &compiler.version, &options, source);
        Task {
            row,
            arch,
            bytes: known(&row.symbol, arch, &made_from),
            made_from,
        }
    };
    jobs.iter().map(task).collect()
}

/// Volta's machine code comes with the PTX of its level, which then need not be compiled for itself.
fn units(tasks: &[Task]) -> Vec<Unit> {
    let missing = |index: usize| tasks[index].bytes.is_none();
    let find = |of: &Task, arch: Arch| {
        let same = |task: &Task| task.row.symbol == of.row.symbol && task.arch == arch;
        tasks.iter().position(same).filter(|index| missing(*index))
    };
    let all = tasks.iter().enumerate().filter(|(index, _)| missing(*index));
    all.filter_map(|(index, task)| match task.arch {
        Arch::Compute70 if find(task, Arch::Sm70).is_some() => None,
        Arch::Compute70 => Some(Unit {
            code: None,
            text: Some(index),
        }),
        Arch::Sm70 => Some(Unit {
            code: Some(index),
            text: find(task, Arch::Compute70),
        }),
        Arch::Sm75 | Arch::Sm80 | Arch::Sm86 | Arch::Sm89 | Arch::Sm90 => Some(Unit {
            code: Some(index),
            text: None,
        }),
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::selftest;

    #[test]
    fn volta_and_its_ptx_are_one_unit() {
        let row = selftest::rows().remove(0);
        let unit = |code, text| Unit { code, text };
        let (volta, turing, ptx) = (Arch::Sm70, Arch::Sm75, Arch::Compute70);
        type Case<'a> = (&'a [(Arch, bool)], Vec<Unit>);
        let cases: [Case; 5] = [
            (
                &[(volta, false), (turing, false), (ptx, false)],
                vec![unit(Some(0), Some(2)), unit(Some(1), None)],
            ),
            (&[(ptx, false), (volta, false)], vec![unit(Some(1), Some(0))]),
            (&[(volta, true), (ptx, false)], vec![unit(None, Some(1))]),
            (&[(volta, false), (ptx, true)], vec![unit(Some(0), None)]),
            (&[(volta, true), (turing, true)], vec![]),
        ];
        for (tasks, want) in cases {
            let task = |&(arch, known): &(Arch, bool)| Task {
                row: &row,
                arch,
                made_from: String::new(),
                bytes: known.then(Vec::new),
            };
            let tasks: Vec<Task> = tasks.iter().map(task).collect();
            assert_eq!(units(&tasks), want);
        }
    }

    #[test]
    fn jobs_are_chosen_by_name_and_architecture() {
        let rows = selftest::rows();
        for (archs, only, want) in [
            (&Arch::ALL[..], "", 7),
            (&[Arch::Sm70], "selftest", 1),
            (&[Arch::Sm70], "nothing", 0),
            (&[], "", 0),
        ] {
            assert_eq!(wanted(&rows, archs, only).len(), want, "{archs:?} {only}");
        }
    }
}
