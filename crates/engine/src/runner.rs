//! The engine's thread and the handle to it.
//!
//! Whatever wakes the thread goes through one inbox: submissions, cancellations, the end. The thread empties it between
//! steps and parks on it when there is nothing to run, so nothing waits longer than a step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use galvani_graph::Backend;

use crate::core::{Core, panic_text};
use crate::limits::{EngineConfig, EngineError, Limits};
use crate::request::{EngineStats, Event, EventSink, Request, RequestId, SubmitError};
use crate::validate::validate;

enum Command {
    Submit(RequestId, Box<Request>, Box<dyn EventSink>),
    Cancel(RequestId),
    CancelAll,
}

struct Inbox {
    commands: Vec<Command>,
    id_next: u64,
    // Requests submitted and not yet ended.
    live: usize,
    // None is left, and every last event has been delivered.
    idle: bool,
    draining: bool,
    stopping: bool,
    // The thread has ended.
    ended: bool,
    broken: Option<String>,
    stats: EngineStats,
}

struct Shared {
    config: EngineConfig,
    limits: Limits,
    inbox: Mutex<Inbox>,
    // Something came in.
    wake: Condvar,
    // A request ended.
    progress: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        // Nobody runs foreign code under this lock, so its contents are whole even after a panic elsewhere.
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An engine with its own thread. Dropping it shuts it down.
pub struct Engine {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// The way to an engine, for any number of threads.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
}

impl Engine {
    /// Starts the thread around a compiled program, which must have been compiled for `config.limits()?.spec()`.
    ///
    /// # Errors
    /// When a limit is out of range, or the system gives no memory or no thread.
    pub fn start<B: Backend>(
        backend: B,
        program: B::Program,
        config: EngineConfig,
    ) -> Result<Self, EngineError> {
        let limits = config.limits()?;
        let prefix_cache = config.prefix_cache;
        let stats = EngineStats {
            pages_total: limits.page_count,
            ..EngineStats::default()
        };
        let shared = Arc::new(Shared {
            config,
            limits,
            inbox: Mutex::new(Inbox {
                commands: Vec::new(),
                id_next: 1,
                live: 0,
                idle: true,
                draining: false,
                stopping: false,
                ended: false,
                broken: None,
                stats,
            }),
            wake: Condvar::new(),
            progress: Condvar::new(),
        });
        let mut core = Core::new(backend, program, limits, prefix_cache)?;
        let guard = EndGuard {
            shared: shared.clone(),
        };
        let run = move || {
            let shared = &guard.shared;
            loop {
                match catch_unwind(AssertUnwindSafe(|| tick(&mut core, shared))) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(panic) => {
                        let reason = format!("the engine itself panicked: {}", panic_text(&*panic));
                        shared.lock().broken = Some(reason.clone());
                        core.abort(&reason);
                        break;
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("engine".to_owned()).spawn(run);
        let thread = thread.map_err(|error| EngineError::Thread {
            reason: error.to_string(),
        })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// A handle for submitting.
    pub fn handle(&self) -> EngineHandle {
        EngineHandle {
            shared: self.shared.clone(),
        }
    }

    /// Cancels what is left and ends the thread. Every sink gets its last event.
    pub fn shutdown(self) {
        drop(self);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was told to everybody by its guard.
            let _told = thread.join();
        }
    }
}

impl EngineHandle {
    /// Hands in a request. Its events go to `sink` from the engine's thread.
    ///
    /// # Errors
    /// When a field is out of range, the queue is full, or the engine takes nothing more. The sink gets no event then.
    pub fn submit(&self, request: Request, sink: Box<dyn EventSink>) -> Result<RequestId, SubmitError> {
        validate(&request, &self.shared.limits)?;
        let mut inbox = self.shared.lock();
        if let Some(reason) = &inbox.broken {
            return Err(SubmitError::Broken {
                reason: reason.clone(),
            });
        }
        if inbox.draining || inbox.stopping || inbox.ended {
            return Err(SubmitError::ShuttingDown);
        }
        if inbox.live >= self.shared.limits.live_max {
            return Err(SubmitError::QueueFull {
                queue_max: self.shared.config.queue_max,
            });
        }
        let id = RequestId(inbox.id_next);
        inbox.id_next += 1;
        inbox.live += 1;
        inbox.idle = false;
        inbox.commands.push(Command::Submit(id, Box::new(request), sink));
        drop(inbox);
        self.shared.wake.notify_one();
        Ok(id)
    }

    /// Cancels a request; its sink gets `Finished` with [`crate::FinishReason::Cancelled`] after the present step at the
    /// latest. A request that has ended is left alone.
    pub fn cancel(&self, id: RequestId) {
        self.command(Command::Cancel(id));
    }

    /// The state after the last step.
    pub fn stats(&self) -> EngineStats {
        self.shared.lock().stats
    }

    /// What the engine was started with.
    pub fn config(&self) -> &EngineConfig {
        &self.shared.config
    }

    /// What follows from that, such as the context that prompt and answer share.
    pub fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// Refuses new requests from now on; what is there runs to its end.
    pub fn drain(&self) {
        self.shared.lock().draining = true;
    }

    /// Drains, and cancels what still runs after `limit`. Blocks until nothing is left; `false` when even the cancelled
    /// ones were not gone after `limit` once more (a step that does not return).
    pub fn drain_within(&self, limit: Duration) -> bool {
        self.drain();
        if self.wait_idle(limit) {
            return true;
        }
        self.command(Command::CancelAll);
        self.wait_idle(limit.max(Duration::from_secs(1)))
    }

    /// Blocks until no request is left and every last event is delivered, at most for `limit`; whether that came true.
    pub fn wait_idle(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut inbox = self.shared.lock();
        while !inbox.idle && !inbox.ended {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            inbox = self
                .shared
                .progress
                .wait_timeout(inbox, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        true
    }

    /// Whether no request is there and every last event is delivered.
    pub fn is_idle(&self) -> bool {
        let inbox = self.shared.lock();
        inbox.idle || inbox.ended
    }

    /// Why the engine takes nothing more until a restart, if its backend or its thread failed.
    pub fn broken(&self) -> Option<String> {
        self.shared.lock().broken.clone()
    }

    fn command(&self, command: Command) {
        let mut inbox = self.shared.lock();
        if !inbox.ended {
            inbox.commands.push(command);
        }
        drop(inbox);
        self.shared.wake.notify_one();
    }
}

/// Takes what came in, then runs one step. `false` when the thread is to end.
fn tick<B: Backend>(core: &mut Core<B>, shared: &Shared) -> bool {
    let (commands, stopping) = {
        let mut inbox = shared.lock();
        while inbox.commands.is_empty() && !inbox.stopping && core.live() == 0 {
            inbox = shared.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        (std::mem::take(&mut inbox.commands), inbox.stopping)
    };
    for command in commands {
        match command {
            Command::Submit(id, request, sink) => core.submit(id, *request, sink),
            Command::Cancel(id) => core.cancel(id),
            Command::CancelAll => core.cancel_all(),
        }
    }
    if stopping {
        core.cancel_all();
    }
    // The state is known before the events: who reads of an end finds the place free and the counts right.
    publish(core, shared);
    if core.deliver() {
        publish(core, shared);
    }
    if !stopping && core.step() {
        publish(core, shared);
        core.deliver();
        publish(core, shared);
    }
    // Submissions that slipped in before `stopping` was seen are answered by the guard.
    !stopping
}

fn publish<B: Backend>(core: &Core<B>, shared: &Shared) {
    let mut inbox = shared.lock();
    let arrived = inbox
        .commands
        .iter()
        .filter(|command| matches!(command, Command::Submit(..)))
        .count();
    inbox.live = core.live() + arrived;
    inbox.idle = inbox.live == 0 && core.all_delivered();
    inbox.stats = core.stats();
    if inbox.broken.is_none() {
        inbox.broken = core.broken().map(str::to_owned);
    }
    drop(inbox);
    shared.progress.notify_all();
}

/// Runs when the thread ends, however it ends: nobody may wait for a thread that is gone.
struct EndGuard {
    shared: Arc<Shared>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        let mut inbox = self.shared.lock();
        inbox.ended = true;
        inbox.live = 0;
        inbox.idle = true;
        let left = std::mem::take(&mut inbox.commands);
        drop(inbox);
        self.shared.progress.notify_all();
        for command in left {
            if let Command::Submit(_, _, mut sink) = command {
                let message = SubmitError::ShuttingDown.to_string();
                sink.send(Event::Failed { message });
            }
        }
    }
}
