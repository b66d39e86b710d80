//! Chat as events.

use std::sync::Arc;

use galvani_text::parsers::ParsedEvent;
use serde_json::{Map, Value, json};

use super::chat::Head;
use crate::answer::{Totals, chat_logprobs, finish_reason, prompt_logprobs, stop_reason};
use crate::generate::Sequences;
use crate::params::StreamUsage;
use crate::pipe::{End, Step};
use crate::runtime::ModelRuntime;
use crate::sse::{Encoder, Events};

/// Makes `chat.completion.chunk` events.
pub(super) struct ChatStream {
    head: Head,
    runtime: Arc<ModelRuntime>,
    choices: usize,
    usage: StreamUsage,
    /// Whether a choice has made a call.
    calls: Vec<bool>,
    failed: bool,
}

impl ChatStream {
    pub fn new(head: Head, runtime: Arc<ModelRuntime>, choices: usize, usage: StreamUsage) -> Self {
        Self {
            head,
            runtime,
            choices,
            usage,
            calls: vec![false; choices],
            failed: false,
        }
    }

    fn chunk(&self, choices: Value, usage: Option<Value>) -> Value {
        let mut chunk = json!({
            "id": self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": null,
            "choices": choices,
        });
        // Only those who ask for usage get the field, and then in every event.
        if self.usage != StreamUsage::None {
            chunk["usage"] = usage.unwrap_or(Value::Null);
        }
        chunk
    }

    fn totals(&self, sequences: &Sequences, last: bool) -> Value {
        let mut totals = Totals::default();
        for index in 0..self.choices {
            let usage = if last {
                sequences.final_usage(index)
            } else {
                sequences.usage(index)
            };
            totals.add(index == 0, self.head.prompt.len(), usage);
        }
        totals.to_json()
    }

    fn push(
        &self,
        index: usize,
        delta: Value,
        extra: Map<String, Value>,
        sequences: &Sequences,
        out: &mut Events,
    ) {
        let mut choice = json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null});
        for (key, value) in extra {
            choice[key] = value;
        }
        let usage = (self.usage == StreamUsage::Always).then(|| self.totals(sequences, false));
        out.push(&self.chunk(json!([choice]), usage));
    }
}

/// Parts in as few deltas as keep their order: text of one kind is joined.
fn deltas(parts: Vec<ParsedEvent>, include_reasoning: bool) -> Vec<Value> {
    let mut deltas: Vec<Value> = Vec::new();
    let text = |deltas: &mut Vec<Value>, names: &[&str], text: String| {
        if let Some(Value::String(last)) = deltas.last_mut().and_then(|delta| delta.get_mut(names[0])) {
            last.push_str(&text);
            let joined = Value::String(last.clone());
            let delta = deltas.last_mut().expect("it was just looked at");
            for name in &names[1..] {
                delta[*name] = joined.clone();
            }
        } else {
            deltas.push(
                names
                    .iter()
                    .map(|name| ((*name).to_owned(), json!(text)))
                    .collect::<Map<_, _>>()
                    .into(),
            );
        }
    };
    for part in parts {
        match part {
            ParsedEvent::Content(content) => text(&mut deltas, &["content"], content),
            ParsedEvent::Reasoning(reasoning) if include_reasoning => {
                text(&mut deltas, &["reasoning_content", "reasoning"], reasoning);
            }
            ParsedEvent::Reasoning(_) => {}
            ParsedEvent::ToolCallStart { index, id, name } => deltas.push(json!({"tool_calls": [{
                "index": index, "id": id, "type": "function", "function": {"name": name, "arguments": ""},
            }]})),
            ParsedEvent::ToolCallArguments { index, delta } => {
                deltas.push(json!({"tool_calls": [{"index": index, "function": {"arguments": delta}}]}));
            }
        }
    }
    deltas
}

impl Encoder for ChatStream {
    fn open(&mut self, out: &mut Events) {
        for index in 0..self.choices {
            let mut choice = json!({
                "index": index,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": null,
                "finish_reason": null,
            });
            if self.head.return_token_ids && index == 0 {
                choice["prompt_token_ids"] = json!(self.head.prompt);
            }
            out.push(&self.chunk(json!([choice]), None));
        }
    }

    fn step(&mut self, step: Step, sequences: &Sequences, out: &mut Events) {
        let index = step.sequence;
        let starts_call = |part: &ParsedEvent| matches!(part, ParsedEvent::ToolCallStart { .. });
        self.calls[index] |= step.parts.iter().any(starts_call);
        // What belongs to the tokens goes with the first delta of the step; a step without text still tells it.
        let mut extra = Map::new();
        if !step.logprobs.is_empty() {
            let logprobs = chat_logprobs(&self.runtime.tokenizer, &step.logprobs, self.head.tokens_as_ids);
            extra.insert("logprobs".to_owned(), logprobs);
        }
        if self.head.return_token_ids && !step.tokens.is_empty() {
            extra.insert("token_ids".to_owned(), json!(step.tokens));
        }
        if let Some(prompt) = &step.prompt {
            extra.insert(
                "prompt_logprobs".to_owned(),
                prompt_logprobs(&self.runtime.tokenizer, prompt),
            );
        }
        let mut deltas = deltas(step.parts, self.head.include_reasoning);
        if deltas.is_empty() && !extra.is_empty() {
            deltas.push(json!({"content": ""}));
        }
        for delta in deltas {
            self.push(index, delta, std::mem::take(&mut extra), sequences, out);
        }
        match &step.end {
            None => {}
            // One fault ends all choices alike; saying it once is enough.
            Some(End::Failed(_)) if self.failed => {}
            Some(End::Failed(error)) => {
                self.failed = true;
                out.fail(error);
            }
            Some(end) => {
                extra.insert(
                    "finish_reason".to_owned(),
                    json!(finish_reason(end, self.calls[index])),
                );
                extra.insert("stop_reason".to_owned(), stop_reason(end));
                self.push(index, json!({}), extra, sequences, out);
            }
        }
    }

    fn close(&mut self, sequences: &Sequences, out: &mut Events) {
        if self.usage != StreamUsage::None && !self.failed {
            out.push(&self.chunk(json!([]), Some(self.totals(sequences, true))));
        }
    }
}
