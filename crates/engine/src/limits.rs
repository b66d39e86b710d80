//! Every limit of the engine, derived in one place from what the operator chose.

use galvani_graph::LimitsSpec;

/// What the operator chooses. Everything else follows from it in [`EngineConfig::limits`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineConfig {
    /// Most tokens computed in one step (prefill chunks and decodes together).
    pub step_tokens_max: usize,
    /// Most sequences running at once.
    pub sequences_max: usize,
    /// Most requests waiting behind the running ones.
    pub queue_max: usize,
    /// Positions in a page of the key/value cache; a power of two of at least 16.
    pub page_tokens: usize,
    /// Pages in the pool, shared by all sequences.
    pub page_count: usize,
    /// Longest sequence, prompt and answer together.
    pub context_max: usize,
    /// Tokens of the vocabulary: length of a row of logits.
    pub vocab: usize,
    /// Whether computed prefixes are kept for later requests.
    pub prefix_cache: bool,
}

/// Rows beyond one a sequence, so that log-probabilities of a prompt do not take one step a token.
const PROMPT_ROWS: usize = 16;

/// Most alternatives that a request may ask for beside each token.
pub const LOGPROBS_MAX: usize = 128;

/// The derived limits. Buffers are allocated from these once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Most tokens in a step.
    pub step_tokens_max: usize,
    /// Most rows of logits in a step.
    pub step_rows_max: usize,
    /// Most sequences in a step and in the running set.
    pub sequences_max: usize,
    /// Most requests in the engine: running, waiting and just submitted.
    pub live_max: usize,
    /// Positions in a page.
    pub page_tokens: usize,
    /// Pages in the pool.
    pub page_count: usize,
    /// Most pages in one sequence's table.
    pub sequence_pages_max: usize,
    /// Longest sequence: the configured context, or what the pool holds when that is less.
    pub context_max: usize,
    /// Length of a row of logits.
    pub vocab: usize,
}

/// What keeps an engine from starting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// A limit is out of range.
    #[error("{field}: got {got}, allowed: {allowed}")]
    Config {
        /// Name of the field of [`EngineConfig`].
        field: &'static str,
        /// Its value.
        got: usize,
        /// What would do.
        allowed: String,
    },
    /// Memory could not be had.
    #[error("{what} needs {bytes} bytes, which could not be allocated")]
    Memory {
        /// What for.
        what: &'static str,
        /// How much.
        bytes: usize,
    },
    /// The engine's thread could not be made.
    #[error("the engine's thread could not be started: {reason}")]
    Thread {
        /// The system's message.
        reason: String,
    },
}

impl EngineConfig {
    /// Checks the choices and derives the rest.
    ///
    /// # Errors
    /// Names the first field that is out of range.
    pub fn limits(&self) -> Result<Limits, EngineError> {
        let at_least = |field: &'static str, got: usize, least: usize| {
            in_range(field, got, got >= least, || format!("at least {least}"))
        };
        at_least("sequences_max", self.sequences_max, 1)?;
        at_least("queue_max", self.queue_max, 1)?;
        at_least("page_count", self.page_count, 1)?;
        at_least("context_max", self.context_max, 2)?;
        at_least("vocab", self.vocab, 1)?;
        let page_fits = self.page_tokens.is_power_of_two() && self.page_tokens >= 16;
        in_range("page_tokens", self.page_tokens, page_fits, || {
            "a power of two of at least 16".to_owned()
        })?;
        // One token a running sequence must always fit, or a prefill behind many decodes would starve.
        in_range(
            "step_tokens_max",
            self.step_tokens_max,
            self.step_tokens_max >= self.sequences_max,
            || format!("at least sequences_max ({})", self.sequences_max),
        )?;
        // Indices in a step are 32 bits wide.
        for (field, got) in [
            ("step_tokens_max", self.step_tokens_max),
            ("sequences_max", self.sequences_max),
            ("queue_max", self.queue_max),
            ("page_count", self.page_count),
            ("page_tokens", self.page_tokens),
            ("context_max", self.context_max),
            ("vocab", self.vocab),
        ] {
            in_range(field, got, got <= i32::MAX as usize, || {
                format!("at most {}", i32::MAX)
            })?;
        }
        let context_max = self
            .context_max
            .min(self.page_count.saturating_mul(self.page_tokens));
        Ok(Limits {
            step_tokens_max: self.step_tokens_max,
            step_rows_max: self.step_tokens_max.min(self.sequences_max + PROMPT_ROWS),
            sequences_max: self.sequences_max,
            live_max: self.sequences_max + self.queue_max,
            page_tokens: self.page_tokens,
            page_count: self.page_count,
            sequence_pages_max: context_max.div_ceil(self.page_tokens),
            context_max,
            vocab: self.vocab,
        })
    }
}

impl Limits {
    /// The part that a backend compiles for.
    pub fn spec(&self) -> LimitsSpec {
        LimitsSpec {
            step_tokens_max: self.step_tokens_max,
            step_rows_max: self.step_rows_max,
            step_sequences_max: self.sequences_max,
            page_tokens: self.page_tokens,
            page_count: self.page_count,
            context_max: self.context_max,
        }
    }
}

fn in_range(
    field: &'static str,
    got: usize,
    fits: bool,
    allowed: impl FnOnce() -> String,
) -> Result<(), EngineError> {
    if fits {
        return Ok(());
    }
    Err(EngineError::Config {
        field,
        got,
        allowed: allowed(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> EngineConfig {
        EngineConfig {
            step_tokens_max: 64,
            sequences_max: 4,
            queue_max: 8,
            page_tokens: 16,
            page_count: 8,
            context_max: 100,
            vocab: 50,
            prefix_cache: true,
        }
    }

    #[test]
    fn each_field_has_its_range() {
        type Change = fn(&mut EngineConfig);
        let cases: [(&str, Change); 10] = [
            ("sequences_max", |c| c.sequences_max = 0),
            ("queue_max", |c| c.queue_max = 0),
            ("page_count", |c| c.page_count = 0),
            ("context_max", |c| c.context_max = 1),
            ("vocab", |c| c.vocab = 0),
            ("page_tokens", |c| c.page_tokens = 8),
            ("page_tokens", |c| c.page_tokens = 24),
            ("step_tokens_max", |c| c.step_tokens_max = 3),
            ("queue_max", |c| c.queue_max = usize::MAX),
            ("vocab", |c| c.vocab = 1 << 31),
        ];
        for (field, change) in cases {
            let mut wrong = config();
            change(&mut wrong);
            match wrong.limits() {
                Err(EngineError::Config { field: named, .. }) => assert_eq!(named, field),
                other => panic!("{field}: {other:?}"),
            }
        }
    }

    #[test]
    fn context_is_cut_to_the_pool() {
        let limits = config().limits().unwrap();
        assert_eq!((limits.context_max, limits.sequence_pages_max), (100, 7));
        let small = EngineConfig {
            page_count: 3,
            ..config()
        };
        let limits = small.limits().unwrap();
        assert_eq!((limits.context_max, limits.sequence_pages_max), (48, 3));
        assert_eq!((limits.step_rows_max, limits.live_max), (20, 12));
    }
}
