//! The one error of the crate.

/// What can go wrong between text and tokens. Each message names the thing, its value and what would do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// A tokenizer file or its GGUF keys are damaged or contradict themselves.
    #[error("tokenizer: {what}")]
    Tokenizer {
        /// What is wrong, with the key and value.
        what: String,
    },
    /// A part of a tokenizer that is not implemented, so that ids would have to be guessed.
    #[error("tokenizer: {part} `{name}` is not known; known: {known}")]
    UnknownTokenizer {
        /// "pre-tokenizer", "model", ...
        part: &'static str,
        /// The name found.
        name: String,
        /// Names that would do.
        known: String,
    },
    /// A chat template that does not parse.
    #[error("chat template `{name}`, line {line}, column {column}: {message}")]
    TemplateSyntax {
        /// Template.
        name: String,
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
        /// What the parser says.
        message: String,
    },
    /// The template refuses the conversation (`raise_exception`).
    #[error("the chat template refuses these messages: {message}")]
    TemplateRaised {
        /// The template's own words.
        message: String,
    },
    /// The template fails on these messages.
    #[error("chat template `{name}`, line {line}: {message}")]
    TemplateRender {
        /// Template.
        name: String,
        /// From 1; 0 where it is not known.
        line: usize,
        /// What went wrong.
        message: String,
    },
    /// The template used up its steps, depth or output.
    #[error("chat template `{name}`: more than {limit} {unit}")]
    TemplateLimit {
        /// Template.
        name: String,
        /// The limit.
        limit: u64,
        /// Of what.
        unit: &'static str,
    },
    /// A text of more tokens than are of use.
    #[error("the text has {bytes} bytes, which are {tokens} tokens or more; allowed: {tokens_max}")]
    TooLong {
        /// Bytes of the text.
        bytes: usize,
        /// Tokens that it has at least.
        tokens: usize,
        /// Most tokens.
        tokens_max: usize,
    },
    /// A field of the request is wrong.
    #[error("{field}: {message}")]
    Field {
        /// Path, such as `messages[1].tool_calls[0].function.arguments`.
        field: String,
        /// What is wrong and what would do.
        message: String,
    },
    /// A grammar, schema or regex that does not compile.
    #[error("{kind}: {message}")]
    Grammar {
        /// "json_schema", "regex", ...
        kind: &'static str,
        /// What is wrong.
        message: String,
    },
    /// A grammar that is too costly.
    #[error("{kind}: too costly to compile: {message}")]
    GrammarBudget {
        /// "json_schema", "regex", ...
        kind: &'static str,
        /// Which limit.
        message: String,
    },
    /// A parser style that does not exist.
    #[error("{kind} parser `{name}` is not known; known: {known}")]
    UnknownStyle {
        /// "reasoning" or "tool call".
        kind: &'static str,
        /// The name asked for.
        name: String,
        /// Names that would do.
        known: String,
    },
}

impl TextError {
    /// Whether the client's request is at fault (answer 400), and not the model's files (answer 500, or refuse to start).
    pub fn is_request_fault(&self) -> bool {
        match self {
            TextError::TemplateRaised { .. }
            | TextError::TemplateRender { .. }
            | TextError::TemplateLimit { .. }
            | TextError::TooLong { .. }
            | TextError::Field { .. }
            | TextError::Grammar { .. }
            | TextError::GrammarBudget { .. } => true,
            TextError::Tokenizer { .. }
            | TextError::UnknownTokenizer { .. }
            | TextError::TemplateSyntax { .. }
            | TextError::UnknownStyle { .. } => false,
        }
    }

    /// The request's field at fault, where one is known.
    pub fn field(&self) -> Option<&str> {
        match self {
            TextError::Field { field, .. } => Some(field),
            _ => None,
        }
    }

    pub(crate) fn tokenizer(what: impl Into<String>) -> Self {
        TextError::Tokenizer { what: what.into() }
    }
}
