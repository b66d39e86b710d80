//! Keys, hosts, origins.

use axum::body::Body;
use axum::http::Request;
use galvani_server::{Shared, router};
use serde_json::json;

use crate::common::*;

fn get(path: &str, headers: &[(&str, &str)]) -> Request<Body> {
    let mut request = Request::get(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).expect("a request")
}

#[tokio::test]
async fn keys_open_every_path_but_health() {
    let client = Setup::text("ok")
        .server(|s| s.api_keys = vec!["key-one".into(), "key-two".into()])
        .start();
    let paths = [
        "/",
        "/v1/models",
        "/metrics",
        "/props",
        "/version",
        "/openapi.json",
        "/v1/models/test/model",
        "/nothing",
    ];
    for path in paths {
        let reply = client.send(get(path, &[("host", "localhost")])).await;
        assert_eq!(
            (reply.status.as_u16(), &reply.error()["code"]),
            (401, &json!("invalid_api_key")),
            "{path}"
        );
        for wrong in [
            "Bearer key-on",
            "Bearer key-one2",
            "Bearer ",
            "Basic a2V5LW9uZQ==",
            "key-one",
        ] {
            let reply = client
                .send(get(path, &[("host", "localhost"), ("authorization", wrong)]))
                .await;
            assert_eq!(reply.status, 401, "{path} {wrong}");
        }
        for right in [
            ("authorization", "Bearer key-one"),
            ("authorization", "bearer key-two"),
            ("x-api-key", "key-two"),
            ("authorization", "Basic dTprZXktb25l"),
        ] {
            let reply = client.send(get(path, &[("host", "localhost"), right])).await;
            let expected = if path == "/nothing" { 404 } else { 200 };
            assert_eq!(reply.status.as_u16(), expected, "{path} {right:?}");
        }
    }
    for path in ["/health", "/health/live", "/health/ready"] {
        assert_eq!(client.send(get(path, &[("host", "localhost")])).await.status, 200);
    }
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/tokenize",
        "/detokenize",
        "/apply-template",
    ] {
        assert_eq!(
            client.post(path, &chat_body(json!({}))).await.status,
            401,
            "{path}"
        );
    }
    let page = client.send(get("/", &[("host", "localhost")])).await;
    assert!(
        page.headers["www-authenticate"]
            .to_str()
            .expect("text")
            .starts_with("Basic ")
    );
}

#[tokio::test]
async fn a_server_on_loopback_answers_to_this_machines_names() {
    let client = Setup::text("ok")
        .server(|s| s.allowed_hosts = vec!["box.lan".into()])
        .start();
    for (host, status) in [
        ("localhost:1", 200),
        ("127.0.0.1", 200),
        ("[::1]:9", 200),
        ("box.lan", 200),
        ("evil.example", 403),
    ] {
        let reply = client.send(get("/v1/models", &[("host", host)])).await;
        assert_eq!(reply.status.as_u16(), status, "{host}");
    }
    assert_eq!(client.send(get("/v1/models", &[])).await.status, 403);
    // Bound to an outside address, any name may lead here.
    let setup = Setup::text("ok");
    let shared = Shared::new(setup.server.clone(), false);
    shared.set_ready(setup.runtime());
    let open = Client {
        router: router(shared.clone()),
        shared,
    };
    assert_eq!(
        open.send(get("/v1/models", &[("host", "any.example")]))
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn other_sites_pages_need_an_entry() {
    let client = Setup::text("ok")
        .server(|s| s.cors_origins = vec!["https://good.example".into()])
        .start();
    let cases = [
        (None, 200, None),
        (Some("http://localhost:8000"), 200, None),
        (Some("https://good.example"), 200, Some("https://good.example")),
        (Some("https://evil.example"), 403, None),
        (Some("https://good.example.evil"), 403, None),
        (Some("null"), 403, None),
    ];
    for (origin, status, allowed) in cases {
        let mut headers = vec![("host", "localhost:8000")];
        headers.extend(origin.map(|origin| ("origin", origin)));
        let reply = client.send(get("/v1/models", &headers)).await;
        assert_eq!(reply.status.as_u16(), status, "{origin:?}");
        let sent = reply
            .headers
            .get("access-control-allow-origin")
            .map(|v| v.to_str().expect("text"));
        assert_eq!(sent, allowed, "{origin:?}");
    }
    let preflight = |origin: &str| {
        Request::options("/v1/chat/completions")
            .header("host", "localhost:8000")
            .header("origin", origin)
            .header("access-control-request-method", "POST")
            .body(Body::empty())
            .expect("a request")
    };
    let reply = client.send(preflight("https://good.example")).await;
    assert_eq!(reply.status, 204);
    assert!(
        reply.headers["access-control-allow-headers"]
            .to_str()
            .expect("text")
            .contains("authorization")
    );
    assert_eq!(client.send(preflight("https://evil.example")).await.status, 403);
    let any = Setup::text("ok")
        .server(|s| s.cors_origins = vec!["*".into()])
        .start();
    assert_eq!(any.send(preflight("https://evil.example")).await.status, 204);
}
