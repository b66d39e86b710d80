//! A served model that replays a script.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use galvani_engine::EngineConfig;
use galvani_engine::testing::{ScriptBackend, Scripted, config, reply_after};
use galvani_server::{GenerationDefaults, ModelRuntime, ServerConfig, Shared, router};
use galvani_text::grammar::GrammarFactory;
use galvani_text::parsers::ParserStyle;
use galvani_text::{ChatTemplate, HubFiles, Special, Tokenizer};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

/// Name of the served model.
pub const MODEL: &str = "test/model";
/// ChatML with tools in Hermes' style.
pub const TEMPLATE: &str = "{%- if tools %}<|im_start|>system\nCalls go in <tool_call></tool_call>: {{ tools | tojson }}<|im_end|>\n\
{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n\
{\"name\": \"{{ c.function.name }}\", \"arguments\": {{ c.function.arguments }}}\n</tool_call>{% endfor %}<|im_end|>\n\
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}\
{% set unused = '</think>' %}";
/// ChatML with calls as Qwen3-Coder writes them, history included.
pub const TEMPLATE_CODER: &str = "{%- if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}\
{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>\n\
<function={{ c.function.name }}>\n{% for k, v in c.function.arguments | items %}<parameter={{ k }}>\n{{ v }}\n</parameter>\n\
{% endfor %}</function>\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}\
{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// Where a chat answer begins.
pub const TURN: &str = "<|im_start|>assistant\n";

/// The fixture: byte-level, 506 ordinary tokens, six special ones.
pub fn tokenizer() -> Arc<Tokenizer> {
    static ONE: std::sync::LazyLock<Arc<Tokenizer>> = std::sync::LazyLock::new(|| {
        Arc::new(
            Tokenizer::from_hub(HubFiles {
                tokenizer_json: include_bytes!("../../../../goldens/tiny/qwen3/tokenizer.json"),
                tokenizer_config: Some(include_bytes!(
                    "../../../../goldens/tiny/qwen3/tokenizer_config.json"
                )),
                generation_config: None,
            })
            .expect("the fixture loads"),
        )
    });
    ONE.clone()
}

/// Ids of a text, special tokens parsed.
pub fn ids(text: &str) -> Vec<u32> {
    tokenizer().encode(text, Special::Parse, false).expect("encodes")
}

/// One id a byte, whatever merges there are: borders fall inside everything.
pub fn byte_ids(text: impl AsRef<[u8]>) -> Vec<u32> {
    text.as_ref().iter().map(|byte| piece(&[*byte])).collect()
}

/// The token of exactly these bytes.
pub fn piece(bytes: &[u8]) -> u32 {
    let tokenizer = tokenizer();
    (0..tokenizer.vocab_size() as u32)
        .find(|id| !tokenizer.is_special(*id) && tokenizer.token_bytes(*id) == Some(bytes))
        .unwrap_or_else(|| panic!("no token of {bytes:?}"))
}

/// The end token.
pub fn eos() -> u32 {
    tokenizer().special_id("<|im_end|>").expect("the fixture has it")
}

/// What is served and how.
pub struct Setup {
    pub backend: ScriptBackend,
    pub engine: EngineConfig,
    pub server: ServerConfig,
    pub template: Option<&'static str>,
}

impl Setup {
    /// A model that answers every chat, and the raw prompt `go:`, with these tokens.
    pub fn tokens(reply: Vec<u32>) -> Self {
        let vocab = tokenizer().vocab_size();
        let after_go = reply_after(ids("go:"), reply.clone(), eos());
        let after_turn = reply_after(ids(TURN), reply.clone(), eos());
        let after_think = reply_after(ids("<|im_start|>assistant\n<think>\n"), reply, eos());
        Self::script(move |history| {
            let contains = |text: &str| {
                let marker = ids(text);
                history.windows(marker.len()).any(|window| window == marker)
            };
            if contains("<|im_start|>assistant\n<think>\n") {
                after_think(history)
            } else if contains(TURN) {
                after_turn(history)
            } else {
                after_go(history)
            }
        })
        .vocab(vocab)
    }

    /// The same from text.
    pub fn text(reply: &str) -> Self {
        Self::tokens(ids(reply))
    }

    /// A model that follows a closure.
    pub fn script(script: impl Fn(&[u32]) -> Scripted + Send + Sync + 'static) -> Self {
        Self::backend(ScriptBackend::new(tokenizer().vocab_size(), script))
    }

    pub fn backend(backend: ScriptBackend) -> Self {
        Self {
            backend,
            engine: config(tokenizer().vocab_size()),
            server: ServerConfig::loopback(0),
            template: Some(TEMPLATE),
        }
    }

    fn vocab(mut self, vocab: usize) -> Self {
        self.engine.vocab = vocab;
        self
    }

    pub fn template(mut self, template: Option<&'static str>) -> Self {
        self.template = template;
        self
    }

    pub fn server(mut self, change: impl FnOnce(&mut ServerConfig)) -> Self {
        change(&mut self.server);
        self
    }

    pub fn engine(mut self, change: impl FnOnce(&mut EngineConfig)) -> Self {
        change(&mut self.engine);
        self
    }

    /// Each step lasts at least this long.
    pub fn slow(mut self, delay: Duration) -> Self {
        self.backend = self.backend.delay(delay);
        self
    }

    /// The loaded model.
    pub fn runtime(self) -> ModelRuntime {
        let tokenizer = tokenizer();
        let template = self.template.map(|source| {
            Arc::new(ChatTemplate::parse(source, "test template", &tokenizer).expect("the template parses"))
        });
        let context_max = self.engine.context_max;
        let vocab = self.engine.vocab;
        let engine = self.backend.start(self.engine).expect("the engine starts");
        ModelRuntime {
            name: MODEL.to_owned(),
            aliases: vec!["alias".to_owned()],
            engine: engine.handle(),
            engine_owner: Some(engine),
            styles: ParserStyle::detect(self.template.unwrap_or_default()),
            template,
            grammar: Some(Arc::new(
                GrammarFactory::new(&tokenizer, vocab).expect("a factory"),
            )),
            defaults: GenerationDefaults {
                temperature: 0.0,
                ..GenerationDefaults::openai()
            },
            eos_ids: tokenizer.eos_ids().to_vec(),
            tokenizer,
            context_max,
            created: 1,
            info: json!({"family": "script"}),
        }
    }

    /// Served without a socket.
    pub fn start(self) -> Client {
        let shared = Shared::new(self.server.clone(), true);
        let runtime = self.runtime();
        shared.set_ready(runtime);
        Client {
            router: router(shared.clone()),
            shared,
        }
    }
}

/// A client without a socket.
#[derive(Clone)]
pub struct Client {
    pub router: axum::Router,
    pub shared: Arc<Shared>,
}

/// An answer.
#[derive(Debug)]
pub struct Reply {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub bytes: Vec<u8>,
}

impl Reply {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.bytes.clone()).expect("UTF-8")
    }

    /// The error's shape, checked.
    pub fn error(&self) -> Value {
        let body = self.json();
        let error = &body["error"];
        assert!(error["message"].as_str().is_some_and(|m| !m.is_empty()), "{body}");
        assert!(error["type"].is_string(), "{body}");
        assert!(error["param"].is_string() || error["param"].is_null(), "{body}");
        assert!(error["code"].is_string() || error["code"].is_null(), "{body}");
        assert_eq!(self.headers["content-type"], "application/json");
        error.clone()
    }

    /// The events of a stream; its form is checked.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(self.headers["content-type"], "text/event-stream; charset=utf-8");
        let text = self.text();
        let mut events: Vec<&str> = Vec::new();
        for block in text
            .split("\n\n")
            .filter(|block| !block.is_empty() && !block.starts_with(':'))
        {
            events.push(
                block
                    .strip_prefix("data: ")
                    .unwrap_or_else(|| panic!("{block:?}")),
            );
        }
        assert_eq!(events.pop(), Some("[DONE]"), "{text}");
        events
            .iter()
            .map(|event| serde_json::from_str(event).expect("an event is JSON"))
            .collect()
    }
}

impl Client {
    pub async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.expect("infallible");
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.expect("a body").to_bytes().to_vec();
        Reply {
            status: parts.status,
            headers: parts.headers,
            bytes,
        }
    }

    pub async fn post_bytes(&self, path: &str, body: impl Into<Body>) -> Reply {
        self.send(post(path, body)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Reply {
        self.post_bytes(path, body.to_string()).await
    }

    pub async fn get(&self, path: &str) -> Reply {
        let request = Request::get(path)
            .header("host", "localhost")
            .body(Body::empty())
            .expect("a request");
        self.send(request).await
    }

    /// A chat of one user message with more fields.
    pub async fn chat(&self, fields: Value) -> Reply {
        self.post("/v1/chat/completions", &chat_body(fields)).await
    }

    /// A completion of `go:` with more fields.
    pub async fn complete(&self, fields: Value) -> Reply {
        self.post(
            "/v1/completions",
            &merge(
                json!({"model": MODEL, "prompt": "go:", "max_tokens": 200}),
                fields,
            ),
        )
        .await
    }

    /// Both forms of the same chat, which must be equal; gives the whole one's choice and the events.
    pub async fn chat_both(&self, fields: Value) -> (Value, Vec<Value>) {
        let whole = self.chat(fields.clone()).await;
        assert_eq!(whole.status, 200, "{}", whole.text());
        let whole = whole.json()["choices"][0].clone();
        let events = self.chat(merge(fields, json!({"stream": true}))).await.events();
        let joined = join(&events, 0);
        for key in ["content", "reasoning"] {
            let text = whole["message"][key].as_str().unwrap_or_default();
            assert_eq!(joined[key], text, "{key} differs between stream and whole answer");
        }
        let calls = whole["message"]["tool_calls"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let streamed = joined["tool_calls"].as_array().cloned().unwrap_or_default();
        assert_eq!(calls.len(), streamed.len(), "{whole} {joined}");
        for (a, b) in calls.iter().zip(&streamed) {
            assert_eq!(a["function"], b["function"]);
        }
        assert_eq!(whole["finish_reason"], joined["finish_reason"]);
        (whole, events)
    }

    /// A request that must be refused; gives the error.
    pub async fn refused(&self, path: &str, body: &Value) -> Value {
        let reply = self.post(path, body).await;
        assert_eq!(reply.status, 400, "{body:.300}: {}", reply.text());
        reply.error()
    }

    /// An ordinary request succeeds.
    pub async fn alive(&self) {
        let reply = self.chat(json!({"max_tokens": 1})).await;
        assert_eq!(reply.status, 200, "the next request fails: {}", reply.text());
    }

    /// Waits until nothing runs; no page is held then.
    pub async fn idle(&self) {
        let engine = self.shared.runtime().expect("loaded").engine.clone();
        let idle =
            tokio::task::spawn_blocking(move || (engine.wait_idle(Duration::from_secs(5)), engine.stats()));
        let (idle, stats) = idle.await.expect("no panic");
        assert!(
            idle && stats.running == 0 && stats.waiting == 0 && stats.pages_used == 0,
            "{stats:?}"
        );
    }
}

pub fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    Request::post(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(body.into())
        .expect("a request")
}

pub fn chat_body(fields: Value) -> Value {
    merge(
        json!({"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}),
        fields,
    )
}

pub fn merge(mut base: Value, more: Value) -> Value {
    let (Value::Object(to), Value::Object(from)) = (&mut base, more) else {
        panic!("objects")
    };
    to.extend(from);
    base
}

/// A choice's events, joined to a message; checks what must come once.
pub fn join(events: &[Value], index: u64) -> Value {
    let mut message = json!({"content": "", "reasoning": "", "tool_calls": [], "finish_reason": null});
    for event in events {
        assert!(event.get("error").is_none(), "{event}");
        for choice in event["choices"]
            .as_array()
            .expect("choices")
            .iter()
            .filter(|c| c["index"] == index)
        {
            for key in ["content", "reasoning"] {
                if let Some(text) = choice["delta"][key].as_str() {
                    message[key] = json!(format!("{}{text}", message[key].as_str().unwrap_or_default()));
                }
            }
            for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                let at = call["index"].as_u64().expect("an index") as usize;
                let calls = message["tool_calls"].as_array_mut().expect("an array");
                if calls.len() == at {
                    assert!(
                        call["id"].is_string() && call["function"]["name"].is_string(),
                        "{call}"
                    );
                    assert_eq!(call["type"], "function");
                    calls.push(json!({"id": call["id"], "function": {"name": call["function"]["name"], "arguments": ""}}));
                } else {
                    assert!(
                        call.get("id").is_none() && call["function"].get("name").is_none(),
                        "{call}"
                    );
                }
                let old = calls[at]["function"]["arguments"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                let more = call["function"]["arguments"].as_str().unwrap_or_default();
                calls[at]["function"]["arguments"] = json!(old + more);
            }
            if !choice["finish_reason"].is_null() {
                assert!(message["finish_reason"].is_null(), "two finish reasons");
                message["finish_reason"] = choice["finish_reason"].clone();
            }
        }
    }
    message
}

impl Client {
    /// An ordinary completion succeeds.
    pub async fn alive_completion(&self) {
        let reply = self.complete(json!({"max_tokens": 1})).await;
        assert_eq!(reply.status, 200, "the next request fails: {}", reply.text());
    }
}
