//! Chat answers and their streams.

use galvani_engine::testing::{ScriptBackend, Scripted};
use serde_json::{Value, json};

use crate::common::*;

#[tokio::test]
async fn a_whole_answer_has_openais_shape() {
    let client = Setup::text("hello there").start();
    let answer = client.chat(json!({})).await.json();
    assert!(
        answer["id"]
            .as_str()
            .is_some_and(|id| id.starts_with("chatcmpl-"))
    );
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], MODEL);
    assert_eq!(
        answer["choices"],
        json!([{
            "index": 0,
            "message": {"role": "assistant", "content": "hello there", "refusal": null},
            "logprobs": null,
            "finish_reason": "stop",
            "stop_reason": null,
        }])
    );
    let prompt = ids("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n").len();
    assert_eq!(answer["usage"]["prompt_tokens"], prompt);
    assert_eq!(answer["usage"]["completion_tokens"], ids("hello there").len() + 1);
}

#[tokio::test]
async fn a_stream_has_openais_shape() {
    let client = Setup::text("hello there").start();
    let events = client.chat(json!({"stream": true})).await.events();
    assert_eq!(
        events[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    assert!(
        events
            .iter()
            .all(|event| event["object"] == "chat.completion.chunk" && event["id"] == events[0]["id"])
    );
    let last = events.last().expect("events");
    assert_eq!(last["choices"][0]["delta"], json!({}));
    assert_eq!(last["choices"][0]["finish_reason"], "stop");
    assert_eq!(join(&events, 0)["content"], "hello there");
}

#[tokio::test]
async fn models_are_checked_by_name() {
    let client = Setup::text("ok").start();
    assert_eq!(client.chat(json!({"model": "alias"})).await.status, 200);
    let reply = client.chat(json!({"model": "other"})).await;
    assert_eq!(
        (reply.status.as_u16(), &reply.error()["code"]),
        (404, &json!("model_not_found"))
    );
}

#[tokio::test]
async fn logprobs_are_there_in_both_forms() {
    let client = Setup::text("hello there").start();
    let fields = json!({"logprobs": true, "top_logprobs": 2});
    let whole = client.chat(fields.clone()).await.json();
    let content = whole["choices"][0]["logprobs"]["content"]
        .as_array()
        .expect("entries")
        .clone();
    assert_eq!(content.len(), ids("hello there").len());
    let mut bytes: Vec<u8> = Vec::new();
    for entry in &content {
        assert!(entry["logprob"].as_f64().expect("a number") <= 0.0);
        assert_eq!(entry["top_logprobs"].as_array().map(Vec::len), Some(2));
        assert_eq!(entry["top_logprobs"][0]["token"], entry["token"]);
        bytes.extend(
            entry["bytes"]
                .as_array()
                .expect("bytes")
                .iter()
                .map(|b| b.as_u64().expect("a byte") as u8),
        );
    }
    assert_eq!(bytes, b"hello there");
    let events = client.chat(merge(fields, json!({"stream": true}))).await.events();
    let streamed: Vec<Value> = events
        .iter()
        .flat_map(|event| {
            event["choices"][0]["logprobs"]["content"]
                .as_array()
                .cloned()
                .unwrap_or_default()
        })
        .collect();
    assert_eq!(streamed, content);
    let error = client
        .refused("/v1/chat/completions", &chat_body(json!({"top_logprobs": 2})))
        .await;
    assert_eq!(error["param"], "top_logprobs");
    let error = client
        .refused(
            "/v1/chat/completions",
            &chat_body(json!({"logprobs": true, "top_logprobs": 21})),
        )
        .await;
    assert_eq!(error["param"], "top_logprobs");
}

/// Logits that depend on the history, so that seeds matter.
fn dice() -> Setup {
    Setup::backend(ScriptBackend::hash(tokenizer().vocab_size(), 7))
}

#[tokio::test]
async fn seeds_repeat_and_choices_differ() {
    let client = dice().start();
    let fields = json!({"seed": 11, "temperature": 1.5, "n": 3, "max_tokens": 12, "ignore_eos": true, "return_token_ids": true});
    let tokens = async || -> Vec<Value> {
        let answer = client.chat(fields.clone()).await.json();
        answer["choices"]
            .as_array()
            .expect("choices")
            .iter()
            .map(|c| c["token_ids"].clone())
            .collect()
    };
    let first = tokens().await;
    assert_eq!(first, tokens().await);
    assert!(first[0] != first[1] && first[1] != first[2] && first[0] != first[2]);
    let alone = client.chat(merge(fields.clone(), json!({"n": 1}))).await.json();
    assert_eq!(
        alone["choices"][0]["token_ids"], first[0],
        "the first choice has the request's own seed"
    );
    let events = client
        .chat(merge(fields.clone(), json!({"stream": true})))
        .await
        .events();
    for (index, expected) in first.iter().enumerate() {
        let streamed: Vec<Value> = events
            .iter()
            .flat_map(|event| event["choices"].as_array().expect("choices"))
            .filter(|choice| choice["index"] == index)
            .flat_map(|choice| choice["token_ids"].as_array().cloned().unwrap_or_default())
            .collect();
        assert_eq!(&Value::Array(streamed), expected);
    }
}

#[tokio::test]
async fn stops_by_token_and_the_least_count() {
    let client = Setup::text("a b c d").start();
    let stop = ids("a b c d")[1];
    let answer = client.chat(json!({"stop_token_ids": [stop]})).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "a");
    assert_eq!(answer["choices"][0]["stop_reason"], stop);
    let answer = client
        .chat(json!({"stop_token_ids": [stop], "include_stop_str_in_output": true}))
        .await
        .json();
    assert_eq!(answer["choices"][0]["message"]["content"], "a b");
    let answer = client.chat(json!({"stop": " b", "min_tokens": 3})).await.json();
    assert_eq!(answer["choices"][0]["message"]["content"], "a b c d");
    let answer = client
        .chat(json!({"ignore_eos": true, "max_tokens": 9}))
        .await
        .json();
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 9);
}

#[tokio::test]
async fn fields_with_an_inside_are_checked_inside() {
    let client = Setup::text("ok").start();
    for (fields, param) in [
        (json!({"stop": ""}), "stop"),
        (json!({"stop": [1]}), "stop"),
        (json!({"stop": vec!["x"; 17]}), "stop"),
        (json!({"stop": "x".repeat(1025)}), "stop"),
        (json!({"stop_token_ids": ["a"]}), "stop_token_ids"),
        (json!({"stop_token_ids": [512]}), "stop_token_ids"),
        (
            json!({"stream": true, "stream_options": {"include_usage": 1}}),
            "stream_options.include_usage",
        ),
        (json!({"modalities": ["audio"]}), "modalities"),
        (json!({"tools": [1]}), "tools[0].function"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "a b"}}]}),
            "tools[0].function.name",
        ),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (
            json!({"continue_final_message": true, "add_generation_prompt": true}),
            "continue_final_message",
        ),
        (json!({"functions": []}), "functions"),
        (json!({"chat_template": "x"}), "chat_template"),
        (
            json!({"response_format": {"type": "xml"}}),
            "response_format.type",
        ),
        (
            json!({"response_format": {"type": "json_schema"}}),
            "response_format.json_schema.schema",
        ),
        (json!({"prompt_logprobs": 21}), "prompt_logprobs"),
        (
            json!({"chat_template_kwargs": {"messages": 1}}),
            "chat_template_kwargs.messages",
        ),
    ] {
        let error = client.refused("/v1/chat/completions", &chat_body(fields)).await;
        assert_eq!(error["param"], param, "{error}");
    }
    client.alive().await;
}

#[tokio::test]
async fn a_message_can_be_continued() {
    let client = Setup::text("ok").start();
    let messages = json!([{"role": "user", "content": "x"}, {"role": "assistant", "content": "Once upon"}]);
    let body = json!({"messages": messages, "continue_final_message": true});
    let prompt = client.post("/apply-template", &body).await.json()["prompt"].clone();
    assert!(
        prompt.as_str().expect("text").ends_with("assistant\nOnce upon"),
        "{prompt}"
    );
}

#[tokio::test]
async fn a_step_that_fails_ends_in_an_error_and_the_next_works() {
    for stream in [false, true] {
        let nan = ScriptBackend::new(tokenizer().vocab_size(), |_| Scripted::Token(5)).nan_at(2);
        let client = Setup::backend(nan).start();
        let reply = client.chat(json!({"stream": stream, "max_tokens": 20})).await;
        if stream {
            let events = reply.events();
            let error = &events.last().expect("events")["error"];
            assert!(
                error["message"].as_str().is_some_and(|m| !m.is_empty()),
                "{events:?}"
            );
        } else {
            assert_eq!(reply.status, 500);
            assert_eq!(reply.error()["type"], "server_error");
        }
        client.alive().await;
    }
}
