//! Content around tool calls: blanks next to a call are dropped.

use super::ParsedEvent;

/// Holds back blanks until it is known what follows.
#[derive(Debug, Default)]
pub(super) struct ContentOut {
    held: String,
    after_call: bool,
}

impl ContentOut {
    /// More content.
    pub fn text(&mut self, text: &str, out: &mut Vec<ParsedEvent>) {
        let text = if self.after_call { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        let solid = text.trim_end().len();
        if solid > 0 {
            self.after_call = false;
            let mut content = std::mem::take(&mut self.held);
            content.push_str(&text[..solid]);
            out.push(ParsedEvent::Content(content));
        }
        self.held.push_str(&text[solid..]);
    }

    /// A call begins here.
    pub fn call(&mut self) {
        self.held.clear();
        self.after_call = true;
    }

    /// The end of the text.
    pub fn finish(&mut self, out: &mut Vec<ParsedEvent>) {
        if !self.held.is_empty() {
            out.push(ParsedEvent::Content(std::mem::take(&mut self.held)));
        }
    }
}
