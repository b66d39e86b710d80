use super::*;
use crate::request::Usage;

fn limits() -> Limits {
    Limits {
        step_tokens_max: 16,
        step_rows_max: 8,
        sequences_max: 3,
        live_max: 100,
        page_tokens: 4,
        page_count: 16,
        sequence_pages_max: 16,
        context_max: 64,
        vocab: 1000,
    }
}

fn spec(prompt: std::ops::Range<u32>, tokens_max: usize) -> SequenceSpec {
    SequenceSpec {
        prompt: prompt.collect(),
        tokens_max,
        stop_ids: vec![999],
        prompt_rows: false,
        cache_salt: 0,
        priority: 0,
    }
}

/// Each part as (id, first position, positions, rows).
type Shape = Vec<(u64, usize, usize, usize)>;

fn shape(batch: &Batch) -> Shape {
    batch
        .parts
        .iter()
        .map(|part| (part.id.0, part.position_start, part.token_count, part.row_count))
        .collect()
}

fn results(batch: &Batch, token: u32) -> Vec<PartResult> {
    let result = |part: &Part| PartResult {
        prompt: vec![
            TokenLogprob {
                token: 0,
                logprob: -1.0,
                top: vec![]
            };
            part.row_count - usize::from(part.samples)
        ],
        outcome: match part.samples {
            true => Outcome::Sampled {
                token,
                logprob: None,
                complete: false,
            },
            false => Outcome::Computed,
        },
    };
    batch.parts.iter().map(result).collect()
}

/// Runs a step in which every sampling part gets `token`.
fn step(scheduler: &mut Scheduler, token: u32) -> (Shape, Vec<(RequestId, Event)>) {
    let batch = scheduler.next().expect("there is work");
    let events = scheduler.commit(results(&batch, token));
    scheduler.check_integrity().unwrap();
    (shape(&batch), events)
}

fn run_out(scheduler: &mut Scheduler) -> Vec<(RequestId, Event)> {
    let mut events = Vec::new();
    while scheduler.len() > 0 {
        events.extend(step(scheduler, 500).1);
    }
    assert_eq!(scheduler.stats().pages_used, 0);
    events
}

fn finished(events: &[(RequestId, Event)], id: u64) -> (FinishReason, Usage) {
    let mut ends = events.iter().filter_map(|(of, event)| match event {
        Event::Finished { reason, usage, .. } if of.0 == id => Some((*reason, *usage)),
        _ => None,
    });
    let end = ends.next().expect("it finished");
    assert!(ends.next().is_none(), "it finished once");
    end
}

#[test]
fn decodes_come_first_and_prompts_fill_the_rest() {
    let mut scheduler = Scheduler::new(limits(), false);
    scheduler.add(RequestId(1), spec(0..3, 10));
    assert_eq!(step(&mut scheduler, 5).0, [(1, 0, 3, 1)]);
    scheduler.add(RequestId(2), spec(0..20, 10));
    scheduler.add(RequestId(3), spec(0..6, 10));
    // 1 decodes; 2 gets all that is left; 3 waits for room.
    assert_eq!(step(&mut scheduler, 5).0, [(1, 3, 1, 1), (2, 0, 15, 0)]);
    assert_eq!(
        step(&mut scheduler, 5).0,
        [(1, 4, 1, 1), (2, 15, 5, 1), (3, 0, 6, 1)]
    );
    assert_eq!(
        step(&mut scheduler, 5).0,
        [(1, 5, 1, 1), (2, 20, 1, 1), (3, 6, 1, 1)]
    );
    run_out(&mut scheduler);
}

#[test]
fn no_more_sequences_run_than_allowed_and_priority_goes_before_arrival() {
    let mut scheduler = Scheduler::new(limits(), false);
    for id in 1..=4 {
        scheduler.add(RequestId(id), spec(0..2, 3));
    }
    scheduler.add(
        RequestId(5),
        SequenceSpec {
            priority: -1,
            ..spec(0..2, 3)
        },
    );
    let (parts, _) = step(&mut scheduler, 5);
    assert_eq!(parts.iter().map(|part| part.0).collect::<Vec<_>>(), [5, 1, 2]);
    assert_eq!((scheduler.stats().running, scheduler.stats().waiting), (3, 2));
    // An urgent prompt takes the chunk before a running one.
    let mut scheduler = Scheduler::new(limits(), false);
    scheduler.add(RequestId(1), spec(0..40, 3));
    assert_eq!(step(&mut scheduler, 5).0, [(1, 0, 16, 0)]);
    scheduler.add(
        RequestId(2),
        SequenceSpec {
            priority: -1,
            ..spec(0..10, 3)
        },
    );
    assert_eq!(step(&mut scheduler, 5).0, [(2, 0, 10, 1), (1, 16, 6, 0)]);
    run_out(&mut scheduler);
}

#[test]
fn the_newest_gives_way_when_pages_run_out_and_still_ends() {
    let mut scheduler = Scheduler::new(
        Limits {
            page_count: 6,
            context_max: 24,
            ..limits()
        },
        true,
    );
    for id in 1..=3 {
        scheduler.add(RequestId(id), spec(id as u32 * 100..id as u32 * 100 + 3, 12));
    }
    let events = run_out(&mut scheduler);
    let preempted: Vec<_> = (1..=3).map(|id| finished(&events, id).1.preemptions).collect();
    assert!(preempted[0] == 0 && preempted[2] > 0, "{preempted:?}");
    for id in 1..=3 {
        let (reason, usage) = finished(&events, id);
        assert_eq!((reason, usage.generated_tokens), (FinishReason::Length, 12));
    }
    assert_eq!(
        scheduler.stats().preemptions as usize,
        preempted.iter().sum::<usize>()
    );
}

#[test]
fn lengths_are_cut_by_request_context_and_pool() {
    // (prompt, tokens_max, context, pages) -> generated
    for (prompt, tokens_max, context_max, page_count, generated) in [
        (10, 5, 64, 16, 5),
        (10, 1, 64, 16, 1),
        (60, 100, 64, 16, 4),
        (63, usize::MAX, 64, 16, 1),
        (15, 9, 16, 4, 1),
    ] {
        let mut scheduler = Scheduler::new(
            Limits {
                context_max,
                page_count,
                ..limits()
            },
            true,
        );
        scheduler.add(RequestId(1), spec(0..prompt, tokens_max));
        let (reason, usage) = finished(&run_out(&mut scheduler), 1);
        assert_eq!(
            (reason, usage.generated_tokens),
            (FinishReason::Length, generated),
            "prompt {prompt}"
        );
    }
}

#[test]
fn stop_tokens_end_even_at_the_last_length_and_are_not_sent() {
    for tokens_max in [1, 2] {
        let mut scheduler = Scheduler::new(limits(), true);
        scheduler.add(RequestId(1), spec(0..4, tokens_max));
        let (_, events) = step(&mut scheduler, 999);
        let usage = Usage {
            prompt_tokens: 4,
            generated_tokens: 1,
            ..Usage::default()
        };
        let end = Event::Finished {
            reason: FinishReason::Stop,
            stop_token: Some(999),
            usage,
        };
        assert_eq!(events, [(RequestId(1), end)]);
    }
}

#[test]
fn a_cached_prompt_computes_its_last_token_again() {
    // Pages of 4: how much of a prompt equal to an earlier one is found.
    for (prompt, cached) in [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)] {
        let mut scheduler = Scheduler::new(limits(), true);
        scheduler.add(RequestId(1), spec(0..prompt, 1));
        run_out(&mut scheduler);
        scheduler.add(RequestId(2), spec(0..prompt, 1));
        let (parts, events) = step(&mut scheduler, 5);
        assert_eq!(parts, [(2, cached, prompt as usize - cached, 1)]);
        assert_eq!(finished(&events, 2).1.cached_tokens, cached);
        assert_eq!(scheduler.stats().prefix_hits as usize, cached);
        assert_eq!(scheduler.stats().prefix_queries as usize, 2 * prompt as usize);
    }
}

#[test]
fn answers_are_cached_too_and_other_tenants_see_nothing() {
    let mut scheduler = Scheduler::new(limits(), true);
    scheduler.add(RequestId(1), spec(0..6, 6));
    run_out(&mut scheduler);
    // Prompt and answer are 12 tokens of which the last was never computed: two pages are whole.
    let mut next_turn: Vec<u32> = (0..6).chain([500; 6]).collect();
    next_turn.extend(700..705);
    let again = SequenceSpec {
        prompt: next_turn,
        ..spec(0..1, 1)
    };
    scheduler.add(
        RequestId(2),
        SequenceSpec {
            cache_salt: 1,
            ..again.clone()
        },
    );
    assert_eq!(finished(&run_out(&mut scheduler), 2).1.cached_tokens, 0);
    scheduler.add(RequestId(3), again);
    assert_eq!(finished(&run_out(&mut scheduler), 3).1.cached_tokens, 8);
}

#[test]
fn rows_of_a_whole_prompt_come_in_chunks_of_the_row_limit() {
    let mut scheduler = Scheduler::new(limits(), true);
    scheduler.add(RequestId(1), spec(0..20, 1));
    run_out(&mut scheduler);
    scheduler.add(
        RequestId(2),
        SequenceSpec {
            prompt_rows: true,
            ..spec(0..20, 2)
        },
    );
    // No prefix hit, since every row is wanted.
    for (start, count) in [(0, 8), (8, 8), (16, 4)] {
        let (parts, events) = step(&mut scheduler, 5);
        assert_eq!(parts, [(2, start, count, count)]);
        assert_eq!(events.len(), if start == 16 { 2 } else { 0 });
        if let Some((_, Event::Prompt(prompt))) = events.first() {
            assert_eq!(
                (
                    prompt.len(),
                    prompt[0].is_none(),
                    prompt[1..].iter().all(Option::is_some)
                ),
                (20, true, true)
            );
        }
    }
    assert_eq!(step(&mut scheduler, 5).0, [(2, 20, 1, 1)]);
}

#[test]
fn one_token_prompts_have_an_empty_prompt_report() {
    let mut scheduler = Scheduler::new(limits(), true);
    scheduler.add(
        RequestId(1),
        SequenceSpec {
            prompt_rows: true,
            ..spec(0..1, 1)
        },
    );
    let (parts, events) = step(&mut scheduler, 5);
    assert_eq!(
        (parts, &events[0].1),
        (vec![(1, 0, 1, 1)], &Event::Prompt(vec![None]))
    );
}

#[test]
fn cancelling_works_waiting_running_and_in_flight() {
    let mut scheduler = Scheduler::new(limits(), true);
    for id in 1..=4 {
        scheduler.add(RequestId(id), spec(0..5, 9));
    }
    let cancelled = |event: Option<Event>| {
        matches!(
            event,
            Some(Event::Finished {
                reason: FinishReason::Cancelled,
                ..
            })
        )
    };
    assert!(scheduler.cancel(RequestId(77)).is_none());
    step(&mut scheduler, 5);
    assert!(cancelled(scheduler.cancel(RequestId(4))), "waiting");
    assert!(cancelled(scheduler.cancel(RequestId(3))), "running");
    assert!(scheduler.cancel(RequestId(3)).is_none(), "only once");
    let batch = scheduler.next().unwrap();
    assert!(scheduler.cancel(RequestId(1)).is_none(), "in flight: later");
    assert!(scheduler.cancel(RequestId(1)).is_none());
    let events = scheduler.commit(results(&batch, 5));
    assert_eq!(finished(&events, 1).0, FinishReason::Cancelled);
    assert_eq!(
        events.iter().filter(|(id, _)| id.0 == 1).count(),
        1,
        "no token after a cancel"
    );
    scheduler.check_integrity().unwrap();
    scheduler.next().unwrap();
    scheduler.cancel(RequestId(2));
    let events = scheduler.abandon();
    assert_eq!(
        (finished(&events, 2).0, scheduler.len()),
        (FinishReason::Cancelled, 0)
    );
    scheduler.check_integrity().unwrap();
    assert_eq!(
        (scheduler.next(), scheduler.stats().finished_cancelled),
        (None, 4)
    );
}

#[test]
fn an_abandoned_step_comes_again() {
    let mut scheduler = Scheduler::new(limits(), true);
    scheduler.add(RequestId(1), spec(0..20, 2));
    let first = scheduler.next().unwrap();
    assert!(scheduler.abandon().is_empty());
    scheduler.check_integrity().unwrap();
    assert_eq!(scheduler.next().unwrap(), first);
}

#[test]
fn what_a_failed_sequence_computed_is_not_reused() {
    let mut scheduler = Scheduler::new(limits(), true);
    scheduler.add(RequestId(1), spec(0..20, 2));
    step(&mut scheduler, 5);
    assert_eq!(scheduler.stats().failed, 0);
    let batch = scheduler.next().unwrap();
    let failed = PartResult {
        prompt: vec![],
        outcome: Outcome::Failed("broken".to_owned()),
    };
    assert_eq!(batch.parts.len(), 1);
    let events = scheduler.commit(vec![failed]);
    assert_eq!(
        events,
        [(
            RequestId(1),
            Event::Failed {
                message: "broken".to_owned()
            }
        )]
    );
    let stats = scheduler.stats();
    assert_eq!((stats.failed, stats.pages_used, stats.pages_cached), (1, 0, 0));
    scheduler.add(RequestId(2), spec(0..20, 1));
    assert_eq!(finished(&run_out(&mut scheduler), 2).1.cached_tokens, 0);
}

#[test]
fn a_prompt_that_needs_the_whole_pool_waits_and_then_runs() {
    let mut scheduler = Scheduler::new(limits(), true);
    scheduler.add(RequestId(1), spec(0..8, 4));
    step(&mut scheduler, 5);
    scheduler.add(RequestId(2), spec(100..163, 4));
    scheduler.add(RequestId(3), spec(200..202, 1));
    let (parts, _) = step(&mut scheduler, 5);
    // 3 would fit, but does not overtake: 2 would wait for ever behind a stream of small ones.
    assert_eq!(parts, [(1, 8, 1, 1)]);
    let events = run_out(&mut scheduler);
    assert_eq!(finished(&events, 2).1.generated_tokens, 1);
    assert_eq!(finished(&events, 3).1.generated_tokens, 1);
}

#[test]
fn equal_prompts_are_computed_once() {
    // (second prompt, its parts in the first two steps): it waits for pages that the first is computing, but neither for
    // another text, nor another tenant's, nor for a prompt shorter than a page.
    for (prompt, salt, waits, start) in [
        (0..10, 0, true, 8),
        (0..4, 0, false, 0),
        (5..15, 0, false, 0),
        (0..10, 1, false, 0),
    ] {
        let mut scheduler = Scheduler::new(limits(), true);
        scheduler.add(RequestId(1), spec(0..10, 3));
        scheduler.add(
            RequestId(2),
            SequenceSpec {
                cache_salt: salt,
                ..spec(prompt.clone(), 3)
            },
        );
        let (parts, _) = step(&mut scheduler, 5);
        assert_eq!(
            (parts[0], parts.len()),
            ((1, 0, 10, 1), if waits { 1 } else { 2 }),
            "{prompt:?} {salt}"
        );
        if waits {
            assert_eq!(step(&mut scheduler, 5).0, [(1, 10, 1, 1), (2, start, 2, 1)]);
        }
        run_out(&mut scheduler);
    }
    let mut scheduler = Scheduler::new(limits(), false);
    scheduler.add(RequestId(1), spec(0..8, 3));
    scheduler.add(RequestId(2), spec(0..8, 3));
    assert_eq!(
        step(&mut scheduler, 5).0.len(),
        2,
        "without a cache there is nothing to wait for"
    );
}
