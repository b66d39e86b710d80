//! `/metrics` in Prometheus' text format, under vLLM's names where the meaning is the same, so that dashboards, routers
//! and autoscalers made for it work unchanged.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use galvani_engine::{EngineStats, Usage};

use crate::runtime::ModelRuntime;

/// Bounds of time to first token, in seconds.
const FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0,
    80.0, 160.0, 640.0, 2560.0,
];
/// Bounds of the time between tokens, in seconds.
const BETWEEN: &[f64] = &[
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
];
/// Bounds of whole requests, in seconds.
const LATENCY: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
/// Bounds of token counts.
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0,
    100000.0, 200000.0, 500000.0, 1000000.0,
];
/// Bounds of `n`.
const CHOICES: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

/// Values sorted into buckets.
struct Histogram {
    name: &'static str,
    help: &'static str,
    bounds: &'static [f64],
    buckets: Vec<AtomicU64>,
    sum_micros: AtomicU64,
}

impl Histogram {
    fn new(name: &'static str, help: &'static str, bounds: &'static [f64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self {
            name,
            help,
            bounds,
            buckets,
            sum_micros: AtomicU64::new(0),
        }
    }

    fn observe(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_micros.fetch_add((value * 1e6) as u64, Ordering::Relaxed);
    }

    fn write(&self, out: &mut String, labels: &str) {
        head(out, self.name, "histogram", self.help);
        let mut count = 0;
        for (bound, bucket) in self.bounds.iter().zip(&self.buckets) {
            count += bucket.load(Ordering::Relaxed);
            let _ = writeln!(out, "{}_bucket{{{labels},le=\"{bound:?}\"}} {count}", self.name);
        }
        count += self.buckets[self.bounds.len()].load(Ordering::Relaxed);
        let _ = writeln!(out, "{}_bucket{{{labels},le=\"+Inf\"}} {count}", self.name);
        let sum = self.sum_micros.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(
            out,
            "{}_sum{{{labels}}} {sum}\n{}_count{{{labels}}} {count}",
            self.name, self.name
        );
    }
}

/// What the server itself counts; the engine's counts are pulled when asked for.
pub struct Metrics {
    first_token: Histogram,
    between: Histogram,
    request: Histogram,
    queue: Histogram,
    prefill: Histogram,
    decode: Histogram,
    inference: Histogram,
    per_token: Histogram,
    prompt_tokens: Histogram,
    generated_tokens: Histogram,
    tokens_max: Histogram,
    choices: Histogram,
    /// Sequences ended by a stop string or by a client that left: the engine counts both as cancelled.
    stopped_by_text: AtomicU64,
    responses: Mutex<BTreeMap<(&'static str, u16), u64>>,
    ignored: Mutex<BTreeMap<String, u64>>,
    cut_off: AtomicU64,
    panics: AtomicU64,
}

/// Moments in the life of one sequence.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// From taking the request to the engine's starting on it, where the engine told.
    pub queue: Option<Duration>,
    /// From taking the request to the first token.
    pub first_token: Option<Duration>,
    /// From taking the request to its end.
    pub total: Duration,
}

impl Metrics {
    /// All at zero.
    pub fn new() -> Self {
        let h = Histogram::new;
        Self {
            first_token: h(
                "vllm:time_to_first_token_seconds",
                "Time to first token.",
                FIRST_TOKEN,
            ),
            between: h(
                "vllm:inter_token_latency_seconds",
                "Time between tokens.",
                BETWEEN,
            ),
            request: h(
                "vllm:e2e_request_latency_seconds",
                "Time of a whole request.",
                LATENCY,
            ),
            queue: h(
                "vllm:request_queue_time_seconds",
                "Time waiting to be run.",
                LATENCY,
            ),
            prefill: h(
                "vllm:request_prefill_time_seconds",
                "Time from running to the first token.",
                LATENCY,
            ),
            decode: h(
                "vllm:request_decode_time_seconds",
                "Time from the first token to the last.",
                LATENCY,
            ),
            inference: h(
                "vllm:request_inference_time_seconds",
                "Time from running to the last token.",
                LATENCY,
            ),
            per_token: h(
                "vllm:request_time_per_output_token_seconds",
                "Mean time of a token after the first.",
                BETWEEN,
            ),
            prompt_tokens: h("vllm:request_prompt_tokens", "Tokens of a prompt.", TOKENS),
            generated_tokens: h(
                "vllm:request_generation_tokens",
                "Tokens generated for a request.",
                TOKENS,
            ),
            tokens_max: h("vllm:request_params_max_tokens", "Most tokens asked for.", TOKENS),
            choices: h("vllm:request_params_n", "Choices asked for.", CHOICES),
            stopped_by_text: AtomicU64::new(0),
            responses: Mutex::new(BTreeMap::new()),
            ignored: Mutex::new(BTreeMap::new()),
            cut_off: AtomicU64::new(0),
            panics: AtomicU64::new(0),
        }
    }

    /// A request was taken.
    pub fn asked(&self, tokens_max: usize, choices: usize) {
        self.tokens_max.observe(tokens_max as f64);
        self.choices.observe(choices as f64);
    }

    /// The first token came after this long.
    pub fn first_token(&self, after: Duration) {
        self.first_token.observe(after.as_secs_f64());
    }

    /// A later token came this long after the one before it.
    pub fn next_token(&self, after: Duration) {
        self.between.observe(after.as_secs_f64());
    }

    /// A sequence came to its proper end.
    pub fn finished(&self, usage: &Usage, times: Times) {
        self.prompt_tokens.observe(usage.prompt_tokens as f64);
        self.generated_tokens.observe(usage.generated_tokens as f64);
        let total = times.total.as_secs_f64();
        self.request.observe(total);
        if let Some(queue) = times.queue {
            self.queue.observe(queue.as_secs_f64());
            self.inference.observe(total - queue.as_secs_f64().min(total));
        }
        if let Some(first) = times.first_token {
            let decode = total - first.as_secs_f64().min(total);
            self.decode.observe(decode);
            if let Some(queue) = times.queue {
                self.prefill.observe(first.saturating_sub(queue).as_secs_f64());
            }
            if usage.generated_tokens > 1 {
                self.per_token
                    .observe(decode / (usage.generated_tokens - 1) as f64);
            }
        }
    }

    /// A stop string ended a sequence; to the engine it was cancelled.
    pub fn stopped_by_text(&self) {
        self.stopped_by_text.fetch_add(1, Ordering::Relaxed);
    }

    /// A client that did not read was cut off.
    pub fn cut_off(&self) {
        self.cut_off.fetch_add(1, Ordering::Relaxed);
    }

    /// A handler panicked.
    pub fn panicked(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// A response was sent.
    pub fn responded(&self, endpoint: &'static str, status: u16) {
        *self
            .responses
            .lock()
            .expect("no panic under this lock")
            .entry((endpoint, status))
            .or_default() += 1;
    }

    /// Counts ignored fields; says which are new, for the log. Names come from clients, so their number is bounded.
    pub fn ignored(&self, names: &[String]) -> Vec<String> {
        const NAMES_MAX: usize = 100;
        let mut counts = self.ignored.lock().expect("no panic under this lock");
        let mut new = Vec::new();
        for name in names {
            if let Some(count) = counts.get_mut(name) {
                *count += 1;
            } else if counts.len() < NAMES_MAX {
                counts.insert(name.clone(), 1);
                new.push(name.clone());
            }
        }
        new
    }

    /// The text. Before a model is loaded only the server's own series are there.
    pub fn render(&self, runtime: Option<&ModelRuntime>) -> String {
        let mut out = String::with_capacity(16 << 10);
        if let Some(runtime) = runtime {
            let labels = format!("model_name=\"{}\",engine=\"0\"", escape(&runtime.name));
            self.engine(&mut out, &labels, &runtime.engine.stats(), runtime);
            for histogram in [
                &self.first_token,
                &self.between,
                &self.per_token,
                &self.request,
                &self.queue,
                &self.inference,
                &self.prefill,
                &self.decode,
                &self.prompt_tokens,
                &self.generated_tokens,
                &self.tokens_max,
                &self.choices,
            ] {
                histogram.write(&mut out, &labels);
            }
        }
        self.server(&mut out);
        out
    }

    fn engine(&self, out: &mut String, labels: &str, stats: &EngineStats, runtime: &ModelRuntime) {
        let mut gauge = |name: &str, help: &str, value: f64| {
            head(out, name, "gauge", help);
            let _ = writeln!(out, "{name}{{{labels}}} {value}");
        };
        gauge(
            "vllm:num_requests_running",
            "Sequences in the running set.",
            stats.running as f64,
        );
        gauge(
            "vllm:num_requests_waiting",
            "Requests waiting.",
            stats.waiting as f64,
        );
        let used = stats.pages_used as f64 / stats.pages_total.max(1) as f64;
        gauge(
            "vllm:kv_cache_usage_perc",
            "Share of KV pages in use, 0 to 1.",
            used,
        );
        gauge(
            "galvani:kv_pages_cached",
            "KV pages holding only reusable prefixes.",
            stats.pages_cached as f64,
        );
        let mut counter = |name: &str, help: &str, value: u64| {
            head(out, name, "counter", help);
            let _ = writeln!(out, "{name}{{{labels}}} {value}");
        };
        counter(
            "vllm:prompt_tokens_total",
            "Prompt tokens computed.",
            stats.prompt_tokens,
        );
        counter(
            "vllm:generation_tokens_total",
            "Tokens generated.",
            stats.generated_tokens,
        );
        counter("vllm:num_preemptions_total", "Preemptions.", stats.preemptions);
        counter(
            "vllm:prefix_cache_queries_total",
            "Prompt tokens looked up in the prefix cache.",
            stats.prefix_queries,
        );
        counter(
            "vllm:prefix_cache_hits_total",
            "Prompt tokens found in the prefix cache.",
            stats.prefix_hits,
        );
        counter("galvani:steps_total", "Steps run.", stats.steps);
        let constraints = runtime.grammar.as_ref().map(|grammar| grammar.cache_stats());
        let constraints = constraints.unwrap_or_default();
        counter(
            "galvani:constraint_cache_hits_total",
            "Constraints that were compiled before.",
            constraints.hits,
        );
        counter(
            "galvani:constraint_cache_misses_total",
            "Constraints that were compiled.",
            constraints.misses,
        );
        head(
            out,
            "galvani:constraint_cache_bytes",
            "gauge",
            "Memory of the constraints kept, by estimate.",
        );
        let _ = writeln!(
            out,
            "galvani:constraint_cache_bytes{{{labels}}} {}",
            constraints.bytes
        );
        self.ends(out, labels, stats);
        cache_config(out, labels, runtime);
    }

    /// How sequences ended.
    fn ends(&self, out: &mut String, labels: &str, stats: &EngineStats) {
        let by_text = self
            .stopped_by_text
            .load(Ordering::Relaxed)
            .min(stats.finished_cancelled);
        head(
            out,
            "vllm:request_success_total",
            "counter",
            "Sequences ended, by reason.",
        );
        for (reason, count) in [
            ("stop", stats.finished_stop + by_text),
            ("length", stats.finished_length),
            ("abort", stats.finished_cancelled - by_text),
            ("error", stats.failed),
        ] {
            let _ = writeln!(
                out,
                "vllm:request_success_total{{{labels},finished_reason=\"{reason}\"}} {count}"
            );
        }
    }

    fn server(&self, out: &mut String) {
        head(
            out,
            "galvani:http_responses_total",
            "counter",
            "Responses, by endpoint and status.",
        );
        for ((endpoint, status), count) in self.responses.lock().expect("no panic under this lock").iter() {
            let _ = writeln!(
                out,
                "galvani:http_responses_total{{endpoint=\"{endpoint}\",status=\"{status}\"}} {count}"
            );
        }
        head(
            out,
            "galvani:ignored_fields_total",
            "counter",
            "Request fields that no endpoint knows, by name.",
        );
        for (name, count) in self.ignored.lock().expect("no panic under this lock").iter() {
            let _ = writeln!(
                out,
                "galvani:ignored_fields_total{{field=\"{}\"}} {count}",
                escape(name)
            );
        }
        for (name, help, value) in [
            (
                "galvani:slow_clients_cut_total",
                "Streams cut off because the client did not read.",
                &self.cut_off,
            ),
            ("galvani:panics_total", "Handlers that panicked.", &self.panics),
        ] {
            head(out, name, "counter", help);
            let _ = writeln!(out, "{name} {}", value.load(Ordering::Relaxed));
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// The layout of the KV cache, as labels.
fn cache_config(out: &mut String, labels: &str, runtime: &ModelRuntime) {
    let config = runtime.engine.config();
    head(
        out,
        "vllm:cache_config_info",
        "gauge",
        "How the KV cache is laid out.",
    );
    let _ = writeln!(
        out,
        "vllm:cache_config_info{{{labels},block_size=\"{}\",num_gpu_blocks=\"{}\",num_cpu_blocks=\"0\",\
             enable_prefix_caching=\"{}\",cache_dtype=\"auto\"}} 1",
        config.page_tokens, config.page_count, config.prefix_cache
    );
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// A label's value, as the format wants it.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_on_a_bound_fall_into_its_bucket() {
        let histogram = Histogram::new("h", "help", &[1.0, 2.5]);
        for value in [0.5, 1.0, 1.1, 2.5, 9.0] {
            histogram.observe(value);
        }
        let mut text = String::new();
        histogram.write(&mut text, "a=\"b\"");
        assert_eq!(
            text,
            "# HELP h help\n# TYPE h histogram\nh_bucket{a=\"b\",le=\"1.0\"} 2\nh_bucket{a=\"b\",le=\"2.5\"} 4\n\
             h_bucket{a=\"b\",le=\"+Inf\"} 5\nh_sum{a=\"b\"} 14.1\nh_count{a=\"b\"} 5\n"
        );
    }

    #[test]
    fn names_of_ignored_fields_are_bounded() {
        let metrics = Metrics::new();
        let names: Vec<String> = (0..200).map(|i| format!("f{i}")).collect();
        assert_eq!(metrics.ignored(&names).len(), 100);
        assert!(metrics.ignored(&names[..1]).is_empty());
        assert!(
            metrics
                .render(None)
                .contains("galvani:ignored_fields_total{field=\"f0\"} 2\n")
        );
    }

    /// Text format 0.0.4: the type line names what the sample is called, `_total` included, and nothing ends the text.
    #[test]
    fn counters_are_typed_under_their_own_names() {
        let text = Metrics::new().render(None);
        assert!(
            text.contains("# TYPE galvani:panics_total counter\ngalvani:panics_total 0\n"),
            "{text}"
        );
        assert!(!text.contains("# EOF"), "{text}");
    }

    #[test]
    fn labels_are_escaped() {
        assert_eq!(escape("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
