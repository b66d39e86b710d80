//! What a model needs and what it gets: every size of a run, derived in one place from the headers, the flags and the
//! machine.

use galvani_engine::{EngineConfig, Limits};
use galvani_graph::{Extent, Plan, plan};

use super::Opened;
use super::compute::threads;
use crate::error::CliError;
use crate::flags::ComputeArgs;
use crate::machine::Machine;
use crate::progress::bytes;

/// Tokens of the pool for each sequence beyond the first, where the pool's size is not given.
const SEQUENCE_TOKENS: usize = 1024;

/// What a command wants where the flags are silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wish {
    /// Sequences at once.
    pub sequences: usize,
    /// Requests waiting.
    pub queue: usize,
    /// Longest sequence, if the command knows it; a command line that asks for less is widened to this.
    pub context: Option<usize>,
}

/// Sizes of a run.
#[derive(Debug, Clone)]
pub struct Fit {
    /// For the engine.
    pub engine: EngineConfig,
    /// What follows from that.
    pub limits: Limits,
    /// Compute threads.
    pub threads: usize,
    /// Bytes of the weights as stored.
    pub weight_bytes: u64,
    /// Bytes of the key/value pool.
    pub cache_bytes: u64,
    /// Bytes of the activation arena.
    pub arena_bytes: u64,
    /// Bytes of the logits and other per-step buffers.
    pub step_bytes: u64,
    /// Bytes of memory free on this machine; 0 when unknown.
    pub memory_free: u64,
}

impl Fit {
    /// Derives them.
    ///
    /// # Errors
    /// When a flag is out of range or asks for more than the model or the pool holds.
    pub fn derive(
        opened: &Opened,
        arguments: &ComputeArgs,
        wish: &Wish,
        machine: &Machine,
    ) -> Result<Self, CliError> {
        let info = &opened.info;
        let page_tokens = arguments.page_tokens;
        if !page_tokens.is_power_of_two() || !(16..=4096).contains(&page_tokens) {
            return Err(usage(
                "--page-tokens",
                page_tokens,
                "a power of two from 16 to 4096",
            ));
        }
        let sequences = in_range(
            "--sequences",
            arguments.sequences.unwrap_or(wish.sequences),
            1,
            4096,
        )?;
        let step_tokens = in_range("--step-tokens", arguments.step_tokens, 1, 65_536)?.max(sequences);
        let asked = arguments
            .context
            .map(|context| in_range("--context", context, 2, info.context_max))
            .transpose()?;
        let page_bytes = info.kv_bytes_per_token.saturating_mul(page_tokens as u64).max(1);
        let room = machine.memory_free.saturating_sub(info.weight_bytes) / 2;
        let page_count = match (arguments.cache_memory, wish.context) {
            (Some(mib), _) => ((mib as u64) << 20) / page_bytes,
            (None, Some(context)) => (sequences * context.div_ceil(page_tokens)) as u64,
            (None, None) => {
                let longest = asked.unwrap_or(info.context_max);
                let tokens = longest.max(sequences.saturating_mul(SEQUENCE_TOKENS));
                let wanted = tokens.div_ceil(page_tokens) as u64;
                let fits = if machine.memory_free == 0 {
                    u64::MAX
                } else {
                    (room / page_bytes).max(1)
                };
                wanted.min(fits)
            }
        };
        let page_count = usize::try_from(page_count)
            .unwrap_or(usize::MAX)
            .min(i32::MAX as usize / page_tokens);
        let pool_tokens = page_count * page_tokens;
        let context = match (asked, wish.context) {
            (Some(context), None) if context > pool_tokens => {
                return Err(CliError::Usage(format!(
                    "--context {context} needs {} of key/value pool, there is room for {pool_tokens} tokens ({}); \
                     ask for less, or set --cache-memory",
                    bytes(context as u64 * info.kv_bytes_per_token),
                    bytes(page_count as u64 * page_bytes)
                )));
            }
            (Some(context), None) => context,
            (_, Some(context)) => in_range("context", context, 1, info.context_max)?.max(2),
            (None, None) => info.context_max.min(pool_tokens),
        };
        let engine = EngineConfig {
            step_tokens_max: step_tokens,
            sequences_max: sequences,
            queue_max: wish.queue,
            page_tokens,
            page_count,
            context_max: context,
            vocab: info.vocab,
            prefix_cache: arguments.prefix_cache,
        };
        let limits = engine
            .limits()
            .map_err(|error| CliError::Usage(error.to_string()))?;
        let arena = plan_of(opened, &limits);
        Ok(Self {
            limits,
            threads: threads(arguments)?,
            weight_bytes: info.weight_bytes,
            cache_bytes: page_count as u64 * page_bytes,
            arena_bytes: arena.bytes as u64,
            step_bytes: (limits.step_rows_max * limits.vocab * 4) as u64,
            memory_free: machine.memory_free,
            engine,
        })
    }

    /// Bytes in all.
    pub fn total(&self) -> u64 {
        self.weight_bytes + self.cache_bytes + self.arena_bytes + self.step_bytes
    }

    /// Whether that is what the machine has free.
    pub fn fits(&self) -> bool {
        self.memory_free == 0 || self.total() <= self.memory_free
    }

    /// The plan for people, a line each.
    pub fn lines(&self) -> Vec<String> {
        let limits = &self.limits;
        let mib = |count: u64| format!("{:.1} MiB", count as f64 / f64::from(1 << 20));
        vec![
            format!("weights   {}", mib(self.weight_bytes)),
            format!(
                "kv pool   {}: {} tokens in {} pages of {}, f16",
                mib(self.cache_bytes),
                limits.page_count * limits.page_tokens,
                limits.page_count,
                limits.page_tokens
            ),
            format!("arena     {}", mib(self.arena_bytes)),
            format!("logits    {}", mib(self.step_bytes)),
            format!(
                "limits    context {} tokens, {} sequences, steps of {} tokens, {} threads",
                limits.context_max, limits.sequences_max, limits.step_tokens_max, self.threads
            ),
        ]
    }
}

/// The buffers of the widest step.
pub fn plan_of(opened: &Opened, limits: &Limits) -> Plan {
    plan(
        &opened.graph,
        Extent {
            tokens: limits.step_tokens_max,
            rows: limits.step_rows_max,
        },
    )
}

fn usage(flag: &str, got: usize, allowed: &str) -> CliError {
    CliError::Usage(format!("{flag}: got {got}, allowed: {allowed}"))
}

fn in_range(flag: &str, got: usize, least: usize, most: usize) -> Result<usize, CliError> {
    if (least..=most).contains(&got) {
        return Ok(got);
    }
    Err(usage(flag, got, &format!("{least} to {most}")))
}
