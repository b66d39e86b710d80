//! The older completions.

use galvani_engine::testing::ScriptBackend;
use serde_json::{Value, json};

use crate::common::*;

#[tokio::test]
async fn prompts_come_in_four_forms() {
    let client = Setup::text(" one").start();
    let go = ids("go:");
    for (prompt, count) in [
        (json!("go:"), 1),
        (json!(["go:", "go:"]), 2),
        (json!(go), 1),
        (json!([go, go, go]), 3),
    ] {
        let answer = client.complete(json!({"prompt": prompt})).await.json();
        let choices = answer["choices"].as_array().expect("choices");
        assert_eq!(choices.len(), count);
        for (index, choice) in choices.iter().enumerate() {
            assert_eq!(
                (&choice["text"], &choice["index"]),
                (&json!(" one"), &json!(index))
            );
        }
        assert_eq!(answer["usage"]["prompt_tokens"], count * go.len());
    }
    for prompt in [
        json!([]),
        json!([[]]),
        json!(["a", 1]),
        json!([1, "a"]),
        json!([{}]),
        json!({}),
        json!(7),
        json!([-1]),
        json!([512]),
        json!([1.5]),
        json!([["a"]]),
    ] {
        let error = client
            .refused("/v1/completions", &json!({"prompt": prompt}))
            .await;
        assert_eq!(error["param"], "prompt", "{prompt}");
    }
    assert_eq!(
        client.refused("/v1/completions", &json!({})).await["param"],
        "prompt"
    );
    assert_eq!(
        client
            .refused("/v1/completions", &json!({"prompt": "x", "suffix": "y"}))
            .await["param"],
        "suffix"
    );
}

#[tokio::test]
async fn streams_carry_every_prompt() {
    let client = Setup::text(" one two").start();
    let events = client
        .complete(json!({"prompt": ["go:", "go:"], "n": 2, "stream": true}))
        .await
        .events();
    for index in 0..4 {
        let of = events
            .iter()
            .map(|event| &event["choices"][0])
            .filter(|choice| choice["index"] == index);
        let text: String = of
            .clone()
            .map(|choice| choice["text"].as_str().expect("text"))
            .collect();
        assert_eq!(text, " one two");
        assert_eq!(of.filter(|choice| !choice["finish_reason"].is_null()).count(), 1);
    }
}

#[tokio::test]
async fn logprobs_have_the_older_shape() {
    let client = Setup::text(" one two").start();
    let answer = client.complete(json!({"logprobs": 2, "echo": true})).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["text"], "go: one two");
    let logprobs = &choice["logprobs"];
    let all = ids("go:").len() + ids(" one two").len();
    for key in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[key].as_array().map(Vec::len), Some(all), "{key}");
    }
    assert!(
        logprobs["token_logprobs"][0].is_null(),
        "nothing comes before the first token"
    );
    assert!(logprobs["token_logprobs"][1].is_number() && logprobs["top_logprobs"][1].is_object());
    let tokens: String = logprobs["tokens"]
        .as_array()
        .expect("tokens")
        .iter()
        .map(|t| t.as_str().expect("text"))
        .collect();
    assert_eq!(tokens, "go: one two");
    let mut offset = 0;
    for (token, at) in std::iter::zip(
        logprobs["tokens"].as_array().expect("tokens"),
        logprobs["text_offset"].as_array().expect("offsets"),
    ) {
        assert_eq!(at, offset);
        offset += token.as_str().expect("text").chars().count();
    }
    // The stream's parts add up to the same.
    let events = client
        .complete(json!({"logprobs": 2, "echo": true, "stream": true}))
        .await
        .events();
    for key in ["tokens", "token_logprobs", "text_offset"] {
        let parts: Vec<Value> = events
            .iter()
            .flat_map(|event| {
                event["choices"][0]["logprobs"][key]
                    .as_array()
                    .cloned()
                    .unwrap_or_default()
            })
            .collect();
        assert_eq!(&Value::Array(parts), &logprobs[key], "{key}");
    }
    // Zero alternatives still report the token's own.
    let zero = client.complete(json!({"logprobs": 0})).await.json();
    assert!(zero["choices"][0]["logprobs"]["token_logprobs"][0].is_number());
}

#[tokio::test]
async fn echo_without_an_answer_scores_a_text() {
    let client = Setup::text(" one").start();
    let answer = client
        .complete(json!({"max_tokens": 0, "echo": true, "logprobs": 1}))
        .await
        .json();
    assert_eq!(answer["choices"][0]["text"], "go:");
    assert_eq!(
        answer["choices"][0]["logprobs"]["tokens"]
            .as_array()
            .map(Vec::len),
        Some(ids("go:").len())
    );
    assert_eq!(answer["usage"]["completion_tokens"], 0);
    assert_eq!(
        client
            .refused("/v1/completions", &json!({"prompt": "x", "max_tokens": 0}))
            .await["param"],
        "max_tokens"
    );
}

#[tokio::test]
async fn prompt_logprobs_name_each_token() {
    let client = Setup::text(" one").start();
    let answer = client.complete(json!({"prompt_logprobs": 1})).await.json();
    let list = answer["choices"][0]["prompt_logprobs"]
        .as_array()
        .expect("a list");
    let go = ids("go:");
    assert_eq!(list.len(), go.len());
    assert!(list[0].is_null());
    for (entry, id) in list.iter().zip(&go).skip(1) {
        assert!(entry[id.to_string()]["logprob"].is_number(), "{entry}");
    }
}

#[tokio::test]
async fn the_best_of_several() {
    let client = Setup::backend(ScriptBackend::hash(tokenizer().vocab_size(), 3)).start();
    let fields = json!({"temperature": 1.5, "seed": 5, "max_tokens": 6, "logprobs": 0, "ignore_eos": true});
    let mean = |choice: &Value| {
        let list = choice["logprobs"]["token_logprobs"].as_array().expect("a list");
        list.iter().map(|l| l.as_f64().expect("a number")).sum::<f64>() / list.len() as f64
    };
    let four = client
        .complete(merge(fields.clone(), json!({"n": 4})))
        .await
        .json();
    let best = client
        .complete(merge(fields.clone(), json!({"n": 1, "best_of": 4})))
        .await
        .json();
    let means: Vec<f64> = four["choices"]
        .as_array()
        .expect("choices")
        .iter()
        .map(mean)
        .collect();
    assert_eq!(best["choices"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        mean(&best["choices"][0]),
        means.iter().copied().fold(f64::MIN, f64::max)
    );
    assert_eq!(
        best["usage"]["completion_tokens"], 24,
        "what was thrown away was made too"
    );
    for fields in [
        json!({"prompt": "x", "n": 2, "best_of": 1}),
        json!({"prompt": "x", "best_of": 2, "stream": true}),
    ] {
        assert_eq!(
            client.refused("/v1/completions", &fields).await["param"],
            "best_of"
        );
    }
}

#[tokio::test]
async fn sixteen_tokens_unless_told() {
    let client = Setup::text(&"a b ".repeat(30)).start();
    let answer = client
        .post("/v1/completions", &json!({"prompt": "go:"}))
        .await
        .json();
    assert_eq!(answer["usage"]["completion_tokens"], 16);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let cut = client
        .complete(json!({"truncate_prompt_tokens": 1, "max_tokens": 1}))
        .await
        .json();
    assert_eq!(cut["usage"]["prompt_tokens"], 1);
}
