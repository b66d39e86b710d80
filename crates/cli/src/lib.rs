//! The binary `galvani` as a library: flags in three layers, models found or fetched, and the commands.
//!
//! Flags come in as [`flags::Low`] (what was typed) and each command turns them into what is meant. [`load`] joins the
//! crates: checkpoint, graph, backend, engine, text, server.

#![deny(unsafe_op_in_unsafe_fn)]

pub mod bench;
pub mod commands;
pub mod direct;
pub mod error;
pub mod flags;
pub mod hub;
pub mod load;
pub mod machine;
pub mod progress;
pub mod session;

use std::ffi::OsString;
use std::process::ExitCode;

use error::CliError;

/// Runs one command line and gives the exit code: 0 success, 1 failure, 2 a wrong command line, 3 refused by `--strict`.
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    #[cfg(unix)]
    // SAFETY: the first thing that happens, before any other thread; the default action is to end the process, as every
    // filter does whose reader went away. Sockets are written with MSG_NOSIGNAL.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
    match commands::dispatch(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(CliError::Clap(error)) => {
            // Help and version come this way too; nothing is left to do when the terminal is gone.
            let _ = error.print();
            ExitCode::from(if error.use_stderr() { 2 } else { 0 })
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}
