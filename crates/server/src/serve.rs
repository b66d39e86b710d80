//! The socket: opened before the model is loaded, bounded in connections and time, drained on the way out.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::config::ServerConfig;
use crate::io::Guarded;
use crate::router;
use crate::runtime::ModelRuntime;
use crate::state::Shared;

/// Why serving ended badly.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The socket could not be opened.
    #[error("cannot listen on {address}: {source} (--host and --port choose another)")]
    Bind {
        /// Where.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The model could not be loaded.
    #[error("{0}")]
    Load(String),
}

/// Asks a running server to stop.
#[derive(Debug, Clone)]
pub struct Shutdown(watch::Sender<Phase>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Serve,
    Drain,
    Cut,
}

impl Shutdown {
    /// A handle that nobody has used yet.
    pub fn new() -> Self {
        Self(watch::channel(Phase::Serve).0)
    }

    /// A handle driven by SIGTERM and SIGINT: the first drains, the second cuts.
    pub fn on_signals() -> Self {
        let shutdown = Self::new();
        let handle = shutdown.clone();
        tokio::spawn(async move {
            for phase in [Phase::Drain, Phase::Cut] {
                signal().await;
                handle.0.send_replace(phase);
            }
        });
        shutdown
    }

    /// Takes no new requests and ends once the running ones have.
    pub fn drain(&self) {
        self.0.send_if_modified(|phase| {
            let changed = *phase < Phase::Drain;
            *phase = (*phase).max(Phase::Drain);
            changed
        });
    }

    /// Ends the running requests too.
    pub fn cut(&self) {
        self.0.send_replace(Phase::Cut);
    }

    async fn reached(&self, phase: Phase) {
        // The sender is this very handle, so the wait cannot fail.
        let _ = self.0.subscribe().wait_for(|now| *now >= phase).await;
    }
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(unix)]
async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(_) => drop(tokio::signal::ctrl_c().await),
    }
}

#[cfg(not(unix))]
async fn signal() {
    drop(tokio::signal::ctrl_c().await);
}

/// Tells waiting clients how far loading is.
#[derive(Clone)]
pub struct LoadProgress(Arc<Shared>);

impl LoadProgress {
    /// Replaces the text shown in `/health` and in refusals.
    pub fn say(&self, message: impl Into<String>) {
        self.0.set_progress(message.into());
    }
}

/// A server whose socket is open.
pub struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
    address: SocketAddr,
    on_ready: Option<Box<dyn FnOnce() + Send>>,
}

impl Server {
    /// Opens the socket. Connections queue from here on.
    ///
    /// # Errors
    /// When the address is taken or is none.
    pub async fn bind(config: ServerConfig) -> Result<Self, ServeError> {
        let shown = format!("{}:{}", config.host, config.port);
        let fail = |source| ServeError::Bind {
            address: shown.clone(),
            source,
        };
        let host = config.host.trim_start_matches('[').trim_end_matches(']');
        let listener = TcpListener::bind((host, config.port)).await.map_err(fail)?;
        let address = listener.local_addr().map_err(fail)?;
        let shared = Shared::new(config, address.ip().is_loopback());
        Ok(Self {
            listener,
            shared,
            address,
            on_ready: None,
        })
    }

    /// Calls `told` once the model answers, not before.
    pub fn on_ready(mut self, told: impl FnOnce() + Send + 'static) -> Self {
        self.on_ready = Some(Box::new(told));
        self
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The state, for those who watch.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }

    /// Serves until `shutdown`. `load` runs on a thread of its own; until it returns, requests are answered with 503.
    ///
    /// # Errors
    /// When the model cannot be loaded.
    pub async fn run<L>(self, load: L, shutdown: Shutdown) -> Result<(), ServeError>
    where
        L: FnOnce(LoadProgress) -> Result<ModelRuntime, String> + Send + 'static,
    {
        let Self {
            listener,
            shared,
            on_ready,
            ..
        } = self;
        let accepting = tokio::spawn(accept(listener, shared.clone()));
        let progress = LoadProgress(shared.clone());
        let loading = tokio::task::spawn_blocking(move || load(progress));
        let loaded = tokio::select! {
            loaded = loading => loaded.unwrap_or_else(|_| Err("loading the model panicked".to_owned())),
            () = shutdown.reached(Phase::Drain) => {
                accepting.abort();
                return Ok(());
            }
        };
        match loaded {
            Ok(runtime) => {
                shared.set_ready(runtime);
                if let Some(told) = on_ready {
                    told();
                }
            }
            Err(message) => {
                shared.set_failed(message.clone());
                accepting.abort();
                return Err(ServeError::Load(message));
            }
        }
        shutdown.reached(Phase::Drain).await;
        drain(&shared, &shutdown).await;
        accepting.abort();
        Ok(())
    }
}

/// Opens the socket, loads the model and serves until a signal: [`Server::bind`] and [`Server::run`] in one.
///
/// # Errors
/// When the socket or the model cannot be had.
pub async fn serve<L>(config: ServerConfig, load: L) -> Result<(), ServeError>
where
    L: FnOnce(LoadProgress) -> Result<ModelRuntime, String> + Send + 'static,
{
    let shutdown = Shutdown::on_signals();
    Server::bind(config).await?.run(load, shutdown).await
}

/// New requests get 503; running ones have their time, then are cut with an error in their stream.
async fn drain(shared: &Arc<Shared>, shutdown: &Shutdown) {
    const POLL: Duration = Duration::from_millis(20);
    /// Time for the last events to reach their sockets.
    const FLUSH: Duration = Duration::from_secs(2);
    shared.drain();
    let deadline = Instant::now() + shared.config.drain_time_max;
    while shared.running() > 0 && Instant::now() < deadline {
        tokio::select! {
            () = tokio::time::sleep(POLL) => {}
            () = shutdown.reached(Phase::Cut) => break,
        }
    }
    shared.cut();
    let deadline = Instant::now() + FLUSH;
    while shared.running() > 0 && Instant::now() < deadline {
        tokio::time::sleep(POLL).await;
    }
    // A finished body still has its last bytes in the connection's buffer.
    tokio::time::sleep(5 * POLL).await;
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    /// Out of file descriptors and the like: give others time to close some.
    const PAUSE: Duration = Duration::from_millis(50);
    let router = router(shared.clone());
    let connections = Arc::new(Semaphore::new(shared.config.limits.connections_max));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        match connections.clone().try_acquire_owned() {
            Ok(permit) => {
                let (router, shared) = (router.clone(), shared.clone());
                tokio::spawn(async move {
                    connection(stream, router, &shared).await;
                    drop(permit);
                });
            }
            Err(_) => drop(tokio::spawn(refuse(stream))),
        }
    }
}

async fn connection(stream: TcpStream, router: Router, shared: &Shared) {
    let limits = &shared.config.limits;
    // Events are small and must not wait for one another.
    let _ = stream.set_nodelay(true);
    let io = TokioIo::new(Guarded::new(stream, limits.write_stall_max));
    // hyper keeps no buffer below 8 KiB.
    let buffer = limits.header_bytes_max.max(8 << 10);
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_time_max)
        .max_headers(limits.header_count_max)
        .max_buf_size(buffer)
        .serve_connection(io, TowerToHyperService::new(router))
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "connection ended");
    }
}

/// More connections than the limit: an answer, not a hang.
async fn refuse(mut stream: TcpStream) {
    const BODY: &str = r#"{"error":{"message":"too many connections; try again later","type":"service_unavailable_error","param":null,"code":"connections_exhausted"}}"#;
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\n\
         connection: close\r\ncontent-length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    let _ = tokio::time::timeout(Duration::from_secs(1), stream.write_all(head.as_bytes())).await;
}
