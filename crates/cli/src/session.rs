//! One answer from the engine, as text while it comes: what `run` and `chat` are made of.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use galvani_engine::{Event, FinishReason, FnSink, Request, SamplingParams, Usage};
use galvani_text::parsers::{self, ParsedEvent, ParserStyle};
use galvani_text::{ChatInput, Detokenizer, Special};
use serde_json::{Map, Value};

use crate::error::CliError;
use crate::load::Loaded;

/// How an answer ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Why.
    pub reason: FinishReason,
    /// Counts.
    pub usage: Usage,
    /// Time to the first token.
    pub first: Duration,
    /// Time in all.
    pub total: Duration,
}

impl Outcome {
    /// For `--verbose`.
    pub fn line(&self) -> String {
        let decode = (self.total - self.first).as_secs_f64();
        let more = self.usage.generated_tokens.saturating_sub(1) as f64;
        format!(
            "prompt {} tokens ({} cached) in {:.0} ms ({:.0} tok/s), answer {} tokens ({:.1} tok/s), {:?}",
            self.usage.prompt_tokens,
            self.usage.cached_tokens,
            self.first.as_secs_f64() * 1e3,
            (self.usage.prompt_tokens - self.usage.cached_tokens) as f64 / self.first.as_secs_f64().max(1e-9),
            self.usage.generated_tokens,
            if decode > 0.0 { more / decode } else { 0.0 },
            self.reason
        )
    }
}

/// A prompt as tokens, and whether the model goes on inside its reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Tokens.
    pub tokens: Vec<u32>,
    /// How the answer is written.
    pub style: ParserStyle,
    /// Whether the prompt ends inside reasoning.
    pub in_reasoning: bool,
}

/// Renders a conversation.
///
/// # Errors
/// When the template refuses it.
pub fn encode_chat(loaded: &Loaded, messages: &Value) -> Result<Encoded, CliError> {
    let failed = |error: galvani_text::TextError| CliError::Failed(error.to_string());
    let (prompt, style) = match &loaded.template {
        Some(template) => {
            let input = ChatInput {
                messages,
                tools: None,
                add_generation_prompt: true,
                continue_final: false,
                extra: Map::new(),
            };
            let style = ParserStyle {
                tools: None,
                ..ParserStyle::detect(template.source(false))
            };
            (template.render(&input).map_err(failed)?, style)
        }
        None => {
            return Err(CliError::Failed(
                "this model has no chat template: `run --raw` continues a text, --chat-template FILE brings one".into(),
            ));
        }
    };
    let in_reasoning = style.starts_in_reasoning(prompt.text());
    let tokens = loaded.tokenizer.encode_prompt(&prompt).map_err(failed)?;
    Ok(Encoded {
        tokens,
        style,
        in_reasoning,
    })
}

/// Takes a text as it is.
///
/// # Errors
/// When it cannot be encoded, or is empty and the vocabulary has no begin token.
pub fn encode_raw(loaded: &Loaded, text: &str) -> Result<Encoded, CliError> {
    let tokens = loaded.tokenizer.encode(text, Special::Plain, true);
    let tokens = tokens.map_err(|error| CliError::Failed(error.to_string()))?;
    if tokens.is_empty() {
        return Err(CliError::Usage("the prompt is empty".into()));
    }
    Ok(Encoded {
        tokens,
        style: ParserStyle::default(),
        in_reasoning: false,
    })
}

/// Generates an answer; `show` gets its parts as they come, `stop` cancels it.
///
/// # Errors
/// When the engine refuses the request or it fails.
pub fn generate(
    loaded: &Loaded,
    prompt: Encoded,
    sampling: SamplingParams,
    tokens_max: usize,
    stop: &AtomicBool,
    mut show: impl FnMut(&ParsedEvent),
) -> Result<Outcome, CliError> {
    let start = Instant::now();
    let room = loaded
        .fit
        .limits
        .context_max
        .saturating_sub(prompt.tokens.len())
        .max(1);
    let request = Request {
        prompt: prompt.tokens,
        tokens_max: tokens_max.min(room),
        tokens_min: 0,
        sampling,
        stop_ids: loaded.tokenizer.eos_ids().to_vec(),
        logprobs: None,
        prompt_logprobs: None,
        mask: None,
        cache_salt: 0,
        priority: 0,
    };
    let (send, receive) = mpsc::channel();
    let handle = loaded.engine.handle();
    let sink = FnSink(move |event: Event| send.send(event).is_ok());
    let id = handle
        .submit(request, Box::new(sink))
        .map_err(|error| CliError::Failed(error.to_string()))?;
    let mut detokenizer = Detokenizer::new(loaded.tokenizer.clone(), true);
    let mut parser = parsers::make(prompt.style, None, prompt.in_reasoning);
    let mut first = None;
    loop {
        let event = match receive.recv_timeout(Duration::from_millis(50)) {
            Ok(event) => event,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                if stop.load(Ordering::Relaxed) {
                    handle.cancel(id);
                }
                continue;
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(CliError::Failed("the engine ended without an answer".into()));
            }
        };
        match event {
            Event::Token { token, .. } => {
                first.get_or_insert_with(|| start.elapsed());
                parser.push(&detokenizer.push(token)).iter().for_each(&mut show);
                if stop.load(Ordering::Relaxed) {
                    handle.cancel(id);
                }
            }
            Event::Finished { reason, usage, .. } => {
                parser.push(&detokenizer.finish()).iter().for_each(&mut show);
                parser.finish().iter().for_each(&mut show);
                let total = start.elapsed();
                return Ok(Outcome {
                    reason,
                    usage,
                    first: first.unwrap_or(total),
                    total,
                });
            }
            Event::Failed { message } => return Err(CliError::Failed(message)),
            Event::Prompt(_) => {}
        }
    }
}
