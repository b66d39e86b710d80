//! What a server is told. Every field is explicit; every size and time that a client can push against is in [`Limits`].

use std::time::Duration;

/// Where and how to serve.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Address or name to bind, such as `127.0.0.1`, `::1` or `0.0.0.0`.
    pub host: String,
    /// Port; 0 takes a free one.
    pub port: u16,
    /// Keys, any of which opens every path; empty means no key is asked for. `/health*` is always open.
    pub api_keys: Vec<String>,
    /// Origins of other sites whose pages may call this server; `*` is any. The server's own page needs no entry.
    pub cors_origins: Vec<String>,
    /// Names (without port) accepted in `Host` beside the loopback ones, where the server is bound to loopback.
    pub allowed_hosts: Vec<String>,
    /// An unknown field in a request is an error and not only counted.
    pub strict: bool,
    /// Serve the chat page at `/`.
    pub page: bool,
    /// How long running requests may go on after a drain began.
    pub drain_time_max: Duration,
    /// Silence in a stream after which a comment is sent, so that proxies keep the connection.
    pub keep_alive: Duration,
    /// Limits on what clients send and hold.
    pub limits: Limits,
}

impl ServerConfig {
    /// A server for this machine alone: loopback, no keys, standard limits.
    pub fn loopback(port: u16) -> Self {
        Self {
            host: "127.0.0.1".to_owned(),
            port,
            api_keys: Vec::new(),
            cors_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            strict: false,
            page: true,
            drain_time_max: Duration::from_secs(30),
            keep_alive: Duration::from_secs(10),
            limits: Limits::standard(),
        }
    }
}

/// Limits on what clients send and hold.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Bytes of a request body (413 beyond).
    pub body_bytes_max: usize,
    /// Time for a body to arrive (408 beyond).
    pub body_time_max: Duration,
    /// Bytes of a request's head (431 beyond).
    pub header_bytes_max: usize,
    /// Header lines of a request (431 beyond).
    pub header_count_max: usize,
    /// Time for a request's head to arrive; the connection is closed beyond.
    pub header_time_max: Duration,
    /// Time a write to a client may make no progress; the connection is closed beyond.
    pub write_stall_max: Duration,
    /// Open connections (503 beyond).
    pub connections_max: usize,
    /// Requests being handled at once, health checks aside (429 beyond).
    pub requests_max: usize,
    /// Nesting of arrays and objects in a body.
    pub json_depth_max: usize,
    /// Values (numbers, strings, objects ...) in one field of a body.
    pub json_values_max: usize,
    /// `n` and `best_of`.
    pub choices_max: usize,
    /// Prompts in one completion request.
    pub prompts_max: usize,
    /// Prompts times choices.
    pub sequences_max: usize,
    /// `top_logprobs`, `logprobs`, `prompt_logprobs`.
    pub logprobs_max: usize,
    /// Stop strings, and stop tokens.
    pub stops_max: usize,
    /// Bytes of one stop string.
    pub stop_bytes_max: usize,
    /// Messages of a conversation.
    pub messages_max: usize,
    /// Tools of a request.
    pub tools_max: usize,
    /// Bytes of events held for one stream whose client does not read; beyond, it is cut off.
    pub stream_buffer_bytes: usize,
    /// Bytes of a schema, regular expression or grammar.
    pub grammar_bytes_max: usize,
    /// Time to compile one (400 beyond).
    pub grammar_time_max: Duration,
    /// Compilations at once (503 where none comes free in that time).
    pub grammar_jobs_max: usize,
}

impl Limits {
    /// The limits that `galvani serve` starts with.
    pub fn standard() -> Self {
        Self {
            body_bytes_max: 8 << 20,
            body_time_max: Duration::from_secs(30),
            header_bytes_max: 32 << 10,
            header_count_max: 100,
            header_time_max: Duration::from_secs(10),
            write_stall_max: Duration::from_secs(30),
            connections_max: 10_000,
            requests_max: 4_096,
            json_depth_max: 64,
            json_values_max: 200_000,
            choices_max: 16,
            prompts_max: 256,
            sequences_max: 256,
            logprobs_max: 20,
            stops_max: 16,
            stop_bytes_max: 1_024,
            messages_max: 4_096,
            tools_max: 128,
            stream_buffer_bytes: 256 << 10,
            grammar_bytes_max: 256 << 10,
            grammar_time_max: Duration::from_secs(2),
            grammar_jobs_max: 2,
        }
    }
}
