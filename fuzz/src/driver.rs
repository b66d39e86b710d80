//! The loop: make an input, run it, watch it.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::counting::peak_bytes;
use crate::mutate::{Rng, mutate};
use crate::options::Options;
use crate::targets::Target;

/// What an input may hold beyond twice its own size.
const ALLOWANCE_BYTES: usize = 64 << 20;
/// Longest run of one input.
const INPUT_TIME_MAX: Duration = Duration::from_secs(10);
/// Most inputs kept to start from.
const CORPUS_MAX: usize = 1 << 14;
/// Inputs that stop a run: more would be the same fault again.
const FAILURES_MAX: usize = 5;

/// The project's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Fuzzes for the time asked for.
pub fn run(options: &Options) -> ExitCode {
    let target = options.target;
    let mut corpus = (target.seeds)();
    assert!(!corpus.is_empty(), "the target has fixtures to start from");
    let seed_count = corpus.len();
    let watch = Watch::start(target.name);
    std::panic::set_hook(Box::new(|_| {}));
    let mut rng = Rng::new(options.seed);
    let mut seen = HashSet::new();
    let start = Instant::now();
    let (mut run_count, mut failure_count) = (0u64, 0);
    while start.elapsed() < options.time && failure_count < FAILURES_MAX {
        let input = match corpus.get(run_count as usize) {
            Some(seed) if run_count < seed_count as u64 => seed.clone(),
            _ => mutate(&corpus, target.dictionary, &mut rng),
        };
        watch.begin(&input);
        let outcome = run_input(target, &input);
        watch.end();
        run_count += 1;
        match outcome {
            Ok(outcome) => {
                if seen.insert(outcome) && run_count > seed_count as u64 && corpus.len() < CORPUS_MAX {
                    corpus.push(input);
                }
            }
            Err(fault) => {
                failure_count += 1;
                let path = save(target.name, &input);
                eprintln!(
                    "FAULT {fault}\n  input {} ({} bytes)",
                    path.display(),
                    input.len()
                );
            }
        }
    }
    println!(
        "{}: {run_count} inputs in {:.0} s, seed {}, {} outcomes, corpus {seed_count} -> {}, {failure_count} faults",
        target.name,
        start.elapsed().as_secs_f64(),
        options.seed,
        seen.len(),
        corpus.len(),
    );
    if failure_count == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs one file, with the panic's own message if there is one.
pub fn run_file(target: &Target, path: &Path) -> ExitCode {
    let input = match std::fs::read(path) {
        Ok(input) => input,
        Err(error) => {
            eprintln!("{}: {error}", path.display());
            return ExitCode::from(2);
        }
    };
    match run_input(target, &input) {
        Ok(outcome) => {
            println!("{outcome}");
            ExitCode::SUCCESS
        }
        Err(fault) => {
            println!("FAULT {fault}");
            ExitCode::FAILURE
        }
    }
}

/// The outcome's shape, or what went wrong.
fn run_input(target: &Target, input: &[u8]) -> Result<String, String> {
    let (result, peak) = peak_bytes(|| catch_unwind(AssertUnwindSafe(|| (target.run)(input))));
    let outcome = result.map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("panic: {}", text.unwrap_or("without words"))
    })?;
    let limit = ALLOWANCE_BYTES + 2 * input.len();
    if peak > limit {
        return Err(format!("held {peak} bytes, limit {limit}: {outcome}"));
    }
    Ok(shape(&outcome))
}

/// What remains of a message when the input's own words are left out: letters before the first and after the last quotation
/// mark.
fn shape(outcome: &str) -> String {
    let quotes = ['`', '"'];
    let head = outcome.split(quotes).next().unwrap_or_default();
    let tail = outcome.rsplit(quotes).next().unwrap_or_default();
    let letters = head.chars().chain(tail.chars());
    letters.filter(|c| c.is_ascii_alphabetic() || *c == ' ').collect()
}

fn save(target: &str, input: &[u8]) -> PathBuf {
    let folder = root().join("fuzz/artifacts").join(target);
    let hash = input.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let path = folder.join(format!("{hash:016x}"));
    let saved = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, input));
    if let Err(error) = saved {
        eprintln!("{}: {error}", path.display());
    }
    path
}

/// Ends the program when one input takes too long.
struct Watch {
    current: Arc<Mutex<Current>>,
}

/// The running input and its start.
type Current = Option<(Instant, Vec<u8>)>;

impl Watch {
    fn start(target: &'static str) -> Self {
        let current: Arc<Mutex<Current>> = Arc::default();
        let watched = current.clone();
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(500));
                let current = watched.lock().expect("nobody panics with the lock");
                if let Some((since, input)) = &*current
                    && since.elapsed() > INPUT_TIME_MAX
                {
                    let path = save(target, input);
                    eprintln!(
                        "FAULT takes longer than {INPUT_TIME_MAX:?}\n  input {}",
                        path.display()
                    );
                    std::process::exit(1);
                }
            }
        });
        Self { current }
    }

    fn begin(&self, input: &[u8]) {
        *self.current.lock().expect("nobody panics with the lock") = Some((Instant::now(), input.to_vec()));
    }

    fn end(&self) {
        *self.current.lock().expect("nobody panics with the lock") = None;
    }
}
