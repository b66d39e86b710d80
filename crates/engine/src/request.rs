//! What goes into the engine and what comes out.

/// Number of a request, given by the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// One sequence to generate. The caller turns `n` choices into `n` requests with their own seeds.
pub struct Request {
    /// Prompt tokens; not empty.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; at least 1.
    pub tokens_max: usize,
    /// Tokens before which neither an end token nor a stop may end the sequence.
    pub tokens_min: usize,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Tokens that end the sequence (the model's end tokens, unless `ignore_eos`, and the client's).
    pub stop_ids: Vec<u32>,
    /// Alternatives reported with each token; `None` reports no log-probabilities, `Some(0)` the chosen one's alone.
    pub logprobs: Option<usize>,
    /// Log-probabilities of the prompt's tokens as well (the first has none).
    pub prompt_logprobs: Option<usize>,
    /// Constraint on the tokens, such as a grammar.
    pub mask: Option<Box<dyn TokenMask>>,
    /// Separates prefix caches of different tenants; equal salts share.
    pub cache_salt: u64,
    /// Lower runs first; equal runs in order of arrival.
    pub priority: i32,
}

/// How the next token is chosen. Order of application: logit bias, mask, penalties, temperature, then top-k, typical-p,
/// top-p, min-p on the remaining distribution.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the k likeliest; 0 keeps all.
    pub top_k: usize,
    /// Keep the smallest set whose probability reaches this (Holtzman et al., 2020); 1 keeps all.
    pub top_p: f32,
    /// Keep tokens of at least this share of the likeliest one's probability; 0 keeps all.
    pub min_p: f32,
    /// Locally typical sampling (Meister et al., 2023); 1 keeps all.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or output (Keskar et al., 2019); 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted once from logits of generated tokens.
    pub presence_penalty: f32,
    /// Subtracted for each time a token was generated.
    pub frequency_penalty: f32,
    /// Added to logits, by token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Start of the random numbers. The same seed and request give the same tokens, alone or in a batch.
    pub seed: u64,
}

impl SamplingParams {
    /// The likeliest token each time.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// A constraint on the next token, fed with each chosen one.
pub trait TokenMask: Send {
    /// Sets bit `id % 32` of `allowed[id / 32]` for each allowed token; `allowed` comes zeroed and covers the vocabulary.
    ///
    /// # Errors
    /// When the constraint cannot go on (budget spent, internal error); the request then fails with the message.
    fn allowed(&mut self, allowed: &mut [u32]) -> Result<(), String>;

    /// Takes the chosen token.
    ///
    /// # Errors
    /// When the token does not fit.
    fn accept(&mut self, token: u32) -> Result<(), String>;

    /// Whether the text is complete and nothing but an end token may follow.
    fn is_complete(&self) -> bool;
}

/// Log-probability of a token under the model (after logit bias and penalties are *not* applied: the model's own).
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
    /// Likeliest tokens, best first.
    pub top: Vec<(u32, f32)>,
}

/// Why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// A stop token (the token is in the event) or a complete constraint.
    Stop,
    /// `tokens_max` or the context is full.
    Length,
    /// Cancelled by the caller.
    Cancelled,
}

/// Counts of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Of these, taken from the prefix cache.
    pub cached_tokens: usize,
    /// Tokens generated, a stop token included.
    pub generated_tokens: usize,
    /// Times the sequence was preempted.
    pub preemptions: usize,
}

/// What a request's sink receives. Exactly one `Finished` or `Failed` comes, last, unless the sink said it is gone.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// Log-probabilities of the prompt's tokens, once, before the first token, if asked for. The first is `None`.
    Prompt(Vec<Option<TokenLogprob>>),
    /// One more token.
    Token {
        /// Its id.
        token: u32,
        /// If asked for.
        logprob: Option<TokenLogprob>,
    },
    /// The end. A stop token that ended the sequence is named here and not sent as `Token`.
    Finished {
        /// Why.
        reason: FinishReason,
        /// The stop token, if one ended it.
        stop_token: Option<u32>,
        /// Counts.
        usage: Usage,
    },
    /// The end by a fault.
    Failed {
        /// What happened, for the client.
        message: String,
    },
}

/// Where events go. Called on the engine's thread: must not block.
pub trait EventSink: Send {
    /// Takes an event. `false` means nobody listens any more: the request is cancelled within the step.
    fn send(&mut self, event: Event) -> bool;

    /// The request waits no longer: its first step begins. Comes at most once, before any event; for measuring.
    fn started(&mut self) {}
}

/// A closure as a sink.
pub struct FnSink<F>(pub F);

impl<F: FnMut(Event) -> bool + Send> EventSink for FnSink<F> {
    fn send(&mut self, event: Event) -> bool {
        (self.0)(event)
    }
}

/// Why a request was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// The queue is full: try again later.
    #[error("the queue is full ({queue_max} requests are waiting)")]
    QueueFull {
        /// Its limit.
        queue_max: usize,
    },
    /// Prompt and limits do not fit.
    #[error(
        "the prompt has {prompt_tokens} tokens; the context holds {context_max}, of which at least one is for the answer"
    )]
    PromptTooLong {
        /// Length of the prompt.
        prompt_tokens: usize,
        /// Context of the model as served.
        context_max: usize,
    },
    /// A field is out of range.
    #[error("{field}: got {got}, allowed: {allowed}")]
    Field {
        /// Name.
        field: &'static str,
        /// Value.
        got: String,
        /// What would do.
        allowed: String,
    },
    /// The engine is draining or has stopped.
    #[error("the engine is shutting down")]
    ShuttingDown,
    /// The backend failed too often to be trusted: nothing is taken until a restart.
    #[error("the engine refuses requests since its backend is broken: {reason}")]
    Broken {
        /// The last failure.
        reason: String,
    },
}

/// The engine's state at one moment, pulled by whoever wants it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct EngineStats {
    /// Sequences in the running set.
    pub running: usize,
    /// Requests waiting.
    pub waiting: usize,
    /// Pages of the pool.
    pub pages_total: usize,
    /// Pages referenced by running sequences.
    pub pages_used: usize,
    /// Pages holding only reusable prefixes.
    pub pages_cached: usize,
    /// Steps run so far.
    pub steps: u64,
    /// Prompt tokens computed so far.
    pub prompt_tokens: u64,
    /// Tokens generated so far.
    pub generated_tokens: u64,
    /// Prompt tokens looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Of these, found.
    pub prefix_hits: u64,
    /// Preemptions so far.
    pub preemptions: u64,
    /// Requests ended by stop, length, cancel, failure.
    pub finished_stop: u64,
    /// Ended by length.
    pub finished_length: u64,
    /// Ended by cancel.
    pub finished_cancelled: u64,
    /// Ended by a fault.
    pub failed: u64,
}
