//! Chat templates: any source parses and renders within its limits, or gives words.

use galvani_text::{ChatInput, ChatTemplate, TextError};
use serde_json::{Map, json};

use super::{Target, fixtures, tiny_tokenizer};

pub const TARGET: Target = Target {
    name: "template",
    about: "chat template source: parse, probe, render, tokenise",
    run,
    seeds: || {
        let mut seeds = fixtures("", ".jinja");
        seeds.push(b"{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] | trim }}<|im_end|>{% endfor %}".to_vec());
        seeds.push(b"{%- if tools %}{{ tools | tojson(indent=2) }}{% endif %}{% set ns = namespace(x=0) %}{% macro f(a) %}{{ a }}{% endmacro %}{{ f(messages[0].content) }}{{ raise_exception('no') }}".to_vec());
        // Each is one mutation from growing without end in its own way.
        for step in [
            "x.t + x.t",
            "[x.t, x.t]",
            "x.t * 2",
            "x.t ~ x.t",
            "{'a': x.t}",
            "x.t | batch(1)",
            "'%s' % x.t",
            "x",
        ] {
            let source = format!(
                "{{% set x = namespace(t=[0], u='ab') %}}{{% for i in range(50) %}}{{% set x.t = {step} %}}{{% if x.t == x.u or x.t in [x.u] or 0 < x.u < x.t %}}{{{{ x.t[0] }}}}{{% endif %}}{{% endfor %}}{{{{ x.t | length }}}}"
            );
            seeds.push(source.into_bytes());
        }
        seeds
    },
    dictionary: &[
        b"{% for i in range(1000000000) %}",
        b"{% endfor %}",
        b"{{ messages }}",
        b"{% include 'x' %}",
        b"{{ x * 1000000 }}",
        b"{% if ",
        b"{% endif %}",
        b"{{ ",
        b" }}",
        b"| tojson",
        b"| join",
        b"| unique",
        b"| map('upper')",
        b"| sort",
        b"x.t + x.t",
        b"[x.t, x.t]",
        b"{x.t: x.u}",
        b"x.t == x.u",
        b"x.u.join(x.t)",
        b"'%r %5.2f' % (x.t, 1)",
        b"range(100000)",
        b"{% set x = x ~ x %}",
        b"loop.index0",
        b"strftime_now('%Y')",
        b"{# ",
        b" #}",
        b"[::-1]",
        b"{% generation %}",
        b"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
};

fn run(input: &[u8]) -> String {
    let source = String::from_utf8_lossy(input);
    let template = match ChatTemplate::parse(&source, "input", tiny_tokenizer()) {
        Ok(template) => template,
        Err(error) => return error.to_string(),
    };
    let messages = json!([{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi <|im_end|> there"},
        {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
            "function": {"name": "add", "arguments": "{\"a\": 1}"}}]},
        {"role": "tool", "tool_call_id": "1", "content": "2"}, {"role": "user", "content": "so?"}]);
    let tools = json!([{"type": "function", "function": {"name": "add", "description": "d", "parameters": {"type": "object"}}}]);
    let mut said = "parses".to_owned();
    for (tools, add_generation_prompt) in [(None, true), (Some(&tools), false)] {
        let result = template.render(&ChatInput {
            messages: &messages,
            tools,
            add_generation_prompt,
            continue_final: false,
            extra: Map::new(),
        });
        match result {
            Ok(prompt) => {
                let ids = tiny_tokenizer().encode_prompt_up_to(&prompt, 8192);
                said.push_str(match ids {
                    Ok(_) => ", renders",
                    Err(TextError::TooLong { .. }) => ", renders too much",
                    Err(_) => ", renders text without tokens",
                });
            }
            Err(error) => said.push_str(&error.to_string()),
        }
    }
    said
}
