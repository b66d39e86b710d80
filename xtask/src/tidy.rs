//! What a compiler does not hold: layering, sizes, words that must not stay, dependencies with a reason.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program::{Outcome, output, root};
use crate::source::{blank, functions, line_of, matches, words};

/// Which of our crates a crate may name. Dependencies point one way.
const LAYERS: [(&str, &[&str]); 12] = [
    ("graph", &[]),
    ("weights", &["graph"]),
    ("models", &["weights", "graph"]),
    ("cpu", &["weights", "graph"]),
    ("cuda", &["weights", "graph"]),
    ("ptx", &[]),
    ("engine", &["graph"]),
    ("text", &[]),
    ("server", &["engine", "text", "models"]),
    (
        "cli",
        &["server", "engine", "text", "models", "cpu", "weights", "graph"],
    ),
    ("optest", &["cpu", "cuda", "ptx", "weights", "graph"]),
    ("xtask", &[]),
];

/// What tests may name beyond that.
const TEST_LAYERS: [(&str, &[&str]); 4] = [
    ("cuda", &["ptx"]),
    ("models", &["cpu"]),
    ("server", &["cpu", "weights", "models"]),
    ("engine", &["cpu", "weights", "models"]),
];

const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const FILE_BYTES_MAX: u64 = 1 << 20;
const GOLDEN_BYTES_MAX: u64 = 8 << 20;
const REPOSITORY_BYTES_MAX: u64 = 40 << 20;
/// Enums that are matched without a wildcard, so that a new variant is a compile error in every place that must know it.
const CLOSED: [&str; 2] = ["Op::", "Format::"];
const BANNED: [&str; 3] = ["todo!", "unimplemented!", "dbg!"];

/// Checks everything and reports all faults at once.
pub fn tidy() -> Outcome {
    let root = root();
    let mut report = Report::default();
    let files = tracked(&root)?;
    sizes(&root, &files, &mut report);
    layers(&root, &mut report)?;
    for file in files.iter().filter(|file| is_ours(file)) {
        let text = std::fs::read_to_string(root.join(file))
            .map_err(|error| format!("{}: {error}", file.display()))?;
        rust_file(file, &text, &mut report);
    }
    for note in &report.notes {
        eprintln!("note: {note}");
    }
    for fault in &report.faults {
        eprintln!("tidy: {fault}");
    }
    if report.faults.is_empty() {
        eprintln!(
            "tidy: {} files, no faults, {} notes",
            files.len(),
            report.notes.len()
        );
        return Ok(());
    }
    Err(format!("{} faults", report.faults.len()))
}

#[derive(Default)]
struct Report {
    faults: Vec<String>,
    /// For review to decide.
    notes: Vec<String>,
}

/// Files that git knows or would take.
fn tracked(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut git = Command::new("git");
    git.current_dir(root)
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]);
    let listing = output(&mut git)?;
    let files: BTreeSet<PathBuf> = listing
        .split('\0')
        .filter(|name| !name.is_empty())
        .map(PathBuf::from)
        .collect();
    Ok(files
        .into_iter()
        .filter(|file| root.join(file).is_file())
        .collect())
}

fn is_ours(file: &Path) -> bool {
    let rust = file.extension().is_some_and(|ending| ending == "rs");
    rust && (file.starts_with("crates") || file.starts_with("xtask") || file.starts_with("fuzz"))
}

fn is_test(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    file.components().any(|part| {
        ["tests", "benches", "examples"]
            .iter()
            .any(|name| part.as_os_str() == *name)
    }) || name == "tests.rs"
        || name.ends_with("_tests.rs")
}

fn sizes(root: &Path, files: &[PathBuf], report: &mut Report) {
    let mut total = 0;
    for file in files {
        let bytes = std::fs::metadata(root.join(file)).map_or(0, |data| data.len());
        total += bytes;
        let most = if file.starts_with("goldens") {
            GOLDEN_BYTES_MAX
        } else {
            FILE_BYTES_MAX
        };
        if bytes > most {
            report
                .faults
                .push(format!("{}: {bytes} bytes, allowed: {most}", file.display()));
        }
    }
    if total > REPOSITORY_BYTES_MAX {
        report.faults.push(format!(
            "the repository has {total} bytes, allowed: {REPOSITORY_BYTES_MAX}"
        ));
    }
}

fn rust_file(file: &Path, text: &str, report: &mut Report) {
    let shown = file.display();
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        report
            .faults
            .push(format!("{shown}: {lines} lines, allowed: {FILE_LINES_MAX}"));
    }
    let blanked = blank(text);
    for (name, line, length) in functions(&blanked) {
        if length > FUNCTION_LINES_MAX {
            report.notes.push(format!(
                "{shown}:{line}: `{name}` has {length} lines, aim: {FUNCTION_LINES_MAX}"
            ));
        }
    }
    for (line, patterns) in matches(&blanked) {
        let closed = CLOSED
            .iter()
            .find(|name| patterns.iter().any(|pattern| names_variant(pattern, name)));
        let wild = patterns.iter().any(|pattern| pattern == "_");
        if let Some(name) = closed.filter(|_| wild && !is_test(file)) {
            let name = name.trim_end_matches(':');
            report.faults.push(format!(
                "{shown}:{line}: a match on {name} has a wildcard arm; name the variants"
            ));
        }
    }
    for word in BANNED {
        for at in words(&blanked, word.trim_end_matches('!')).filter(|at| blanked[*at..].starts_with(word)) {
            report
                .faults
                .push(format!("{shown}:{}: {word}", line_of(&blanked, at)));
        }
    }
    // Tests stand at the end of a file.
    let tests = blanked.find("#[cfg(test)]").unwrap_or(blanked.len());
    let code = if is_test(file) { "" } else { &blanked[..tests] };
    for (at, _) in code.match_indices(".unwrap()") {
        report.faults.push(format!(
            "{shown}:{}: unwrap; `expect` states the reason",
            line_of(code, at)
        ));
    }
}

/// `Op::Linear` and `graph::Op::Linear`, but not `ScheduleOp::X`.
fn names_variant(pattern: &str, name: &str) -> bool {
    pattern.match_indices(name).any(|(at, _)| {
        let before = pattern[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
    })
}

fn layers(root: &Path, report: &mut Report) -> Outcome {
    let documented = documented(root)?;
    for (name, allowed) in LAYERS {
        let folder = if name == "xtask" {
            root.join(name)
        } else {
            root.join("crates").join(name)
        };
        let path = folder.join("Cargo.toml");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let manifest: toml::Table = text
            .parse()
            .map_err(|error| format!("{}: {error}", path.display()))?;
        let more = TEST_LAYERS
            .iter()
            .find(|(of, _)| *of == name)
            .map_or(&[][..], |(_, more)| more);
        for (section, tests) in [
            ("dependencies", false),
            ("build-dependencies", false),
            ("dev-dependencies", true),
        ] {
            for dependency in dependencies(&manifest, section) {
                match dependency.strip_prefix("galvani-") {
                    Some(ours) if allowed.contains(&ours) || (tests && more.contains(&ours)) => {}
                    Some(ours) => report
                        .faults
                        .push(format!("{name} must not depend on {ours} ({section})")),
                    None if documented.contains(&dependency) => {}
                    None => report.faults.push(format!(
                        "{name}: dependency `{dependency}` has no line in docs/dependencies.md"
                    )),
                }
            }
        }
    }
    let crates = std::fs::read_dir(root.join("crates")).map_err(|error| format!("crates: {error}"))?;
    for item in crates.flatten() {
        let name = item.file_name().to_string_lossy().into_owned();
        if item.path().join("Cargo.toml").is_file() && !LAYERS.iter().any(|(known, _)| *known == name) {
            report.faults.push(format!(
                "crate {name} has no row in the layers of xtask/src/tidy.rs"
            ));
        }
    }
    Ok(())
}

fn dependencies(manifest: &toml::Table, section: &str) -> Vec<String> {
    let keys = |table: &toml::Table| -> Vec<String> {
        table
            .get(section)
            .and_then(toml::Value::as_table)
            .map(|t| t.keys().cloned().collect())
            .unwrap_or_default()
    };
    let mut names = keys(manifest);
    if let Some(targets) = manifest.get("target").and_then(toml::Value::as_table) {
        names.extend(targets.values().filter_map(toml::Value::as_table).flat_map(keys));
    }
    names
}

/// The first cells of the table in docs/dependencies.md.
fn documented(root: &Path) -> Result<BTreeSet<String>, String> {
    let path = root.join("docs/dependencies.md");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let cell = |line: &str| {
        line.strip_prefix('|')
            .and_then(|rest| rest.split('|').next())
            .map(str::to_owned)
    };
    let name = |word: &str| {
        word.trim()
            .trim_matches('`')
            .split(' ')
            .next()
            .unwrap_or_default()
            .to_owned()
    };
    Ok(text
        .lines()
        .filter_map(cell)
        .flat_map(|cell| cell.split(',').map(name).collect::<Vec<_>>())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(file: &str, text: &str) -> usize {
        let mut report = Report::default();
        rust_file(Path::new(file), text, &mut report);
        report.faults.len()
    }

    #[test]
    fn faults_of_a_file() {
        let long = "\n".repeat(601);
        let cases = [
            ("crates/a/src/x.rs", "fn f() { todo!() }", 1),
            ("crates/a/src/x.rs", "// todo!()\nfn f() { \"dbg!\"; }", 0),
            (
                "crates/a/src/x.rs",
                "fn f() { a.unwrap(); }\n#[cfg(test)]\nmod t { fn g() { b.unwrap(); } }",
                1,
            ),
            ("crates/a/tests/x.rs", "fn f() { a.unwrap(); }", 0),
            (
                "crates/a/src/x.rs",
                "fn f() { match o { Op::A => 1, _ => 2 } }",
                1,
            ),
            (
                "crates/a/src/x.rs",
                "fn f() { match o { MyOp::A => 1, _ => 2 } }",
                0,
            ),
            (
                "crates/a/src/x.rs",
                "fn f() { match (o, p) { (Format::A, _) => 1, (Format::B, _) => 2 } }",
                0,
            ),
            ("crates/a/src/x.rs", &long, 1),
        ];
        for (file, text, want) in cases {
            assert_eq!(faults(file, text), want, "{file}: {text}");
        }
    }
}
