//! `galvani-cuda kernels`: builds the kernel pack.

use std::process::ExitCode;

use galvani_cuda::pack::report;

const USAGE: &str = "usage:
  galvani-cuda kernels [--report] [--arch sm_70,compute_70] [--only SUBSTRING] [--out FILE] [--require]";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("kernels") => report::command(&arguments[1..]),
        _ => Err(USAGE.to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
