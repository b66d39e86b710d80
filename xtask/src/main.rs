//! Project tasks: `cargo xtask tidy | test | kernels | gpu-bundle | bench | soak | fuzz | arm`.

mod arm;
mod bench;
mod bundle;
mod kernels;
mod program;
mod served;
mod soak;
mod source;
mod test;
mod tidy;

use std::process::ExitCode;

const HELP: &str = "\
cargo xtask tidy                 layering, sizes, banned words, documented dependencies
cargo xtask test                 everything that must pass: format, lints, tidy, tests, clients, browser
cargo xtask kernels [--report]   the CUDA kernel pack, target/kernels/galvani.pack: what changed is compiled anew
cargo xtask kernels --model      what the pack's kernels take on a V100 by the model, and how well that fits
    --arch sm_70,compute_70  --only SUBSTRING  --out FILE  --require (no compiler is an error)  --install (it, below target/)
cargo xtask gpu-bundle [..]      target/gpu-bundle/: programs, kernel pack and script for a machine with a GPU and no Rust;
    the flags of kernels: --arch sm_90,compute_70 is what an H200 needs
cargo xtask bench [--peer]       galvani's own speed, or side by side with llama.cpp and OpenVINO GenAI
    --model FILE  --threads 1,2  --rounds 5  --prefill 512  --decode 128  --svg FILE  --json FILE
cargo xtask soak                 many streams with random lengths, cancels and disconnects against one server
    --minutes 5  --streams 64  --seed 1  --model FILE
cargo xtask fuzz TARGET [..]     the fuzzers (list shows the targets)
cargo xtask arm                  the Arm kernels: cross compiled, tested on emulated processors";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rest = arguments.get(1..).unwrap_or_default();
    let result = match arguments.first().map(String::as_str) {
        Some("tidy") => tidy::tidy(),
        Some("test") => test::test(),
        Some("kernels") => kernels::kernels(rest),
        Some("gpu-bundle") => bundle::bundle(rest),
        Some("bench") => bench::bench(rest),
        Some("soak") => soak::soak(rest),
        Some("fuzz") => program::cargo(
            &[
                &["run", "--release", "--manifest-path", "fuzz/Cargo.toml", "--"],
                &rest.iter().map(String::as_str).collect::<Vec<_>>()[..],
            ]
            .concat(),
        ),
        Some("arm") => arm::arm(),
        Some("help" | "--help" | "-h") => {
            println!("{HELP}");
            Ok(())
        }
        other => Err(format!("unknown task {other:?}\n{HELP}")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}
