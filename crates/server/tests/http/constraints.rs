//! Answers held to a shape.

use std::time::Duration;

use galvani_engine::testing::ScriptBackend;
use serde_json::{Value, json};

use crate::common::*;

/// A model that says anything: only the constraint gives its text a shape.
fn babble() -> Client {
    Setup::backend(ScriptBackend::hash(tokenizer().vocab_size(), 9))
        .engine(|e| e.context_max = 512)
        .start()
}

async fn content(client: &Client, fields: Value) -> String {
    let (whole, _) = client
        .chat_both(merge(json!({"max_tokens": 400, "seed": 1}), fields))
        .await;
    assert_eq!(whole["finish_reason"], "stop", "{whole}");
    whole["message"]["content"].as_str().expect("text").to_owned()
}

#[tokio::test]
async fn every_field_that_asks_for_a_shape_gets_it() {
    let client = babble();
    let schema = json!({"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": false});
    for fields in [
        json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": true}}}),
        json!({"guided_json": schema}),
        json!({"guided_json": schema.to_string()}),
        json!({"structured_outputs": {"json": schema}}),
    ] {
        let text = content(&client, fields.clone()).await;
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{fields}: {e}: {text:?}"));
        assert!(
            value["ok"].is_boolean() && value.as_object().map(serde_json::Map::len) == Some(1),
            "{text}"
        );
    }
    for fields in [
        json!({"guided_regex": "[ab]{3}c"}),
        json!({"structured_outputs": {"regex": "[ab]{3}c"}}),
    ] {
        let text = content(&client, fields).await;
        assert!(
            text.len() == 4 && text.ends_with('c') && text[..3].chars().all(|c| "ab".contains(c)),
            "{text:?}"
        );
    }
    for fields in [
        json!({"guided_choice": ["yes", "no"]}),
        json!({"structured_outputs": {"choice": ["yes", "no"]}}),
    ] {
        let text = content(&client, fields).await;
        assert!(text == "yes" || text == "no", "{text:?}");
    }
    for fields in [
        json!({"guided_grammar": "start: \"x\" (\"y\" | \"z\")"}),
        json!({"structured_outputs": {"grammar": "start: \"x\" (\"y\" | \"z\")"}}),
    ] {
        let text = content(&client, fields).await;
        assert!(text == "xy" || text == "xz", "{text:?}");
    }
    let answer = client
        .complete(json!({"guided_choice": ["left", "right"]}))
        .await
        .json();
    assert!(["left", "right"].contains(&answer["choices"][0]["text"].as_str().expect("text")));
}

#[tokio::test]
async fn any_object_is_an_object() {
    let client = Setup::text("{\"a\": [1, \"x\"]}").start();
    let text = content(&client, json!({"response_format": {"type": "json_object"}})).await;
    assert_eq!(
        serde_json::from_str::<Value>(&text).expect("JSON"),
        json!({"a": [1, "x"]})
    );
}

#[tokio::test]
async fn reasoning_comes_before_the_shape() {
    let client = Setup::text("let me see</think>\nyes").start();
    let fields = json!({"guided_choice": ["yes", "no"], "chat_template_kwargs": {"enable_thinking": true}});
    let (whole, _) = client.chat_both(fields).await;
    assert_eq!(
        (&whole["message"]["reasoning"], &whole["message"]["content"]),
        (&json!("let me see"), &json!("yes"))
    );
}

#[tokio::test]
async fn bad_shapes_are_refused_by_field() {
    let client = babble();
    let mut deep = json!({"type": "string"});
    for _ in 0..50 {
        deep = json!({"type": "array", "items": deep});
    }
    for (fields, param) in [
        (json!({"guided_regex": "("}), "guided_regex"),
        (json!({"guided_choice": ["x".repeat(300 << 10)]}), "guided_choice"),
        (json!({"guided_grammar": "start: nothing"}), "guided_grammar"),
        (json!({"guided_json": "{"}), "guided_json"),
        (json!({"guided_json": {"type": "rubbish"}}), "guided_json"),
        (json!({"guided_choice": []}), "guided_choice"),
        (json!({"guided_choice": [1]}), "guided_choice"),
        (
            json!({"guided_regex": "a", "guided_choice": ["a"]}),
            "guided_choice",
        ),
        (
            json!({"structured_outputs": {"xml": "a"}}),
            "structured_outputs.xml",
        ),
        (
            json!({"structured_outputs": {"regex": 1}}),
            "structured_outputs.regex",
        ),
    ] {
        let error = client
            .refused(
                "/v1/chat/completions",
                &chat_body(merge(fields.clone(), json!({"max_tokens": 2}))),
            )
            .await;
        assert_eq!(error["param"], param, "{fields}: {error}");
    }
    // Whether or not these are within the budget, they end soon and nothing breaks.
    let body = chat_body(json!({"guided_regex": "(((a{1,900}){1,900}){1,900}){1,900}", "max_tokens": 2}));
    let reply = client.post("/v1/chat/completions", &body).await;
    assert!(reply.status == 200 || reply.status == 400, "{}", reply.text());
    let body = chat_body(json!({"guided_json": deep, "max_tokens": 2}));
    let reply = client.post("/v1/chat/completions", &body).await;
    assert!(reply.status == 200 || reply.status == 400, "{}", reply.text());
    client.alive().await;
}

#[tokio::test]
async fn compilations_have_a_budget() {
    let client = Setup::text("ok").server(|server| {
        server.limits.grammar_jobs_max = 0;
        server.limits.grammar_time_max = Duration::from_millis(20);
    });
    let reply = client.start().chat(json!({"guided_choice": ["ok"]})).await;
    assert_eq!(
        (reply.status.as_u16(), &reply.error()["code"]),
        (503, &json!("grammar_busy"))
    );
    assert_eq!(reply.headers["retry-after"], "1");
}

/// The same shape twice is compiled once, whoever asks, and each sequence goes its own way through it.
#[tokio::test]
async fn a_shape_is_compiled_once() {
    let client = babble();
    let count = async |name: &str| {
        let text = client.get("/metrics").await.text();
        let line = text.lines().find(|line| line.starts_with(&format!("{name}{{")));
        let value = line.and_then(|line| line.rsplit(' ').next());
        value
            .unwrap_or_else(|| panic!("no {name}"))
            .parse::<u64>()
            .expect("a number")
    };
    let hits = "galvani:constraint_cache_hits_total";
    let misses = "galvani:constraint_cache_misses_total";
    assert_eq!((count(hits).await, count(misses).await), (0, 0));
    let ask = json!({"guided_regex": "[ab]{3}c", "n": 3});
    for (asked, wanted) in [(1, (2, 1)), (2, (5, 1)), (3, (8, 1))] {
        let reply = client
            .chat(merge(json!({"max_tokens": 400, "seed": asked}), ask.clone()))
            .await;
        for choice in reply.json()["choices"].as_array().expect("choices") {
            let text = choice["message"]["content"].as_str().expect("text");
            assert!(text.len() == 4 && text.ends_with('c'), "{text:?}");
        }
        assert_eq!((count(hits).await, count(misses).await), wanted, "{asked}");
    }
    let one = count("galvani:constraint_cache_bytes").await;
    assert!(one > 0);
    // A wrong one is not kept; another kind with the same source is another constraint.
    for fields in [
        json!({"guided_regex": "("}),
        json!({"guided_choice": ["[ab]{3}c"]}),
    ] {
        client.chat(merge(json!({"max_tokens": 20}), fields)).await;
    }
    assert_eq!((count(hits).await, count(misses).await), (8, 2));
    assert!(count("galvani:constraint_cache_bytes").await > one);
}
