//! The commands, one a file.

mod bench;
mod chat;
mod completions;
mod config;
mod doctor;
mod eval;
mod list;
mod plan;
mod printer;
mod pull;
mod run;
mod serve;
mod show;

use std::ffi::OsString;

use crate::error::CliError;
use crate::flags::{self, Layered, Verb};

/// Parses and runs one command line.
///
/// # Errors
/// Whatever the command reports.
pub fn dispatch(arguments: Vec<OsString>) -> Result<(), CliError> {
    let Layered {
        low,
        notes,
        settings,
        file,
    } = flags::layers::parse(arguments)?;
    if let Some(first) = notes.first().filter(|_| is_strict(&low.verb)) {
        return Err(CliError::Strict(first.clone()));
    }
    for note in notes {
        eprintln!("note: {note}");
    }
    match low.verb {
        Verb::Run(arguments) => run::run(&arguments),
        Verb::Chat(arguments) => chat::chat(&arguments),
        Verb::Serve(arguments) => serve::serve(&arguments),
        Verb::Show(arguments) => show::show(&arguments),
        Verb::Plan(arguments) => plan::plan(&arguments),
        Verb::Bench(arguments) => bench::bench(&arguments),
        Verb::Eval(arguments) => eval::eval(&arguments),
        Verb::Pull(arguments) => pull::pull(&arguments),
        Verb::List(arguments) => list::list(&arguments),
        Verb::Config(arguments) => config::config(&arguments, &settings, file.as_deref()),
        Verb::Doctor(arguments) => doctor::doctor(&arguments),
        Verb::Completions(arguments) => completions::completions(&arguments),
    }
}

fn is_strict(verb: &Verb) -> bool {
    match verb {
        Verb::Run(a) => a.compute.strict,
        Verb::Chat(a) => a.compute.strict,
        Verb::Serve(a) => a.compute.strict,
        Verb::Show(a) => a.compute.strict,
        Verb::Plan(a) => a.compute.strict,
        Verb::Bench(a) => a.compute.strict,
        Verb::Eval(a) => a.compute.strict,
        Verb::Config(a) => a.serve.compute.strict,
        Verb::Pull(_) | Verb::List(_) | Verb::Doctor(_) | Verb::Completions(_) => false,
    }
}

/// The model named by position or by `--model`.
fn chosen<'a>(positional: Option<&'a String>, flag: Option<&'a String>) -> Option<&'a str> {
    positional.or(flag).map(String::as_str)
}
