//! The kernel pack: brings the compiler where it is wanted, then runs `galvani-cuda kernels`.

use std::path::{Path, PathBuf};

use crate::program::{Outcome, cargo_command, python_environment, root, run, target};

/// Where the pack is kept.
pub fn pack_path() -> PathBuf {
    target().join("kernels").join("galvani.pack")
}

/// `cargo xtask kernels [--install] [..]`: all but `--install` goes to `galvani-cuda kernels`. `cargo xtask kernels --model [..]`
/// runs `galvani-cuda model` on the pack that is there.
pub fn kernels(arguments: &[String]) -> Outcome {
    let own = |argument: &&String| ["--install", "--model"].contains(&argument.as_str());
    let install = arguments.iter().any(|argument| argument == "--install");
    let model = arguments.iter().any(|argument| argument == "--model");
    let rest: Vec<&String> = arguments.iter().filter(|argument| !own(argument)).collect();
    let mut command = cargo_command();
    let part = if model { "model" } else { "kernels" };
    command.args(["run", "--quiet", "--package", "galvani-cuda", "--", part]);
    command.args(&rest);
    if model {
        if rest.iter().all(|argument| argument.starts_with("--")) {
            command.arg(pack_path());
        }
        return run(&mut command);
    }
    if !rest.iter().any(|argument| *argument == "--out") {
        command.arg("--out").arg(pack_path());
    }
    command.envs(environment(install)?);
    run(&mut command)
}

/// What tells a program of ours where the compiler is. Empty where the caller's own environment says so, or where it was
/// not installed and is not to be.
pub fn environment(install: bool) -> Result<Vec<(&'static str, PathBuf)>, String> {
    let folder = target().join("kernels-python");
    if std::env::var_os("GALVANI_NVRTC").is_some() || !(install || folder.join("installed").is_file()) {
        return Ok(Vec::new());
    }
    let (library, include) = compiler(&folder)?;
    Ok(vec![
        ("GALVANI_NVRTC", library),
        ("GALVANI_CUDA_INCLUDE", include),
    ])
}

/// The compiler and its headers, from their pinned packages.
fn compiler(folder: &Path) -> Result<(PathBuf, PathBuf), String> {
    let path = root().join("crates/cuda/requirements.txt");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let packages: Vec<&str> = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    python_environment(folder, &packages)?;
    let libraries = if cfg!(windows) {
        vec![folder.join("Lib")]
    } else {
        let listing = std::fs::read_dir(folder.join("lib"))
            .map_err(|error| format!("{}: {error}", folder.display()))?;
        listing.flatten().map(|item| item.path()).collect()
    };
    let (bin, name) = if cfg!(windows) {
        ("bin", "nvrtc64_120_0.dll")
    } else {
        ("lib", "libnvrtc.so.12")
    };
    for library in libraries {
        let packages = library.join("site-packages/nvidia");
        let found = packages.join("cuda_nvrtc").join(bin).join(name);
        if found.is_file() {
            return Ok((found, packages.join("cuda_runtime/include")));
        }
    }
    Err(format!("{}: no {name} after the installation", folder.display()))
}
