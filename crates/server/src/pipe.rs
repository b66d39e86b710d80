//! One sequence's way from tokens to text: detokenise, look for stop texts, split off reasoning and tool calls. Streams and
//! whole answers go the same way, so they are equal.

use std::sync::Arc;

use galvani_engine::{Event, FinishReason, TokenLogprob, Usage};
use galvani_text::parsers::{OutputParser, ParsedEvent};
use galvani_text::{Detokenizer, StopMatcher, Tokenizer};

use crate::error::ApiError;
use crate::params::Common;

/// What ended a sequence.
#[derive(Debug, Clone, PartialEq)]
pub enum End {
    /// The model's own end, or a complete constraint.
    Stop,
    /// A stop text of the client.
    StopText(String),
    /// A stop token of the client.
    StopToken(u32),
    /// The limit of tokens or of the context.
    Length,
    /// The server was shutting down, or the engine gave up on it.
    Failed(ApiError),
}

/// What one or more events of the engine brought.
#[derive(Debug, Default)]
pub struct Step {
    /// Which sequence of the request.
    pub sequence: usize,
    /// Text, in parts.
    pub parts: Vec<ParsedEvent>,
    /// Tokens.
    pub tokens: Vec<u32>,
    /// Their log-probabilities, where asked for.
    pub logprobs: Vec<TokenLogprob>,
    /// The prompt's log-probabilities, where asked for.
    pub prompt: Option<Vec<Option<TokenLogprob>>>,
    /// The end; comes once a sequence.
    pub end: Option<End>,
}

/// One sequence's state.
pub struct Pipe {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    stops: Vec<String>,
    include_stop: bool,
    tokens_min: usize,
    client_stop_ids: Vec<u32>,
    parser: Option<Box<dyn OutputParser>>,
    first_call_only: bool,
    /// Drop all tokens: the engine makes one at least, and the client wanted none.
    silent: bool,
    /// Tokens seen.
    pub token_count: usize,
    /// Whether the answer has ended for the client.
    pub ended: bool,
    /// The engine's counts, once it said its last word.
    pub usage: Option<Usage>,
}

impl Pipe {
    /// A pipe for one sequence. Without a parser all text is content.
    pub fn new(
        tokenizer: &Arc<Tokenizer>,
        common: &Common,
        parser: Option<Box<dyn OutputParser>>,
        first_call_only: bool,
        silent: bool,
    ) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            detokenizer: Detokenizer::new(tokenizer.clone(), common.skip_special),
            matcher: StopMatcher::new(common.stops.clone()),
            stops: common.stops.clone(),
            include_stop: common.include_stop,
            tokens_min: common.tokens_min,
            client_stop_ids: common.client_stop_ids.clone(),
            parser,
            first_call_only,
            silent,
            token_count: 0,
            ended: false,
            usage: None,
        }
    }

    /// Takes an event and adds what it brings to `step`. Says whether a stop text was found, so that the engine need not go on.
    pub fn take(&mut self, event: Event, step: &mut Step) -> bool {
        match event {
            Event::Prompt(prompt) => step.prompt = Some(prompt),
            Event::Token { .. } if self.ended => {}
            Event::Token { token, logprob } => {
                self.token_count += 1;
                if self.silent {
                    return false;
                }
                step.tokens.push(token);
                step.logprobs.extend(logprob);
                let text = self.detokenizer.push(token);
                if self.token_count < self.tokens_min {
                    self.parse(&text, step);
                } else if let Some(stop) = self.match_stop(&text, step) {
                    self.end(End::StopText(stop), step);
                    return true;
                }
            }
            Event::Finished {
                usage,
                reason,
                stop_token,
            } => {
                self.usage = Some(usage);
                if !self.ended {
                    self.flush(reason, stop_token, step);
                }
            }
            Event::Failed { message } => {
                self.usage.get_or_insert_default();
                if !self.ended {
                    self.end(End::Failed(ApiError::internal(message)), step);
                }
            }
        }
        false
    }

    /// The engine is done: what was held back comes out.
    fn flush(&mut self, reason: FinishReason, stop_token: Option<u32>, step: &mut Step) {
        let mut text = self.detokenizer.finish();
        let client_stop = stop_token.filter(|token| self.client_stop_ids.contains(token));
        if let Some(token) = client_stop.filter(|_| self.include_stop && !self.silent) {
            text.push_str(&self.tokenizer.token_text(token).unwrap_or_default());
        }
        if let Some(stop) = self.match_stop(&text, step) {
            return self.end(End::StopText(stop), step);
        }
        let held = self.matcher.finish();
        self.parse(&held, step);
        let end = match (reason, client_stop) {
            (FinishReason::Stop, Some(token)) => End::StopToken(token),
            (FinishReason::Stop, None) => End::Stop,
            (FinishReason::Length, _) => End::Length,
            (FinishReason::Cancelled, _) => End::Failed(ApiError::unavailable(
                "cancelled",
                "the request was cancelled by the server",
                1,
            )),
        };
        self.end(end, step);
    }

    fn match_stop(&mut self, text: &str, step: &mut Step) -> Option<String> {
        let found = self.matcher.push(text);
        self.parse(&found.emit, step);
        let stop = self.stops[found.hit?].clone();
        if self.include_stop {
            self.parse(&stop, step);
        }
        Some(stop)
    }

    fn parse(&mut self, text: &str, step: &mut Step) {
        if text.is_empty() {
            return;
        }
        match &mut self.parser {
            None => step.parts.push(ParsedEvent::Content(text.to_owned())),
            Some(parser) => {
                let parts = parser.push(text);
                self.keep(parts, step);
            }
        }
    }

    fn keep(&self, parts: Vec<ParsedEvent>, step: &mut Step) {
        step.parts.extend(parts.into_iter().filter(|part| match part {
            ParsedEvent::ToolCallStart { index, .. } | ParsedEvent::ToolCallArguments { index, .. } => {
                !self.first_call_only || *index == 0
            }
            ParsedEvent::Content(text) | ParsedEvent::Reasoning(text) => !text.is_empty(),
        }));
    }

    fn end(&mut self, end: End, step: &mut Step) {
        if let Some(mut parser) = self.parser.take() {
            let parts = parser.finish();
            self.keep(parts, step);
        }
        self.ended = true;
        step.end = Some(end);
    }
}
