//! Constraints on the model's text: JSON, a JSON schema, a regex, a choice, a grammar; and the tool calls that a request
//! demands. Compiled by `llguidance`; each step costs one walk of the vocabulary's trie.

mod cache;
mod factory;
mod gate;
mod tools;

use serde_json::Value;

pub use cache::CacheStats;
pub use factory::{Budget, GrammarFactory, Matcher};
pub use tools::{ToolChoice, tool_call_constraint};

/// What text is allowed.
#[derive(Debug, Clone, PartialEq)]
pub enum Constraint {
    /// Any JSON object.
    JsonObject,
    /// JSON that fits a schema.
    JsonSchema(Value),
    /// Text that matches a regular expression as a whole (Rust syntax, without look-around).
    Regex(String),
    /// One of these strings.
    Choice(Vec<String>),
    /// A grammar in llguidance's variant of Lark.
    Lark(String),
}

impl Constraint {
    /// Name of the kind, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Constraint::JsonObject => "json_object",
            Constraint::JsonSchema(_) => "json_schema",
            Constraint::Regex(_) => "regex",
            Constraint::Choice(_) => "choice",
            Constraint::Lark(_) => "grammar",
        }
    }
}

#[cfg(test)]
mod tests;
