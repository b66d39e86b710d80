//! What all handlers share: the configuration, the model once it is there, whether the server is draining.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, RwLock};

use tokio::sync::{Semaphore, watch};

use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::metrics::Metrics;
use crate::runtime::ModelRuntime;

/// Shared by all handlers.
pub struct Shared {
    /// As given.
    pub config: ServerConfig,
    /// Whether the socket is bound to loopback, so that only this machine's own names are valid hosts.
    pub loopback: bool,
    /// Counts of the server.
    pub metrics: Metrics,
    /// Compilations of constraints that may start.
    pub(crate) grammar_jobs: Arc<Semaphore>,
    /// Requests that may start.
    pub(crate) requests: Arc<Semaphore>,
    model: RwLock<ModelState>,
    progress: Mutex<String>,
    draining: AtomicBool,
    running: AtomicUsize,
    cut: watch::Sender<bool>,
}

enum ModelState {
    Loading,
    Ready(Arc<ModelRuntime>),
    Failed(String),
}

/// What `/health` tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// The model is being loaded; the text says how far.
    Loading(String),
    /// Requests are taken.
    Ready,
    /// Running requests finish; new ones are refused.
    Draining,
    /// The model could not be loaded.
    Failed(String),
}

impl Shared {
    /// A server without a model yet.
    pub fn new(config: ServerConfig, loopback: bool) -> Arc<Self> {
        Arc::new(Self {
            loopback,
            metrics: Metrics::new(),
            grammar_jobs: Arc::new(Semaphore::new(config.limits.grammar_jobs_max)),
            requests: Arc::new(Semaphore::new(config.limits.requests_max)),
            model: RwLock::new(ModelState::Loading),
            progress: Mutex::new("loading the model".to_owned()),
            draining: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            cut: watch::channel(false).0,
            config,
        })
    }

    /// The model is there.
    pub fn set_ready(&self, runtime: ModelRuntime) {
        *self.model.write().expect("no panic under this lock") = ModelState::Ready(Arc::new(runtime));
    }

    /// The model will not come.
    pub fn set_failed(&self, message: String) {
        *self.model.write().expect("no panic under this lock") = ModelState::Failed(message);
    }

    /// How far loading is, in words.
    pub fn set_progress(&self, message: String) {
        *self.progress.lock().expect("no panic under this lock") = message;
    }

    /// The model, whatever else holds.
    pub fn runtime(&self) -> Option<Arc<ModelRuntime>> {
        match &*self.model.read().expect("no panic under this lock") {
            ModelState::Ready(runtime) => Some(runtime.clone()),
            ModelState::Loading | ModelState::Failed(_) => None,
        }
    }

    /// The state for health checks.
    pub fn health(&self) -> Health {
        if self.draining.load(Ordering::SeqCst) {
            return Health::Draining;
        }
        match &*self.model.read().expect("no panic under this lock") {
            ModelState::Ready(_) => Health::Ready,
            ModelState::Failed(message) => Health::Failed(message.clone()),
            ModelState::Loading => {
                Health::Loading(self.progress.lock().expect("no panic under this lock").clone())
            }
        }
    }

    /// The model, for a request that wants to use it.
    ///
    /// # Errors
    /// 503 while it is loading, when it failed to load, and while the server drains.
    pub fn ready(&self) -> Result<Arc<ModelRuntime>, ApiError> {
        match self.health() {
            Health::Ready => self
                .runtime()
                .ok_or_else(|| ApiError::unavailable("model_loading", "the model is being loaded", 1)),
            Health::Loading(progress) => Err(ApiError::unavailable("model_loading", progress, 1)),
            Health::Draining => Err(ApiError::unavailable(
                "shutting_down",
                "the server is shutting down",
                5,
            )),
            Health::Failed(message) => Err(ApiError::unavailable(
                "model_failed",
                format!("the model could not be loaded: {message}"),
                60,
            )),
        }
    }

    /// Takes no new requests from now on.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        if let Some(runtime) = self.runtime() {
            runtime.engine.drain();
        }
    }

    /// Ends the running requests with an error.
    pub fn cut(&self) {
        self.cut.send_replace(true);
    }

    /// Resolves when running requests are to end.
    pub(crate) fn cut_signal(&self) -> watch::Receiver<bool> {
        self.cut.subscribe()
    }

    /// Requests being answered.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    /// Counts a request until the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> Running {
        self.running.fetch_add(1, Ordering::SeqCst);
        Running(self.clone())
    }
}

/// One request being answered.
pub(crate) struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}
