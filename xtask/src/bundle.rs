//! `target/gpu-bundle/`: all that a machine with a GPU needs, and no Rust: programs, kernel pack, a script.

use std::path::Path;

use crate::kernels;
use crate::program::{Outcome, cargo, target};

/// The programs: their packages carry the cases, which are made and not stored.
const PROGRAMS: [(&str, &str); 2] = [("galvani-cuda", "galvani-cuda"), ("galvani-optest", "optest")];
const PACK: &str = "galvani.pack";

const SCRIPT: &str = r#"#!/bin/sh
# Tries this bundle on the GPU at hand. It needs an NVIDIA driver (580 or older for a V100) and glibc 2.36 or later, and
# writes nothing outside this folder's reports.
#
#   ./run.sh                   the launch layer, then every kernel against the reference, from machine code and from PTX
#   ./run.sh proofs            all of that, the experts, bits against the interpreter, compute-sanitizer, speed: a verdict a line,
#                              and what each printed in reports/
#   ./run.sh bench [FLAGS]     the linears' speed; FLAGS as `optest bench-cuda` has them
#   ./run.sh PROGRAM [ARGS]    one of the programs in this folder
set -eu
cd "$(dirname "$0")"
export GALVANI_PACK="$PWD/galvani.pack"
case "${1:-test}" in
test)
    failed=0
    ./galvani-cuda selftest galvani.pack || failed=1
    for image in cubin ptx; do
        ./optest test --backend cuda --image "$image" || failed=1
    done
    exit "$failed"
    ;;
proofs)
    failed=0
    mkdir -p reports
    sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
    step() {
        name=$1
        shift
        begin=$(date +%s)
        if timeout "${STEP_SECONDS:-150}" "$@" >"reports/$name.txt" 2>&1; then verdict=passed; else
            verdict="FAILED ($?)"
            failed=1
        fi
        echo "$verdict  $name  $(($(date +%s) - begin)) s  $(tail -n 1 "reports/$name.txt")"
    }
    step selftest ./galvani-cuda selftest galvani.pack
    step linears-cubin ./optest test --backend cuda --image cubin
    step linears-ptx ./optest test --backend cuda --image ptx
    step experts ./optest experts cuda
    step bits-linears ./optest bit-equal
    step bits-experts ./optest experts bit-equal
    # One case of 37: a few of each format, tiled and skinny, whole and in parts.
    for tool in memcheck initcheck racecheck synccheck; do
        step "$tool-linears" "$sanitizer" --tool "$tool" --error-exitcode 9 ./optest test --backend cuda --sample 37
    done
    step memcheck-experts "$sanitizer" --tool memcheck --error-exitcode 9 ./optest experts cuda
    step racecheck-experts "$sanitizer" --tool racecheck --error-exitcode 9 ./optest experts cuda
    step speed-linears ./optest bench-cuda --json reports/linears.json
    step speed-experts ./optest experts bench
    exit "$failed"
    ;;
bench)
    shift
    exec ./optest bench-cuda "$@"
    ;;
*)
    program=$1
    shift
    exec "./$program" "$@"
    ;;
esac
"#;

/// `cargo xtask gpu-bundle [..]`: flags are those of `kernels`; `--arch` limits the pack to what the machine needs.
pub fn bundle(arguments: &[String]) -> Outcome {
    let folder = target().join("gpu-bundle");
    if arguments.iter().any(|argument| argument == "--out") {
        return Err("flag `--out`: a bundle takes the pack from its own place".to_owned());
    }
    let flags = [&["--require".to_owned()], arguments].concat();
    kernels::kernels(&flags)?;
    let mut build = vec!["build", "--release", "--quiet"];
    for (package, _) in PROGRAMS {
        build.extend(["--package", package]);
    }
    cargo(&build)?;
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut total = copy(&kernels::pack_path(), &folder.join(PACK))?;
    for (_, program) in PROGRAMS {
        total += copy(&target().join("release").join(program), &folder.join(program))?;
    }
    let script = folder.join("run.sh");
    std::fs::write(&script, SCRIPT).map_err(|error| format!("{}: {error}", script.display()))?;
    executable(&script)?;
    eprintln!(
        "{}: {:.1} MB; there: ./run.sh",
        folder.display(),
        total as f64 / 1e6
    );
    Ok(())
}

/// Copies with the permissions; gives the bytes.
fn copy(from: &Path, to: &Path) -> Result<u64, String> {
    std::fs::copy(from, to).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}

#[cfg(unix)]
fn executable(path: &Path) -> Outcome {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(path, mode).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(not(unix))]
fn executable(path: &Path) -> Outcome {
    Err(format!("{}: the bundle is made on Linux x86-64", path.display()))
}
