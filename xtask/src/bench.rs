//! Speed, alone or beside other programs: the runs are interleaved, so that what the machine does meanwhile hits all
//! alike, and medians are reported with their ratios.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::program::{Flags, Outcome, cargo, output, python_environment, root, run, target};

/// Packages of the peers, pinned.
const LLAMACPP: &str = "@node-llama-cpp/linux-x64@3.21.1";
const OPENVINO: [&str; 2] = ["openvino-genai==2026.4.1", "numpy"];

/// Who is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Galvani,
    LlamaCpp,
    OpenVino,
}

/// What is timed: a prefill or a decode of `count` tokens, by this many sequences at once.
struct Case {
    name: &'static str,
    count: u64,
    streams: u64,
}

impl Case {
    fn label(&self) -> String {
        match self.streams {
            1 => format!("{}{}", self.name, self.count),
            streams => format!("{}{} x {streams}", self.name, self.count),
        }
    }
}

struct Setup {
    model: PathBuf,
    binary: PathBuf,
    llamacpp: Option<(PathBuf, PathBuf)>,
    openvino: Option<PathBuf>,
}

/// Measures.
pub fn bench(arguments: &[String]) -> Outcome {
    let values = [
        "model", "threads", "rounds", "prefill", "decode", "streams", "svg", "json",
    ];
    let flags = Flags::parse(arguments, &values, &["peer", "no-openvino"])?;
    cargo(&["build", "--release", "--package", "galvani"])?;
    let binary = target().join("release/galvani");
    let model = match flags.text("model") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(output(Command::new(&binary).args(["pull", "--quiet"]))?.trim()),
    };
    if !flags.has("peer") {
        return alone(&binary, &model, &flags);
    }
    let setup = Setup {
        model,
        binary,
        llamacpp: Some(llamacpp()?),
        openvino: if flags.has("no-openvino") {
            None
        } else {
            Some(python_environment(&target().join("peers/openvino"), &OPENVINO)?)
        },
    };
    beside(&setup, &flags)
}

fn alone(binary: &Path, model: &Path, flags: &Flags) -> Outcome {
    let mut command = Command::new(binary);
    command.arg("bench").arg("--model").arg(model);
    for name in ["threads", "prefill", "decode", "streams", "svg"] {
        if let Some(value) = flags.text(name) {
            command.args([&format!("--{name}"), value]);
        }
    }
    run(&mut command)
}

/// llama.cpp's libraries from npm, and an interpreter to call them with.
fn llamacpp() -> Result<(PathBuf, PathBuf), String> {
    let folder = target().join("peers/llamacpp");
    let python = python_environment(&target().join("peers/python"), &["numpy"])?;
    let package = folder.join("node_modules/@node-llama-cpp/linux-x64");
    if !package.is_dir() {
        std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        run(Command::new("npm")
            .args(["install", "--no-audit", "--no-fund", "--prefix"])
            .arg(&folder)
            .arg(LLAMACPP))?;
    }
    let libraries =
        find_library(&package, 4).ok_or_else(|| format!("no libllama in {}", package.display()))?;
    Ok((python, libraries))
}

/// The folder that holds `libllama*`.
fn find_library(folder: &Path, depth: usize) -> Option<PathBuf> {
    let items: Vec<_> = std::fs::read_dir(folder)
        .ok()?
        .flatten()
        .map(|item| item.path())
        .collect();
    let is_library = |path: &PathBuf| {
        path.file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with("libllama."))
    };
    if items.iter().any(is_library) {
        return Some(folder.to_owned());
    }
    let folders = items.iter().filter(|path| path.is_dir());
    if depth == 0 {
        None
    } else {
        folders.into_iter().find_map(|path| find_library(path, depth - 1))
    }
}

fn beside(setup: &Setup, flags: &Flags) -> Outcome {
    let rounds = flags.number("rounds", 5)?;
    let threads: Vec<&str> = flags.text("threads").unwrap_or("1,2").split(',').collect();
    let cases = [
        Case {
            name: "pp",
            count: flags.number("prefill", 512)?,
            streams: 1,
        },
        Case {
            name: "tg",
            count: flags.number("decode", 128)?,
            streams: flags.number("streams", 1)?,
        },
    ];
    let mut rates: BTreeMap<(String, String, Who), Vec<f64>> = BTreeMap::new();
    let mut memory: BTreeMap<Who, f64> = BTreeMap::new();
    for round in 0..rounds {
        for thread_count in &threads {
            for case in cases.iter().filter(|case| case.count > 0) {
                for who in [Who::Galvani, Who::LlamaCpp, Who::OpenVino] {
                    let Some(result) = measure(setup, who, thread_count, case)? else {
                        continue;
                    };
                    eprintln!(
                        "round {round}: {who:?} {} with {thread_count}: {:.1}",
                        case.label(),
                        result.0
                    );
                    let key = ((*thread_count).to_owned(), case.label(), who);
                    rates.entry(key).or_default().push(result.0);
                    let peak = memory.entry(who).or_default();
                    *peak = peak.max(result.1);
                }
            }
        }
    }
    report(setup, &rates, &memory, flags)
}

/// Tokens a second and peak MiB; `None` where the peer is not asked for.
fn measure(setup: &Setup, who: Who, threads: &str, case: &Case) -> Result<Option<(f64, f64)>, String> {
    let (count, streams) = (case.count.to_string(), case.streams.to_string());
    let peers = root().join("xtask/peers");
    let mut command = match who {
        Who::Galvani => {
            let (prefill, decode) = if case.name == "pp" {
                (count.as_str(), "0")
            } else {
                ("0", count.as_str())
            };
            let mut command = Command::new(&setup.binary);
            command.args([
                "bench",
                "--quiet",
                "--output",
                "json",
                "--repetitions",
                "2",
                "--threads",
                threads,
            ]);
            command
                .args([
                    "--prefill",
                    prefill,
                    "--decode",
                    decode,
                    "--streams",
                    &streams,
                    "--model",
                ])
                .arg(&setup.model);
            command
        }
        Who::LlamaCpp => {
            let Some((python, libraries)) = &setup.llamacpp else {
                return Ok(None);
            };
            let mut command = Command::new(python);
            command
                .arg(peers.join("llamacpp.py"))
                .arg(libraries)
                .arg(&setup.model);
            command.arg(threads);
            match case.streams {
                1 => command.args([case.name, &count, "2"]),
                _ => command.args(["batch", &streams, &count, "2"]),
            };
            command
        }
        Who::OpenVino if case.streams > 1 => return Ok(None),
        Who::OpenVino => {
            let Some(python) = &setup.openvino else {
                return Ok(None);
            };
            let mut command = Command::new(python);
            command
                .arg(peers.join("genai.py"))
                .arg(&setup.model)
                .args([threads, case.name, &count, "2"]);
            command
        }
    };
    let text = match (output(&mut command), who) {
        (Ok(text), _) => text,
        (Err(message), Who::Galvani) => return Err(message),
        (Err(message), Who::LlamaCpp | Who::OpenVino) => {
            eprintln!("note: {message}");
            return Ok(None);
        }
    };
    let line = text
        .lines()
        .rev()
        .find(|line| line.starts_with('{'))
        .ok_or("a measurement printed no JSON")?;
    let value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let rate = value["tok_s"]
        .as_f64()
        .or(value["rows"][0]["tokens_per_second"].as_f64());
    let peak = value["peak_mib"].as_f64().or(value["peak_bytes"]
        .as_f64()
        .map(|bytes| bytes / f64::from(1 << 20)));
    rate.map(|rate| Some((rate, peak.unwrap_or(0.0))))
        .ok_or_else(|| format!("no rate in {line}"))
}

fn report(
    setup: &Setup,
    rates: &BTreeMap<(String, String, Who), Vec<f64>>,
    memory: &BTreeMap<Who, f64>,
    flags: &Flags,
) -> Outcome {
    let name = setup.model.file_name().unwrap_or_default().to_string_lossy();
    println!("\n{name}, medians of interleaved rounds, tokens a second\n");
    println!(
        "| threads | test | galvani | llama.cpp | ratio | OpenVINO | ratio |\n|---|---|---|---|---|---|---|"
    );
    let mut rows = Vec::new();
    for (threads, test, who) in rates.keys() {
        if *who != Who::Galvani {
            continue;
        }
        let of = |who: Who| {
            rates
                .get(&(threads.clone(), test.clone(), who))
                .map(|list| median(list))
        };
        let ours = of(Who::Galvani).unwrap_or(0.0);
        let cell = |who: Who| match of(who) {
            Some(theirs) => format!("{theirs:.1} | {:.2}", ours / theirs),
            None => "- | -".to_owned(),
        };
        println!(
            "| {threads} | {test} | {ours:.1} | {} | {} |",
            cell(Who::LlamaCpp),
            cell(Who::OpenVino)
        );
        rows.push(json!({"threads": threads, "test": test, "galvani": ours,
                         "llamacpp": of(Who::LlamaCpp), "openvino": of(Who::OpenVino)}));
    }
    for (who, mib) in memory {
        println!("\npeak memory {who:?}: {mib:.0} MiB");
    }
    if let Some(path) = flags.text("json") {
        let text = json!({"model": name, "rows": rows}).to_string();
        std::fs::write(path, text).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        even if even % 2 == 0 => (sorted[middle - 1] + sorted[middle]) / 2.0,
        _ => sorted[middle],
    }
}
