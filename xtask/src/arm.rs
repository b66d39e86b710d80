//! The Arm kernels, built by a cross compiler and run by an emulator: with and without the dot-product instructions.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::program::{Outcome, cargo_command, exists, output, root, run, target};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
const PACKAGES: &str = "\
dpkg --add-architecture arm64 && apt-get update && apt-get install --no-install-recommends \
rustc-web libstd-rust-web-dev:arm64 gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user";

/// Processors that are emulated, and the instruction sets that must be found on them, best first.
const PROCESSORS: [(&str, &str); 2] = [
    ("max", "neon-dot, neon, portable"),
    ("cortex-a72", "neon, portable"),
];

/// Small checkpoints with random weights: dense, with experts, with sliding windows.
const MODELS: [&str; 3] = ["llama", "qwen3_moe", "gemma3_text"];

/// Builds the tests and runs them on each processor.
pub fn arm() -> Outcome {
    if cfg!(target_arch = "aarch64") {
        return Err(
            "this machine is an Arm one: `cargo test` runs these tests without an emulator".to_owned(),
        );
    }
    let tools = Tools::find()?;
    let mut done = Vec::new();
    let mut step = |name: &str, work: &mut dyn FnMut() -> Outcome| -> Outcome {
        let start = Instant::now();
        eprintln!("\n== {name}");
        work().map_err(|message| format!("{name}: {message}"))?;
        done.push(format!("{name} ({:.0} s)", start.elapsed().as_secs_f64()));
        Ok(())
    };
    step("build", &mut || {
        run(tools.cargo("test", "max").args(TESTS).arg("--no-run"))?;
        run(tools
            .cargo("build", "max")
            .args(["--package", "galvani", "--package", "galvani-optest"]))
    })?;
    for (processor, sets) in PROCESSORS {
        step(&format!("instruction sets of {processor}"), &mut || {
            tools.support(processor, sets)
        })?;
        step(&format!("kernels and goldens on {processor}"), &mut || {
            run(tools.cargo("test", processor).args(TESTS))
        })?;
    }
    for model in MODELS {
        step(&format!("galvani run, {model}"), &mut || {
            tools.same_answers(model)
        })?;
    }
    eprintln!("\nall passed: {}", done.join(", "));
    Ok(())
}

/// What is run: the kernels against the reference and each other, and whole models against stored logits.
const TESTS: &[&str] = &[
    "--package=galvani-cpu",
    "--package=galvani-optest",
    "--package=galvani-models",
    "--lib",
    "--test=kernels",
    "--test=invariance",
    "--test=goldens",
];

struct Tools {
    /// A compiler that has the target's standard library.
    compiler: PathBuf,
}

impl Tools {
    fn find() -> Result<Self, String> {
        let ours = std::env::var_os("RUSTC").map_or_else(|| PathBuf::from("rustc"), PathBuf::from);
        let compiler = [ours, PathBuf::from("/usr/bin/rustc")]
            .into_iter()
            .find(|compiler| has_target(compiler));
        let missing = [
            compiler.is_none().then(|| format!("a rustc with {TARGET}")),
            (!exists(LINKER)).then(|| LINKER.to_owned()),
            (!exists(EMULATOR)).then(|| EMULATOR.to_owned()),
        ];
        let missing: Vec<String> = missing.into_iter().flatten().collect();
        match compiler {
            Some(compiler) if missing.is_empty() => Ok(Self { compiler }),
            _ => Err(format!(
                "missing: {}. On Debian, as root: {PACKAGES}; elsewhere `rustup target add {TARGET}`, a cross gcc, and \
                 QEMU's user mode",
                missing.join(", ")
            )),
        }
    }

    /// Cargo for the target; what it runs, runs on `processor`.
    fn cargo(&self, task: &str, processor: &str) -> Command {
        let mut command = cargo_command();
        command
            .args([task, "--target", TARGET])
            .env("RUSTC", &self.compiler)
            .env("CARGO_TARGET_DIR", folder())
            .env("CC_aarch64_unknown_linux_gnu", LINKER)
            .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
            .env(
                "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
                std::iter::once(EMULATOR)
                    .chain(libraries())
                    .collect::<Vec<_>>()
                    .join(" "),
            )
            .env("QEMU_CPU", processor);
        command
    }

    /// A built program on `processor`.
    fn emulated(&self, processor: &str, program: &str) -> Command {
        let mut command = Command::new(EMULATOR);
        command
            .args(libraries())
            .arg(folder().join(TARGET).join("debug").join(program))
            .env("QEMU_CPU", processor);
        command
    }

    /// The sets found, and that the kernels of each packed format are those of the best.
    fn support(&self, processor: &str, sets: &str) -> Outcome {
        let text = output(self.emulated(processor, "optest").arg("support"))?;
        eprint!("{text}");
        let best = sets.split(',').next().unwrap_or(sets);
        for wanted in [
            format!("instruction sets: {sets}\n"),
            format!("linear_q4_k_{best} "),
        ] {
            if !text.contains(&wanted) {
                return Err(format!("on {processor}: no {wanted:?}"));
            }
        }
        Ok(())
    }

    /// One model says the same on every processor: each set has the same bits where weights are quantised, and the rest
    /// is the same code.
    fn same_answers(&self, model: &str) -> Outcome {
        let path = root().join("goldens/tiny").join(model).join("model-f32.gguf");
        let mut answers = Vec::new();
        for (processor, _) in PROCESSORS {
            let mut command = self.emulated(processor, "galvani");
            command.args(["run", "--raw", "a b c", "--temperature", "0", "-n", "8"]);
            command
                .args(["--context", "64", "--threads", "2", "--model"])
                .arg(&path);
            answers.push(output(&mut command)?);
        }
        if answers[0].trim().is_empty() || answers.iter().any(|answer| *answer != answers[0]) {
            return Err(format!("answers differ or are empty: {answers:?}"));
        }
        Ok(())
    }
}

/// Built apart: another compiler than the workspace's would rebuild everything back and forth.
fn folder() -> PathBuf {
    target().join("arm")
}

/// How the emulator finds the target's C library: by itself where it is installed beside this machine's own, else under the
/// cross compiler's. Never both: a loader and a library of two versions may hang.
fn libraries() -> impl Iterator<Item = &'static str> {
    let installed = Path::new("/lib/ld-linux-aarch64.so.1").exists();
    let flags: &[&str] = if installed {
        &[]
    } else {
        &["-L", "/usr/aarch64-linux-gnu"]
    };
    flags.iter().copied()
}

fn has_target(compiler: &Path) -> bool {
    let mut command = Command::new(compiler);
    command
        .args(["--print", "target-libdir", "--target", TARGET])
        .stderr(Stdio::null());
    command.output().is_ok_and(|output| {
        let path = String::from_utf8_lossy(&output.stdout);
        output.status.success() && Path::new(path.trim()).is_dir()
    })
}
