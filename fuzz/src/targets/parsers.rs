//! Parsers of reasoning and tool calls: what comes out does not depend on how the text is cut.

use galvani_text::parsers::{ParsedEvent, ParserStyle, ReasoningStyle, ToolStyle, make};
use serde_json::{Value, json};

use super::Target;

pub const TARGET: Target = Target {
    name: "parsers",
    about: "reasoning and tool-call parsers: first byte picks the style, second the cuts, the rest is the answer",
    run,
    seeds: || {
        let texts = [
            "<think>\nwell\n</think>\n\nHello <b>you</b>",
            "Sure.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [true, null, \"x\\n\\u00e9\"]}}\n</tool_call>",
            "<tool_call>\n<function=add>\n<parameter=a>\n12\n</parameter>\n<parameter=text>\nline\nline\n</parameter>\n</function>\n</tool_call>",
            "<tool_call>{\"arguments\": {}, \"name\": \"add\"}</tool_call><tool_call>{\"name\":",
            "a < b, <tool_call> is a tag, <function=",
        ];
        let styles = 0..12u8;
        styles
            .flat_map(|style| texts.map(|text| [&[style, 3][..], text.as_bytes()].concat()))
            .collect()
    },
    dictionary: &[
        b"<think>",
        b"</think>",
        b"<tool_call>",
        b"</tool_call>",
        b"<function=",
        b"</function>",
        b"<parameter=",
        b"</parameter>",
        b"{\"name\": \"",
        b"\"arguments\": ",
        b"\\u",
        b"\\ud83d\\ude00",
        b"\"",
        b"}",
        b"{",
        b"]",
        b"\xf0\x9f\x98\x80",
        b"\n",
        b"1e5",
    ],
};

fn run(input: &[u8]) -> String {
    let [style, cuts, text @ ..] = input else {
        return "too short".to_owned();
    };
    let text = String::from_utf8_lossy(text);
    let starts_in_reasoning = style / 6 % 2 == 1;
    let style = ParserStyle {
        reasoning: (style % 2 == 1).then_some(ReasoningStyle::Think),
        tools: [None, Some(ToolStyle::Hermes), Some(ToolStyle::Qwen3Coder)][usize::from(style / 2 % 3)],
    };
    let tools = json!([{"type": "function", "function": {"name": "add", "parameters": {"type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array"}, "text": {"type": "string"}}}}}]);
    let parse = |pieces: &[&str]| {
        let mut parser = make(style, Some(&tools), starts_in_reasoning);
        let mut events: Vec<ParsedEvent> = pieces.iter().flat_map(|piece| parser.push(piece)).collect();
        events.extend(parser.finish());
        joined(events)
    };
    let whole = parse(&[&text]);
    let pieces = cut(&text, usize::from(*cuts) % 17 + 1);
    assert_eq!(parse(&pieces), whole, "in pieces and whole");
    for part in &whole {
        if let Part::Call { arguments, .. } = part {
            let value: Result<Value, _> = serde_json::from_str(arguments);
            assert!(
                value.is_ok_and(|value| value.is_object()),
                "arguments that are no object: {arguments}"
            );
        }
    }
    let kinds: Vec<&str> = whole.iter().take(6).map(Part::kind).collect();
    format!("{style:?} {}", kinds.join(" "))
}

/// Pieces of about `len` bytes, cut between characters.
fn cut(text: &str, len: usize) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let mut end = (start + len).min(text.len());
        while !text.is_char_boundary(end) {
            end += 1;
        }
        pieces.push(&text[start..end]);
        start = end;
    }
    pieces
}

/// Events with neighbours of a kind joined, ids left out (they are random).
#[derive(Debug, PartialEq)]
enum Part {
    Reasoning(String),
    Content(String),
    Call {
        index: usize,
        name: String,
        arguments: String,
    },
}

impl Part {
    fn kind(&self) -> &'static str {
        match self {
            Part::Reasoning(_) => "reasoning",
            Part::Content(_) => "content",
            Part::Call { arguments, .. } if arguments.len() > 2 => "call",
            Part::Call { .. } => "empty call",
        }
    }
}

fn joined(events: Vec<ParsedEvent>) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for event in events {
        match (event, parts.last_mut()) {
            (ParsedEvent::Reasoning(text), Some(Part::Reasoning(last))) => last.push_str(&text),
            (ParsedEvent::Content(text), Some(Part::Content(last))) => last.push_str(&text),
            (ParsedEvent::Reasoning(text), _) => parts.push(Part::Reasoning(text)),
            (ParsedEvent::Content(text), _) => parts.push(Part::Content(text)),
            (ParsedEvent::ToolCallStart { index, name, .. }, _) => parts.push(Part::Call {
                index,
                name,
                arguments: String::new(),
            }),
            (ParsedEvent::ToolCallArguments { index, delta }, _) => {
                let call = parts.iter_mut().rev().find_map(|part| match part {
                    Part::Call {
                        index: i, arguments, ..
                    } if *i == index => Some(arguments),
                    _ => None,
                });
                call.expect("a call starts before its arguments").push_str(&delta);
            }
        }
    }
    parts
}
