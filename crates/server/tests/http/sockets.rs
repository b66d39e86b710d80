//! What shows only over a real socket: the open port before the model, limits of the protocol, drain.

use std::time::{Duration, Instant};

use galvani_engine::testing::Scripted;
use galvani_server::{Server, ServerConfig, Shutdown};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::common::*;

struct Running {
    address: std::net::SocketAddr,
    shutdown: Shutdown,
    task: JoinHandle<Result<(), galvani_server::ServeError>>,
    shared: std::sync::Arc<galvani_server::Shared>,
}

async fn serve(setup: Setup, load_time: Duration) -> Running {
    let server = Server::bind(setup.server.clone()).await.expect("a free port");
    let (address, shared, shutdown) = (server.local_addr(), server.shared(), Shutdown::new());
    let load = move |progress: galvani_server::LoadProgress| {
        progress.say("loading: halfway");
        std::thread::sleep(load_time);
        Ok(setup.runtime())
    };
    let task = tokio::spawn(server.run(load, shutdown.clone()));
    Running {
        address,
        shutdown,
        task,
        shared,
    }
}

impl Running {
    async fn ready(&self) {
        let start = Instant::now();
        while !self
            .raw("GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            .await
            .starts_with("HTTP/1.1 200")
        {
            assert!(start.elapsed() < Duration::from_secs(10), "never ready");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Sends bytes, reads to the end.
    async fn raw(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = TcpStream::connect(self.address).await.expect("it listens");
        // The other side may answer and close before all is sent.
        let _ = stream.write_all(bytes.as_ref()).await;
        read_all(&mut stream).await
    }

    async fn open(&self, body: &serde_json::Value) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.expect("it listens");
        stream
            .write_all(request("/v1/completions", &body.to_string()).as_bytes())
            .await
            .expect("sent");
        stream
    }
}

async fn read_all(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    let _ = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut all))
        .await
        .expect("it ends");
    String::from_utf8_lossy(&all).into_owned()
}

fn request(path: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn endless() -> Setup {
    Setup::script(|_| Scripted::Token(5))
        .slow(Duration::from_millis(1))
        .engine(|e| {
            e.context_max = 8192;
            e.page_count = 1024;
        })
}

fn long() -> serde_json::Value {
    json!({"prompt": "x", "max_tokens": 8000, "ignore_eos": true, "stream": true})
}

#[tokio::test]
async fn the_socket_is_open_before_the_model_is_there() {
    let start = Instant::now();
    let server = serve(Setup::text("ok"), Duration::from_millis(300)).await;
    let reply = server
        .raw(request("/v1/completions", "{\"prompt\":\"go:\"}"))
        .await;
    assert!(
        start.elapsed() < Duration::from_millis(300),
        "{:?}",
        start.elapsed()
    );
    assert!(
        reply.starts_with("HTTP/1.1 503") && reply.contains("retry-after: 1"),
        "{reply}"
    );
    server.ready().await;
    let reply = server
        .raw(request("/v1/completions", "{\"prompt\":\"go:\"}"))
        .await;
    assert!(
        reply.starts_with("HTTP/1.1 200") && reply.contains("\"text\":\"ok\""),
        "{reply}"
    );
    server.shutdown.drain();
    server.task.await.expect("no panic").expect("a clean end");
}

#[tokio::test]
async fn a_model_that_does_not_load_ends_the_server() {
    let server = Server::bind(ServerConfig::loopback(0))
        .await
        .expect("a free port");
    let error = server
        .run(|_| Err("no such file".to_owned()), Shutdown::new())
        .await
        .expect_err("fails");
    assert_eq!(error.to_string(), "no such file");
    let taken = Server::bind(ServerConfig::loopback(0))
        .await
        .expect("a free port");
    let again = Server::bind(ServerConfig::loopback(taken.local_addr().port())).await;
    assert!(again.err().expect("taken").to_string().contains("--port"));
}

#[tokio::test]
async fn running_streams_finish_during_a_drain() {
    let server = serve(endless(), Duration::ZERO).await;
    server.ready().await;
    let mut body = long();
    body["max_tokens"] = json!(150);
    let mut stream = server.open(&body).await;
    let mut first = [0; 12];
    stream.read_exact(&mut first).await.expect("an answer");
    server.shutdown.drain();
    tokio::time::sleep(Duration::from_millis(30)).await;
    let health = server
        .raw("GET /health/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await;
    assert!(
        health.starts_with("HTTP/1.1 503") && health.contains("draining"),
        "{health}"
    );
    let refused = server.raw(request("/v1/completions", "{\"prompt\":\"x\"}")).await;
    assert!(
        refused.starts_with("HTTP/1.1 503") && refused.contains("shutting_down"),
        "{refused}"
    );
    let text = read_all(&mut stream).await;
    assert!(
        text.contains("\"finish_reason\":\"length\"") && text.contains("data: [DONE]"),
        "{text}"
    );
    server.task.await.expect("no panic").expect("a clean end");
}

#[tokio::test]
async fn streams_that_do_not_finish_are_cut_with_an_error() {
    let server = serve(
        endless().server(|s| s.drain_time_max = Duration::from_millis(100)),
        Duration::ZERO,
    )
    .await;
    server.ready().await;
    let mut stream = server.open(&long()).await;
    let mut whole = server.open(&merge(long(), json!({"stream": false}))).await;
    let mut first = [0; 12];
    stream.read_exact(&mut first).await.expect("an answer");
    let start = Instant::now();
    server.shutdown.drain();
    let text = read_all(&mut stream).await;
    assert!(
        text.contains("\"code\":\"shutting_down\"") && text.contains("data: [DONE]"),
        "{text}"
    );
    let text = read_all(&mut whole).await;
    assert!(
        text.starts_with("HTTP/1.1 503") && text.contains("shutting_down"),
        "{text}"
    );
    server.task.await.expect("no panic").expect("a clean end");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_closed_connection_frees_its_sequence() {
    let server = serve(endless(), Duration::ZERO).await;
    server.ready().await;
    let engine = server.shared.runtime().expect("loaded").engine.clone();
    for i in 0..20 {
        let mut stream = server.open(&long()).await;
        if i % 2 == 0 {
            let mut first = [0; 12];
            stream.read_exact(&mut first).await.expect("an answer");
        }
        drop(stream);
    }
    let idle = tokio::task::spawn_blocking(move || {
        (
            engine.wait_idle(Duration::from_secs(5)),
            engine.stats().pages_used,
        )
    });
    assert_eq!(idle.await.expect("no panic"), (true, 0));
    server.shutdown.cut();
    server.task.await.expect("no panic").expect("a clean end");
}

#[tokio::test]
async fn heads_are_bounded_in_size_count_and_time() {
    let setup = Setup::text("ok").server(|server| {
        server.limits.header_time_max = Duration::from_millis(200);
        server.limits.connections_max = 4;
        server.limits.write_stall_max = Duration::from_millis(200);
    });
    let server = serve(setup, Duration::ZERO).await;
    server.ready().await;
    let many: String = (0..200).map(|i| format!("h{i}: x\r\n")).collect();
    let reply = server
        .raw(format!("GET /health HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"))
        .await;
    assert!(reply.starts_with("HTTP/1.1 431"), "{reply}");
    let large = "x".repeat(1 << 20);
    let reply = server
        .raw(format!(
            "GET /health HTTP/1.1\r\nhost: localhost\r\nh: {large}\r\n\r\n"
        ))
        .await;
    assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 431"), "{reply}");
    // A head that never ends is dropped in time.
    let start = Instant::now();
    let reply = server.raw("GET /health HTTP/1.1\r\nhost: loc").await;
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?} {reply}",
        start.elapsed()
    );
    let reply = server.raw("\x16\x03\x01\x02\x00rubbish\r\n\r\n").await;
    assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 400"), "{reply}");
    // One connection more than allowed is told so.
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(TcpStream::connect(server.address).await.expect("it listens"));
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let mut more = TcpStream::connect(server.address).await.expect("it listens");
    let reply = read_all(&mut more).await;
    assert!(
        reply.starts_with("HTTP/1.1 503") && reply.contains("too many connections"),
        "{reply}"
    );
    drop(held);
    tokio::time::sleep(Duration::from_millis(50)).await;
    server.ready().await;
    server.shutdown.cut();
    server.task.await.expect("no panic").expect("a clean end");
}

#[tokio::test]
async fn a_reader_that_stops_is_dropped() {
    let setup = endless().server(|server| {
        server.limits.write_stall_max = Duration::from_millis(300);
        server.limits.stream_buffer_bytes = 16 << 10;
    });
    let server = serve(setup, Duration::ZERO).await;
    server.ready().await;
    // More answers than socket buffers hold, from a client that reads nothing.
    let mut body = long();
    body["n"] = json!(4);
    body["logprobs"] = json!(20);
    let stream = server.open(&body).await;
    let engine = server.shared.runtime().expect("loaded").engine.clone();
    let idle = tokio::task::spawn_blocking(move || {
        (
            engine.wait_idle(Duration::from_secs(20)),
            engine.stats().pages_used,
        )
    });
    assert_eq!(idle.await.expect("no panic"), (true, 0));
    drop(stream);
    server.shutdown.cut();
    server.task.await.expect("no panic").expect("a clean end");
}
