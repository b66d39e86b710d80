//! One sequence's state between steps.

use galvani_graph::PageId;

use super::SequenceSpec;
use crate::pages::{Chain, PagePool};
use crate::request::{RequestId, TokenLogprob, Usage};

/// Precedence: lower priority values first, then order of arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub priority: i32,
    pub id: RequestId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Running,
}

pub(super) struct Sequence {
    /// Prompt and generated tokens. The last one is never computed yet.
    pub tokens: Vec<u32>,
    pub prompt_len: usize,
    /// Length at which the sequence is cut.
    pub length_max: usize,
    pub stop_ids: Vec<u32>,
    pub cache_salt: u64,
    pub priority: i32,
    pub state: State,
    pub pages: Vec<PageId>,
    /// Positions whose keys and values are in the pages.
    pub computed: usize,
    /// Pages, from the first, that are offered for reuse; `chain` stands after them.
    pub registered: usize,
    pub chain: Chain,
    /// Log-probabilities of the prompt's tokens so far, the first being none; taken when sent.
    pub prompt_logprobs: Option<Vec<Option<TokenLogprob>>>,
    pub admitted: bool,
    /// Number of the last step that it was put into.
    pub scheduled_in: u64,
    pub cached_tokens: usize,
    pub preemptions: usize,
    pub cancelled: bool,
}

impl Sequence {
    pub fn new(spec: SequenceSpec, context_max: usize) -> Self {
        let prompt_len = spec.prompt.len();
        Self {
            tokens: spec.prompt,
            prompt_len,
            length_max: prompt_len.saturating_add(spec.tokens_max).min(context_max),
            stop_ids: spec.stop_ids,
            cache_salt: spec.cache_salt,
            priority: spec.priority,
            state: State::Waiting,
            pages: Vec::new(),
            computed: 0,
            registered: 0,
            chain: Chain::root(spec.cache_salt),
            prompt_logprobs: spec.prompt_rows.then(|| vec![None]),
            admitted: false,
            scheduled_in: 0,
            cached_tokens: 0,
            preemptions: 0,
            cancelled: false,
        }
    }

    pub fn generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    pub fn remaining(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// First position whose row is still wanted for the prompt's log-probabilities. The row of the prompt's last
    /// position is not among them: it chooses the first token.
    fn row_first(&self) -> usize {
        match &self.prompt_logprobs {
            Some(prompt) => prompt.len() - 1,
            None => self.tokens.len() - 1,
        }
    }

    /// Rows in the next `token_count` positions: always those of the last ones.
    pub fn rows_in(&self, token_count: usize) -> usize {
        (self.computed + token_count).saturating_sub(self.computed.max(self.row_first()))
    }

    /// Positions that a prefix hit may cover: all but those with wanted rows, the last one among them.
    pub fn reusable_tokens_max(&self) -> usize {
        self.row_first()
    }

    pub fn register_full_pages(&mut self, pool: &mut PagePool, page_tokens: usize) {
        while (self.registered + 1) * page_tokens <= self.computed {
            let at = self.registered;
            let block = &self.tokens[at * page_tokens..(at + 1) * page_tokens];
            (self.pages[at], self.chain) = pool.register(self.pages[at], self.chain, block);
            self.registered += 1;
        }
    }

    /// Last page first: a prefix outlives its continuations.
    pub fn give_pages_back(&mut self, pool: &mut PagePool) {
        for page in self.pages.drain(..).rev() {
            pool.release(page);
        }
        self.computed = 0;
        self.registered = 0;
        self.chain = Chain::root(self.cache_salt);
    }

    pub fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt_len,
            cached_tokens: self.cached_tokens,
            generated_tokens: self.generated(),
            preemptions: self.preemptions,
        }
    }

    pub fn check(&self, state: State, page_tokens: usize) -> Result<(), String> {
        if self.state != state {
            return Err(format!(
                "a sequence is listed as {state:?} and is {:?}",
                self.state
            ));
        }
        if self.computed >= self.tokens.len() || self.tokens.len() >= self.length_max {
            return Err("a sequence has nothing left to do".to_owned());
        }
        let pages_fit = match state {
            State::Waiting => self.pages.is_empty() && self.computed == 0,
            State::Running => {
                self.pages.len() * page_tokens >= self.computed
                    && self.pages.len() <= self.tokens.len().div_ceil(page_tokens)
            }
        };
        if !pages_fit || self.registered != self.computed / page_tokens {
            let (pages, computed, registered) = (self.pages.len(), self.computed, self.registered);
            return Err(format!(
                "{state:?}: {pages} pages, {registered} registered, {computed} tokens computed"
            ));
        }
        Ok(())
    }
}
