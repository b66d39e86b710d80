//! A model as the server sees it.

use std::sync::Arc;

use galvani_engine::{Engine, EngineHandle};
use galvani_text::grammar::GrammarFactory;
use galvani_text::parsers::ParserStyle;
use galvani_text::{ChatTemplate, Tokenizer};
use serde_json::Value;

/// A loaded model and everything that turns requests into tokens and tokens into answers.
pub struct ModelRuntime {
    /// Name under which it is served.
    pub name: String,
    /// Other names that a request may use.
    pub aliases: Vec<String>,
    /// The way to the engine.
    pub engine: EngineHandle,
    /// The engine itself, if it is to live and end with this value.
    pub engine_owner: Option<Engine>,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Conversation to text; without one only completions work.
    pub template: Option<Arc<ChatTemplate>>,
    /// How the model writes reasoning and tool calls.
    pub styles: ParserStyle,
    /// Compiles constraints for this vocabulary; without one structured output is refused.
    pub grammar: Option<Arc<GrammarFactory>>,
    /// Sampling where a request is silent.
    pub defaults: GenerationDefaults,
    /// Tokens that end an answer.
    pub eos_ids: Vec<u32>,
    /// Tokens of prompt and answer together.
    pub context_max: usize,
    /// When the model was loaded, in seconds since 1970.
    pub created: u64,
    /// Facts about the model, shown as they are under `model` in `/props`.
    pub info: Value,
}

/// Sampling where a request is silent, as the model's publisher or the command line says.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationDefaults {
    /// `temperature`.
    pub temperature: f32,
    /// `top_k`; 0 keeps all.
    pub top_k: usize,
    /// `top_p`.
    pub top_p: f32,
    /// `min_p`.
    pub min_p: f32,
    /// `typical_p`.
    pub typical_p: f32,
    /// `repetition_penalty`.
    pub repetition_penalty: f32,
    /// `presence_penalty`.
    pub presence_penalty: f32,
    /// `frequency_penalty`.
    pub frequency_penalty: f32,
    /// Most tokens of a chat answer where the request names no limit; `None` is what the context holds.
    pub tokens_max: Option<usize>,
}

impl GenerationDefaults {
    /// What OpenAI's API says.
    pub fn openai() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            tokens_max: None,
        }
    }
}

impl ModelRuntime {
    /// Whether a request's `model` means this one.
    pub fn answers_to(&self, name: &str) -> bool {
        self.name == name || self.aliases.iter().any(|alias| alias == name)
    }

    /// All names.
    pub fn names(&self) -> Vec<String> {
        std::iter::once(self.name.clone())
            .chain(self.aliases.iter().cloned())
            .collect()
    }
}
