//! Public bugs about numbers: P07, P08, P09.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::common::*;

#[tokio::test]
async fn p07_bias_for_no_token() {
    let client = Setup::text("ok").start();
    for (bias, shown) in [
        (json!({"99999999": 5}), "99999999"),
        (json!({"-1": 5}), "-1"),
        (json!({"1.5": 5}), "1.5"),
        (json!({"abc": 5}), "abc"),
        (json!({"512": 5}), "512"),
        (json!({"7": 1e9}), "7"),
        (json!({"7": null}), "7"),
        (json!({"7": "5"}), "7"),
        (json!({"7": 100.5}), "7"),
    ] {
        let error = client
            .refused("/v1/chat/completions", &chat_body(json!({"logit_bias": bias})))
            .await;
        assert_eq!(error["param"], "logit_bias");
        assert!(
            error["message"].as_str().expect("text").contains(shown),
            "{error}"
        );
    }
    assert_eq!(
        client
            .chat(json!({"logit_bias": {"7": -100, "511": 100}}))
            .await
            .status,
        200
    );
}

/// Raw text, as some values cannot be written by a JSON library.
async fn with(client: &Client, field: &str, value: &str) -> Reply {
    let body = format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"x\"}}],\"{field}\":{value}}}");
    client.post_bytes("/v1/chat/completions", body).await
}

#[tokio::test]
async fn p08_numbers_out_of_range() {
    let client = Setup::text("ok").start();
    for (field, values) in [
        ("temperature", &["-0.1", "2.1", "1e400", "-1e400"][..]),
        ("top_p", &["0", "1.0001", "-1"]),
        ("min_p", &["1.5", "-0.1"]),
        ("presence_penalty", &["2.1", "-2.1"]),
        ("frequency_penalty", &["2.1", "-2.1"]),
        ("repetition_penalty", &["0", "-1"]),
        ("max_tokens", &["-1", "0", "9223372036854775808"]),
        ("top_k", &["-2"]),
    ] {
        for value in values {
            let reply = with(&client, field, value).await;
            assert_eq!(
                (reply.status.as_u16(), &reply.error()["param"]),
                (400, &json!(field)),
                "{field} {value}"
            );
        }
    }
    let nan = with(&client, "temperature", "NaN").await;
    assert_eq!(
        (nan.status.as_u16(), &nan.error()["code"]),
        (400, &json!("invalid_json"))
    );
    for (field, value) in [
        ("top_k", "-1"),
        ("top_k", "0"),
        ("seed", "-9223372036854775808"),
        ("seed", "9223372036854775807"),
        ("max_tokens", "2147483648"),
        ("max_tokens", "9223372036854775807"),
    ] {
        let reply = with(&client, field, value).await;
        assert_eq!(reply.status, 200, "{field} {value}: {}", reply.text());
    }
}

/// What the case allows.
const LIMIT: Duration = Duration::from_millis(100);

#[tokio::test]
async fn p09_millions_of_answers() {
    let client = Setup::text("ok").start();
    let limits = |error: &Value| {
        error["message"]
            .as_str()
            .expect("text")
            .chars()
            .any(|c| c.is_ascii_digit())
    };
    // Best of some: what the machine does meanwhile is no fault of the server's.
    let many = json!({"prompt": vec!["a"; 200_000]}).to_string();
    let mut best = [Duration::MAX; 2];
    for _ in 0..5 {
        for value in [json!(1_000_000), json!(0), json!(-1)] {
            let start = Instant::now();
            let error = client
                .refused("/v1/chat/completions", &chat_body(json!({"n": value})))
                .await;
            best[0] = best[0].min(start.elapsed());
            assert!(error["param"] == "n" && limits(&error), "{error}");
        }
        let start = Instant::now();
        let reply = client.post_bytes("/v1/completions", many.clone()).await;
        best[1] = best[1].min(start.elapsed());
        assert_eq!(reply.error()["param"], "prompt");
        assert!(limits(&reply.error()));
    }
    assert!(best.iter().all(|time| *time < LIMIT), "{best:?}");
    let error = client
        .refused("/v1/completions", &json!({"prompt": "x", "best_of": 1_000_000}))
        .await;
    assert!(error["param"] == "best_of" && limits(&error), "{error}");
    let two = client.chat(json!({"n": 2})).await.json();
    assert_eq!(
        (&two["choices"][0]["index"], &two["choices"][1]["index"]),
        (&json!(0), &json!(1))
    );
    assert_eq!(two["choices"].as_array().map(Vec::len), Some(2));
}
