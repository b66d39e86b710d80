//! The binary `galvani`: see [`galvani::run`].

use std::process::ExitCode;

fn main() -> ExitCode {
    galvani::run(std::env::args_os().collect())
}
