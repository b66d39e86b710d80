//! Running programs, and where things lie.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What a task ends with.
pub type Outcome = Result<(), String>;

/// The repository's root: tasks are run through cargo, which says where this package is.
pub fn root() -> PathBuf {
    let package =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| PathBuf::from("./xtask"), PathBuf::from);
    package
        .parent()
        .map(Path::to_owned)
        .unwrap_or_else(|| PathBuf::from("."))
}

/// Where cargo builds.
pub fn target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// The cargo that runs this task.
pub fn cargo_command() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// Runs cargo.
pub fn cargo(arguments: &[&str]) -> Outcome {
    let mut command = cargo_command();
    command.args(arguments);
    run(&mut command)
}

/// Runs a program, its output going where ours goes.
pub fn run(command: &mut Command) -> Outcome {
    let shown = show(command);
    eprintln!("+ {shown}");
    let status = command.status().map_err(|error| format!("{shown}: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{shown}: {status}"))
    }
}

/// Runs a program and gives what it prints.
pub fn output(command: &mut Command) -> Result<String, String> {
    let shown = show(command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("{shown}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{shown}: {}", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{shown}: the output is not UTF-8"))
}

/// Whether a program is there.
pub fn exists(program: &str) -> bool {
    let mut probe = Command::new(program);
    probe
        .arg("--version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    probe.status().is_ok_and(|status| status.success())
}

fn show(command: &Command) -> String {
    let parts = std::iter::once(command.get_program()).chain(command.get_args());
    parts
        .map(|part| part.to_string_lossy().into_owned())
        .collect::<Vec<_>>()
        .join(" ")
}

/// A Python environment with pinned packages, made once in `folder`; gives its interpreter.
pub fn python_environment(folder: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let python = folder.join(if cfg!(windows) {
        "Scripts/python.exe"
    } else {
        "bin/python"
    });
    let stamp = folder.join("installed");
    let wanted = packages.join("\n");
    if std::fs::read_to_string(&stamp).is_ok_and(|text| text == wanted) {
        return Ok(python);
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    run(Command::new(&python)
        .args(["-m", "pip", "install", "--quiet"])
        .args(packages))?;
    std::fs::write(&stamp, wanted).map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(python)
}

/// Flags of a task: `--name value`, and switches.
pub struct Flags(Vec<(String, Option<String>)>);

impl Flags {
    /// Reads them; `switches` take no value.
    pub fn parse(arguments: &[String], values: &[&str], switches: &[&str]) -> Result<Self, String> {
        let mut found = Vec::new();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let name = argument.strip_prefix("--").unwrap_or(argument);
            if switches.contains(&name) {
                found.push((name.to_owned(), None));
            } else if values.contains(&name) {
                let value = rest.next().ok_or_else(|| format!("--{name} needs a value"))?;
                found.push((name.to_owned(), Some(value.clone())));
            } else {
                return Err(format!(
                    "unknown flag {argument}; known: --{}",
                    [values, switches].concat().join(", --")
                ));
            }
        }
        Ok(Self(found))
    }

    /// Whether a switch is set.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(found, _)| found == name)
    }

    /// A value.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .rev()
            .find(|(found, _)| found == name)
            .and_then(|(_, value)| value.as_deref())
    }

    /// A number, or its default.
    pub fn number(&self, name: &str, default: u64) -> Result<u64, String> {
        match self.text(name) {
            None => Ok(default),
            Some(text) => text
                .parse()
                .map_err(|_| format!("--{name}: got `{text}`, allowed: a number")),
        }
    }
}
