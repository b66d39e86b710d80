//! `galvani chat`: a conversation in the terminal.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use serde_json::{Value, json};

use crate::commands::printer::Printer;
use crate::error::CliError;
use crate::flags::ChatArgs;
use crate::load::{self, Loaded, Watch, Wish};
use crate::session;

const HELP: &str = "\
/reset        forget the conversation
/system TEXT  set the system message and forget the conversation
/undo         take back the last question and answer
/retry        answer the last question again
/help         this
/exit         leave (also Ctrl-D)
A line that ends in \\ goes on. Ctrl-C stops an answer.";

/// Talks until the end of the input.
pub fn chat(arguments: &ChatArgs) -> Result<(), CliError> {
    let watch = Watch::start();
    let quiet = arguments.model.store.quiet;
    let opened = load::open(&arguments.model, None, arguments.compute.strict)?;
    let wish = Wish {
        sequences: 1,
        queue: 1,
        context: None,
    };
    let template = arguments.sample.chat_template.as_deref();
    let loaded = load::load(&opened, &arguments.compute, wish, template, quiet, |_| {})?;
    if !quiet {
        eprintln!(
            "{} ready in {} ms ({}). /help lists commands.",
            opened.name,
            watch.read().as_millis(),
            loaded.describe
        );
    }
    let stop = stop_on_interrupt()?;
    let mut editor = DefaultEditor::new().map_err(|error| CliError::Failed(format!("terminal: {error}")))?;
    let history = history_path();
    if let Some(path) = &history {
        // The first conversation has none yet.
        let _ = editor.load_history(path);
    }
    let mut talk = Talk {
        arguments,
        loaded: &loaded,
        system: arguments.sample.system.clone(),
        turns: Vec::new(),
    };
    while let Some(line) = read_line(&mut editor)? {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let _ = editor.add_history_entry(line);
        if matches!(line, "/exit" | "/quit" | "/bye") {
            break;
        }
        stop.store(false, Ordering::Relaxed);
        if let Err(error) = talk.line(line, &stop) {
            eprintln!("error: {error}");
        }
    }
    if let Some(path) = &history {
        let folder = path.parent().expect("a joined path has a parent");
        // A history that cannot be kept is no reason to fail.
        let _ = std::fs::create_dir_all(folder).map(|()| editor.save_history(path));
    }
    Ok(())
}

struct Talk<'a> {
    arguments: &'a ChatArgs,
    loaded: &'a Loaded,
    system: Option<String>,
    /// Questions and answers.
    turns: Vec<(String, String)>,
}

impl Talk<'_> {
    fn line(&mut self, line: &str, stop: &AtomicBool) -> Result<(), CliError> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        match command {
            "/help" => println!("{HELP}"),
            "/reset" => self.turns.clear(),
            "/system" => {
                self.system = Some(rest.to_owned()).filter(|text| !text.is_empty());
                self.turns.clear();
            }
            "/undo" => drop(self.turns.pop()),
            "/retry" => match self.turns.pop() {
                Some((question, _)) => return self.answer(question, stop),
                None => println!("nothing to retry"),
            },
            word if word.starts_with('/') && !word[1..].contains('/') => {
                println!("`{word}` is not known; /help lists commands");
            }
            _ => return self.answer(line.to_owned(), stop),
        }
        Ok(())
    }

    fn answer(&mut self, question: String, stop: &AtomicBool) -> Result<(), CliError> {
        let mut list = Vec::new();
        if let Some(system) = &self.system {
            list.push(json!({"role": "system", "content": system}));
        }
        for (question, answer) in &self.turns {
            list.push(json!({"role": "user", "content": question}));
            list.push(json!({"role": "assistant", "content": answer}));
        }
        list.push(json!({"role": "user", "content": question}));
        let encoded = session::encode_chat(self.loaded, &Value::Array(list))?;
        let sample = &self.arguments.sample;
        let mut printer = Printer::new();
        let outcome = session::generate(
            self.loaded,
            encoded,
            self.loaded.defaults.params(sample),
            sample.tokens,
            stop,
            |part| printer.show(part),
        )?;
        printer.end();
        if self.arguments.verbose {
            eprintln!("{}", outcome.line());
        }
        self.turns.push((question, printer.text));
        Ok(())
    }
}

/// One question, of several lines where each but the last ends in a backslash; `None` at the end of the input.
fn read_line(editor: &mut DefaultEditor) -> Result<Option<String>, CliError> {
    let mut text = String::new();
    loop {
        match editor.readline(if text.is_empty() { "> " } else { ". " }) {
            Ok(line) => match line.strip_suffix('\\') {
                Some(start) => {
                    text.push_str(start);
                    text.push('\n');
                }
                None => {
                    text.push_str(&line);
                    return Ok(Some(text));
                }
            },
            Err(ReadlineError::Interrupted) if text.is_empty() => println!("(Ctrl-D leaves)"),
            Err(ReadlineError::Interrupted) => text.clear(),
            Err(ReadlineError::Eof) => return Ok(None),
            Err(error) => return Err(CliError::Failed(format!("terminal: {error}"))),
        }
    }
}

/// A flag that Ctrl-C raises while an answer comes (the line editor sees it by itself while a question is typed).
fn stop_on_interrupt() -> Result<Arc<AtomicBool>, CliError> {
    let stop = Arc::new(AtomicBool::new(false));
    let raised = stop.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(CliError::io("signals"))?;
    let watch = move || {
        runtime.block_on(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                raised.store(true, Ordering::Relaxed);
            }
        });
    };
    std::thread::Builder::new()
        .name("interrupt".into())
        .spawn(watch)
        .map_err(CliError::io("signals"))?;
    Ok(stop)
}

/// `$XDG_STATE_HOME/galvani/history`
fn history_path() -> Option<PathBuf> {
    let variable = |name: &str| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let state =
        variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("galvani/history"))
}
