//! Constraints from requests: any schema, regex or grammar compiles within its budget, or gives words.

use std::sync::OnceLock;

use galvani_text::grammar::{Budget, Constraint, GrammarFactory};

use super::{Target, tiny_tokenizer};

pub const TARGET: Target = Target {
    name: "grammar",
    about: "first byte picks JSON schema, regex, choice or Lark; the rest is its source; then tokens are drawn",
    run,
    seeds: || {
        let sources: [(u8, &str); 8] = [
            (
                0,
                r#"{"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}, "b": {"enum": ["x", 1, null]}}, "required": ["a"]}"#,
            ),
            (
                0,
                r##"{"$defs": {"n": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/n"}}]}}, "$ref": "#/$defs/n"}"##,
            ),
            (
                0,
                r#"{"type": "string", "pattern": "^a+b{2,5}$", "maxLength": 9}"#,
            ),
            (1, "[a-z]+@[a-z]{2,3}\\.(com|org)"),
            (1, "(a|b)*abb"),
            (2, "yes\nno\nmaybe"),
            (3, "start: \"a\" b*\nb: /[0-9]+/ \",\""),
            (0, "true"),
        ];
        sources
            .map(|(kind, source)| [&[kind][..], source.as_bytes()].concat())
            .to_vec()
    },
    dictionary: &[
        b"\"$ref\": \"#\"",
        b"\"allOf\": [",
        b"\"oneOf\": [",
        b"\"not\": {",
        b"\"pattern\": \"",
        b"{1000000}",
        b"(?=",
        b"\\p{L}",
        b"start: ",
        b"%ignore ",
        b"%json ",
        b"\"minItems\": 1000000",
        b"\"multipleOf\": 0",
        b"\"format\": \"date\"",
        b"[^]",
        b"*",
        b"+",
        b"|",
        b"\xff",
    ],
};

fn run(input: &[u8]) -> String {
    let Some((kind, source)) = input.split_first() else {
        return "empty".to_owned();
    };
    let source = String::from_utf8_lossy(source).into_owned();
    let constraint = match kind % 4 {
        0 => match serde_json::from_str(&source) {
            Ok(schema) => Constraint::JsonSchema(schema),
            Err(_) => return "a schema that is not JSON".to_owned(),
        },
        1 => Constraint::Regex(source),
        2 => Constraint::Choice(source.lines().map(str::to_owned).collect()),
        _ => Constraint::Lark(source),
    };
    static FACTORY: OnceLock<GrammarFactory> = OnceLock::new();
    let tokenizer = tiny_tokenizer();
    let factory = FACTORY.get_or_init(|| {
        GrammarFactory::new(tokenizer, tokenizer.vocab_size()).expect("the vocabulary is sound")
    });
    let mut matcher = match factory.compile(&constraint, Budget::SERVING) {
        Ok(matcher) => matcher,
        Err(error) => return error.to_string(),
    };
    let mut mask = vec![0u32; tokenizer.vocab_size().div_ceil(32)];
    for step in 0..24usize {
        if matcher.is_complete() {
            return "complete".to_owned();
        }
        mask.fill(0);
        if let Err(error) = matcher.allowed(&mut mask) {
            return error.to_string();
        }
        let allowed: Vec<u32> = (0..tokenizer.vocab_size() as u32)
            .filter(|id| mask[*id as usize / 32] >> (id % 32) & 1 == 1)
            .collect();
        assert!(!allowed.is_empty(), "nothing is allowed and it is not complete");
        let token = allowed[(step * 7 + input.len()) % allowed.len()];
        if let Err(error) = matcher.accept(token) {
            panic!("token {token} was allowed and is not accepted: {error}");
        }
    }
    "goes on".to_owned()
}
