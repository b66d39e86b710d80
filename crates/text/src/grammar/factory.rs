//! Compiling constraints and stepping through them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher as Inner, ParserFactory};
use serde_json::{Map, Value, json};

use super::Constraint;
use super::cache::{Cache, CacheStats, key};
use super::gate::Gate;
use crate::{TextError, TokenKind, Tokenizer};

/// What compiling may cost. The library counts its own work ("fuel") within these; the clock is the last line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Budget {
    /// Wall clock.
    pub time: Duration,
    /// Bytes of the schema, regex, grammar or of all choices.
    pub source_bytes: usize,
}

impl Budget {
    /// What a public server should grant: two seconds, 256 KiB.
    pub const SERVING: Self = Self {
        time: Duration::from_secs(2),
        source_bytes: 256 << 10,
    };
}

/// What masks need besides the grammar.
struct Vocabulary {
    eos_ids: Vec<u32>,
    /// A bit for each id that has bytes.
    named: Vec<u32>,
    env: TokEnv,
}

/// Levels of nesting in a schema, regex or grammar.
const DEPTH_MAX: usize = 64;
/// Compilations at a time: those that ran out of time end by their fuel, in the background.
const COMPILING_MAX: usize = 8;
/// The compiler recurses over the schema.
const STACK_BYTES: usize = 64 << 20;

/// Compiles constraints for one vocabulary. Making it walks the vocabulary several times (about half a second for 150,000
/// tokens): make it once, off the start path.
pub struct GrammarFactory {
    inner: Arc<ParserFactory>,
    vocabulary: Arc<Vocabulary>,
    compiling: Arc<AtomicUsize>,
    cache: Cache,
}

impl GrammarFactory {
    /// A factory for a tokenizer. `vocab` is the number of the model's logits, which may be more than the tokenizer has names.
    ///
    /// # Errors
    /// A tokenizer without an end token, or that the library refuses.
    pub fn new(tokenizer: &Tokenizer, vocab: usize) -> Result<Self, TextError> {
        let eos_ids = tokenizer.eos_ids().to_vec();
        let missing = || TextError::tokenizer("structured output needs an end token, and none is known");
        let first = *eos_ids.first().ok_or_else(missing)?;
        let size = vocab.max(tokenizer.vocab_size());
        let words: Vec<Vec<u8>> = (0..size as u32).map(|id| word(tokenizer, id)).collect();
        let mut named = vec![0u32; size.div_ceil(32)];
        for (id, _) in words.iter().enumerate().filter(|w| !w.1.is_empty()) {
            named[id / 32] |= 1 << (id % 32);
        }
        let failed = |e: &dyn std::fmt::Display| {
            TextError::tokenizer(format!("grammar vocabulary: {}", first_line(&e.to_string())))
        };
        let size = u32::try_from(size).map_err(|e| failed(&e))?;
        let trie = TokTrie::from(&TokRxInfo::new(size, first), &words).with_eos_tokens(&eos_ids);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut inner =
            ParserFactory::new(&env, InferenceCapabilities::default(), &slices).map_err(|e| failed(&e))?;
        inner.quiet();
        *inner.limits_mut() = ParserLimits {
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Self {
            inner: Arc::new(inner),
            vocabulary: Arc::new(Vocabulary { eos_ids, named, env }),
            compiling: Arc::new(AtomicUsize::new(0)),
            cache: Cache::default(),
        })
    }

    /// The matcher of a constraint that was compiled before and is still kept. A constraint beyond the budget never was.
    pub fn cached(&self, constraint: &Constraint, budget: Budget) -> Option<Matcher> {
        check_size(constraint, budget).ok()?;
        let compiled = self.cache.get(&key(constraint))?;
        Some(self.matcher(&compiled, constraint.kind()))
    }

    /// What the cache of compiled constraints has done.
    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }

    /// A matcher of its own: nothing that one sequence makes, tables of lexer states above all, is seen by another.
    fn matcher(&self, compiled: &Inner, kind: &'static str) -> Matcher {
        Matcher {
            inner: compiled.deep_clone(),
            gate: None,
            kind,
            vocabulary: self.vocabulary.clone(),
        }
    }

    /// Compiles a constraint, unless it is [cached](Self::cached). Blocks for up to `budget.time`: call it off the hot path.
    ///
    /// # Errors
    /// A constraint that is wrong, or costs more than the budget.
    pub fn compile(&self, constraint: &Constraint, budget: Budget) -> Result<Matcher, TextError> {
        let kind = constraint.kind();
        if let Some(matcher) = self.cached(constraint, budget) {
            return Ok(matcher);
        }
        check_size(constraint, budget)?;
        let compiled = Arc::new(self.compile_anew(constraint, budget)?);
        let matcher = self.matcher(&compiled, kind);
        self.cache.put(key(constraint), compiled);
        Ok(matcher)
    }

    fn compile_anew(&self, constraint: &Constraint, budget: Budget) -> Result<Inner, TextError> {
        let kind = constraint.kind();
        let grammar = grammar(constraint)?;
        let slot = Slot::take(&self.compiling).ok_or_else(|| TextError::GrammarBudget {
            kind,
            message: format!("{COMPILING_MAX} constraints are being compiled already; try again"),
        })?;
        let (send, receive) = mpsc::sync_channel(1);
        let factory = self.inner.clone();
        let work = move || {
            let parser = factory.create_parser(grammar).map_err(|e| e.to_string());
            let ready = parser.map(|parser| Inner::new(Ok(parser)));
            let ready = ready.and_then(|m| m.get_error().map_or(Ok(m), Err));
            drop(slot);
            // Nobody listens where the time is up.
            let _ = send.send(ready);
        };
        let spawned = std::thread::Builder::new()
            .name("grammar".into())
            .stack_size(STACK_BYTES)
            .spawn(work);
        spawned.map_err(|e| TextError::GrammarBudget {
            kind,
            message: format!("no thread: {e}"),
        })?;
        match receive.recv_timeout(budget.time) {
            Ok(Ok(compiled)) => Ok(compiled),
            Ok(Err(message)) => Err(error(kind, &message)),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(TextError::GrammarBudget {
                kind,
                message: format!("more than {} ms", budget.time.as_millis()),
            }),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(TextError::Grammar {
                kind,
                message: "the compiler failed".into(),
            }),
        }
    }
}

/// One of the compilations at a time.
struct Slot(Arc<AtomicUsize>);

impl Slot {
    fn take(count: &Arc<AtomicUsize>) -> Option<Self> {
        let slot = Slot(count.clone());
        // Dropping the slot gives the count back where it was too high.
        (count.fetch_add(1, Ordering::AcqRel) < COMPILING_MAX).then_some(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The library sorts out control tokens by a first byte that no text has.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id).unwrap_or_default();
    match tokenizer.kind(id) {
        TokenKind::Unused => Vec::new(),
        TokenKind::Control => [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat(),
        TokenKind::Normal | TokenKind::UserDefined | TokenKind::Byte => bytes.to_vec(),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or("").trim()
}

/// The library's complaint as ours; its limits are budgets.
fn error(kind: &'static str, message: &str) -> TextError {
    let short: String = first_line(message).chars().take(500).collect();
    let lower = short.to_lowercase();
    if ["fuel", "too many", "too large", "too big", "limit", "exceed"]
        .iter()
        .any(|sign| lower.contains(sign))
    {
        TextError::GrammarBudget { kind, message: short }
    } else {
        TextError::Grammar { kind, message: short }
    }
}

fn check_size(constraint: &Constraint, budget: Budget) -> Result<(), TextError> {
    let kind = constraint.kind();
    let (bytes, depth) = match constraint {
        Constraint::JsonObject => (0, 0),
        Constraint::JsonSchema(schema) => (
            json_bytes(schema, budget.source_bytes),
            json_depth(schema, DEPTH_MAX + 1),
        ),
        Constraint::Regex(source) | Constraint::Lark(source) => (source.len(), bracket_depth(source)),
        Constraint::Choice(list) => (list.iter().map(|c| c.len() + 1).sum(), 0),
    };
    if bytes > budget.source_bytes {
        let message = format!("more than {} bytes", budget.source_bytes);
        return Err(TextError::GrammarBudget { kind, message });
    }
    if depth > DEPTH_MAX {
        return Err(TextError::GrammarBudget {
            kind,
            message: format!("more than {DEPTH_MAX} levels of nesting"),
        });
    }
    Ok(())
}

/// Bytes of strings and structure, or a number over `limit`.
fn json_bytes(value: &Value, limit: usize) -> usize {
    let mut bytes = 0;
    let mut stack = vec![value];
    while let Some(value) = stack.pop() {
        bytes += match value {
            Value::String(text) => text.len() + 3,
            Value::Object(map) => {
                stack.extend(map.values());
                map.keys().map(|k| k.len() + 4).sum::<usize>() + 2
            }
            Value::Array(list) => {
                stack.extend(list);
                list.len() + 2
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => 8,
        };
        if bytes > limit {
            break;
        }
    }
    bytes
}

fn json_depth(value: &Value, limit: usize) -> usize {
    let deepest = |values: &mut dyn Iterator<Item = &Value>| {
        values.map(|v| json_depth(v, limit - 1)).max().unwrap_or(0)
    };
    match value {
        _ if limit == 0 => 0,
        Value::Object(map) => 1 + deepest(&mut map.values()),
        Value::Array(list) => 1 + deepest(&mut list.iter()),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

/// Deepest nesting of brackets; quoting is not understood, so that this can only be too high for text in brackets' clothes.
fn bracket_depth(source: &str) -> usize {
    let (mut depth, mut deepest, mut escaped) = (0usize, 0, false);
    for byte in source.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'(' | b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn grammar(constraint: &Constraint) -> Result<TopLevelGrammar, TextError> {
    let kind = constraint.kind();
    Ok(match constraint {
        Constraint::JsonObject => {
            TopLevelGrammar::from_json_schema(bounded_blanks(&json!({"type": "object"})))
        }
        Constraint::JsonSchema(schema @ (Value::Object(_) | Value::Bool(_))) => {
            TopLevelGrammar::from_json_schema(bounded_blanks(schema))
        }
        Constraint::JsonSchema(_) => {
            return Err(TextError::Grammar {
                kind,
                message: "a schema is an object or a boolean".into(),
            });
        }
        Constraint::Regex(source) => TopLevelGrammar::from_regex(source),
        Constraint::Choice(list) => {
            if list.is_empty() || list.iter().any(String::is_empty) {
                return Err(TextError::Grammar {
                    kind,
                    message: "needs at least one choice, and none of them empty".into(),
                });
            }
            let all: Vec<String> = list.iter().map(|c| escape(c)).collect();
            TopLevelGrammar::from_regex(&all.join("|"))
        }
        Constraint::Lark(source) => TopLevelGrammar::from_lark(source.clone()),
    })
}

/// Blanks between the parts of a JSON text: enough for any indentation that people use, but a model that falls into writing
/// blanks must come to an end.
pub(super) const BLANKS: &str = r"[ \t\r\n]{0,40}";

/// Bounds the blanks of a schema, unless it says what it wants.
pub(super) fn bounded_blanks(schema: &Value) -> Value {
    let mut schema = match schema {
        Value::Object(map) => map.clone(),
        Value::Bool(false) => Map::from_iter([("not".to_owned(), json!({}))]),
        _ => Map::new(),
    };
    schema
        .entry("x-guidance")
        .or_insert_with(|| json!({"whitespace_flexible": true, "whitespace_pattern": BLANKS}));
    Value::Object(schema)
}

/// A string as a regular expression that matches it alone.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_ascii_punctuation() => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out
}

/// A constraint on its way through one sequence.
pub struct Matcher {
    inner: Inner,
    gate: Option<Gate>,
    kind: &'static str,
    vocabulary: Arc<Vocabulary>,
}

impl Matcher {
    /// Lets any text pass until `tag` has come, such as `</think>`, and line breaks after it; only then the constraint holds.
    #[must_use]
    pub fn after(mut self, tag: &str) -> Self {
        self.gate = Some(Gate::new(tag));
        self
    }

    /// Sets bit `id % 32` of `allowed[id / 32]` for each token that may come next. `allowed` comes zeroed; tokens that it does
    /// not cover are left out.
    ///
    /// # Errors
    /// When a step costs too much.
    pub fn allowed(&mut self, allowed: &mut [u32]) -> Result<(), TextError> {
        let vocabulary = &self.vocabulary;
        if self.gate.as_ref().is_some_and(|g| !g.is_open()) {
            Gate::closed_mask(&vocabulary.named, &vocabulary.eos_ids, allowed);
            return Ok(());
        }
        let mask = self
            .inner
            .compute_mask_or_eos()
            .map_err(|e| error(self.kind, &e.to_string()))?;
        for (to, from) in allowed.iter_mut().zip(mask.as_slice()) {
            *to |= from;
        }
        if let Some(gate) = &self.gate {
            gate.add_line_breaks(vocabulary.env.tok_trie(), allowed);
        }
        Ok(())
    }

    /// Takes the chosen token.
    ///
    /// # Errors
    /// A token that is not allowed.
    pub fn accept(&mut self, token: u32) -> Result<(), TextError> {
        if let Some(gate) = &mut self.gate
            && gate.takes(self.vocabulary.env.tok_trie(), token)
        {
            return Ok(());
        }
        if self.is_complete() && self.vocabulary.eos_ids.contains(&token) {
            return Ok(());
        }
        self.inner
            .consume_token(token)
            .map_err(|e| error(self.kind, &e.to_string()))
    }

    /// Whether the text is complete, and nothing but an end token may follow.
    pub fn is_complete(&self) -> bool {
        self.inner.is_stopped() && !self.inner.is_error()
    }

    /// Whether the text so far is a whole one, be it that more may follow.
    pub fn may_end(&mut self) -> bool {
        self.is_complete() || self.inner.is_accepting().unwrap_or(false)
    }
}
