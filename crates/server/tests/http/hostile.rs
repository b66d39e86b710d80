//! Bodies that nobody means well with.

use std::time::{Duration, Instant};

use axum::body::Body;
use serde_json::json;

use crate::common::*;

const PATHS: &[&str] = &[
    "/v1/chat/completions",
    "/v1/completions",
    "/tokenize",
    "/detokenize",
    "/apply-template",
];

#[tokio::test]
async fn hostile_bodies_end_in_4xx_on_every_path() {
    let client = Setup::text("ok").start();
    let deep = |open: &str, close: &str, n: usize| format!("{}1{}", open.repeat(n), close.repeat(n));
    let mut bodies: Vec<Vec<u8>> = [
        "",
        " ",
        "{",
        "}",
        "[]",
        "null",
        "1",
        "\"x\"",
        "{}x",
        "{\"messages\"",
        "{\"messages\":",
        "{'a':1}",
        "{\"a\":1,}",
        "\u{feff}{}",
        "{\"messages\":[],\"messages\":[]}",
        "{\"prompt\":\"\\ud800\"}",
        "{\"messages\":\"\\ud800\\ud800\"}",
        "{\"tokens\":[1,}",
        "{\"temperature\":1e999999}",
        "{\"n\":--1}",
        "{\"\\u0000\":",
        "{\"a\":\"\n\"}",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    bodies.push(b"{\"prompt\":\"\xff\xfe\"}".to_vec());
    bodies.push(vec![0; 1000]);
    bodies.push(deep("[", "]", 100_000).into_bytes());
    bodies.push(deep("{\"a\":", "}", 100_000).into_bytes());
    bodies.push(format!("{{\"messages\":{}}}", deep("[", "]", 1000)).into_bytes());
    bodies.push(
        format!(
            "{{{}}}",
            (0..300)
                .map(|i| format!("\"f{i}\":1"))
                .collect::<Vec<_>>()
                .join(",")
        )
        .into_bytes(),
    );
    bodies.push(format!("{{\"messages\":[{}]}}", vec!["{}"; 50_000].join(",")).into_bytes());
    bodies.push(format!("{{\"messages\":[{}1]}}", "1,".repeat(300_000)).into_bytes());
    bodies.push(format!("{{\"tokens\":[{}-1]}}", "1,".repeat(300_000)).into_bytes());
    bodies.push(
        format!(
            "{{\"logit_bias\":{{{}}}}}",
            (0..1000)
                .map(|i| format!("\"{}\":1", i + 600))
                .collect::<Vec<_>>()
                .join(",")
        )
        .into_bytes(),
    );
    for path in PATHS {
        for body in &bodies {
            let start = Instant::now();
            let reply = client.post_bytes(path, body.clone()).await;
            let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
            assert!(reply.status.is_client_error(), "{path} {shown}: {}", reply.status);
            reply.error();
            assert!(
                start.elapsed() < Duration::from_secs(2),
                "{path} {shown}: {:?}",
                start.elapsed()
            );
        }
    }
    client.alive().await;
}

#[tokio::test]
async fn bodies_are_bounded_in_size_time_and_type() {
    let client = Setup::text("ok").server(|server| {
        server.limits.body_bytes_max = 1000;
        server.limits.body_time_max = Duration::from_millis(50);
    });
    let client = client.start();
    for size in [990, 1001, 5000] {
        let body = json!({"messages": [{"role": "user", "content": "x".repeat(size - 60)}], "max_tokens": 1})
            .to_string();
        let reply = client.post_bytes("/v1/chat/completions", body.clone()).await;
        let expected = if body.len() <= 1000 { 400 } else { 413 };
        assert_eq!(
            reply.status.as_u16(),
            expected,
            "{}: {}",
            body.len(),
            reply.text()
        );
    }
    // A body that never ends.
    struct Never;
    impl http_body::Body for Never {
        type Data = bytes::Bytes;
        type Error = std::convert::Infallible;
        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<bytes::Bytes>, Self::Error>>> {
            std::task::Poll::Pending
        }
    }
    let reply = client.post_bytes("/v1/chat/completions", Body::new(Never)).await;
    assert_eq!(
        (reply.status.as_u16(), &reply.error()["code"]),
        (408, &json!("body_timeout"))
    );
    for kind in [
        None,
        Some("text/plain"),
        Some("application/x-www-form-urlencoded"),
        Some("application/jsonx"),
    ] {
        let mut request = post("/v1/chat/completions", chat_body(json!({})).to_string());
        request.headers_mut().remove("content-type");
        if let Some(kind) = kind {
            request
                .headers_mut()
                .insert("content-type", kind.parse().expect("a value"));
        }
        let reply = client.send(request).await;
        assert_eq!(reply.status, 415, "{kind:?}");
        reply.error();
    }
    let mut request = post(
        "/v1/chat/completions",
        chat_body(json!({"max_tokens": 1})).to_string(),
    );
    request.headers_mut().insert(
        "content-type",
        "Application/JSON; charset=utf-8".parse().expect("a value"),
    );
    assert_eq!(client.send(request).await.status, 200);
}

#[tokio::test]
async fn unknown_fields_are_counted_or_refused() {
    let client = Setup::text("ok").start();
    let reply = client.chat(json!({"mirostat": 2, "dry_base": 1})).await;
    assert_eq!(
        (reply.status.as_u16(), &reply.headers["x-galvani-ignored-fields"]),
        (200, &"mirostat,dry_base".parse().expect("a value"))
    );
    assert!(
        client
            .get("/metrics")
            .await
            .text()
            .contains("galvani:ignored_fields_total{field=\"mirostat\"} 1")
    );
    let strict = Setup::text("ok").server(|server| server.strict = true).start();
    let error = strict
        .refused("/v1/chat/completions", &chat_body(json!({"mirostat": 2})))
        .await;
    assert_eq!(error["param"], "mirostat");
    let nasty = client.chat(json!({"a\nb\"": 1})).await;
    assert_eq!(
        nasty.status, 200,
        "a name that is no header value is not sent back"
    );
}

/// Prompts of more tokens than a model reads are refused with both lengths, and before they are tokenised as a whole.
#[tokio::test]
async fn prompts_far_too_long_are_refused_soon() {
    let client = Setup::text("ok")
        .template(Some("{{ '<|im_start|>' }}{{ messages[0].content * 1000 }}"))
        .start();
    let long = "wxyz".repeat(1 << 20);
    let words = "some words, and more ".repeat(100_000);
    let rendered = json!([{"role": "user", "content": "wxyz".repeat(1000)}]);
    for (path, body, param, bytes) in [
        ("/v1/completions", json!({"prompt": long}), "prompt", 4 << 20),
        (
            "/v1/completions",
            json!({"prompt": ["go:", words]}),
            "prompt",
            2_100_000,
        ),
        (
            "/v1/chat/completions",
            json!({"messages": rendered, "stream": true}),
            "messages",
            4_000_012,
        ),
        ("/tokenize", json!({"prompt": words}), "prompt", 2_100_000),
        ("/tokenize", json!({"messages": rendered}), "messages", 4_000_012),
    ] {
        let started = std::time::Instant::now();
        let error = client.refused(path, &merge(json!({"model": MODEL}), body)).await;
        assert_eq!(
            (&error["code"], &error["param"]),
            (&json!("context_length_exceeded"), &json!(param)),
            "{path}: {error}"
        );
        let message = error["message"].as_str().expect("text");
        assert!(
            message.contains(&format!("{bytes} bytes")) && message.contains("256 tokens"),
            "{path}: {message}"
        );
        assert!(
            started.elapsed() < Duration::from_secs(5),
            "{path}: {:?}",
            started.elapsed()
        );
    }
    // Where the last tokens are asked for, or a text is only measured, length alone is no fault.
    let words = "some words, and more ".repeat(2000);
    let last = json!({"prompt": words, "truncate_prompt_tokens": 8, "max_tokens": 2});
    assert_eq!(client.complete(last).await.json()["usage"]["prompt_tokens"], 8);
    let told = client.post("/tokenize", &json!({"prompt": words})).await.json();
    assert!(
        told["count"].as_u64().expect("a count") > 10_000,
        "{}",
        told["count"]
    );
    client.alive_completion().await;
}
