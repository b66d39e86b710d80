//! The simulator: one seed gives one random life of an engine, with every step checked.
//!
//! It drives the real scheduler, sampler and step logic (all but the thread) with the hash model, and compares each
//! request's events with an oracle that knows neither pages nor batches: a plain loop of model and sampler.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex, PoisonError};

use super::{ScriptBackend, hash_logits};
use crate::core::{Core, panic_text};
use crate::limits::{EngineConfig, Limits};
use crate::request::{
    Event, FinishReason, FnSink, Request, RequestId, SamplingParams, TokenLogprob, TokenMask,
};
use crate::sampling::{Conditions, Sampler, Scratch, mix, token_logprob};

/// What a run went through; shows that the rare things do happen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Requests sent.
    pub requests: u64,
    /// Steps run.
    pub steps: u64,
    /// Preemptions.
    pub preemptions: u64,
    /// Tokens found in the prefix cache.
    pub prefix_hits: u64,
    /// Requests cancelled, by call or by their sink.
    pub cancelled: u64,
    /// Requests failed by a planned fault.
    pub failed: u64,
    /// Requests that ended by themselves, and equal the oracle's to the last bit.
    pub finished: u64,
}

/// Runs the life that belongs to `seed`.
///
/// # Errors
/// Says what went wrong; the seed makes it happen again.
pub fn run(seed: u64) -> Result<Summary, String> {
    // An assertion of the engine is a finding like any other, and its seed matters as much.
    let result = catch_unwind(|| Life::new(seed).and_then(Life::run));
    let result = result.unwrap_or_else(|panic| Err(format!("panic: {}", panic_text(&*panic))));
    result.map_err(|fault| format!("seed {seed}: {fault}"))
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = mix(self.0);
        (((self.0 >> 32) * bound as u64) >> 32) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A request that can be made again for the oracle.
#[derive(Debug, Clone)]
struct Plan {
    prompt: Vec<u32>,
    tokens_max: usize,
    tokens_min: usize,
    sampling: SamplingParams,
    stop_ids: Vec<u32>,
    logprobs: Option<usize>,
    prompt_logprobs: Option<usize>,
    mask: Option<Stripes>,
    cache_salt: u64,
    priority: i32,
    // Events after which the sink is gone.
    listens: usize,
}

/// Allows a third of the tokens or more, depending on those before; complete or broken after some.
#[derive(Debug, Clone)]
struct Stripes {
    state: u64,
    accepted: usize,
    complete_at: usize,
    fail_at: usize,
}

impl TokenMask for Stripes {
    fn allowed(&mut self, allowed: &mut [u32]) -> Result<(), String> {
        if self.accepted == self.fail_at {
            return Err("scripted mask failure".to_owned());
        }
        for (word, number) in allowed.iter_mut().zip(0u64..) {
            // Token 1 is always allowed, so that something is.
            *word = mix(self.state ^ number) as u32 | u32::from(number == 0) << 1;
        }
        Ok(())
    }

    fn accept(&mut self, token: u32) -> Result<(), String> {
        self.state = mix(self.state ^ u64::from(token) << 32);
        self.accepted += 1;
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.accepted >= self.complete_at
    }
}

type Log = Arc<Mutex<Vec<Event>>>;

struct Life {
    random: Random,
    core: Core<ScriptBackend>,
    limits: Limits,
    model_seed: u64,
    faulty: bool,
    plans: BTreeMap<RequestId, (Plan, Log)>,
    texts: Vec<Vec<u32>>,
    requests_left: usize,
}

impl Life {
    fn new(seed: u64) -> Result<Self, String> {
        let mut random = Random(mix(seed));
        let page_tokens = random.pick(&[1, 2, 4, 8]);
        let sequences_max = 1 + random.below(6);
        let config = EngineConfig {
            step_tokens_max: sequences_max + random.below(24),
            sequences_max,
            queue_max: 100,
            page_tokens: 16,
            page_count: 64,
            context_max: 64,
            vocab: 8 + random.below(60),
            prefix_cache: !random.one_in(4),
        };
        let mut limits = config.limits().map_err(|error| error.to_string())?;
        // Smaller than the public limits allow, so that borders are met often.
        limits.page_tokens = page_tokens;
        limits.page_count = (4 + random.below(60)).div_ceil(page_tokens).max(1);
        limits.context_max = limits.context_max.min(limits.page_count * page_tokens).max(2);
        limits.page_count = limits.page_count.max(limits.context_max.div_ceil(page_tokens));
        limits.sequence_pages_max = limits.context_max.div_ceil(page_tokens);
        limits.step_rows_max = limits.step_rows_max.min(sequences_max + random.below(8));
        let model_seed = random.0;
        let mut backend = ScriptBackend::hash(limits.vocab, model_seed);
        let faulty = random.one_in(5);
        if faulty {
            let step = random.below(40) as u64;
            backend = match random.below(3) {
                0 => backend.fail_at(step),
                1 => backend.nan_at(step),
                _ => backend.panic_at(step, 1),
            };
        }
        let program = backend.program(limits.spec());
        let core =
            Core::new(backend, program, limits, config.prefix_cache).map_err(|error| error.to_string())?;
        let texts = (0..3)
            .map(|_| {
                (0..limits.context_max)
                    .map(|_| random.below(limits.vocab) as u32)
                    .collect()
            })
            .collect();
        let requests_left = 4 + random.below(20);
        Ok(Self {
            random,
            core,
            limits,
            model_seed,
            faulty,
            plans: BTreeMap::new(),
            texts,
            requests_left,
        })
    }

    fn run(mut self) -> Result<Summary, String> {
        let mut idle_rounds = 0;
        let mut id_next = 1;
        for round in 0.. {
            if round > 20_000 {
                return Err("the engine does not come to an end".to_owned());
            }
            while self.requests_left > 0 && self.random.one_in(3) {
                self.requests_left -= 1;
                self.submit(RequestId(id_next));
                id_next += 1;
            }
            if id_next > 1 && self.random.one_in(12) {
                // Sometimes one that has ended, or not begun: both must be harmless.
                self.core
                    .cancel(RequestId(1 + self.random.below(id_next as usize + 1) as u64));
            }
            let ran = self.core.step();
            self.core.deliver();
            self.core.scheduler().check_integrity()?;
            if !ran {
                idle_rounds += 1;
                if self.core.live() > 0 {
                    return Err("the engine idles with requests".to_owned());
                }
            }
            if self.requests_left == 0 && !ran && idle_rounds > 1 {
                break;
            }
        }
        self.judge()
    }

    fn submit(&mut self, id: RequestId) {
        let plan = self.plan();
        let log: Log = Arc::default();
        let writer = log.clone();
        let listens = plan.listens;
        let sink = FnSink(move |event| {
            let mut log = writer.lock().unwrap_or_else(PoisonError::into_inner);
            log.push(event);
            log.len() < listens
        });
        self.core.submit(id, plan.request(), Box::new(sink));
        self.plans.insert(id, (plan, log));
    }

    fn plan(&mut self) -> Plan {
        let vocab = self.limits.vocab;
        let random = &mut self.random;
        let prompt_len = 1 + random.below(self.limits.context_max - 1);
        let shared = random.below(prompt_len + 1);
        let text = random.below(self.texts.len());
        let mut prompt = self.texts[text][..shared].to_vec();
        prompt.extend((shared..prompt_len).map(|_| random.below(vocab) as u32));
        let mask = random.one_in(4).then(|| Stripes {
            state: random.0,
            accepted: 0,
            complete_at: 1 + random.below(20),
            fail_at: random.below(60),
        });
        let stop_count = random.below(4);
        Plan {
            prompt,
            tokens_max: 1 + random.below(30),
            tokens_min: random.pick(&[0, 0, 1, 5]),
            sampling: sampling(random, vocab),
            stop_ids: (0..stop_count).map(|_| random.below(vocab) as u32).collect(),
            logprobs: random.one_in(4).then(|| random.below(5)),
            prompt_logprobs: random.one_in(5).then(|| random.below(3)),
            mask,
            cache_salt: random.below(2) as u64,
            priority: random.pick(&[0, 0, 0, -1, 1]),
            listens: if random.one_in(10) {
                1 + random.below(6)
            } else {
                usize::MAX
            },
        }
    }

    fn judge(self) -> Result<Summary, String> {
        let stats = self.core.stats();
        if stats.pages_used != 0 || stats.running != 0 || stats.waiting != 0 {
            return Err(format!("not everything was given back: {stats:?}"));
        }
        let mut summary = Summary {
            requests: self.plans.len() as u64,
            steps: stats.steps,
            preemptions: stats.preemptions,
            prefix_hits: stats.prefix_hits,
            ..Summary::default()
        };
        for (id, (plan, log)) in &self.plans {
            let log = log.lock().unwrap_or_else(PoisonError::into_inner);
            let wanted = oracle(plan, &self.limits, self.model_seed);
            judge_one(plan, &log, &wanted, self.faulty, &mut summary).map_err(|fault| {
                format!(
                    "request {}: {fault}\n{plan:?}\n got {log:?}\n wanted {wanted:?}",
                    id.0
                )
            })?;
        }
        Ok(summary)
    }
}

fn sampling(random: &mut Random, vocab: usize) -> SamplingParams {
    let mut params = SamplingParams::greedy();
    params.seed = random.0;
    params.temperature = random.pick(&[0.0, 0.0, 0.7, 1.0, 1.5]);
    params.top_k = random.pick(&[0, 0, 1, 5]);
    params.top_p = random.pick(&[1.0, 1.0, 0.5, 0.9]);
    params.min_p = random.pick(&[0.0, 0.0, 0.1]);
    params.typical_p = random.pick(&[1.0, 1.0, 0.6]);
    params.repetition_penalty = random.pick(&[1.0, 1.0, 1.3]);
    params.presence_penalty = random.pick(&[0.0, 0.0, 0.5]);
    params.frequency_penalty = random.pick(&[0.0, 0.0, 0.3]);
    if random.one_in(4) {
        params.logit_bias = vec![
            (random.below(vocab) as u32, 2.0),
            (random.below(vocab) as u32, -100.0),
        ];
    }
    params
}

impl Plan {
    fn request(&self) -> Request {
        Request {
            prompt: self.prompt.clone(),
            tokens_max: self.tokens_max,
            tokens_min: self.tokens_min,
            sampling: self.sampling.clone(),
            stop_ids: self.stop_ids.clone(),
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
            mask: self.mask.clone().map(|mask| Box::new(mask) as Box<dyn TokenMask>),
            cache_salt: self.cache_salt,
            priority: self.priority,
        }
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The events of a request that has the world for itself, with its usage's counts of generated tokens only.
fn oracle(plan: &Plan, limits: &Limits, model_seed: u64) -> Vec<Event> {
    SCRATCH.with_borrow_mut(|scratch| {
        let mut events = Vec::new();
        if let Some(top) = plan.prompt_logprobs {
            events.push(Event::Prompt(prompt_logprobs(
                plan, limits, model_seed, top, scratch,
            )));
        }
        let mut tokens = plan.prompt.clone();
        let mut sampler = Sampler::new(plan.sampling.clone(), &plan.prompt);
        let mut mask = plan.mask.clone();
        let length_max = (plan.prompt.len() + plan.tokens_max).min(limits.context_max);
        loop {
            let mut row = hash_logits(limits.vocab, model_seed, &tokens);
            let index = tokens.len() - plan.prompt.len();
            let conditions = Conditions {
                index,
                banned: if index < plan.tokens_min {
                    &plan.stop_ids
                } else {
                    &[]
                },
                mask: mask.as_mut().map(|mask| mask as &mut dyn TokenMask),
                logprobs: plan.logprobs,
            };
            let (token, logprob) = match sampler.choose(&mut row, conditions, scratch) {
                Ok(choice) => choice,
                Err(message) => {
                    // Its prompt's log-probabilities come with the first token only.
                    if index == 0 {
                        events.clear();
                    }
                    events.push(Event::Failed { message });
                    return events;
                }
            };
            tokens.push(token);
            if plan.stop_ids.contains(&token) {
                events.push(plan.finished(FinishReason::Stop, Some(token), index + 1));
                return events;
            }
            events.push(Event::Token { token, logprob });
            if let Some(mask) = &mut mask {
                mask.accept(token).expect("stripes accept everything");
                if mask.is_complete() {
                    events.push(plan.finished(FinishReason::Stop, None, index + 1));
                    return events;
                }
            }
            if tokens.len() >= length_max {
                events.push(plan.finished(FinishReason::Length, None, index + 1));
                return events;
            }
        }
    })
}

fn prompt_logprobs(
    plan: &Plan,
    limits: &Limits,
    model_seed: u64,
    top: usize,
    scratch: &mut Scratch,
) -> Vec<Option<TokenLogprob>> {
    let mut prompt = vec![None];
    for at in 1..plan.prompt.len() {
        let row = hash_logits(limits.vocab, model_seed, &plan.prompt[..at]);
        prompt.push(token_logprob(&row, plan.prompt[at], top, scratch).ok());
    }
    prompt
}

impl Plan {
    fn finished(&self, reason: FinishReason, stop_token: Option<u32>, generated: usize) -> Event {
        let usage = crate::request::Usage {
            prompt_tokens: self.prompt.len(),
            generated_tokens: generated,
            ..Default::default()
        };
        Event::Finished {
            reason,
            stop_token,
            usage,
        }
    }
}

fn judge_one(
    plan: &Plan,
    got: &[Event],
    wanted: &[Event],
    faulty: bool,
    summary: &mut Summary,
) -> Result<(), String> {
    let ends = |event: &Event| matches!(event, Event::Finished { .. } | Event::Failed { .. });
    let gone = got.len() == plan.listens;
    if got.len() > plan.listens {
        return Err("an event came after the sink was gone".to_owned());
    }
    let end_count = got.iter().filter(|event| ends(event)).count();
    let last = got.last().filter(|event| ends(event));
    if end_count > 1 || (end_count == 1) != last.is_some() || (end_count == 0 && !gone) {
        return Err(format!("{end_count} last events"));
    }
    let body = &got[..got.len() - end_count];
    if !wanted.starts_with(body) {
        return Err("the events differ from those of the request alone".to_owned());
    }
    match last {
        None => summary.cancelled += 1,
        Some(Event::Finished {
            reason: FinishReason::Cancelled,
            usage,
            ..
        }) => {
            let tokens = body
                .iter()
                .filter(|event| matches!(event, Event::Token { .. }))
                .count();
            if usage.generated_tokens != tokens || usage.prompt_tokens != plan.prompt.len() {
                return Err(format!("wrong usage of a cancelled request: {usage:?}"));
            }
            summary.cancelled += 1;
        }
        Some(end) => {
            let mut end = end.clone();
            if let Event::Finished { usage, .. } = &mut end {
                if usage.cached_tokens >= usage.prompt_tokens {
                    return Err("a whole prompt was taken from the cache".to_owned());
                }
                (usage.cached_tokens, usage.preemptions) = (0, 0);
            }
            if wanted.len() == got.len() && wanted.last() == Some(&end) {
                summary.finished += 1;
            } else if faulty && matches!(end, Event::Failed { .. }) {
                summary.failed += 1;
            } else {
                return Err(format!("a wrong end: {end:?}"));
            }
        }
    }
    Ok(())
}
