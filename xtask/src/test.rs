//! Everything that must pass, in the order of its cost. Ends with a list of what ran and what could not.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::kernels;
use crate::program::{Outcome, cargo, cargo_command, exists, python_environment, root, run, target};
use crate::served::Served;
use crate::tidy;

const PATIENCE: Duration = Duration::from_secs(180);

/// Runs everything; the first failure ends it.
pub fn test() -> Outcome {
    let mut done = Vec::new();
    let mut skipped = Vec::new();
    let mut step = |name: &str, work: &mut dyn FnMut() -> Outcome| -> Outcome {
        let start = Instant::now();
        eprintln!("\n== {name}");
        work().map_err(|message| format!("{name}: {message}"))?;
        done.push(format!("{name} ({:.0} s)", start.elapsed().as_secs_f64()));
        Ok(())
    };
    step("format", &mut || cargo(&["fmt", "--all", "--check"]))?;
    step("tidy", &mut tidy::tidy)?;
    step("lints", &mut || {
        cargo(&[
            "clippy",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ])
    })?;
    // Volta and the PTX that the interpreter runs; the other architectures are built by `cargo xtask kernels` alone.
    step("kernels", &mut || {
        let flags = ["--install", "--require", "--report", "--arch", "sm_70,compute_70"];
        kernels::kernels(&flags.map(str::to_owned))?;
        kernels::kernels(&["--model", "--check"].map(str::to_owned))
    })?;
    step("kernels in the interpreter", &mut || {
        let mut command = cargo_command();
        command.args([
            "run",
            "--quiet",
            "--package",
            "galvani-optest",
            "--",
            "test",
            "--backend",
            "ptx",
        ]);
        run(command.arg("--pack").arg(kernels::pack_path()))
    })?;
    step("tests", &mut tests)?;
    let binary = target()
        .join("debug")
        .join(if cfg!(windows) { "galvani.exe" } else { "galvani" });
    step("binary", &mut || {
        cargo(&["build", "--package", "galvani", "--quiet"])
    })?;
    step("exact arithmetic against transformers", &mut || {
        let served = Served::start(&binary, &["--quiet", "--cpu-math", "exact"], PATIENCE)?;
        smollm2(&format!("http://{}", served.address), "exact")?;
        served.stop(Duration::from_secs(30))
    })?;
    let mut served = None;
    step("server", &mut || {
        served = Some(Served::start(
            &binary,
            &["--quiet", "--context", "2048"],
            PATIENCE,
        )?);
        Ok(())
    })?;
    let served = served.expect("the step before succeeded");
    let url = format!("http://{}", served.address);
    step("fast arithmetic against transformers", &mut || {
        smollm2(&url, "fast")
    })?;
    step("openai for Python", &mut || python_client(&url))?;
    if exists("node") && exists("npm") {
        step("node packages", &mut || {
            run(Command::new("npm")
                .args(["ci", "--no-audit", "--no-fund"])
                .current_dir(root().join("tests")))
        })?;
        step("openai for node", &mut || node("clients", &url))?;
        if std::path::Path::new(&chromium()).exists() {
            step("chat page in Chromium", &mut || node("browser", &url))?;
        } else {
            skipped.push("chat page: Chromium is not installed (CHROMIUM=PATH names one)");
        }
    } else {
        skipped.push("openai for node, chat page: node and npm are not installed");
    }
    step("graceful end", &mut {
        let mut served = Some(served);
        move || {
            served
                .take()
                .map_or(Ok(()), |served| served.stop(Duration::from_secs(30)))
        }
    })?;
    eprintln!("\nall passed: {}", done.join(", "));
    for reason in skipped {
        eprintln!("skipped: {reason}");
    }
    Ok(())
}

fn tests() -> Outcome {
    let mut command = cargo_command();
    if exists("cargo-nextest") {
        command.args(["nextest", "run", "--workspace", "--no-fail-fast"]);
    } else {
        command.args(["test", "--workspace", "--quiet", "--no-fail-fast"]);
    }
    command.envs(kernels::environment(false)?);
    command.env("GALVANI_PACK", kernels::pack_path());
    run(&mut command)
}

fn smollm2(url: &str, math: &str) -> Outcome {
    run(Command::new("python3")
        .args(["smollm2.py", math])
        .current_dir(root().join("tests/clients"))
        .env("GALVANI_URL", url))
}

fn python_client(url: &str) -> Outcome {
    let clients = root().join("tests/clients");
    let path = clients.join("requirements.txt");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let packages: Vec<&str> = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let python = python_environment(&target().join("clients-python"), &packages)?;
    run(Command::new(python)
        .args(["-m", "unittest", "-v", "test_openai"])
        .current_dir(clients)
        .env("GALVANI_URL", url)
        .env("GALVANI_REAL_MODEL", "1"))
}

fn node(folder: &str, url: &str) -> Outcome {
    let tests = root().join("tests").join(folder);
    let listing = std::fs::read_dir(&tests).map_err(|error| format!("{}: {error}", tests.display()))?;
    let mut files: Vec<_> = listing.flatten().map(|item| item.path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(".test.mjs"));
    files.sort();
    run(Command::new("node")
        .arg("--test")
        .args(files)
        .current_dir(root().join("tests"))
        .env("GALVANI_URL", url)
        .env("GALVANI_REAL_MODEL", "1")
        .env("CHROMIUM", chromium()))
}

fn chromium() -> String {
    std::env::var("CHROMIUM").unwrap_or_else(|_| "/usr/bin/chromium".to_owned())
}
