//! Templates that want much memory get an error, and little memory.

use galvani_text::{ChatInput, ChatTemplate, HubFiles, TextError, Tokenizer};
use serde_json::{Map, Value, json};

#[path = "../../weights/tests/support/counting.rs"]
mod counting;

/// What a small request may hold while its template is parsed, probed and rendered.
const ALLOWANCE_BYTES: usize = 128 << 20;

fn tokenizer() -> Tokenizer {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../goldens/tiny/llama/");
    let [json, config] = ["tokenizer.json", "tokenizer_config.json"]
        .map(|name| std::fs::read(format!("{folder}{name}")).unwrap());
    Tokenizer::from_hub(HubFiles {
        tokenizer_json: &json,
        tokenizer_config: Some(&config),
        generation_config: None,
    })
    .unwrap()
}

fn render(source: &str, tokenizer: &Tokenizer, messages: &Value) -> Result<usize, TextError> {
    let template = ChatTemplate::parse(source, "hostile", tokenizer)?;
    let prompt = template.render(&ChatInput {
        messages,
        tools: None,
        add_generation_prompt: true,
        continue_final: false,
        extra: Map::new(),
    })?;
    Ok(prompt.text().len())
}

#[test]
fn hostile_templates_stay_small() {
    let hostile = [
        "{{ 'x' * 99000000 }}",
        "{{ 'x' * 9000000000 }}",
        "{{ x | tojson * 9000000 }}",
        "{{ messages * 1000000 }}",
        "{{ (messages * 1000000) | tojson }}",
        "{{ (messages * 1000000) | tojson(indent=64) }}",
        "{{ ([0] * 90000000) | tojson }}",
        "{{ ([{'': 0}] * 90000000) | tojson(sort_keys=true) }}",
        "{{ ([0] * 200000) | tojson(separators=['x' * 1000000, ':']) }}",
        "{{ ([0] * 200000) | tojson(indent='x' * 1000000) }}",
        "{{ ([messages] * 90000000) | join('x') }}",
        "{{ ([messages] * 90000000) | list | length }}",
        "{% set x = namespace(t='x') %}{% for i in range(40) %}{% set x.t = x.t ~ x.t %}{% endfor %}{{ x.t }}",
        "{% set x = namespace(t='x') %}{% for i in range(40) %}{% set x.t = x.t + x.t %}{% endfor %}{{ x.t | length }}",
        "{% set x = namespace(t='xx') %}{% for i in range(40) %}{% set x.t = x.t | replace('x', x.t) %}{% endfor %}{{ x.t }}",
        "{% set x = namespace(t='xx') %}{% for i in range(40) %}{% set x.t = x.t.replace('x', x.t) %}{% endfor %}{{ x.t }}",
        "{% set x = namespace(t='xx') %}{% for i in range(40) %}{% set x.t = x.t.join(x.t) %}{% endfor %}{{ x.t }}",
        "{% set x = namespace(t='x') %}{% for i in range(40) %}{% set x.t %}{{ x.t }}{{ x.t }}{% endset %}{% endfor %}{{ x.t }}",
        "{% macro m(t) %}{{ t }}{{ t }}{% endmacro %}{% set x = namespace(t='x') %}{% for i in range(40) %}{% set x.t = m(x.t) %}{% endfor %}{{ x.t }}",
        "{{ '%900000000d' | format(1) }}",
        "{{ 'a\nb' | indent(900000000) }}",
        "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% for i in range(100000) %}{% for m in messages %}{{ m }}{% endfor %}{% endfor %}",
    ];
    let tokenizer = tokenizer();
    let messages =
        json!([{"role": "user", "content": "hi <|im_end|> there"}, {"role": "assistant", "content": "so"}]);
    let mut failures = Vec::new();
    for source in hostile {
        let (result, peak) = counting::peak_bytes(|| render(source, &tokenizer, &messages));
        match result {
            Ok(length) => failures.push(format!("{source}: renders {length} bytes")),
            Err(error) => {
                let message = error.to_string();
                let limit = matches!(error, TextError::TemplateLimit { .. }) && message.contains("more than");
                if !(limit || message.contains("too large")) || message.len() > 300 {
                    failures.push(format!("{source}: the message is: {message}"));
                }
            }
        }
        if peak > ALLOWANCE_BYTES {
            failures.push(format!("{source}: {peak} bytes were held"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The limits grow with the request: long and many messages render, in a few times their own size.
#[test]
fn large_requests_render() {
    let tokenizer = tokenizer();
    let source = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content | trim) + '<|im_end|>' }}{% endfor %}{{ messages | tojson }}";
    let long = json!([{"role": "user", "content": "word ".repeat(1_000_000)}]);
    let many: Value = (0..10_000)
        .map(|i| json!({"role": "user", "content": format!("message {i}")}))
        .collect();
    for (messages, limit) in [(&long, 200 << 20), (&many, 100 << 20)] {
        let (result, peak) = counting::peak_bytes(|| render(source, &tokenizer, messages));
        assert!(result.is_ok_and(|length| length > 300_000));
        assert!(peak < limit, "{peak} bytes were held");
    }
}
