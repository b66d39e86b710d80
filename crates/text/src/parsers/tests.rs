use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

mod faults;

/// Everything but ids, which are new each time.
#[derive(Debug, PartialEq, Eq, Clone)]
struct Seen {
    reasoning: String,
    content: String,
    calls: Vec<(String, String)>,
}

fn seen(message: ParsedMessage) -> Seen {
    let calls = message.calls.into_iter().map(|c| (c.name, c.arguments)).collect();
    Seen {
        reasoning: message.reasoning,
        content: message.content,
        calls,
    }
}

struct Case {
    style: ParserStyle,
    tools: Option<Value>,
    inside: bool,
}

impl Case {
    fn pieces<'a>(&self, pieces: impl IntoIterator<Item = &'a str>) -> Seen {
        let mut parser = make(self.style, self.tools.as_ref(), self.inside);
        let mut message = ParsedMessage::default();
        let mut events = Vec::new();
        for piece in pieces {
            events.extend(parser.push(piece));
        }
        events.extend(parser.finish());
        let mut started = 0;
        for event in events {
            match &event {
                ParsedEvent::Reasoning(text) | ParsedEvent::Content(text) => assert!(!text.is_empty()),
                ParsedEvent::ToolCallStart { index, id, .. } => {
                    assert_eq!(*index, started);
                    assert!(id.len() == 29 && id.starts_with("call_"), "{id}");
                    started += 1;
                }
                ParsedEvent::ToolCallArguments { index, delta } => {
                    assert!(*index + 1 == started && !delta.is_empty());
                }
            }
            message.add(event);
        }
        for call in &message.calls {
            assert!(
                serde_json::from_str::<Value>(&call.arguments).is_ok_and(|v| v.is_object()),
                "arguments are an object: {}",
                call.arguments
            );
        }
        seen(message)
    }

    /// Parses whole, at each split in two, and by character; all must agree.
    fn parse(&self, text: &str) -> Seen {
        let whole = self.pieces([text]);
        for at in (0..=text.len()).filter(|&at| text.is_char_boundary(at)) {
            assert_eq!(
                self.pieces([&text[..at], &text[at..]]),
                whole,
                "{text:?} split at {at}"
            );
        }
        let chars: Vec<String> = text.chars().map(String::from).collect();
        assert_eq!(
            self.pieces(chars.iter().map(String::as_str)),
            whole,
            "{text:?} by character"
        );
        whole
    }
}

fn hermes() -> Case {
    Case {
        style: ParserStyle {
            reasoning: None,
            tools: Some(ToolStyle::Hermes),
        },
        tools: None,
        inside: false,
    }
}

fn coder(tools: Option<Value>) -> Case {
    Case {
        style: ParserStyle {
            reasoning: None,
            tools: Some(ToolStyle::Qwen3Coder),
        },
        tools,
        inside: false,
    }
}

fn thinking(inside: bool) -> Case {
    Case {
        style: ParserStyle {
            reasoning: Some(ReasoningStyle::Think),
            tools: None,
        },
        tools: None,
        inside,
    }
}

/// A text, the content that is left, names and arguments of the calls.
type Row<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)]);

fn check(case: &Case, table: &[Row<'_>]) {
    for (text, content, calls) in table {
        let got = case.parse(text);
        let want: Vec<_> = calls
            .iter()
            .map(|(n, a)| (n.to_string(), a.to_string()))
            .collect();
        assert_eq!((got.content.as_str(), got.calls), (*content, want), "{text:?}");
    }
}

/// P18.
#[test]
fn reasoning() {
    let cases = [
        (true, "plan\n</think>\n\nAnswer", "plan", "Answer"),
        (true, "plan", "plan", ""),
        (true, "\nplan\n\n", "plan", ""),
        (true, "<think>\nplan\n</think>x", "plan", "x"),
        (true, "a\n\nb</think>", "a\n\nb", ""),
        (true, "</think>\n\nAnswer\n", "", "Answer\n"),
        (true, "a </thin b</think>c", "a </thin b", "c"),
        (true, "a</think>b</think>c", "a", "b</think>c"),
        (false, "<think>\nplan\n</think>\n\nAnswer", "plan", "Answer"),
        (false, "\n<think>plan</think>Answer", "plan", "Answer"),
        (false, "Answer <think>x</think>", "", "Answer <think>x</think>"),
        (false, "<thin", "", "<thin"),
        (false, "", "", ""),
        (false, " \n", "", " \n"),
        (false, "<think>", "", ""),
        (false, "<think>\u{e9}\n<", "\u{e9}\n<", ""),
    ];
    for (inside, text, reasoning, content) in cases {
        let got = thinking(inside).parse(text);
        assert_eq!(
            (got.reasoning.as_str(), got.content.as_str()),
            (reasoning, content),
            "{inside} {text:?}"
        );
    }
}

/// P15 and its neighbours.
#[test]
fn hermes_calls() {
    let p15 = "<tool_call>\n{\"name\":\"write\",\"arguments\":{\"text\":\"use </tool_call> here \\\" ok\"}}\n</tool_call>";
    check(
        &hermes(),
        &[
            (
                p15,
                "",
                &[("write", "{\"text\":\"use </tool_call> here \\\" ok\"}")],
            ),
            (
                "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>\n",
                "Let me see.",
                &[("f", "{\"x\": 1}")],
            ),
            (
                "<tool_call>{\"name\":\"a\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"b\",\"arguments\":{\"y\":[1,\"z\"]}}</tool_call>",
                "",
                &[("a", "{}"), ("b", "{\"y\":[1,\"z\"]}")],
            ),
            // Arguments before the name; as a string; null; left out; under another key.
            (
                "<tool_call>{\"arguments\": {\"x\": 1}, \"name\": \"f\"}</tool_call>",
                "",
                &[("f", "{\"x\": 1}")],
            ),
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}</tool_call>",
                "",
                &[("f", "{\"x\": 1}")],
            ),
            (
                "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>",
                "",
                &[("f", "{}")],
            ),
            (
                "<tool_call>{\"name\": \"f\"}</tool_call> done",
                "done",
                &[("f", "{}")],
            ),
            (
                "<tool_call>{\"name\": \"f\", \"parameters\": {\"x\": 1}, \"id\": 3}</tool_call>",
                "",
                &[("f", "{\"x\": 1}")],
            ),
            // No closing tag, and the next call.
            (
                "<tool_call>{\"name\":\"a\",\"arguments\":{}}\n<tool_call>{\"name\":\"b\",\"arguments\":{}}",
                "",
                &[("a", "{}"), ("b", "{}")],
            ),
            ("<tool_call>{\"name\":\"a\",\"arguments\":{}}", "", &[("a", "{}")]),
            // Not a call.
            (
                "<tool_call>no JSON</tool_call> x",
                "<tool_call>no JSON</tool_call> x",
                &[],
            ),
            (
                "<tool_call>{\"arguments\": {}}</tool_call>",
                "<tool_call>{\"arguments\": {}}</tool_call>",
                &[],
            ),
            (
                "<tool_call>{\"name\": 5}</tool_call>",
                "<tool_call>{\"name\": 5}</tool_call>",
                &[],
            ),
            ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", &[]),
            ("a <tool_call", "a <tool_call", &[]),
            ("<tool_call>", "<tool_call>", &[]),
            ("<tool_call>{\"na", "<tool_call>{\"na", &[]),
            ("x </tool_call> y", "x </tool_call> y", &[]),
            // A bad one, then a good one.
            (
                "<tool_call>{bad}</tool_call> <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
                "<tool_call>{bad}</tool_call>",
                &[("f", "{}")],
            ),
            (
                "<tool_call><tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>",
                "<tool_call>",
                &[("f", "{}")],
            ),
            // Cut off: closed.
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"ab",
                "",
                &[("f", "{\"x\":\"ab\"}")],
            ),
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":[1,2",
                "",
                &[("f", "{\"x\":[1]}")],
            ),
            ("<tool_call>{\"name\":\"f\",\"argu", "", &[("f", "{}")]),
            ("<tool_call>{\"name\":\"f\",\"arguments\":", "", &[("f", "{}")]),
            // Wrong inside the arguments: closed, the rest of the call dropped.
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":'y'}}</tool_call> z",
                "z",
                &[("f", "{}")],
            ),
            // A raw line break in a string, which JSON does not allow.
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{\"x\":\"a\nb\"}}</tool_call>",
                "",
                &[("f", "{\"x\":\"a\\u000ab\"}")],
            ),
            ("plain text \n", "plain text \n", &[]),
            ("", "", &[]),
        ],
    );
}

fn p16_tools() -> Value {
    json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {
        "code": {"type": "string"}, "flag": {"type": "string"}, "n": {"type": "number"},
        "opt": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "o": {"type": "object"},
    }}}}])
}

/// P16.
#[test]
fn qwen3_coder_types() {
    let text = "<tool_call>\n<function=f>\n<parameter=code>00123</parameter>\n<parameter=flag>true</parameter>\n<parameter=n>4.0</parameter>\n<parameter=opt>null</parameter>\n<parameter=o>{\"k\":[1,null,false]}</parameter>\n</function>\n</tool_call>";
    let typed = r#"{"code": "00123", "flag": "true", "n": 4.0, "opt": null, "o": {"k":[1,null,false]}}"#;
    check(&coder(Some(p16_tools())), &[(text, "", &[("f", typed)])]);
    let strings =
        r#"{"code": "00123", "flag": "true", "n": "4.0", "opt": "null", "o": "{\"k\":[1,null,false]}"}"#;
    check(&coder(None), &[(text, "", &[("f", strings)])]);
    let other = json!([{"type": "function", "function": {"name": "g"}}]);
    check(&coder(Some(other)), &[(text, "", &[("f", strings)])]);
}

/// P17 and its neighbours.
#[test]
fn qwen3_coder_faults() {
    let good = "<tool_call>\n<function=g>\n</function>\n</tool_call>";
    check(
        &coder(Some(p16_tools())),
        &[
            // (a) a parameter without its end
            (
                "<tool_call>\n<function=f>\n<parameter=code>1\n<parameter=flag>true</parameter>\n</function>\n</tool_call>",
                "",
                &[("f", r#"{"code": "1", "flag": "true"}"#)],
            ),
            (
                "<tool_call><function=f><parameter=n>1<parameter=code>x</function></tool_call>",
                "",
                &[("f", r#"{"n": 1, "code": "x"}"#)],
            ),
            // (b) no end of the name: content; a good call after it
            (
                "<tool_call>\n<function=f\n<parameter=code>1</parameter>\n</function>\n</tool_call>",
                "<tool_call>\n<function=f\n<parameter=code>1</parameter>\n</function>\n</tool_call>",
                &[],
            ),
            (
                &format!("<function=f\nx {good}"),
                "<function=f\nx",
                &[("g", "{}")],
            ),
            ("<function=f", "<function=f", &[]),
            ("<function=>x", "<function=>x", &[]),
            // (c) cut inside a value
            (
                "<tool_call>\n<function=f>\n<parameter=code>\nab\"c",
                "",
                &[("f", r#"{"code": "ab\"c"}"#)],
            ),
            (
                "<tool_call>\n<function=f>\n<parameter=n>\n12",
                "",
                &[("f", r#"{"n": 12}"#)],
            ),
            (
                "<tool_call>\n<function=f>\n<parameter=code>x\n</param",
                "",
                &[("f", r#"{"code": "x"}"#)],
            ),
            ("<tool_call>\n<function=f>\n<parameter=co", "", &[("f", "{}")]),
            ("<tool_call>\n<function=f>", "", &[("f", "{}")]),
            ("<tool_call>\n<func", "<tool_call>\n<func", &[]),
            // (d) no opening tag
            (
                "Now: <function=f>\n<parameter=code>x</parameter>\n</function>\n</tool_call> bye",
                "Now:bye",
                &[("f", r#"{"code": "x"}"#)],
            ),
            // Line breaks: one at each end belongs to the layout, no more.
            (
                "<function=f><parameter=code>\n\n a\n\nb \n\n</parameter></function>",
                "",
                &[("f", r#"{"code": "\n a\n\nb \n"}"#)],
            ),
            // Tags that are none.
            (
                "<function=f><parameter=code>a < b </para </x> & \"q\"\t\u{e9}</parameter></function>",
                "",
                &[("f", "{\"code\": \"a < b </para </x> & \\\"q\\\"\\t\u{e9}\"}")],
            ),
            // Ends left out; several calls, in one block and in two.
            (
                "<tool_call><function=g></tool_call>\n<tool_call><function=f></function><function=g></function></tool_call>",
                "",
                &[("g", "{}"), ("f", "{}"), ("g", "{}")],
            ),
            (
                "<tool_call><function=g><tool_call><function=f></function></tool_call>",
                "",
                &[("g", "{}"), ("f", "{}")],
            ),
            ("<tool_call>what</tool_call>", "<tool_call>what</tool_call>", &[]),
            ("a < b", "a < b", &[]),
        ],
    );
}

#[test]
fn reasoning_and_calls_together() {
    let style = ParserStyle {
        reasoning: Some(ReasoningStyle::Think),
        tools: Some(ToolStyle::Hermes),
    };
    let case = Case {
        style,
        tools: None,
        inside: true,
    };
    let got = case.parse("I could <tool_call> but\n</think>\n\nOk.\n<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>");
    assert_eq!(
        got.reasoning, "I could <tool_call> but",
        "a tag in the reasoning is no call"
    );
    assert_eq!((got.content.as_str(), got.calls.len()), ("Ok.", 1));
}

#[test]
fn ids_differ() {
    let ids: std::collections::HashSet<String> = (0..1000).map(|_| call_id()).collect();
    assert_eq!(ids.len(), 1000);
}

#[test]
fn styles_by_name_and_template() {
    for row in TOOL_STYLES {
        for name in row.aliases.iter().chain([&row.name]) {
            assert!(ToolStyle::by_name(name).is_ok(), "{name}");
        }
    }
    let message = ToolStyle::by_name("nope").expect_err("unknown").to_string();
    assert!(
        message.contains("`nope`") && message.contains("hermes") && message.contains("qwen3_coder"),
        "{message}"
    );
    assert!(ReasoningStyle::by_name("deepseek_r1").is_ok() && ReasoningStyle::by_name("x").is_err());
    let cases = [
        ("{{ messages }}", None, None),
        ("<tool_call>{{ x }}</tool_call>", None, Some(ToolStyle::Hermes)),
        (
            "<tool_call><function=x><parameter=y></tool_call></think>",
            Some(ReasoningStyle::Think),
            Some(ToolStyle::Qwen3Coder),
        ),
    ];
    for (template, reasoning, tools) in cases {
        assert_eq!(
            ParserStyle::detect(template),
            ParserStyle { reasoning, tools },
            "{template}"
        );
    }
    let style = ParserStyle {
        reasoning: Some(ReasoningStyle::Think),
        tools: None,
    };
    for (prompt, inside) in [
        ("x<think>\n", true),
        ("x<think>", true),
        ("<think></think>\n\n", false),
        ("", false),
    ] {
        assert_eq!(style.starts_in_reasoning(prompt), inside, "{prompt:?}");
    }
}

/// A long value must not cost its square.
#[test]
fn long_arguments_stream() {
    let body = "x = \"a\\\\b\" < 3\n".repeat(8000);
    let mut parser = make(coder(Some(p16_tools())).style, Some(&p16_tools()), false);
    let mut message = ParsedMessage::default();
    let text = format!("<tool_call><function=f><parameter=code>{body}</parameter></function></tool_call>");
    let chars: Vec<char> = text.chars().collect();
    for piece in chars.chunks(4) {
        parser
            .push(&piece.iter().collect::<String>())
            .into_iter()
            .for_each(|e| message.add(e));
    }
    parser.finish().into_iter().for_each(|e| message.add(e));
    let arguments: Value = serde_json::from_str(&message.calls[0].arguments).expect("JSON");
    assert_eq!(arguments["code"].as_str(), body.strip_suffix('\n'));
}

proptest! {
    /// Pieces of markup in any order, cut anywhere: the same result, JSON arguments, no panic.
    #[test]
    fn cuts_do_not_matter(
        parts in proptest::collection::vec(proptest::sample::select(vec![
            "<think>", "</think>", "<tool_call>", "</tool_call>", "<function=f>", "<function=", "</function>", "<parameter=code>",
            "<parameter=n>", "</parameter>", "{", "}", "\"name\"", "\"arguments\"", ":", ",", "\"f\"", "{\"x\": [1, \"\\u00e9\"]}",
            "{\"name\":\"f\",\"arguments\":{\"a\":\"b\"}}",
            "<tool_call>{\"name\":\"f\",\"arguments\":{\"</tool_call>", "\n", " ", "text", "1", "\u{1f638}", "\\", "\"", "<", "</",
        ]), 0..14),
        cuts in proptest::collection::vec(0usize..200, 0..4),
        inside in any::<bool>(), style in 0usize..3,
    ) {
        let text = parts.concat();
        let tools = [None, Some(ToolStyle::Hermes), Some(ToolStyle::Qwen3Coder)][style];
        let case = Case { style: ParserStyle { reasoning: Some(ReasoningStyle::Think), tools }, tools: Some(p16_tools()), inside };
        let mut cuts: Vec<usize> = cuts.into_iter().map(|c| c % (text.len() + 1)).filter(|&c| text.is_char_boundary(c)).collect();
        cuts.sort_unstable();
        let borders: Vec<usize> = [0].into_iter().chain(cuts).chain([text.len()]).collect();
        let whole = case.pieces([text.as_str()]);
        prop_assert_eq!(case.pieces(borders.windows(2).map(|w| &text[w[0]..w[1]])), whole);
    }
}
