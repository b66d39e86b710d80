mod quoting;
mod sources;

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::*;
use crate::HubFiles;
use sources::{ALTERNATING, CHATML, DUMPED, ITEMS, PARTS, THINKING};

const TINY: &[u8] = include_bytes!("../../../../../goldens/text/tiny.tokenizer.json");

fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
        let config = br#"{"bos_token": "<|endoftext|>", "eos_token": "<|im_end|>"}"#;
        let files = HubFiles {
            tokenizer_json: TINY,
            tokenizer_config: Some(config),
            generation_config: None,
        };
        Tokenizer::from_hub(files).expect("loads")
    });
    &TOKENIZER
}

fn template(source: &str) -> ChatTemplate {
    ChatTemplate::parse(source, "test", tokenizer()).expect("parses")
}

fn input(messages: &Value) -> ChatInput<'_> {
    ChatInput {
        messages,
        tools: None,
        add_generation_prompt: true,
        continue_final: false,
        extra: Map::new(),
    }
}

fn render(source: &str, messages: Value) -> Result<String, TextError> {
    template(source)
        .render(&input(&messages))
        .map(|p| p.text().to_owned())
}

fn call(arguments: Value) -> Value {
    json!([
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ])
}

#[test]
fn wants() {
    let cases = [
        (
            "chatml",
            CHATML,
            Wants {
                arguments_mapping: false,
                content_parts: false,
                tools: false,
            },
        ),
        (
            "thinking",
            THINKING,
            Wants {
                arguments_mapping: false,
                content_parts: false,
                tools: true,
            },
        ),
        (
            "items",
            ITEMS,
            Wants {
                arguments_mapping: true,
                content_parts: false,
                tools: false,
            },
        ),
        (
            "dumped",
            DUMPED,
            Wants {
                arguments_mapping: true,
                content_parts: false,
                tools: true,
            },
        ),
        (
            "alternating",
            ALTERNATING,
            Wants {
                arguments_mapping: false,
                content_parts: false,
                tools: false,
            },
        ),
        (
            "parts",
            PARTS,
            Wants {
                arguments_mapping: false,
                content_parts: true,
                tools: false,
            },
        ),
    ];
    for (name, source, want) in cases {
        assert_eq!(template(source).wants(true), want, "{name}");
    }
}

#[test]
fn renders_as_the_hub_does() {
    let hi = json!([{"role": "user", "content": "Hi"}]);
    let cases = [
        (
            CHATML,
            hi.clone(),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            THINKING,
            hi.clone(),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            ALTERNATING,
            json!([{"role": "user", "content": " Hi "}, {"role": "assistant", "content": "Yo"}]),
            "<|endoftext|><|im_start|>user\nHi<|im_end|>\n<|im_start|>model\nYo<|im_end|>\n<|im_start|>model\n",
        ),
        (PARTS, hi, "user:Hi"),
        (
            THINKING,
            json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"}, {"role": "user", "content": "c"}]),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            THINKING,
            json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb"}]),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nb<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            THINKING,
            json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning": "hm"}]),
            "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nb<|im_end|>\n<|im_start|>assistant\n",
        ),
    ];
    for (source, messages, want) in cases {
        assert_eq!(
            render(source, messages.clone()).expect("renders"),
            want,
            "{messages}"
        );
    }
}

#[test]
fn variables_of_the_request() {
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let template = template(THINKING);
    let mut input = input(&messages);
    input.extra.insert("enable_thinking".into(), json!(false));
    assert!(
        template
            .render(&input)
            .expect("renders")
            .text()
            .ends_with("<think>\n\n</think>\n\n")
    );
    for key in ["messages", "bos_token", "tools"] {
        let mut input = input.clone();
        input.extra.insert(key.into(), json!(1));
        assert_eq!(
            template.render(&input).expect_err("refused").field(),
            Some(&*format!("chat_template_kwargs.{key}"))
        );
    }
    let no = ChatInput {
        add_generation_prompt: false,
        ..input
    };
    assert!(
        template
            .render(&no)
            .expect("renders")
            .text()
            .ends_with("Hi<|im_end|>\n")
    );
}

#[test]
fn tools_are_printed_as_python_prints_json() {
    let tools = json!([{"type": "function", "function": {"name": "f", "description": "<b> & 'q' \u{e9}", "parameters": {"type": "object", "properties": {}}}}]);
    let messages = json!([{"role": "user", "content": "Hi"}]);
    let input = ChatInput {
        tools: Some(&tools),
        ..input(&messages)
    };
    let text = template(THINKING)
        .render(&input)
        .expect("renders")
        .text()
        .to_owned();
    let line = "\n{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": \"<b> & 'q' \u{e9}\", \"parameters\": {\"type\": \"object\", \"properties\": {}}}}\n";
    assert!(text.contains(line), "{text}");
    let text = template(DUMPED)
        .render(&input)
        .expect("renders")
        .text()
        .to_owned();
    assert!(
        text.contains("{\n    \"type\": \"function\",\n    \"function\": {\n        \"name\": \"f\","),
        "{text}"
    );
    for none in [json!(null), json!([])] {
        let input = ChatInput {
            tools: Some(&none),
            ..input.clone()
        };
        assert!(
            !template(THINKING)
                .render(&input)
                .expect("renders")
                .text()
                .contains("Tools")
        );
    }
}

/// P03 and P04.
#[test]
fn empty_content() {
    for source in [THINKING, ITEMS, DUMPED] {
        let mut without = call(json!("{\"x\":1}"));
        without[1].as_object_mut().expect("an object").remove("content");
        for messages in [call(json!("{\"x\":1}")), without] {
            let text = render(source, messages).expect("renders").to_lowercase();
            assert!(!text.contains("none") && !text.contains("null"), "{text}");
            assert!(
                text.contains('x') && text.contains('f') && text.contains('2'),
                "{text}"
            );
        }
    }
    for source in [CHATML, THINKING, ITEMS, DUMPED, ALTERNATING, PARTS] {
        let messages = json!([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""}, {"role": "user", "content": "Go on"}]);
        assert!(render(source, messages).expect("renders").contains("Go on"));
    }
}

/// P14.
#[test]
fn arguments_in_the_history() {
    let cases = [
        (json!("{\"a\":3,\"b\":\"x\"}"), Ok("<call f>[a=3][b=x]</call>")),
        (json!({"a": 3, "b": "x"}), Ok("<call f>[a=3][b=x]</call>")),
        (json!(""), Ok("<call f></call>")),
        (json!("{}"), Ok("<call f></call>")),
        (json!("null"), Ok("<call f></call>")),
        (json!(null), Ok("<call f></call>")),
        (json!("[1]"), Err("an array")),
        (json!("not json"), Err("not JSON")),
        (json!(5), Err("a number")),
    ];
    for (arguments, want) in cases {
        match (render(ITEMS, call(arguments.clone())), want) {
            (Ok(text), Ok(want)) => assert!(text.contains(want), "{arguments}: {text}"),
            (Err(error), Err(want)) => {
                assert_eq!(
                    error.field(),
                    Some("messages[1].tool_calls[0].function.arguments"),
                    "{arguments}"
                );
                assert!(
                    error.to_string().contains(want) && error.is_request_fault(),
                    "{error}"
                );
            }
            (got, want) => panic!("{arguments}: {got:?}, not {want:?}"),
        }
    }
    // A template that prints text gets the client's text, whatever it is.
    for text in ["{\"a\":3,   \"b\":\"x\"}", "not json", "[1]"] {
        assert!(
            render(THINKING, call(json!(text)))
                .expect("renders")
                .contains(&format!("\"arguments\": {text}}}"))
        );
    }
    // A template that dumps gets the mapping, in its order.
    let text = render(DUMPED, call(json!("{\"z\":3,\"b\":\"x<\"}"))).expect("renders");
    assert!(
        text.contains("\"parameters\": {\"z\": 3, \"b\": \"x<\"}}"),
        "{text}"
    );
}

/// P05 and P06, as far as messages go.
#[test]
fn wrong_messages_are_named() {
    let cases = [
        (json!([]), "messages"),
        (json!(null), "messages"),
        (json!("x"), "messages"),
        (json!({"messages": []}), "messages"),
        (json!([123]), "messages[0]"),
        (json!([{}]), "messages[0].role"),
        (json!([{"role": 5, "content": ""}]), "messages[0].role"),
        (json!([{"role": "user", "content": 5}]), "messages[0].content"),
        (
            json!([{"role": "user", "content": [{"type": "image_url"}]}]),
            "messages[0].content[0].type",
        ),
        (
            json!([{"role": "user", "content": [{"text": "x"}]}]),
            "messages[0].content[0].type",
        ),
        (
            json!([{"role": "user", "content": [{"type": "text"}]}]),
            "messages[0].content[0].text",
        ),
        (
            json!([{"role": "assistant", "tool_calls": 5}]),
            "messages[0].tool_calls",
        ),
        (
            json!([{"role": "assistant", "tool_calls": [5]}]),
            "messages[0].tool_calls[0].function",
        ),
        (
            json!([{"role": "assistant", "tool_calls": [{"function": {}}]}]),
            "messages[0].tool_calls[0].function.name",
        ),
    ];
    for (messages, field) in cases {
        let error = render(CHATML, messages.clone()).expect_err("refused");
        assert_eq!(error.field(), Some(field), "{messages}");
        assert!(error.is_request_fault());
    }
    let bad = json!(5);
    let messages = json!([{"role": "user", "content": "x"}]);
    let error = template(CHATML)
        .render(&ChatInput {
            tools: Some(&bad),
            ..input(&messages)
        })
        .expect_err("refused");
    assert_eq!(error.field(), Some("tools"));
}

#[test]
fn parts_and_roles() {
    let parts = json!([{"type": "text", "text": "a"}, "b", {"type": "text", "text": "c"}]);
    let text = render(CHATML, json!([{"role": "developer", "content": parts}])).expect("renders");
    assert!(text.contains("<|im_start|>system\na\nb\nc<|im_end|>"), "{text}");
    let text = render(
        "{% for m in messages %}{{ m.role }} {% endfor %}{# knows developer #}",
        json!([{"role": "developer", "content": ""}]),
    );
    assert_eq!(text.expect("renders"), "developer ");
}

#[test]
fn the_templates_refusal_is_the_clients_fault() {
    let error = render(ALTERNATING, json!([{"role": "assistant", "content": "x"}])).expect_err("refused");
    assert_eq!(
        error,
        TextError::TemplateRaised {
            message: "Conversation roles must alternate user/assistant/user/assistant/...".into()
        }
    );
    assert!(error.is_request_fault());
    let error = render(
        "a\n{{ messages[0].content.nothing.there }}",
        json!([{"role": "user", "content": "x"}]),
    )
    .expect_err("fails");
    assert!(
        matches!(error, TextError::TemplateRender { line: 2, .. }),
        "{error}"
    );
}

#[test]
fn continuing_the_last_message() {
    let template = template(CHATML);
    let messages = json!([{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, 2, "}]);
    let continued = ChatInput {
        continue_final: true,
        ..input(&messages)
    };
    let prompt = template.render(&continued).expect("renders");
    assert!(
        prompt.text().ends_with("<|im_start|>assistant\n1, 2, "),
        "{}",
        prompt.text()
    );
    for messages in [
        json!([{"role": "assistant", "content": ""}]),
        json!([{"role": "assistant"}]),
    ] {
        let continued = ChatInput {
            continue_final: true,
            ..input(&messages)
        };
        assert_eq!(
            template
                .render(&continued)
                .expect_err("nothing to continue")
                .field(),
            Some("continue_final_message")
        );
    }
}

/// Filters see a string without control texts as it is.
#[test]
fn filters_see_the_text() {
    let source = "{% for m in messages %}{{ m.content|trim }}|{{ m.content|length }}|{{ m.content.split(' ')|join('-') }}|{{ m.content[:3] }}|{{ 'a' in m.content }}|{{ m.content|upper }}{% endfor %}";
    let text = render(source, json!([{"role": "user", "content": " a<b> c "}])).expect("renders");
    assert_eq!(text, "a<b> c|8|-a<b>-c-| a<|True| A<B> C ");
}

#[test]
fn python_habits() {
    let cases = [
        (
            "{{ {'a': 1, 'b': [true, none, 'x']} }}",
            "{'a': 1, 'b': [True, None, 'x']}",
        ),
        ("{{ messages[0].items()|list|length }}", "2"),
        (
            "{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}",
            "02",
        ),
        ("{% generation %}x{% endgeneration %}", "x"),
        (
            "{{ messages[0]['content'].strip().upper().replace('X', 'y') }}",
            "y",
        ),
        (
            "{{ messages|tojson(indent=2) }}",
            "[\n  {\n    \"role\": \"user\",\n    \"content\": \" x\"\n  }\n]",
        ),
        (
            "{{ {'b': 1, 'a': '\u{e9}'}|tojson(sort_keys=true, ensure_ascii=true, separators=(',', ':')) }}",
            "{\"a\":\"\\u00e9\",\"b\":1}",
        ),
        ("{{ messages[-1].role }}{{ messages[1:]|length }}", "user0"),
        ("{%- macro f(x) -%}<{{ x }}>{%- endmacro -%}{{ f(1) }}", "<1>"),
        (
            "{% if x is defined %}no{% endif %}{{ documents is none }}\n",
            "True",
        ),
        ("  {% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        (
            "{{ none is iterable }}{{ [] is iterable }}{{ 'x' is iterable }}{{ nothing|length }}",
            "FalseTrueTrue0",
        ),
        ("{{ '%s: %d' | format('a', 3) }}", "a: 3"),
        (
            "{{ '%s' % messages[0].role }}{{ '<%s>' % 'x' ~ 'y' }}",
            "user<x>y",
        ),
        (
            "{{ '%d%% of %s, %r, %5.2f' % (7, 'a', 'b', 2.5) }}",
            "7% of a, 'b',  2.50",
        ),
        (
            "{{ 7 % 4 }}{{ -1 % 3 }}{{ 7.5 % 2 }}{{ loop is defined }}",
            "321.5False",
        ),
        (
            "{% if 0 < 1 < 2 %}a{% endif %}{% if 0 < 3 < 2 %}b{% endif %}",
            "a",
        ),
        (
            "{%- for m in messages recursive %}{{ loop.depth }}{% if loop.depth < 3 %}{{ loop(messages) }}{% endif %}{% endfor %}",
            "123",
        ),
        (
            "{{ (messages + [{'role': 'x'}] + (messages * 2)) | length }}{{ range(3)[1:] }}",
            "4[1, 2]",
        ),
        (
            "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
            "1",
        ),
    ];
    for (source, want) in cases {
        assert_eq!(
            render(source, json!([{"role": "user", "content": " x"}])).expect(source),
            want,
            "{source}"
        );
    }
}

#[test]
fn limits() {
    let messages = json!([{"role": "user", "content": "x"}]);
    let endless =
        "{% for a in range(10000) %}{% for b in range(10000) %}{% set x = a * b %}{% endfor %}{% endfor %}";
    let started = std::time::Instant::now();
    let error = render(endless, messages.clone()).expect_err("out of steps");
    assert!(
        matches!(error, TextError::TemplateLimit { unit, .. } if unit.starts_with("steps")),
        "{error}"
    );
    assert!(started.elapsed().as_secs() < 20);
    let deep = "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}";
    assert!(render(deep, messages.clone()).is_err());
    let nested = format!("{}{}", "{% if true %}".repeat(5000), "{% endif %}".repeat(5000));
    assert!(ChatTemplate::parse(&nested, "deep", tokenizer()).is_err() || render(&nested, messages).is_ok());
}

/// P25 (c) and (e).
#[test]
fn where_templates_come_from() {
    let named = br#"{"chat_template": [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools {{ tools|length }}"}]}"#;
    let list = templates_from_tokenizer_config(named).expect("parses");
    let template = ChatTemplate::parse_named(&list, "tokenizer_config.json", tokenizer()).expect("parses");
    let (messages, tools) = (
        json!([{"role": "user", "content": "x"}]),
        json!([{"type": "function", "function": {"name": "f"}}]),
    );
    assert_eq!(
        template.render(&input(&messages)).expect("renders").text(),
        "plain"
    );
    assert_eq!(
        template
            .render(&ChatInput {
                tools: Some(&tools),
                ..input(&messages)
            })
            .expect("renders")
            .text(),
        "tools 1"
    );
    assert_eq!(
        (template.source(false), template.source(true)),
        ("plain", "tools {{ tools|length }}")
    );
    assert_eq!(template.origin(), "tokenizer_config.json");

    let one = templates_from_tokenizer_config(br#"{"chat_template": "x"}"#).expect("parses");
    assert_eq!(
        one,
        [NamedTemplate {
            name: "default".into(),
            source: "x".into()
        }]
    );
    assert!(templates_from_tokenizer_config(b"{}").expect("parses").is_empty());
    for bad in [
        &b"{"[..],
        br#"{"chat_template": 5}"#,
        br#"{"chat_template": [{"name": "a"}]}"#,
        br#"{"chat_template": [{"name": "a", "template": ""}, {"name": "a", "template": ""}]}"#,
    ] {
        assert!(templates_from_tokenizer_config(bad).is_err());
    }

    let cases = [
        ("a\nbc {% if %}", 2, 10),
        ("{{ x", 1, 4),
        ("{% for x in y %}\n\n\u{e9} {% endif %}", 3, 6),
        ("{% generation %}{{ 1 + }}", 1, 24),
    ];
    for (source, line, column) in cases {
        let error =
            ChatTemplate::parse(source, "chat_template.jinja", tokenizer()).expect_err("does not parse");
        match &error {
            TextError::TemplateSyntax {
                name,
                line: l,
                column: c,
                ..
            } => {
                assert_eq!(
                    (name.as_str(), *l, *c),
                    ("chat_template.jinja", line, column),
                    "{source:?}: {error}"
                );
            }
            other => panic!("{other}"),
        }
        assert!(!error.is_request_fault());
    }
}
