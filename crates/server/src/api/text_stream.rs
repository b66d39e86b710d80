//! Completions as events.

use std::sync::Arc;

use galvani_text::parsers::ParsedEvent;
use serde_json::{Value, json};

use super::completions::{Head, Input, echo_logprobs};
use crate::answer::{TextLogprobs, Totals, finish_reason, prompt_logprobs, stop_reason};
use crate::generate::Sequences;
use crate::params::StreamUsage;
use crate::pipe::{End, Step};
use crate::runtime::ModelRuntime;
use crate::sse::{Encoder, Events};

/// Makes `text_completion` events.
pub(super) struct TextStream {
    head: Head,
    runtime: Arc<ModelRuntime>,
    inputs: Vec<Input>,
    choices: usize,
    usage: StreamUsage,
    /// Characters sent, by sequence: where the next token's text starts.
    offsets: Vec<usize>,
    /// Whether the prompt is still to be echoed, by sequence.
    echo: Vec<bool>,
    failed: bool,
}

impl TextStream {
    pub fn new(
        head: Head,
        runtime: Arc<ModelRuntime>,
        inputs: Vec<Input>,
        choices: usize,
        usage: StreamUsage,
    ) -> Self {
        let count = inputs.len() * choices;
        let echo = vec![head.echo; count];
        Self {
            head,
            runtime,
            inputs,
            choices,
            usage,
            offsets: vec![0; count],
            echo,
            failed: false,
        }
    }

    fn chunk(&self, choices: Value, usage: Option<Value>) -> Value {
        let mut chunk = json!({
            "id": self.head.id,
            "object": "text_completion",
            "created": self.head.created,
            "model": self.head.model,
            "system_fingerprint": null,
            "choices": choices,
        });
        if self.usage != StreamUsage::None {
            chunk["usage"] = usage.unwrap_or(Value::Null);
        }
        chunk
    }

    fn totals(&self, sequences: &Sequences, last: bool) -> Value {
        let mut totals = Totals::default();
        for i in 0..self.offsets.len() {
            let usage = if last {
                sequences.final_usage(i)
            } else {
                sequences.usage(i)
            };
            totals.add(
                i % self.choices == 0,
                self.inputs[i / self.choices].tokens.len(),
                usage,
            );
        }
        totals.to_json()
    }
}

/// All text of some parts: completions know no other kind.
fn text_of(parts: &[ParsedEvent]) -> String {
    let text = |part: &ParsedEvent| match part {
        ParsedEvent::Content(text) | ParsedEvent::Reasoning(text) => text.clone(),
        ParsedEvent::ToolCallStart { .. } | ParsedEvent::ToolCallArguments { .. } => String::new(),
    };
    parts.iter().map(text).collect()
}

impl Encoder for TextStream {
    fn open(&mut self, _out: &mut Events) {}

    fn step(&mut self, step: Step, sequences: &Sequences, out: &mut Events) {
        let i = step.sequence;
        if let Some(End::Failed(error)) = &step.end {
            if !std::mem::replace(&mut self.failed, true) {
                out.fail(error);
            }
            return;
        }
        let mut text = text_of(&step.parts);
        let tokenizer = self.runtime.tokenizer.clone();
        let mut shape = TextLogprobs::default();
        let input = &self.inputs[i / self.choices];
        let echo = std::mem::take(&mut self.echo[i]);
        if echo {
            text.insert_str(0, &input.text);
            if self.head.logprobs.is_some() {
                let prompt = step.prompt.as_deref();
                echo_logprobs(
                    &mut shape,
                    &tokenizer,
                    input,
                    prompt,
                    &self.head,
                    &mut self.offsets[i],
                );
            }
        }
        let logprobs = self
            .head
            .logprobs
            .filter(|_| echo || !step.logprobs.is_empty())
            .map(|alternatives| {
                let items = step.logprobs.iter().map(|item| (item.token, Some(item)));
                shape.add(
                    &tokenizer,
                    items,
                    self.head.tokens_as_ids,
                    alternatives,
                    &mut self.offsets[i],
                );
                shape.to_json()
            });
        let quiet = text.is_empty() && logprobs.is_none() && step.end.is_none() && step.prompt.is_none();
        let with_ids = self.head.return_token_ids && !step.tokens.is_empty();
        if quiet && !with_ids {
            return;
        }
        let mut choice = json!({
            "index": i,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": step.end.as_ref().map(|end| finish_reason(end, false)),
            "stop_reason": step.end.as_ref().map(stop_reason),
        });
        if self.head.return_token_ids {
            choice["token_ids"] = json!(step.tokens);
        }
        if self.head.prompt_logprobs
            && let Some(prompt) = &step.prompt
        {
            choice["prompt_logprobs"] = prompt_logprobs(&tokenizer, prompt);
        }
        let usage = (self.usage == StreamUsage::Always).then(|| self.totals(sequences, false));
        out.push(&self.chunk(json!([choice]), usage));
    }

    fn close(&mut self, sequences: &Sequences, out: &mut Events) {
        if self.usage != StreamUsage::None && !self.failed {
            out.push(&self.chunk(json!([]), Some(self.totals(sequences, true))));
        }
    }
}
