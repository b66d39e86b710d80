//! The one table of request fields: what each is called, what it may be, what it means. It validates requests and makes
//! `/openapi.json`.

use Kind::{Bool, Choice, Integer, List, Number, Object, OneOf, Refused, Text};

/// Endpoints, as bits.
pub mod on {
    /// `/v1/chat/completions`.
    pub const CHAT: u8 = 1;
    /// `/v1/completions`.
    pub const TEXT: u8 = 2;
    /// Both.
    pub const BOTH: u8 = CHAT | TEXT;
    /// `/tokenize`.
    pub const TOKENIZE: u8 = 4;
    /// `/detokenize`.
    pub const DETOKENIZE: u8 = 8;
    /// `/apply-template`.
    pub const TEMPLATE: u8 = 16;
    /// Whatever renders a conversation.
    pub const MESSAGES: u8 = CHAT | TOKENIZE | TEMPLATE;
    /// All.
    pub const ALL: u8 = 31;
}

/// What a field may be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A number in `min..=max`, or above `min` where `open`.
    Number {
        /// Least.
        min: f64,
        /// Most.
        max: f64,
        /// `min` itself is refused.
        open: bool,
    },
    /// A whole number in `min..=max`.
    Integer {
        /// Least.
        min: i64,
        /// Most.
        max: i64,
    },
    /// `true` or `false`.
    Bool,
    /// A string of at most so many bytes.
    Text(usize),
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// An object, looked at by the endpoint.
    Object,
    /// An array, looked at by the endpoint.
    List,
    /// One of these JSON types, looked at by the endpoint.
    OneOf(&'static [&'static str]),
    /// Known, and refused for this reason rather than silently dropped.
    Refused(&'static str),
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// Name in the body.
    pub name: &'static str,
    /// Endpoints that take it ([`on`]).
    pub on: u8,
    /// What it may be.
    pub kind: Kind,
    /// What holds where it is absent.
    pub default: &'static str,
    /// What it does.
    pub doc: &'static str,
}

const fn row(on: u8, name: &'static str, kind: Kind, default: &'static str, doc: &'static str) -> Field {
    Field {
        name,
        on,
        kind,
        default,
        doc,
    }
}

const fn number(min: f64, max: f64) -> Kind {
    Number {
        min,
        max,
        open: false,
    }
}

const fn above(min: f64, max: f64) -> Kind {
    Number { min, max, open: true }
}

const fn integer(min: i64, max: i64) -> Kind {
    Integer { min, max }
}

const U31: i64 = i32::MAX as i64;
const NAME: usize = 4096;
const GRAMMAR: usize = 1 << 20;

/// Every field of every endpoint, each once an endpoint.
#[rustfmt::skip]
pub static FIELDS: &[Field] = &[
    row(on::ALL, "model", Text(NAME), "the one served", "name of the model, or an alias of it"),
    row(on::MESSAGES, "messages", List, "", "the conversation: objects with role and content"),
    row(on::TEXT, "prompt", OneOf(&["string", "array"]), "",
        "text, list of texts, token ids, or list of lists of token ids; special tokens in text are parsed"),
    row(on::TOKENIZE, "prompt", Text(usize::MAX), "", "text to tokenise, where no messages are given"),
    row(on::TOKENIZE, "content", Text(usize::MAX), "", "another name of prompt"),
    row(on::DETOKENIZE, "tokens", List, "", "token ids"),
    row(on::TOKENIZE, "return_token_strs", Bool, "false", "return each token's text as well"),

    row(on::CHAT, "max_completion_tokens", integer(1, i64::MAX), "what the context holds",
        "most tokens to generate; cut to what the context still holds"),
    row(on::CHAT, "max_tokens", integer(1, i64::MAX), "what the context holds", "older name of max_completion_tokens"),
    row(on::TEXT, "max_tokens", integer(0, i64::MAX), "16",
        "most tokens to generate; cut to what the context still holds; 0 needs echo"),
    row(on::BOTH, "min_tokens", integer(0, U31), "0", "tokens before which nothing ends the answer"),
    row(on::BOTH, "n", integer(1, U31), "1", "answers to generate"),
    row(on::TEXT, "best_of", integer(1, U31), "n", "answers to generate, of which the n likeliest are returned"),
    row(on::BOTH, "temperature", number(0.0, 2.0), "1", "0 takes the likeliest token each time"),
    row(on::BOTH, "top_p", above(0.0, 1.0), "1", "keep the smallest set of tokens of this probability"),
    row(on::BOTH, "top_k", integer(-1, U31), "0", "keep the k likeliest; 0 and -1 keep all"),
    row(on::BOTH, "min_p", number(0.0, 1.0), "0", "keep tokens of at least this share of the likeliest one's probability"),
    row(on::BOTH, "typical_p", above(0.0, 1.0), "1", "locally typical sampling"),
    row(on::BOTH, "presence_penalty", number(-2.0, 2.0), "0", "subtracted from tokens already generated"),
    row(on::BOTH, "frequency_penalty", number(-2.0, 2.0), "0", "subtracted for each time a token was generated"),
    row(on::BOTH, "repetition_penalty", above(0.0, 2.0), "1", "divides the logits of tokens seen in prompt or answer"),
    row(on::BOTH, "logit_bias", Object, "{}", "token id to -100..100, added to its logit"),
    row(on::BOTH, "seed", integer(i64::MIN, i64::MAX), "random", "same seed and request, same answer"),
    row(on::BOTH, "stop", OneOf(&["string", "array"]), "[]", "texts that end the answer; not part of it"),
    row(on::BOTH, "stop_token_ids", List, "[]", "tokens that end the answer"),
    row(on::BOTH, "include_stop_str_in_output", Bool, "false", "keep the stop text in the answer"),
    row(on::BOTH, "ignore_eos", Bool, "false", "go on after the model's end tokens"),
    row(on::BOTH, "skip_special_tokens", Bool, "true", "leave special tokens out of the text"),
    row(on::CHAT, "logprobs", Bool, "false", "return the log-probability of each token"),
    row(on::CHAT, "top_logprobs", integer(0, U31), "0", "return so many alternatives with each; needs logprobs"),
    row(on::TEXT, "logprobs", integer(0, U31), "none", "return log-probabilities, with so many alternatives each"),
    row(on::BOTH, "prompt_logprobs", integer(0, U31), "none", "return the prompt's log-probabilities"),
    row(on::TEXT, "echo", Bool, "false", "put the prompt before the answer"),
    row(on::BOTH, "return_token_ids", Bool, "false", "return token ids beside the text"),
    row(on::BOTH, "return_tokens_as_token_ids", Bool, "false", "name tokens in log-probabilities token_id:N"),

    row(on::BOTH, "stream", Bool, "false", "send the answer as server-sent events"),
    row(on::BOTH, "stream_options", Object, "{}", "include_usage, continuous_usage_stats; needs stream"),

    row(on::CHAT, "response_format", Object, "text", "type text, json_object, or json_schema with json_schema.schema"),
    row(on::BOTH, "structured_outputs", Object, "none", "one of json, json_object, regex, choice, grammar"),
    row(on::BOTH, "guided_json", OneOf(&["object", "string", "boolean"]), "none", "JSON schema that the answer fits"),
    row(on::BOTH, "guided_regex", Text(GRAMMAR), "none", "regular expression that the answer fits"),
    row(on::BOTH, "guided_choice", List, "none", "texts of which the answer is one"),
    row(on::BOTH, "guided_grammar", Text(GRAMMAR), "none", "Lark grammar that the answer fits"),

    row(on::MESSAGES, "tools", List, "[]", "functions that the model may call"),
    row(on::CHAT, "tool_choice", OneOf(&["string", "object"]), "auto",
        "none, auto, required, or {type: function, function: {name}}"),
    row(on::CHAT, "parallel_tool_calls", Bool, "true", "whether an answer may hold several calls"),
    row(on::MESSAGES, "chat_template_kwargs", Object, "{}", "variables for the chat template"),
    row(on::MESSAGES, "add_generation_prompt", Bool, "true", "open the assistant's turn"),
    row(on::MESSAGES, "continue_final_message", Bool, "false", "go on with the last message; excludes add_generation_prompt"),
    row(on::MESSAGES, "reasoning_effort", Choice(&["none", "minimal", "low", "medium", "high", "xhigh", "max"]), "the template's",
        "given to the template; none also sets enable_thinking to false"),
    row(on::CHAT, "include_reasoning", Bool, "true", "return the reasoning beside the answer"),
    row(on::BOTH | on::TOKENIZE, "add_special_tokens", Bool, "true for text, false for a conversation",
        "put the model's begin token before the prompt (never twice)"),
    row(on::BOTH, "truncate_prompt_tokens", integer(1, U31), "none", "keep only so many last tokens of the prompt"),

    row(on::BOTH, "cache_salt", Text(NAME), "none", "requests with different salts never share cached prefixes"),
    row(on::BOTH, "priority", integer(i32::MIN as i64, U31), "0", "lower runs first"),
    row(on::BOTH, "user", Text(NAME), "none", "taken for compatibility; has no effect"),
    row(on::CHAT, "metadata", Object, "none", "taken for compatibility; has no effect"),
    row(on::CHAT, "store", Bool, "false", "taken for compatibility; nothing is stored"),
    row(on::CHAT, "service_tier", Text(NAME), "none", "taken for compatibility; has no effect"),
    row(on::CHAT, "safety_identifier", Text(NAME), "none", "taken for compatibility; has no effect"),
    row(on::CHAT, "prompt_cache_key", Text(NAME), "none", "taken for compatibility; has no effect"),
    row(on::CHAT, "prediction", Object, "none", "taken for compatibility; has no effect"),
    row(on::CHAT, "verbosity", Choice(&["low", "medium", "high"]), "none", "given to the template"),
    row(on::CHAT, "modalities", List, "[\"text\"]", "only text is made"),
    row(on::BOTH, "request_id", Text(NAME), "made", "name of the request in the answer's id"),

    row(on::TEXT, "suffix", Refused("text before a given end is not made here; leave it out"), "", "not supported"),
    row(on::CHAT, "functions", Refused("use tools"), "", "replaced by tools"),
    row(on::CHAT, "function_call", Refused("use tool_choice"), "", "replaced by tool_choice"),
    row(on::CHAT, "audio", Refused("no audio is made here"), "", "not supported"),
    row(on::CHAT, "web_search_options", Refused("this server does not search the web"), "", "not supported"),
    row(on::MESSAGES, "chat_template", Refused("templates come with the model or --chat-template, never from a request"), "",
        "not supported"),
    row(on::BOTH, "use_beam_search", Refused("beam search is not made here; see best_of"), "", "not supported"),
    row(on::BOTH, "allowed_token_ids", Refused("use guided_choice, guided_regex or logit_bias"), "", "not supported"),
    row(on::BOTH, "bad_words", Refused("use logit_bias"), "", "not supported"),
];

/// The row of a field at an endpoint.
pub fn find(endpoint: u8, name: &str) -> Option<&'static Field> {
    FIELDS
        .iter()
        .find(|field| field.on & endpoint != 0 && field.name == name)
}

impl Kind {
    /// What the field may be, in words.
    pub fn allowed(&self) -> String {
        match self {
            Number {
                min,
                max,
                open: false,
            } => format!("a number from {min} to {max}"),
            Number { min, max, open: true } => format!("a number above {min}, at most {max}"),
            Integer { min, max } => match (*min, *max) {
                (i64::MIN, i64::MAX) => "a whole number of 64 bits".to_owned(),
                (min, max) => format!("a whole number from {min} to {max}"),
            },
            Bool => "true or false".to_owned(),
            Text(usize::MAX) => "a string".to_owned(),
            Text(bytes) => format!("a string of at most {bytes} bytes"),
            Choice(names) => format!("one of {}", names.join(", ")),
            Object => "an object".to_owned(),
            List => "an array".to_owned(),
            OneOf(types) => types
                .iter()
                .map(|t| match *t {
                    "boolean" => "true or false".to_owned(),
                    "string" => "a string".to_owned(),
                    other => format!("an {other}"),
                })
                .collect::<Vec<_>>()
                .join(" or "),
            Refused(reason) => (*reason).to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_has_one_row_an_endpoint() {
        for (i, a) in FIELDS.iter().enumerate() {
            for b in &FIELDS[i + 1..] {
                assert!(
                    a.name != b.name || a.on & b.on == 0,
                    "{} twice on one endpoint",
                    a.name
                );
            }
            assert!(!a.doc.is_empty(), "{}: no words", a.name);
        }
    }
}
