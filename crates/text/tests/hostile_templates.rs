//! Templates that want much memory or time get an error, and little of either.

use std::time::{Duration, Instant};

use galvani_text::{ChatInput, ChatTemplate, HubFiles, TextError, Tokenizer};
use serde_json::{Map, Value, json};

#[path = "../../weights/tests/support/counting.rs"]
mod counting;

/// What a small request may hold while its template is parsed, probed and rendered.
const ALLOWANCE_BYTES: usize = 128 << 20;
/// What it may take, in a build without optimisation on a busy machine; most rows take a hundredth of it.
const ALLOWANCE_TIME: Duration = Duration::from_secs(10);

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

/// Templates whose cost is in what they make.
const LARGE: &[&str] = &[
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

/// Templates in which each step costs much, or more than the one before.
const SLOW: &[&str] = &[
    // Lists that double, or are copied at each step.
    "{% set x = namespace(t=[0]) %}{% for i in range(60) %}{% set x.t = x.t + x.t %}{% endfor %}{{ x.t | length }}",
    "{% set x = namespace(t=[0]) %}{% for i in range(60) %}{% set x.t = x.t * 2 %}{% endfor %}{{ x.t | length }}",
    "{% set x = namespace(t=[0]) %}{% for i in range(60) %}{% set x.t = (x.t, x.t) | chain | list %}{% endfor %}{{ x.t | length }}",
    "{% set x = namespace(t=[0]) %}{% for i in range(60) %}{% set x.t = x.t | chain(x.t) %}{% endfor %}{{ x.t | list | length }}",
    "{% macro m(t) %}{% if t | length %}{{ m(t + t) }}{% endif %}{% endmacro %}{{ m([0]) }}",
    "{% set x = namespace(t=[0]) %}{% for i in range(100000) %}{% set x.t = x.t + [0] %}{% endfor %}{{ x.t | length }}",
    // A list that holds the one before twice: small in memory, endless to walk.
    "{% set x = namespace(t=[0]) %}{% for i in range(60) %}{% set x.t = [x.t, x.t] %}{% endfor %}{{ x.t }}",
    "{% set x = namespace(t=[0]) %}{% for i in range(60) %}{% set x.t = [x.t, x.t] %}{% endfor %}{{ x.t ~ '' }}",
    "{% set x = namespace(t=[0]) %}{% for i in range(60) %}{% set x.t = {'a': x.t, 'b': x.t} %}{% endfor %}{{ x.t | string }}",
    "{% set x = namespace(t=[0], u=[0]) %}{% for i in range(60) %}{% set x.t = [x.t, x.t] %}{% set x.u = [x.u, x.u] %}{% endfor %}{{ x.t == x.u }}",
    "{% set x = namespace(t=[0], u=[0]) %}{% for i in range(60) %}{% set x.t = [x.t, x.t] %}{% set x.u = [x.u, x.u] %}{% endfor %}{{ x.t in [x.u] }}",
    "{% set x = namespace(t=[0], u=[0]) %}{% for i in range(60) %}{% set x.t = [x.t, x.t] %}{% set x.u = [x.u, x.u] %}{% endfor %}{{ x.t is eq x.u }}",
    "{% set x = namespace(t=[0], u=[0]) %}{% for i in range(60) %}{% set x.t = [x.t, x.t] %}{% set x.u = [x.u, x.u] %}{% endfor %}{{ [x.t, x.u] | unique | list | length }}",
    "{% set x = namespace(t=[0], u=[0]) %}{% for i in range(60) %}{% set x.t = [x.t, x.t] %}{% set x.u = [x.u, x.u] %}{% endfor %}{{ 0 < x.t < x.u }}",
    "{% set x = namespace(t=[0]) %}{% for i in range(60) %}{% set x.t = [x.t, x.t] %}{% endfor %}{{ {x.t: 1} }}",
    // Depth: whoever walks or drops it recurses.
    "{% set x = namespace(t=[0]) %}{% for i in range(100000) %}{% set x.t = [x.t] %}{% endfor %}{{ x.t | length }}",
    "{% set x = namespace(t=[0]) %}{% for i in range(100000) %}{% set x.t = {'a': x.t} %}{% endfor %}{{ x.t | length }}",
    "{% set x = namespace(t=[0]) %}{% for i in range(100000) %}{% set x.t = (x.t,) %}{% endfor %}{{ x.t | length }}",
    "{% set x = namespace(t=[0]) %}{% for i in range(100000) %}{% set x.t = x.t | batch(1) %}{% endfor %}{{ x.t | length }}",
    "{% set x = namespace(t=[0]) %}{% for i in range(100000) %}{% set x.t = dict(a=x.t) %}{% endfor %}{{ x.t | length }}",
    "{% set x = namespace(t=[0]) %}{% for i in range(100000) %}{% set x.t = x.t * 1 %}{% endfor %}{{ x.t | length }}",
    "{% set x = namespace() %}{% set x.t = x %}{{ x }}",
    "{% set x = namespace() %}{% set x.t = [{'a': x}] %}{{ x == x.t[0].a }}{{ x }}",
    // Long strings that are read at each step.
    "{% set s = 'x' * 9000000 %}{% set t = 'x' * 9000000 %}{% for i in range(100000) %}{% if s == t %}{% endif %}{% endfor %}",
    "{% set s = 'x' * 9000000 %}{% set t = 'x' * 9000000 %}{% for i in range(100000) %}{% if s < t < s %}{% endif %}{% endfor %}",
    "{% set s = '\u{e9}' * 9000000 %}{% for i in range(100000) %}{% if s[-1:] %}{% endif %}{% endfor %}",
    "{% set s = '\u{e9}' * 9000000 %}{% for i in range(100000) %}{% if s[8000000] %}{% endif %}{% endfor %}",
    "{% set s = '\u{e9}' * 9000000 %}{% for i in range(100000) %}{% if s[::-1000] %}{% endif %}{% endfor %}",
    "{% set s = 'x' * 9000000 %}{% for i in range(100000) %}{% if 'y' in s %}{% endif %}{% endfor %}",
    "{% set s = 'x' * 9000000 %}{% for i in range(100000) %}{% if s.count('y') %}{% endif %}{% endfor %}",
    "{% set s = 'x' * 9000000 %}{% for i in range(100000) %}{% if s is lower %}{% endif %}{% endfor %}",
    "{% set s = 'x' * 9000000 %}{% for i in range(100000) %}{% if s is eq(s ~ '') %}{% endif %}{% endfor %}",
    "{% set s = 'x' * 9000000 %}{% for i in range(100000) %}{% if {s: 1}[s] %}{% endif %}{% endfor %}",
    "{% set s = 'x' * 9000000 %}{% for i in range(100000) %}{% if 'y'.replace(s, '') %}{% endif %}{% endfor %}",
    "{% set s = 'x' * 9000000 %}{% set l = [s ~ ''] * 900 %}{% for i in range(100000) %}{% if l.count(s) %}{% endif %}{% endfor %}",
    "{% set s = 'x' * 9000000 %}{% for i in range(100000) %}{% if '%s' % s %}{% endif %}{% endfor %}",
    // One long string, many times.
    "{{ (['x' * 1000000] * 100000) | map('upper') | list | length }}",
    "{{ (['x' * 1000000] * 100000) | join | length }}",
    "{{ ''.join(['x' * 1000000] * 100000) | length }}",
    "{{ '%900000000d' % 1 }}",
];

fn check(templates: &[&str]) {
    let tokenizer = tokenizer();
    let messages =
        json!([{"role": "user", "content": "hi <|im_end|> there"}, {"role": "assistant", "content": "so"}]);
    let mut failures = Vec::new();
    for source in templates {
        let started = Instant::now();
        let (result, peak) = counting::peak_bytes(|| render(source, &tokenizer, &messages));
        if started.elapsed() > ALLOWANCE_TIME {
            failures.push(format!("{source}: {:?}", started.elapsed()));
        }
        match result {
            Ok(length) => failures.push(format!("{source}: renders {length} bytes")),
            Err(error) => {
                let message = error.to_string();
                let limit = matches!(error, TextError::TemplateLimit { .. }) && message.contains("more than");
                let refused = ["too large", "recursion limit", "cannot hold a namespace"];
                if !(limit || refused.iter().any(|words| message.contains(words))) || message.len() > 300 {
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

#[test]
fn hostile_templates_stay_small() {
    check(LARGE);
}

#[test]
fn slow_templates_stay_short() {
    check(SLOW);
}

/// A template may render far more than a model reads: finding that out costs little.
#[test]
fn long_prompts_are_tokenised_in_little_memory() {
    let tokenizer = tokenizer();
    let messages = json!([{"role": "user", "content": "hi"}]);
    let input = ChatInput {
        messages: &messages,
        tools: None,
        add_generation_prompt: true,
        continue_final: false,
        extra: Map::new(),
    };
    for (source, tokens_max, refused, limit) in [
        ("{{ x | tojson * 1000000 }}", 8192, true, 1 << 20),
        ("{{ 'some words, and more ' * 250000 }}", 8192, true, 8 << 20),
        ("{{ '<|im_end|>' * 500000 }}", 8192, true, 40 << 20),
        (
            "{{ 'some words, and more ' * 250000 }}",
            usize::MAX,
            false,
            32 << 20,
        ),
    ] {
        let template = ChatTemplate::parse(source, "long", &tokenizer).unwrap();
        let prompt = template.render(&input).unwrap();
        assert!(prompt.text().len() > 3 << 20, "{source}");
        let (result, peak) = counting::peak_bytes(|| tokenizer.encode_prompt_up_to(&prompt, tokens_max));
        match result {
            Err(TextError::TooLong { bytes, tokens, .. }) => {
                assert!(
                    refused && bytes == prompt.text().len() && tokens > tokens_max,
                    "{source}"
                );
            }
            other => assert!(!refused && other.is_ok_and(|ids| ids.len() > 1 << 20), "{source}"),
        }
        assert!(peak < limit, "{source}: {peak} bytes were held");
    }
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
        let length = result.expect("large requests have the steps for it");
        assert!(length > 300_000);
        assert!(peak < limit, "{peak} bytes were held");
    }
}
