//! Text in and out of a model: tokenizers, chat templates, incremental detokenising, stop strings, parsers for reasoning
//! and tool calls, and grammar masks. Knows neither the engine nor HTTP.
//!
//! ```text
//! messages --ChatTemplate::render--> Prompt --Tokenizer::encode_prompt--> ids
//! ids --Detokenizer--> text --StopMatcher--> text --OutputParser--> reasoning, content, tool calls
//! schema, regex, choice, grammar --GrammarFactory::compile--> Matcher (a mask for each token)
//! ```

mod detokenizer;
mod error;
mod markers;
mod stop;
mod template;
mod tokenizer;

pub mod grammar;
pub mod parsers;

pub use detokenizer::Detokenizer;
pub use error::TextError;
pub use stop::{StopMatcher, StopStep};
pub use template::{ChatInput, ChatTemplate, NamedTemplate, Prompt, Wants, templates_from_tokenizer_config};
pub use tokenizer::{GgufVocab, HubFiles, Special, TokenKind, Tokenizer, known_pre_tokenizers};
