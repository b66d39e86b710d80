//! What a step costs beside the model: `cargo bench -p galvani-engine`.
//!
//! Scheduling is measured with a backend that does nothing and a tiny vocabulary; choosing a token with one row of
//! 151,936 logits, as the larger vocabularies have.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use galvani_engine::{Engine, EngineConfig, Event, FnSink, Request, SamplingParams};
use galvani_graph::{Backend, BackendError, Compiled, Graph, LimitsSpec, StepInput, WeightSource};

/// Gives the same row for every position, after no work at all.
struct Still {
    row: Vec<f32>,
    compiled: Compiled,
}

impl Backend for Still {
    type Program = ();

    fn compile(&self, _: &Graph, _: &dyn WeightSource, _: LimitsSpec) -> Result<(), BackendError> {
        Ok(())
    }

    fn compiled<'p>(&self, _program: &'p ()) -> &'p Compiled {
        const {
            &Compiled {
                census: Vec::new(),
                weight_bytes: 0,
                arena_bytes: 0,
                cache_bytes: 0,
            }
        }
    }

    fn run(&self, _: &mut (), step: &StepInput<'_>, logits: &mut [f32]) -> Result<(), BackendError> {
        black_box((step, &self.compiled));
        for row in logits.chunks_exact_mut(self.row.len()) {
            row.copy_from_slice(&self.row);
        }
        Ok(())
    }
}

fn main() {
    // `cargo test` runs benches too, unoptimised: a number from there would mislead.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let greedy = SamplingParams::greedy();
    let steps = measure(64, 64, 2000, &greedy, true);
    println!(
        "64 sequences, 64 tokens of vocabulary, 2,000 positions: {:.1} us a step",
        micros(steps)
    );
    let sampled = SamplingParams {
        temperature: 0.8,
        ..greedy.clone()
    };
    let cases = [
        ("greedy", greedy.clone()),
        ("temperature", sampled.clone()),
        (
            "top_k 40",
            SamplingParams {
                top_k: 40,
                ..sampled.clone()
            },
        ),
        (
            "top_p 0.95",
            SamplingParams {
                top_p: 0.95,
                ..sampled.clone()
            },
        ),
        (
            "min_p 0.05",
            SamplingParams {
                min_p: 0.05,
                ..sampled.clone()
            },
        ),
        (
            "top_k 40, top_p 0.95",
            SamplingParams {
                top_k: 40,
                top_p: 0.95,
                ..sampled.clone()
            },
        ),
        (
            "typical 0.9",
            SamplingParams {
                typical_p: 0.9,
                ..sampled.clone()
            },
        ),
        (
            "repetition 1.1",
            SamplingParams {
                repetition_penalty: 1.1,
                ..greedy
            },
        ),
    ];
    for flat in [false, true] {
        for (name, params) in &cases {
            let step = micros(measure(64, 151_936, 20, params, flat));
            let kind = if flat { "flat" } else { "peaked" };
            println!(
                "64 sequences, 151,936 tokens, {kind}, {name}: {step:.0} us a step with a copy of the rows"
            );
        }
    }
}

/// Logits. Peaked: as models mostly have them, a broad floor and thirty tokens that share nine tenths of the
/// probability. Flat: the worst case of the filters, in which tens of thousands of tokens count.
fn row(vocab: usize, flat: bool) -> Vec<f32> {
    let noise = |i: usize, factor: usize| ((i * factor) % 10_007) as f32 / 10_007.0;
    let floor = |i: usize| {
        3.0 * (noise(i, 7919) + noise(i, 104_729) + noise(i, 611_953) + noise(i, 15_485_863) - 2.0)
    };
    let peak = |i: usize| {
        if !flat && i % 5003 == 17 {
            16.0 - 0.7 * (i / 5003) as f32
        } else {
            floor(i)
        }
    };
    (0..vocab).map(peak).collect()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Mean time of a step in which `streams` sequences decode.
fn measure(streams: usize, vocab: usize, tokens: usize, params: &SamplingParams, flat: bool) -> Duration {
    let row = row(vocab, flat);
    let backend = Still {
        row,
        compiled: Compiled::default(),
    };
    let config = EngineConfig {
        step_tokens_max: 512,
        sequences_max: streams,
        queue_max: 8,
        page_tokens: 16,
        page_count: streams * 256,
        context_max: 4096,
        vocab,
        prefix_cache: true,
    };
    let engine = Engine::start(backend, (), config).expect("the limits fit");
    let handle = engine.handle();
    let started = Instant::now();
    let sent = Arc::new(AtomicUsize::new(0));
    for stream in 0..streams {
        let request = Request {
            prompt: vec![stream as u32 % vocab as u32; 4],
            tokens_max: tokens,
            tokens_min: 0,
            sampling: params.clone(),
            stop_ids: Vec::new(),
            logprobs: None,
            prompt_logprobs: None,
            mask: None,
            cache_salt: stream as u64,
            priority: 0,
        };
        let sent = sent.clone();
        let sink = FnSink(move |event| {
            if matches!(event, Event::Token { .. }) {
                sent.fetch_add(1, Ordering::Relaxed);
            }
            true
        });
        handle.submit(request, Box::new(sink)).expect("there is room");
    }
    assert!(handle.wait_idle(Duration::from_secs(100)), "the run ends");
    let time = started.elapsed();
    assert_eq!(sent.load(Ordering::Relaxed), streams * tokens);
    time / handle.stats().steps as u32
}
