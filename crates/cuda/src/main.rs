//! `galvani-cuda kernels | model | selftest`: builds the kernel pack, predicts times, or tries the launch layer on a GPU.

use std::path::Path;
use std::process::ExitCode;

use galvani_cuda::driver::check;
use galvani_cuda::model;
use galvani_cuda::pack::{file, report};

const USAGE: &str = "usage:
  galvani-cuda kernels [--report] [--arch sm_70,compute_70] [--only SUBSTRING] [--out FILE] [--require]
  galvani-cuda model [--errors | --loops | --check] [PACK]
                                          how well the model of kernel times fits, and what it predicts for a V100;
                                          the table of loops that plans use, written or compared with the pack
  galvani-cuda selftest [PACK] [GPU]      PACK: galvani.pack beside this program; GPU: 0";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.first().map(String::as_str) {
        Some("kernels") => report::command(&arguments[1..]),
        Some("model") => model::command(&arguments[1..]),
        Some("selftest") => selftest(&arguments[1..]),
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

fn selftest(arguments: &[String]) -> Result<(), String> {
    let named = arguments.first().map(Path::new);
    let pack = file::locate(named, None).map_err(|error| error.to_string())?;
    let ordinal = match arguments.get(1) {
        Some(text) => text
            .parse()
            .map_err(|_| format!("GPU `{text}`, allowed: a number"))?,
        None => 0,
    };
    check::run(&pack, ordinal).map_err(|error| error.to_string())
}
