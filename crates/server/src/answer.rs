//! Answers in OpenAI's shapes: the parts that streams and whole answers share.

use galvani_engine::{TokenLogprob, Usage};
use galvani_text::Tokenizer;
use galvani_text::parsers::ParsedEvent;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::pipe::{End, Step};

/// Log-probability sent for what the model holds impossible: JSON has no infinity.
const IMPOSSIBLE: f32 = -9999.0;

/// A tool call, gathered.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Call {
    /// Its id.
    pub id: String,
    /// The function.
    pub name: String,
    /// JSON text.
    pub arguments: String,
}

/// A sequence's answer, gathered.
#[derive(Debug, Default)]
pub struct Answer {
    /// Text for the reader.
    pub content: String,
    /// Text before it.
    pub reasoning: String,
    /// Calls, by index.
    pub calls: Vec<Call>,
    /// Tokens.
    pub tokens: Vec<u32>,
    /// Their log-probabilities.
    pub logprobs: Vec<TokenLogprob>,
    /// The prompt's.
    pub prompt: Option<Vec<Option<TokenLogprob>>>,
    /// The end.
    pub end: Option<End>,
}

impl Answer {
    /// Adds a step.
    pub fn add(&mut self, step: Step) {
        for part in step.parts {
            match part {
                ParsedEvent::Content(text) => self.content.push_str(&text),
                ParsedEvent::Reasoning(text) => self.reasoning.push_str(&text),
                ParsedEvent::ToolCallStart { index, id, name } => {
                    if self.calls.len() <= index {
                        self.calls.resize_with(index + 1, Call::default);
                    }
                    self.calls[index] = Call {
                        id,
                        name,
                        arguments: String::new(),
                    };
                }
                ParsedEvent::ToolCallArguments { index, delta } => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.arguments.push_str(&delta);
                    }
                }
            }
        }
        self.tokens.extend(step.tokens);
        self.logprobs.extend(step.logprobs);
        self.prompt = self.prompt.take().or(step.prompt);
        self.end = self.end.take().or(step.end);
    }

    /// The fault that ended it, if one did.
    pub fn fault(&self) -> Option<&ApiError> {
        match &self.end {
            Some(End::Failed(error)) => Some(error),
            _ => None,
        }
    }
}

/// OpenAI's word for an end. An answer that ends by itself and holds a call ends with `tool_calls`, whatever `tool_choice` is.
pub fn finish_reason(end: &End, calls: bool) -> &'static str {
    match end {
        End::Stop | End::StopText(_) | End::StopToken(_) if calls => "tool_calls",
        End::Stop | End::StopText(_) | End::StopToken(_) => "stop",
        End::Length => "length",
        End::Failed(_) => "error",
    }
}

/// vLLM's `stop_reason`: the client's stop that ended it.
pub fn stop_reason(end: &End) -> Value {
    match end {
        End::StopText(text) => json!(text),
        End::StopToken(token) => json!(token),
        End::Stop | End::Length | End::Failed(_) => Value::Null,
    }
}

/// Usage over sequences. A prompt shared by several choices counts once.
pub fn usage(prompt_tokens: usize, cached_tokens: usize, generated_tokens: usize) -> Value {
    json!({
        "prompt_tokens": prompt_tokens,
        "completion_tokens": generated_tokens,
        "total_tokens": prompt_tokens + generated_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    })
}

/// Tokens of a request: prompts once, cached tokens of each prompt's first choice, what all choices made.
#[derive(Debug, Default, Clone, Copy)]
pub struct Totals {
    prompt: usize,
    cached: usize,
    generated: usize,
}

impl Totals {
    /// Adds a sequence.
    pub fn add(&mut self, first_choice: bool, prompt_tokens: usize, usage: Usage) {
        if first_choice {
            self.prompt += prompt_tokens;
            self.cached += usage.cached_tokens;
        }
        self.generated += usage.generated_tokens;
    }

    /// As JSON.
    pub fn to_json(self) -> Value {
        usage(self.prompt, self.cached, self.generated)
    }
}

/// A finite number for JSON.
pub fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() {
        logprob.max(IMPOSSIBLE)
    } else {
        IMPOSSIBLE
    }
}

/// A token's name in log-probabilities.
pub fn token_name(tokenizer: &Tokenizer, token: u32, as_id: bool) -> String {
    if as_id {
        format!("token_id:{token}")
    } else {
        tokenizer.token_text(token).unwrap_or_default()
    }
}

fn chat_entry(tokenizer: &Tokenizer, token: u32, logprob: f32, as_id: bool) -> Map<String, Value> {
    let mut entry = Map::new();
    entry.insert("token".to_owned(), json!(token_name(tokenizer, token, as_id)));
    entry.insert("logprob".to_owned(), json!(finite(logprob)));
    entry.insert(
        "bytes".to_owned(),
        json!(tokenizer.token_bytes(token).unwrap_or_default()),
    );
    entry
}

/// Chat's log-probabilities.
pub fn chat_logprobs(tokenizer: &Tokenizer, logprobs: &[TokenLogprob], as_id: bool) -> Value {
    let content: Vec<Value> = logprobs
        .iter()
        .map(|item| {
            let mut entry = chat_entry(tokenizer, item.token, item.logprob, as_id);
            let top: Vec<Value> = item
                .top
                .iter()
                .map(|(token, logprob)| Value::Object(chat_entry(tokenizer, *token, *logprob, as_id)))
                .collect();
            entry.insert("top_logprobs".to_owned(), Value::Array(top));
            Value::Object(entry)
        })
        .collect();
    json!({"content": content, "refusal": null})
}

/// Log-probabilities in the shape of the older completions. Offsets count characters of the text.
#[derive(Debug, Default)]
pub struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// Adds tokens; the first of a prompt has no log-probability. `offset` is where the next token's text starts.
    pub fn add<'a>(
        &mut self,
        tokenizer: &Tokenizer,
        items: impl Iterator<Item = (u32, Option<&'a TokenLogprob>)>,
        as_id: bool,
        alternatives: usize,
        offset: &mut usize,
    ) {
        for (token, logprob) in items {
            self.tokens.push(token_name(tokenizer, token, as_id));
            self.text_offset.push(*offset);
            *offset += tokenizer.token_text(token).map_or(0, |text| text.chars().count());
            self.token_logprobs
                .push(logprob.map_or(Value::Null, |item| json!(finite(item.logprob))));
            self.top_logprobs.push(match logprob {
                Some(item) if alternatives > 0 => {
                    let mut top = Map::new();
                    for (token, logprob) in &item.top {
                        top.entry(token_name(tokenizer, *token, as_id))
                            .or_insert(json!(finite(*logprob)));
                    }
                    top.entry(token_name(tokenizer, item.token, as_id))
                        .or_insert(json!(finite(item.logprob)));
                    Value::Object(top)
                }
                _ => Value::Null,
            });
        }
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "tokens": self.tokens,
            "token_logprobs": self.token_logprobs,
            "top_logprobs": self.top_logprobs,
            "text_offset": self.text_offset,
        })
    }
}

/// vLLM's `prompt_logprobs`: for each token of the prompt an object by id, the first `null`.
pub fn prompt_logprobs(tokenizer: &Tokenizer, prompt: &[Option<TokenLogprob>]) -> Value {
    let entry = |token: u32, logprob: f32, rank: Option<usize>| json!({"logprob": finite(logprob), "rank": rank, "decoded_token": token_name(tokenizer, token, false)});
    prompt
        .iter()
        .map(|item| {
            let Some(item) = item else { return Value::Null };
            let mut object = Map::new();
            for (rank, (token, logprob)) in item.top.iter().enumerate() {
                object.insert(token.to_string(), entry(*token, *logprob, Some(rank + 1)));
            }
            object
                .entry(item.token.to_string())
                .or_insert_with(|| entry(item.token, item.logprob, None));
            Value::Object(object)
        })
        .collect()
}

/// Seconds since 1970.
pub fn now() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(0, |time| time.as_secs())
}
