//! `galvani run`: one prompt, one answer.

use std::io::{IsTerminal, Read, Write};
use std::sync::atomic::AtomicBool;

use serde_json::{Value, json};

use crate::commands::printer::Printer;
use crate::error::CliError;
use crate::flags::RunArgs;
use crate::load::{self, Watch, Wish};
use crate::session;

/// Answers.
pub fn run(arguments: &RunArgs) -> Result<(), CliError> {
    let watch = Watch::start();
    let quiet = arguments.model.store.quiet;
    let prompt = prompt_text(arguments)?;
    let opened = load::open(&arguments.model, None, arguments.compute.strict)?;
    let wish = Wish {
        sequences: 1,
        queue: 1,
        context: None,
    };
    let template = arguments.sample.chat_template.as_deref();
    let loaded = load::load(&opened, &arguments.compute, wish, template, quiet, |_| {})?;
    if !quiet && arguments.verbose {
        eprintln!(
            "{} ready in {} ms, {}",
            opened.name,
            watch.read().as_millis(),
            loaded.describe
        );
    }
    let encoded = if arguments.raw {
        session::encode_raw(&loaded, &prompt)?
    } else {
        session::encode_chat(&loaded, &messages(arguments.sample.system.as_deref(), &prompt))?
    };
    let sampling = loaded.defaults.params(&arguments.sample);
    let mut printer = Printer::new();
    let stop = AtomicBool::new(false);
    let outcome = session::generate(
        &loaded,
        encoded,
        sampling,
        arguments.sample.tokens,
        &stop,
        |part| printer.show(part),
    )?;
    printer.end();
    if arguments.verbose {
        eprintln!("{}", outcome.line());
    }
    Ok(())
}

/// A conversation of one message.
fn messages(system: Option<&str>, prompt: &str) -> Value {
    let mut list = Vec::new();
    if let Some(system) = system {
        list.push(json!({"role": "system", "content": system}));
    }
    list.push(json!({"role": "user", "content": prompt}));
    Value::Array(list)
}

fn prompt_text(arguments: &RunArgs) -> Result<String, CliError> {
    let given = arguments.positional.as_ref().or(arguments.prompt.as_ref());
    match given.map(String::as_str) {
        Some(text) if text != "-" => Ok(text.to_owned()),
        None if std::io::stdin().is_terminal() => Err(CliError::Usage(
            "no prompt: `galvani run \"What is the capital of France?\"`, or `galvani chat`".into(),
        )),
        Some(_) | None => {
            std::io::stdout()
                .flush()
                .map_err(CliError::io("standard output"))?;
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(CliError::io("standard input"))?;
            if text.trim().is_empty() {
                return Err(CliError::Usage("the prompt on standard input is empty".into()));
            }
            Ok(text)
        }
    }
}
