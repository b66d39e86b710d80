use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::*;
use crate::parsers::{self, ParserStyle, ToolStyle};
use crate::{HubFiles, Special, TextError, Tokenizer};

const TINY: &[u8] = include_bytes!("../../../../goldens/text/tiny.tokenizer.json");
const BUDGET: Budget = Budget {
    time: Duration::from_secs(20),
    source_bytes: 256 << 10,
};

fn tokenizer() -> Tokenizer {
    let config = br#"{"eos_token": "<|im_end|>"}"#;
    Tokenizer::from_hub(HubFiles {
        tokenizer_json: TINY,
        tokenizer_config: Some(config),
        generation_config: None,
    })
    .expect("loads")
}

struct Setup {
    tokenizer: Tokenizer,
    factory: GrammarFactory,
}

fn setup() -> Setup {
    let tokenizer = tokenizer();
    // The model has more logits than the tokenizer has names.
    let factory = GrammarFactory::new(&tokenizer, 520).expect("builds");
    Setup { tokenizer, factory }
}

fn has(mask: &[u32], id: u32) -> bool {
    mask[id as usize / 32] >> (id % 32) & 1 == 1
}

impl Setup {
    fn compile(&self, constraint: &Constraint) -> Matcher {
        self.factory
            .compile(constraint, BUDGET)
            .unwrap_or_else(|e| panic!("{constraint:?}: {e}"))
    }

    fn mask(&self, matcher: &mut Matcher) -> Vec<u32> {
        let mut mask = vec![0; 520_usize.div_ceil(32)];
        matcher.allowed(&mut mask).expect("a mask");
        mask
    }

    /// Whether a text is allowed token by token, and may end after it.
    fn fits(&self, matcher: &mut Matcher, text: &str) -> bool {
        for id in self
            .tokenizer
            .encode(text, Special::Plain, false)
            .expect("encodes")
        {
            if !has(&self.mask(matcher), id) {
                return false;
            }
            matcher.accept(id).expect("allowed tokens are accepted");
        }
        let mask = self.mask(matcher);
        self.tokenizer.eos_ids().iter().all(|&id| has(&mask, id))
    }
}

#[test]
fn constraints_hold() {
    let setup = setup();
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"], "additionalProperties": false});
    let lark = "start: \"a\" | \"b\" NUMBER\nNUMBER: /[0-9]+/".to_owned();
    let cases: [(Constraint, &[(&str, bool)]); 6] = [
        (
            Constraint::JsonObject,
            &[
                ("{}", true),
                ("{\"a\": [1, {\"b\": null}]}", true),
                ("[]", false),
                ("{\"a\"}", false),
                ("x", false),
                ("{", false),
            ],
        ),
        (
            Constraint::JsonSchema(schema),
            &[
                ("{\"name\": \"x\", \"age\": 3}", true),
                ("{\n  \"name\": \"\u{e9}\",\n  \"age\": 3\n}", true),
                ("{\"name\": \"x\"}", false),
                ("{\"name\": 1", false),
                ("{\"age\": 1.5", false),
            ],
        ),
        (
            Constraint::Regex("red (green|blue)+".into()),
            &[
                ("red green", true),
                ("red greenblue", true),
                ("red", false),
                ("rex", false),
            ],
        ),
        (
            Constraint::Choice(vec!["yes".into(), "no (maybe) [x]*\n\u{e9}\"\\".into()]),
            &[
                ("yes", true),
                ("no (maybe) [x]*\n\u{e9}\"\\", true),
                ("ye", false),
                ("nop", false),
            ],
        ),
        (
            Constraint::Lark(lark),
            &[("a", true), ("b12", true), ("b", false), ("ab", false)],
        ),
        (
            Constraint::JsonSchema(json!(true)),
            &[("1", true), ("\"x\"", true), ("x", false)],
        ),
    ];
    for (constraint, texts) in cases {
        for (text, want) in texts {
            let mut matcher = setup.compile(&constraint);
            assert_eq!(setup.fits(&mut matcher, text), *want, "{constraint:?} {text:?}");
        }
    }
}

#[test]
fn the_end_is_an_end_token() {
    let setup = setup();
    let mut matcher = setup.compile(&Constraint::Choice(vec!["yes".into()]));
    assert!(!matcher.is_complete() && !matcher.may_end());
    assert!(setup.fits(&mut matcher, "yes"));
    let mask = setup.mask(&mut matcher);
    let allowed: Vec<u32> = (0..520).filter(|&id| has(&mask, id)).collect();
    assert_eq!(allowed, setup.tokenizer.eos_ids());
    assert!(matcher.may_end());
    matcher.accept(508).expect("an end token is taken");
    assert!(matcher.is_complete());
    let mut wrong = setup.compile(&Constraint::Choice(vec!["yes".into()]));
    assert!(wrong.accept(508).is_err(), "too early");
}

/// Control tokens and ids without names are never part of the text.
#[test]
fn no_control_tokens_inside() {
    let setup = setup();
    let mut matcher = setup.compile(&Constraint::Regex("(?s).*".into()));
    let mask = setup.mask(&mut matcher);
    for id in 0..520 {
        let end = setup.tokenizer.eos_ids().contains(&id);
        // Single bytes may or may not go on to a character.
        match setup
            .tokenizer
            .token_bytes(id)
            .filter(|_| !setup.tokenizer.is_special(id))
        {
            Some(bytes) if bytes.is_ascii() => assert!(has(&mask, id), "{id}"),
            Some(_) => {}
            None => assert_eq!(has(&mask, id), end, "{id}"),
        }
    }
}

#[test]
fn a_gate_waits_for_the_end_of_reasoning() {
    let setup = setup();
    let encode = |text: &str| {
        setup
            .tokenizer
            .encode(text, Special::Plain, false)
            .expect("encodes")
    };
    // The tag as a control token, and spelled out.
    let spelled = encode("</think>");
    for tag in [vec![510], spelled] {
        let mut matcher = setup
            .compile(&Constraint::Choice(vec!["yes".into()]))
            .after("</think>");
        for id in encode("hmm {").into_iter().chain(tag) {
            let mask = setup.mask(&mut matcher);
            assert!(has(&mask, id) && !has(&mask, 508), "anything but the end");
            assert!(!has(&mask, 515), "no id without a name");
            matcher.accept(id).expect("free");
        }
        assert!(!matcher.is_complete());
        let newline = encode("\n")[0];
        assert!(has(&setup.mask(&mut matcher), newline));
        matcher.accept(newline).expect("layout");
        assert!(setup.fits(&mut matcher, "yes"));
    }
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"$ref": "#/$defs/Days"}, "unit": {"type": "string", "enum": ["c", "f"]},
        }, "required": ["city", "days"], "additionalProperties": false, "$defs": {"Days": {"type": "integer"}}}}},
        {"type": "function", "function": {"name": "now"}},
    ])
}

/// What the grammar lets through, the parser of the same style understands.
#[test]
fn demanded_calls() {
    let setup = setup();
    let hermes = "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"city\": \"Bonn </tool_call>\", \"days\": 3}}\n</tool_call>";
    let now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let coder = "<tool_call>\n<function=get>\n<parameter=city>\nBonn < 3\n\n</parameter>\n<parameter=days>\n3\n</parameter>\n<parameter=unit>\nc\n</parameter>\n</function>\n</tool_call>";
    let cases: [(ToolStyle, ToolChoice, bool, &str, bool); 11] = [
        (ToolStyle::Hermes, ToolChoice::Required, false, hermes, true),
        (ToolStyle::Hermes, ToolChoice::Required, false, now, true),
        (ToolStyle::Hermes, ToolChoice::Named("get"), false, hermes, true),
        (ToolStyle::Hermes, ToolChoice::Named("get"), false, now, false),
        (
            ToolStyle::Hermes,
            ToolChoice::Required,
            true,
            &format!("{now}\n{hermes}"),
            true,
        ),
        (
            ToolStyle::Hermes,
            ToolChoice::Required,
            false,
            &format!("{now}\n{hermes}"),
            false,
        ),
        (ToolStyle::Hermes, ToolChoice::Required, false, "Sure", false),
        (ToolStyle::Qwen3Coder, ToolChoice::Required, false, coder, true),
        (
            ToolStyle::Qwen3Coder,
            ToolChoice::Named("get"),
            false,
            coder,
            true,
        ),
        (
            ToolStyle::Qwen3Coder,
            ToolChoice::Named("get"),
            false,
            "<tool_call>\n<function=get>\n<parameter=city>\nBonn\n</parameter>\n</function>",
            false,
        ),
        (
            ToolStyle::Qwen3Coder,
            ToolChoice::Named("now"),
            false,
            "<tool_call>\n<function=now>\n</function>\n</tool_call>",
            true,
        ),
    ];
    for (style, choice, parallel, text, want) in cases {
        let constraint = tool_call_constraint(style, &tools(), choice, parallel).expect("builds");
        let mut matcher = setup.compile(&constraint);
        assert_eq!(
            setup.fits(&mut matcher, text),
            want,
            "{style:?} {choice:?} {text}"
        );
        if want {
            let style = ParserStyle {
                reasoning: None,
                tools: Some(style),
            };
            let message = parsers::parse_whole(parsers::make(style, Some(&tools()), false).as_mut(), text);
            assert!(
                message.content.is_empty() && !message.calls.is_empty(),
                "{message:?}"
            );
            for call in message.calls {
                assert!(
                    serde_json::from_str::<Value>(&call.arguments).is_ok_and(|v| v.is_object()),
                    "{}",
                    call.arguments
                );
            }
        }
    }
    let field =
        |result: Result<Constraint, TextError>| result.expect_err("refused").field().map(str::to_owned);
    assert_eq!(
        field(tool_call_constraint(
            ToolStyle::Hermes,
            &tools(),
            ToolChoice::Named("x"),
            false
        ))
        .as_deref(),
        Some("tool_choice.function.name")
    );
    assert_eq!(
        field(tool_call_constraint(
            ToolStyle::Hermes,
            &json!([]),
            ToolChoice::Required,
            false
        ))
        .as_deref(),
        Some("tools")
    );
    assert_eq!(
        field(tool_call_constraint(
            ToolStyle::Hermes,
            &json!([{"function": {}}]),
            ToolChoice::Required,
            false
        ))
        .as_deref(),
        Some("tools[0].function.name")
    );
}

/// Hostile constraints end soon, one way or the other.
#[test]
fn hostile_constraints() {
    let setup = setup();
    let nested = |n: usize| {
        (0..n).fold(
            json!({"type": "string"}),
            |inner, _| json!({"type": "array", "items": inner}),
        )
    };
    let wide: Vec<Value> = (0..5000).map(|i| json!({"const": format!("{i:020}")})).collect();
    let cases = [
        Constraint::JsonSchema(nested(100)),
        Constraint::JsonSchema(json!({"$ref": "#"})),
        Constraint::JsonSchema(
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}}}),
        ),
        Constraint::JsonSchema(json!({"allOf": vec![json!({"anyOf": wide}); 8]})),
        Constraint::JsonSchema(json!({"type": "string", "pattern": "(a{1,1000}){1,1000}"})),
        Constraint::JsonSchema(json!({"type": "string", "minLength": 4_000_000_000_u64})),
        Constraint::JsonSchema(
            json!({"type": "array", "minItems": 1_000_000_000, "items": {"type": "integer"}}),
        ),
        Constraint::JsonSchema(json!({"type": "nothing"})),
        Constraint::JsonSchema(json!([1])),
        Constraint::JsonSchema(json!({"$ref": "http://127.0.0.1/x"})),
        Constraint::Regex("(a*)*b".into()),
        Constraint::Regex("((((a{1,100}){1,100}){1,100}){1,100}){1,100}".into()),
        Constraint::Regex("(.*a){20}.{20}".into()),
        Constraint::Regex("(?=x)y".into()),
        Constraint::Regex("(".into()),
        Constraint::Regex("(".repeat(100_000)),
        Constraint::Regex("a".repeat(300 << 10)),
        Constraint::Choice(vec![]),
        Constraint::Choice(vec![String::new()]),
        Constraint::Choice((0..20_000).map(|i| format!("choice {i}")).collect()),
        Constraint::Lark("start: start start".into()),
        Constraint::Lark("start: nothing".into()),
        Constraint::Lark("not a grammar".into()),
        Constraint::Lark(format!("start: {}\"a\"{}", "(".repeat(5000), ")".repeat(5000))),
        Constraint::Lark(
            "start: a a a a a a a a\na: b b b b b b b b\nb: c c c c c c c c\nc: /a*/ /a*/ /a*/".into(),
        ),
    ];
    for constraint in cases {
        let started = Instant::now();
        let outcome = setup.factory.compile(&constraint, Budget::SERVING);
        let name: String = format!("{constraint:?}").chars().take(80).collect();
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "{name}: {:?}",
            started.elapsed()
        );
        match outcome {
            Err(error) => assert!(
                error.is_request_fault() && error.to_string().len() < 700,
                "{name}: {error}"
            ),
            Ok(mut matcher) => {
                // Some steps: each ends, with a mask or an error.
                for _ in 0..20 {
                    let mut mask = vec![0; 17];
                    if matcher.allowed(&mut mask).is_err() || matcher.is_complete() {
                        break;
                    }
                    let Some(id) = (0..512)
                        .rev()
                        .find(|&id| has(&mask, id) && !setup.tokenizer.is_special(id))
                    else {
                        break;
                    };
                    if matcher.accept(id).is_err() {
                        break;
                    }
                }
            }
        }
        assert!(
            started.elapsed() < Duration::from_secs(20),
            "{name}: {:?}",
            started.elapsed()
        );
    }
}

#[test]
fn a_vocabulary_without_an_end_is_refused() {
    let mut file: Value = serde_json::from_slice(TINY).expect("JSON");
    file["added_tokens"] = json!([]);
    let bytes = serde_json::to_vec(&file).expect("JSON");
    let files = HubFiles {
        tokenizer_json: &bytes,
        tokenizer_config: None,
        generation_config: None,
    };
    let tokenizer = Tokenizer::from_hub(files).expect("loads");
    let message = GrammarFactory::new(&tokenizer, 512)
        .err()
        .map(|e| e.to_string())
        .unwrap_or_default();
    assert!(message.contains("end token"), "{message}");
}

/// The engine's thread takes matchers; requests share the rest.
#[test]
fn crosses_threads() {
    fn send<T: Send>() {}
    fn sync<T: Send + Sync>() {}
    send::<Matcher>();
    sync::<GrammarFactory>();
    sync::<Tokenizer>();
    sync::<crate::ChatTemplate>();
    send::<Box<dyn parsers::OutputParser>>();
}
