//! An answer on standard output as it comes. Reasoning is dimmed on a terminal and left out of pipes.

use std::io::{IsTerminal, Write};

use galvani_text::parsers::ParsedEvent;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// Prints the parts of one answer.
pub struct Printer {
    terminal: bool,
    reasoning: bool,
    /// The answer's text, for the conversation.
    pub text: String,
}

impl Printer {
    /// For one answer.
    pub fn new() -> Self {
        Self {
            terminal: std::io::stdout().is_terminal(),
            reasoning: false,
            text: String::new(),
        }
    }

    /// One part.
    pub fn show(&mut self, part: &ParsedEvent) {
        match part {
            ParsedEvent::Reasoning(text) if self.terminal => {
                let start = if self.reasoning { "" } else { DIM };
                self.reasoning = true;
                put(&format!("{start}{text}"));
            }
            ParsedEvent::Reasoning(_) => {}
            ParsedEvent::Content(text) => {
                if std::mem::take(&mut self.reasoning) {
                    put(&format!("{PLAIN}\n\n"));
                }
                put(text);
                self.text.push_str(text);
            }
            ParsedEvent::ToolCallStart { name, .. } => put(&format!("[{name}] ")),
            ParsedEvent::ToolCallArguments { delta, .. } => put(delta),
        }
    }

    /// Ends the line.
    pub fn end(&mut self) {
        put(if std::mem::take(&mut self.reasoning) {
            "\x1b[0m\n"
        } else {
            "\n"
        });
    }
}

/// A reader that went away (`| head`) ends the process by its signal; other faults of a terminal are not ours to report.
fn put(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
