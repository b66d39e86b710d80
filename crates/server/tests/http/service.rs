//! Health, models, metrics, properties, tokens, the document.

use galvani_server::{Shared, router};
use serde_json::{Value, json};

use crate::common::*;

#[tokio::test]
async fn before_the_model_is_there_requests_get_503() {
    let setup = Setup::text("ok");
    let shared = Shared::new(setup.server.clone(), true);
    let client = Client {
        router: router(shared.clone()),
        shared: shared.clone(),
    };
    shared.set_progress("loading weights: 40 %".to_owned());
    let health = client.get("/health").await;
    assert_eq!(
        (health.status.as_u16(), &health.json()["status"]),
        (503, &json!("loading"))
    );
    assert!(health.error()["message"].as_str().expect("text").contains("40 %"));
    assert_eq!(client.get("/health/live").await.status, 200);
    assert_eq!(client.get("/metrics").await.status, 200);
    for reply in [
        client.chat(json!({})).await,
        client.get("/v1/models").await,
        client.get("/props").await,
    ] {
        assert_eq!(
            (reply.status.as_u16(), &reply.error()["code"]),
            (503, &json!("model_loading"))
        );
        assert_eq!(reply.headers["retry-after"], "1");
    }
    shared.set_ready(setup.runtime());
    assert_eq!(client.get("/health/ready").await.json(), json!({"status": "ok"}));
    client.alive().await;
    shared.drain();
    let health = client.get("/health/ready").await;
    assert_eq!(
        (health.status.as_u16(), &health.json()["status"]),
        (503, &json!("draining"))
    );
    let reply = client.chat(json!({})).await;
    assert_eq!(
        (reply.status.as_u16(), &reply.error()["code"]),
        (503, &json!("shutting_down"))
    );
    assert_eq!(client.get("/health/live").await.status, 200);
    let failed = Shared::new(Setup::text("ok").server, true);
    failed.set_failed("no such file".to_owned());
    let client = Client {
        router: router(failed.clone()),
        shared: failed,
    };
    assert!(
        client.get("/health").await.error()["message"]
            .as_str()
            .expect("text")
            .contains("no such file")
    );
}

#[tokio::test]
async fn models_are_listed_with_what_routers_read() {
    let client = Setup::text("ok").start();
    let list = client.get("/v1/models").await.json();
    assert_eq!(list["object"], "list");
    let expected = json!({
        "id": MODEL, "object": "model", "created": 1, "owned_by": "galvani", "root": MODEL, "parent": null,
        "max_model_len": 256,
    });
    assert_eq!(list["data"][0], expected);
    assert_eq!(list["data"][1]["id"], "alias");
    assert_eq!(client.get("/v1/models/test/model").await.json(), expected);
    assert_eq!(
        client.get("/v1/models/other").await.error()["code"],
        "model_not_found"
    );
}

#[tokio::test]
async fn metrics_have_vllms_names() {
    let client = Setup::text("one two three").start();
    for fields in [json!({}), json!({"max_tokens": 2}), json!({"stop": "two"})] {
        assert_eq!(client.chat(fields).await.status, 200);
    }
    client.idle().await;
    let text = client.get("/metrics").await.text();
    let labels = "model_name=\"test/model\",engine=\"0\"";
    let value = |name: &str| -> f64 {
        let line = text
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("{name} in {text}"));
        line.rsplit(' ')
            .next()
            .expect("a value")
            .parse()
            .expect("a number")
    };
    for name in [
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
    ] {
        assert_eq!(value(&format!("vllm:{name}{{{labels}}}")), 0.0);
    }
    for name in [
        "prompt_tokens_total",
        "generation_tokens_total",
        "prefix_cache_queries_total",
    ] {
        assert!(value(&format!("vllm:{name}{{{labels}}}")) > 0.0, "{name}");
    }
    for name in ["num_preemptions_total", "prefix_cache_hits_total"] {
        value(&format!("vllm:{name}{{{labels}}}"));
    }
    let success = |reason: &str| {
        value(&format!(
            "vllm:request_success_total{{{labels},finished_reason=\"{reason}\"}}"
        ))
    };
    assert_eq!(
        (
            success("stop"),
            success("length"),
            success("abort"),
            success("error")
        ),
        (2.0, 1.0, 0.0, 0.0)
    );
    for name in [
        "time_to_first_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_inference_time_seconds",
        "request_prompt_tokens",
        "request_generation_tokens",
        "request_params_max_tokens",
        "request_params_n",
    ] {
        assert_eq!(value(&format!("vllm:{name}_count{{{labels}}}")), 3.0, "{name}");
        assert!(
            text.contains(&format!("vllm:{name}_bucket{{{labels},le=\"+Inf\"}} 3\n")),
            "{name}"
        );
    }
    assert!(value(&format!("vllm:inter_token_latency_seconds_count{{{labels}}}")) >= 3.0);
    assert!(text.contains(&format!(
        "vllm:cache_config_info{{{labels},block_size=\"16\",num_gpu_blocks=\"64\""
    )));
    assert!(
        text.contains("galvani:http_responses_total{endpoint=\"/v1/chat/completions\",status=\"200\"} 3\n")
    );
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        assert!(
            line.rsplit_once(' ')
                .is_some_and(|(_, v)| v.parse::<f64>().is_ok()),
            "{line}"
        );
    }
}

#[tokio::test]
async fn tokens_there_and_back() {
    let client = Setup::text("ok").start();
    let text = "A house, \u{e9}\u{1f638} <|im_start|>x";
    let told = client
        .post("/tokenize", &json!({"prompt": text, "return_token_strs": true}))
        .await
        .json();
    assert_eq!(told["tokens"], json!(ids(text)));
    assert_eq!(
        (&told["count"], &told["max_model_len"]),
        (&json!(ids(text).len()), &json!(256))
    );
    assert_eq!(told["token_strs"].as_array().map(Vec::len), Some(ids(text).len()));
    assert_eq!(
        client.post("/tokenize", &json!({"content": text})).await.json()["tokens"],
        told["tokens"]
    );
    let back = client
        .post("/detokenize", &json!({"tokens": told["tokens"]}))
        .await
        .json();
    assert_eq!((&back["prompt"], &back["content"]), (&json!(text), &json!(text)));
    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        (
            "/tokenize",
            json!({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}),
            "prompt",
        ),
        ("/detokenize", json!({}), "tokens"),
        ("/detokenize", json!({"tokens": [512]}), "tokens"),
        ("/apply-template", json!({}), "messages"),
    ] {
        assert_eq!(client.refused(path, &body).await["param"], param);
    }
}

#[tokio::test]
async fn the_rest_tells_what_is_served() {
    let client = Setup::text("ok").start();
    let props = client.get("/props").await.json();
    assert_eq!(
        (&props["model_name"], &props["chat_template"]["source"]),
        (&json!(MODEL), &json!("test template"))
    );
    assert_eq!(
        (&props["parsers"]["tools"], &props["parsers"]["reasoning"]),
        (&json!("Hermes"), &json!("Think"))
    );
    assert!(client.get("/version").await.json()["version"].is_string());
    let document = client.get("/openapi.json").await.json();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        let path = path.replace("{id}", MODEL);
        let known = match methods.get("get") {
            Some(_) => client.get(&path).await.status,
            None => client.post(&path, &json!({})).await.status,
        };
        assert!(
            known != 404 && known != 405,
            "{path} is in the document and not served"
        );
    }
    let page = client.get("/").await;
    assert!(page.text().contains("<html") && page.headers.contains_key("content-security-policy"));
    let off = Setup::text("ok").server(|server| server.page = false).start();
    assert_eq!(off.get("/").await.error()["code"], "not_found");
    assert_eq!(client.get("/nothing").await.status, 404);
    let wrong: Value = client.get("/v1/chat/completions").await.error();
    assert_eq!(wrong["code"], "method_not_allowed");
}
