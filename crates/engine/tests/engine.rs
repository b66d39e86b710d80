//! The engine with its thread, driven from outside as a server does.

use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use galvani_engine::testing::{ScriptBackend, Scripted, collect, config, reply_after};
use galvani_engine::{
    Engine, EngineConfig, EngineHandle, Event, FinishReason, FnSink, Request, RequestId, SamplingParams,
    SubmitError, TokenMask,
};

const VOCAB: usize = 64;
const END: u32 = 63;
const LONG: Duration = Duration::from_secs(20);

fn request(prompt: Vec<u32>, tokens_max: usize) -> Request {
    Request {
        prompt,
        tokens_max,
        tokens_min: 0,
        sampling: SamplingParams::greedy(),
        stop_ids: vec![END],
        logprobs: None,
        prompt_logprobs: None,
        mask: None,
        cache_salt: 0,
        priority: 0,
    }
}

/// A model that counts: after token t comes t + 1 (never the end token).
fn counting() -> ScriptBackend {
    ScriptBackend::new(VOCAB, |history| {
        Scripted::Token((history[history.len() - 1] + 1) % END)
    })
}

fn start(backend: ScriptBackend) -> Engine {
    backend.start(config(VOCAB)).unwrap()
}

fn send(handle: &EngineHandle, request: Request) -> (RequestId, Receiver<Event>) {
    let (sink, events) = collect();
    (handle.submit(request, sink).unwrap(), events)
}

/// All events to the last one, which must come in time; nothing may follow it.
fn all(events: &Receiver<Event>) -> Vec<Event> {
    let mut got = Vec::new();
    loop {
        let event = events.recv_timeout(LONG).expect("the request comes to an end");
        let last = matches!(event, Event::Finished { .. } | Event::Failed { .. });
        got.push(event);
        if last {
            assert!(
                events.recv_timeout(LONG).is_err(),
                "nothing follows the last event"
            );
            return got;
        }
    }
}

fn tokens(events: &[Event]) -> Vec<u32> {
    let token = |event: &Event| match event {
        Event::Token { token, .. } => Some(*token),
        _ => None,
    };
    events.iter().filter_map(token).collect()
}

fn reason(events: &[Event]) -> FinishReason {
    match events.last() {
        Some(Event::Finished { reason, .. }) => *reason,
        other => panic!("not finished: {other:?}"),
    }
}

fn failure(events: &[Event]) -> &str {
    match events.last() {
        Some(Event::Failed { message }) => message,
        other => panic!("not failed: {other:?}"),
    }
}

#[test]
fn a_reply_comes_and_ends_with_the_stop_token() {
    let engine = start(ScriptBackend::new(
        VOCAB,
        reply_after(vec![7, 8], vec![1, 2, 3], END),
    ));
    let handle = engine.handle();
    let (_, events) = send(&handle, request(vec![5, 7, 8], 100));
    let events = all(&events);
    assert_eq!(tokens(&events), [1, 2, 3]);
    let Some(Event::Finished {
        reason,
        stop_token,
        usage,
    }) = events.last()
    else {
        panic!("{events:?}")
    };
    assert_eq!((*reason, *stop_token), (FinishReason::Stop, Some(END)));
    assert_eq!((usage.prompt_tokens, usage.generated_tokens), (3, 4));
    assert!(handle.wait_idle(LONG));
    let stats = handle.stats();
    assert_eq!((stats.running, stats.pages_used, stats.finished_stop), (0, 0, 1));
}

#[test]
fn the_end_is_told_after_the_place_is_free() {
    let engine = start(counting());
    let handle = engine.handle();
    for round in 0..50 {
        let (_, events) = send(&handle, request(vec![1], 2));
        while !matches!(events.recv_timeout(LONG).unwrap(), Event::Finished { .. }) {}
        let stats = handle.stats();
        assert_eq!(
            (stats.running, stats.pages_used, stats.finished_length),
            (0, 0, round + 1)
        );
    }
}

#[test]
fn fields_out_of_range_are_named() {
    let engine = start(counting());
    let handle = engine.handle();
    type Change = fn(&mut Request);
    let cases: [(&str, Change); 24] = [
        ("prompt", |r| r.prompt.clear()),
        ("prompt", |r| r.prompt = vec![VOCAB as u32]),
        ("tokens_max", |r| r.tokens_max = 0),
        ("stop_ids", |r| r.stop_ids = vec![u32::MAX]),
        ("logprobs", |r| r.logprobs = Some(129)),
        ("prompt_logprobs", |r| r.prompt_logprobs = Some(usize::MAX)),
        ("temperature", |r| r.sampling.temperature = -0.1),
        ("temperature", |r| r.sampling.temperature = f32::NAN),
        ("temperature", |r| r.sampling.temperature = f32::INFINITY),
        ("top_p", |r| r.sampling.top_p = 0.0),
        ("top_p", |r| r.sampling.top_p = 1.001),
        ("top_p", |r| r.sampling.top_p = f32::NAN),
        ("min_p", |r| r.sampling.min_p = -0.1),
        ("min_p", |r| r.sampling.min_p = 1.5),
        ("typical_p", |r| r.sampling.typical_p = 0.0),
        ("typical_p", |r| r.sampling.typical_p = f32::NAN),
        ("repetition_penalty", |r| r.sampling.repetition_penalty = 0.0),
        ("repetition_penalty", |r| {
            r.sampling.repetition_penalty = f32::INFINITY
        }),
        ("presence_penalty", |r| r.sampling.presence_penalty = f32::NAN),
        ("frequency_penalty", |r| {
            r.sampling.frequency_penalty = f32::NEG_INFINITY
        }),
        ("logit_bias", |r| r.sampling.logit_bias = vec![(99_999_999, 5.0)]),
        ("logit_bias", |r| r.sampling.logit_bias = vec![(1, f32::NAN)]),
        ("logit_bias", |r| {
            r.sampling.logit_bias = vec![(VOCAB as u32, 1.0)]
        }),
        ("stop_ids", |r| r.stop_ids = vec![1, VOCAB as u32]),
    ];
    for (number, (field, change)) in cases.into_iter().enumerate() {
        let mut wrong = request(vec![1, 2], 3);
        change(&mut wrong);
        let (sink, events) = collect();
        match handle.submit(wrong, sink) {
            Err(SubmitError::Field { field: named, .. }) => assert_eq!(named, field, "case {number}"),
            other => panic!("case {number}: {other:?}"),
        }
        assert_eq!(
            events.try_recv(),
            Err(TryRecvError::Disconnected),
            "the sink is gone without an event"
        );
    }
    for (length, fits) in [(255, true), (256, false), (1000, false)] {
        let (sink, _events) = collect();
        let result = handle.submit(request(vec![1; length], 10), sink);
        let too_long = SubmitError::PromptTooLong {
            prompt_tokens: length,
            context_max: 256,
        };
        assert_eq!(result.err(), (!fits).then_some(too_long));
    }
}

#[test]
fn answers_beyond_the_context_are_cut() {
    let engine = start(counting());
    let (_, events) = send(&engine.handle(), request(vec![1; 250], 100));
    let events = all(&events);
    assert_eq!(
        (tokens(&events).len(), reason(&events)),
        (6, FinishReason::Length)
    );
}

#[test]
fn a_full_queue_says_so_and_takes_again_later() {
    let config = EngineConfig {
        sequences_max: 2,
        queue_max: 3,
        ..config(VOCAB)
    };
    let engine = counting().delay(Duration::from_millis(5)).start(config).unwrap();
    let handle = engine.handle();
    let sent: Vec<_> = (0..5).map(|_| send(&handle, request(vec![1], 4))).collect();
    let (sink, _events) = collect();
    assert_eq!(
        handle.submit(request(vec![1], 4), sink),
        Err(SubmitError::QueueFull { queue_max: 3 })
    );
    for (_, events) in &sent {
        assert_eq!(tokens(&all(events)), [2, 3, 4, 5]);
    }
    let (_, events) = send(&handle, request(vec![1], 4));
    assert_eq!(tokens(&all(&events)).len(), 4);
}

#[test]
fn cancelling_ends_within_a_step() {
    let engine = start(counting().delay(Duration::from_millis(2)));
    let handle = engine.handle();
    let (id, events) = send(&handle, request(vec![1], 200));
    for _ in 0..3 {
        assert!(matches!(events.recv_timeout(LONG), Ok(Event::Token { .. })));
    }
    handle.cancel(id);
    handle.cancel(RequestId(12345));
    let rest = all(&events);
    assert_eq!(reason(&rest), FinishReason::Cancelled);
    assert!(rest.len() < 20, "it ran on for {} tokens", rest.len());
    handle.cancel(id);
    assert!(handle.wait_idle(LONG));
    assert_eq!(
        (handle.stats().finished_cancelled, handle.stats().pages_used),
        (1, 0)
    );
}

#[test]
fn listeners_that_go_or_panic_free_their_place() {
    let engine = start(counting().delay(Duration::from_millis(1)));
    let handle = engine.handle();
    let (_, events) = send(&handle, request(vec![1], 200));
    assert!(matches!(events.recv_timeout(LONG), Ok(Event::Token { .. })));
    drop(events);
    let panicking = FnSink(|_| panic!("a sink's own fault"));
    handle.submit(request(vec![1], 200), Box::new(panicking)).unwrap();
    let started = Instant::now();
    assert!(handle.wait_idle(LONG));
    assert!(started.elapsed() < Duration::from_secs(5));
    assert_eq!(
        (handle.stats().finished_cancelled, handle.stats().pages_used),
        (2, 0)
    );
    let (_, events) = send(&handle, request(vec![1], 3));
    assert_eq!(tokens(&all(&events)), [2, 3, 4]);
}

#[test]
fn draining_refuses_new_ones_and_finishes_the_old() {
    let engine = start(counting().delay(Duration::from_millis(1)));
    let handle = engine.handle();
    let (_, short) = send(&handle, request(vec![1], 10));
    handle.drain();
    let (sink, _events) = collect();
    assert_eq!(
        handle.submit(request(vec![1], 3), sink),
        Err(SubmitError::ShuttingDown)
    );
    assert!(handle.wait_idle(LONG) && handle.is_idle());
    assert_eq!(tokens(&all(&short)).len(), 10);
    // With a deadline, the rest is cancelled.
    let engine = start(counting().delay(Duration::from_millis(5)));
    let handle = engine.handle();
    let (_, long) = send(&handle, request(vec![1], 240));
    assert!(handle.drain_within(Duration::from_millis(30)));
    assert_eq!(reason(&all(&long)), FinishReason::Cancelled);
}

#[test]
fn shutting_down_answers_everybody() {
    let config = EngineConfig {
        sequences_max: 2,
        queue_max: 3,
        ..config(VOCAB)
    };
    let engine = counting().delay(Duration::from_millis(5)).start(config).unwrap();
    let handle = engine.handle();
    let sent: Vec<_> = (0..5).map(|_| send(&handle, request(vec![1], 200))).collect();
    engine.shutdown();
    for (_, events) in &sent {
        assert_eq!(reason(&all(events)), FinishReason::Cancelled);
    }
    let (sink, _events) = collect();
    assert_eq!(
        handle.submit(request(vec![1], 3), sink),
        Err(SubmitError::ShuttingDown)
    );
    assert!(handle.is_idle() && handle.wait_idle(LONG));
    handle.cancel(sent[0].0);
}

#[test]
fn a_failed_step_fails_its_requests_alone() {
    type Fault = fn(ScriptBackend) -> ScriptBackend;
    let faults: [(&str, Fault); 3] = [
        ("scripted failure of step 1", |backend| backend.fail_at(1)),
        ("scripted panic of step 1", |backend| backend.panic_at(1, 1)),
        ("not finite", |backend| backend.nan_at(1)),
    ];
    for (text, fault) in faults {
        let engine = start(fault(counting()));
        let handle = engine.handle();
        let (_, events) = send(&handle, request(vec![1], 10));
        let events = all(&events);
        assert_eq!(tokens(&events), [2], "{text}");
        assert!(failure(&events).contains(text), "{events:?}");
        let (_, events) = send(&handle, request(vec![1], 3));
        assert_eq!(tokens(&all(&events)), [2, 3, 4], "{text}: the engine goes on");
        assert_eq!((handle.stats().failed, handle.broken()), (1, None));
    }
}

#[test]
fn a_backend_that_keeps_panicking_is_given_up() {
    let engine = start(counting().panic_at(0, u64::MAX));
    let handle = engine.handle();
    for _ in 0..3 {
        let (_, events) = send(&handle, request(vec![1], 10));
        assert!(failure(&all(&events)).contains("scripted panic"));
    }
    let (sink, _events) = collect();
    match handle.submit(request(vec![1], 3), sink) {
        Err(SubmitError::Broken { reason }) => assert!(reason.contains("scripted panic"), "{reason}"),
        other => panic!("{other:?}"),
    }
    assert!(handle.broken().is_some() && handle.wait_idle(LONG));
}

/// Allows even tokens; misbehaves on demand.
struct Even {
    fault: Option<&'static str>,
    left: usize,
}

impl TokenMask for Even {
    fn allowed(&mut self, allowed: &mut [u32]) -> Result<(), String> {
        assert!(self.fault != Some("panic"), "a mask's own fault");
        if self.fault == Some("allowed") {
            return Err("budget spent".to_owned());
        }
        if self.fault != Some("nothing") {
            allowed.fill(0x5555_5555);
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.left -= 1;
        if self.fault == Some("accept") {
            Err(format!("token {token} does not fit"))
        } else {
            Ok(())
        }
    }

    fn is_complete(&self) -> bool {
        self.left == 0
    }
}

#[test]
fn a_mask_constrains_completes_and_fails_its_own_request_only() {
    let engine = start(counting());
    let handle = engine.handle();
    let masked = |fault| {
        let mask: Box<dyn TokenMask> = Box::new(Even { fault, left: 3 });
        Request {
            mask: Some(mask),
            ..request(vec![1], 9)
        }
    };
    let (_, neighbour) = send(&handle, request(vec![1], 200));
    let (_, events) = send(&handle, masked(None));
    let events = all(&events);
    // After 2 the model wants 3, which is odd: the best even one is the lowest of equals.
    assert_eq!(
        (tokens(&events), reason(&events)),
        (vec![2, 0, 0], FinishReason::Stop)
    );
    for (fault, text) in [
        ("allowed", "budget spent"),
        ("accept", "does not fit"),
        ("nothing", "allows no token"),
        ("panic", "a mask's own fault"),
    ] {
        let (_, events) = send(&handle, masked(Some(fault)));
        let events = all(&events);
        assert!(failure(&events).contains(text), "{fault}: {events:?}");
    }
    assert_eq!(tokens(&all(&neighbour)).len(), 200);
}

#[test]
fn fewest_tokens_hold_the_end_back() {
    let engine = start(ScriptBackend::new(VOCAB, |_| Scripted::Token(END)));
    let handle = engine.handle();
    for tokens_min in [0, 1, 5] {
        let (_, events) = send(
            &handle,
            Request {
                tokens_min,
                ..request(vec![1], 20)
            },
        );
        let events = all(&events);
        assert_eq!(
            (tokens(&events).len(), reason(&events)),
            (tokens_min, FinishReason::Stop)
        );
    }
}

#[test]
fn many_threads_with_cancels_leave_nothing_behind() {
    let config = EngineConfig {
        sequences_max: 8,
        queue_max: 500,
        page_count: 18,
        ..config(VOCAB)
    };
    let engine = ScriptBackend::hash(VOCAB, 3)
        .delay(Duration::from_micros(50))
        .start(config)
        .unwrap();
    let handle = engine.handle();
    let alone = {
        let (_, events) = send(&handle, request((0..40).collect(), 50));
        tokens(&all(&events))
    };
    std::thread::scope(|scope| {
        for worker in 0..8u32 {
            let (handle, alone) = (handle.clone(), &alone);
            scope.spawn(move || {
                for round in 0..9u32 {
                    let prompt = (0..5 + worker).map(|i| (i * 7 + round) % VOCAB as u32).collect();
                    let endless = Request {
                        stop_ids: vec![],
                        ..request(prompt, 100)
                    };
                    let (id, noise) = send(&handle, endless);
                    let (_, events) = send(&handle, request((0..40).collect(), 50));
                    match round % 3 {
                        0 => handle.cancel(id),
                        1 => drop(noise),
                        _ => assert!(!all(&noise).is_empty()),
                    }
                    assert_eq!(&tokens(&all(&events)), alone, "worker {worker} round {round}");
                }
            });
        }
    });
    assert!(handle.wait_idle(LONG));
    let stats = handle.stats();
    assert_eq!(
        (stats.pages_used, stats.running, stats.waiting, stats.failed),
        (0, 0, 0, 0)
    );
    assert!(stats.preemptions > 0 && stats.prefix_hits > 0, "{stats:?}");
}
