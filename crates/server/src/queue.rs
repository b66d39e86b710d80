//! The bounded way from the engine's thread to a client's task. The engine never waits: a queue over its limit whose
//! reader does not read is closed, which cancels the request.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use galvani_engine::{Event, EventSink};

/// How long a full queue may stay unread before it is closed. A reader that is only late by the machine's load catches
/// up well within it.
const GRACE: Duration = Duration::from_secs(2);
/// A queue this many times over its limit is closed at once.
const HARD: usize = 8;

/// An event of one of a request's sequences.
#[derive(Debug)]
pub struct Item {
    /// Which sequence.
    pub sequence: usize,
    /// When the engine sent it.
    pub at: Instant,
    /// What.
    pub event: Event,
}

struct State {
    items: VecDeque<Item>,
    bytes: usize,
    full_since: Option<Instant>,
    /// Reader gone, or cut off.
    closed: bool,
    cut_off: bool,
    /// Ends that may still send.
    senders: usize,
    /// When the engine began with each sequence, as far as it has.
    started: Vec<Option<Instant>>,
    waker: Option<Waker>,
}

/// The reading end; dropping it tells the engine that nobody listens.
pub struct Receiver {
    state: Arc<Mutex<State>>,
}

/// Makes the engine's ends.
pub struct Sender {
    state: Arc<Mutex<State>>,
    bytes_max: usize,
}

/// One sequence's end in the engine.
struct Sink {
    state: Arc<Mutex<State>>,
    bytes_max: usize,
    sequence: usize,
}

/// A queue holding about `bytes_max` bytes.
pub fn queue(bytes_max: usize) -> (Sender, Receiver) {
    let state = Arc::new(Mutex::new(State {
        items: VecDeque::new(),
        bytes: 0,
        full_since: None,
        closed: false,
        cut_off: false,
        senders: 1,
        started: Vec::new(),
        waker: None,
    }));
    (
        Sender {
            state: state.clone(),
            bytes_max,
        },
        Receiver { state },
    )
}

impl Sender {
    /// The end for a sequence.
    pub fn sink(&self, sequence: usize) -> Box<dyn EventSink> {
        self.state.lock().expect("no panic under this lock").senders += 1;
        Box::new(Sink {
            state: self.state.clone(),
            bytes_max: self.bytes_max,
            sequence,
        })
    }
}

fn cost(event: &Event) -> usize {
    let alternatives = match event {
        Event::Token {
            logprob: Some(logprob),
            ..
        } => logprob.top.len(),
        Event::Prompt(prompt) => prompt.iter().flatten().map(|l| l.top.len() + 4).sum(),
        Event::Token { .. } | Event::Finished { .. } | Event::Failed { .. } => 0,
    };
    size_of::<Item>() + 8 * alternatives
}

impl EventSink for Sink {
    fn started(&mut self) {
        let mut state = self.state.lock().expect("no panic under this lock");
        let count = state.started.len().max(self.sequence + 1);
        state.started.resize(count, None);
        state.started[self.sequence] = Some(Instant::now());
    }

    fn send(&mut self, event: Event) -> bool {
        let mut state = self.state.lock().expect("no panic under this lock");
        if state.closed {
            return false;
        }
        let now = Instant::now();
        // The last event always fits: it frees the sequence. A prompt's log-probabilities come once and were asked for.
        let must = matches!(
            event,
            Event::Finished { .. } | Event::Failed { .. } | Event::Prompt(_)
        );
        if state.bytes >= self.bytes_max && !must {
            let since = *state.full_since.get_or_insert(now);
            if now - since >= GRACE || state.bytes >= HARD * self.bytes_max {
                state.closed = true;
                state.cut_off = true;
                state.items.clear();
                state.bytes = 0;
                if let Some(waker) = state.waker.take() {
                    waker.wake();
                }
                return false;
            }
        }
        if !matches!(event, Event::Prompt(_)) {
            state.bytes += cost(&event);
        }
        state.items.push_back(Item {
            sequence: self.sequence,
            at: now,
            event,
        });
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        true
    }
}

impl Drop for Sink {
    /// An engine that went away without a last word must not leave its clients waiting.
    fn drop(&mut self) {
        leave(&self.state);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        leave(&self.state);
    }
}

fn leave(state: &Mutex<State>) {
    if let Ok(mut state) = state.lock() {
        state.senders -= 1;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

/// What reading brought.
#[derive(Debug)]
pub enum Received {
    /// Events, at least one, in order.
    Items(Vec<Item>),
    /// The reader was too slow, and what had been queued is gone.
    CutOff,
    /// Every sink is gone: nothing will come.
    Closed,
}

impl Receiver {
    /// When the engine began with a sequence.
    pub fn started(&self, sequence: usize) -> Option<Instant> {
        self.state
            .lock()
            .expect("no panic under this lock")
            .started
            .get(sequence)
            .copied()
            .flatten()
    }

    /// Takes what is there, at most `items_max`.
    pub fn poll(&mut self, context: &mut Context, items_max: usize) -> Poll<Received> {
        let mut state = self.state.lock().expect("no panic under this lock");
        if state.cut_off {
            return Poll::Ready(Received::CutOff);
        }
        if state.items.is_empty() {
            if state.senders == 0 {
                return Poll::Ready(Received::Closed);
            }
            state.waker = Some(context.waker().clone());
            return Poll::Pending;
        }
        let count = state.items.len().min(items_max);
        let items: Vec<Item> = state.items.drain(..count).collect();
        let freed: usize = items
            .iter()
            .filter(|item| !matches!(item.event, Event::Prompt(_)))
            .map(|item| cost(&item.event))
            .sum();
        state.bytes = state.bytes.saturating_sub(freed);
        state.full_since = None;
        Poll::Ready(Received::Items(items))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let mut state = self.state.lock().expect("no panic under this lock");
        state.closed = true;
        state.items.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use galvani_engine::{FinishReason, Usage};

    async fn next(receiver: &mut Receiver) -> Received {
        std::future::poll_fn(|context| receiver.poll(context, 64)).await
    }

    fn token(token: u32) -> Event {
        Event::Token { token, logprob: None }
    }

    #[tokio::test]
    async fn events_arrive_in_order_and_closing_is_seen_on_both_sides() {
        let (sender, mut receiver) = queue(1 << 16);
        let mut sink = sender.sink(3);
        drop(sender);
        assert!(sink.send(token(1)) && sink.send(token(2)));
        let Received::Items(items) = next(&mut receiver).await else {
            panic!("no items")
        };
        assert_eq!(
            items
                .iter()
                .map(|i| (i.sequence, i.event.clone()))
                .collect::<Vec<_>>(),
            [(3, token(1)), (3, token(2))]
        );
        drop(sink);
        assert!(matches!(next(&mut receiver).await, Received::Closed));
        let (sender, receiver) = queue(1 << 16);
        let mut sink = sender.sink(0);
        drop(receiver);
        assert!(!sink.send(token(1)), "nobody listens");
    }

    #[tokio::test]
    async fn an_unread_queue_is_bounded_and_cut_off() {
        let (sender, mut receiver) = queue(1 << 12);
        let mut sink = sender.sink(0);
        let sent = (0..1_000_000).take_while(|i| sink.send(token(*i))).count();
        assert!(
            sent * size_of::<Item>() <= HARD * (1 << 12) + size_of::<Item>(),
            "{sent} were held"
        );
        assert!(matches!(next(&mut receiver).await, Received::CutOff));
        let usage = Usage::default();
        assert!(!sink.send(Event::Finished {
            reason: FinishReason::Cancelled,
            stop_token: None,
            usage
        }));
    }
}
