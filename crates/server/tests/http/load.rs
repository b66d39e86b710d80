//! Too many at once, and clients that do not read.

use std::time::Duration;

use galvani_engine::testing::Scripted;
use http_body_util::BodyExt;
use serde_json::json;
use tower::ServiceExt;

use crate::common::*;

fn endless() -> Setup {
    Setup::script(|_| Scripted::Token(5)).engine(|e| {
        e.context_max = 8192;
        e.page_count = 1024;
    })
}

#[tokio::test]
async fn a_full_queue_answers_429() {
    let client = endless().slow(Duration::from_millis(1)).engine(|e| {
        e.sequences_max = 1;
        e.queue_max = 1;
    });
    let client = client.start();
    let ask = || {
        post(
            "/v1/completions",
            json!({"prompt": "x", "max_tokens": 5000, "ignore_eos": true, "stream": true}).to_string(),
        )
    };
    let mut held = Vec::new();
    for _ in 0..2 {
        let response = client.router.clone().oneshot(ask()).await.expect("infallible");
        assert_eq!(response.status(), 200);
        held.push(response);
    }
    for stream in [false, true] {
        let reply = client.complete(json!({"stream": stream})).await;
        assert_eq!(
            (reply.status.as_u16(), &reply.error()["type"]),
            (429, &json!("rate_limit_error"))
        );
        assert!(
            reply.headers["retry-after"]
                .to_str()
                .expect("text")
                .parse::<u32>()
                .is_ok()
        );
    }
    // More choices than fit beside one: those that did are taken back.
    held.pop();
    let start = std::time::Instant::now();
    while client.complete(json!({"n": 2})).await.status != 429 {
        assert!(start.elapsed() < Duration::from_secs(5), "two fit");
    }
    held.clear();
    client.idle().await;
    // More than could ever fit is no matter of time.
    let error = client
        .refused("/v1/completions", &json!({"prompt": "x", "n": 3}))
        .await;
    assert_eq!(error["param"], "n");
    assert_eq!(
        client.complete(json!({"n": 2, "max_tokens": 3})).await.status,
        200
    );
}

#[tokio::test]
async fn requests_have_a_limit_of_their_own() {
    let client = endless()
        .slow(Duration::from_millis(1))
        .server(|s| s.limits.requests_max = 1)
        .start();
    let ask = post(
        "/v1/completions",
        json!({"prompt": "x", "max_tokens": 5000, "ignore_eos": true, "stream": true}).to_string(),
    );
    let held = client.router.clone().oneshot(ask).await.expect("infallible");
    assert_eq!(client.complete(json!({"max_tokens": 1})).await.status, 429);
    assert_eq!(client.get("/health").await.status, 200);
    drop(held);
    assert_eq!(client.complete(json!({"max_tokens": 1})).await.status, 200);
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let client = endless()
        .server(|server| server.limits.stream_buffer_bytes = 4096)
        .start();
    let ask = post(
        "/v1/completions",
        json!({"prompt": "x", "max_tokens": 8000, "ignore_eos": true, "stream": true}).to_string(),
    );
    let response = client.router.clone().oneshot(ask).await.expect("infallible");
    // The engine goes on to its end or to the cut; nobody reads meanwhile.
    client.idle().await;
    let bytes = response.into_body().collect().await.expect("a body").to_bytes();
    let text = String::from_utf8(bytes.to_vec()).expect("UTF-8");
    assert!(
        text.contains("slow_client") && text.ends_with("data: [DONE]\n\n"),
        "{text:.300}"
    );
    assert!(
        client
            .get("/metrics")
            .await
            .text()
            .contains("galvani:slow_clients_cut_total 1")
    );
    client.alive_completion().await;
}

#[tokio::test]
async fn silence_is_filled_with_comments() {
    let client = endless()
        .slow(Duration::from_millis(60))
        .server(|s| s.keep_alive = Duration::from_millis(20))
        .start();
    let reply = client.complete(json!({"stream": true, "max_tokens": 2})).await;
    assert!(reply.text().contains(": keep-alive\n\n"), "{}", reply.text());
    let events = reply.events();
    assert_eq!(
        events.last().expect("events")["choices"][0]["finish_reason"],
        "length"
    );
}

#[tokio::test]
async fn many_streams_at_once_all_end_right() {
    let client = Setup::text("one two three four")
        .engine(|e| e.queue_max = 100)
        .start();
    let tasks: Vec<_> = (0..64)
        .map(|i| {
            let client = client.clone();
            tokio::spawn(async move {
                let events = client
                    .chat(json!({"stream": true, "n": 1 + i % 2}))
                    .await
                    .events();
                join(&events, 0)["content"].clone()
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(task.await.expect("no panic"), "one two three four");
    }
    client.idle().await;
}
