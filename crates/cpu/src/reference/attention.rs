//! Attention over a paged cache, one query at a time.

use galvani_graph::{CacheSpec, LimitsSpec, StepInput, StepSequence};

use super::Rows;
use super::ops::{dot, softcap};

/// Keys `[slots, kv_heads * key_dim]` and values `[slots, kv_heads * value_dim]`; slot = page * page_tokens + offset.
#[derive(Debug, Default)]
pub(super) struct KvCache {
    keys: Vec<f32>,
    values: Vec<f32>,
    kv_heads: usize,
    key_dim: usize,
    value_dim: usize,
}

/// The numbers of one attention op.
#[derive(Clone, Copy)]
pub(super) struct Rule {
    pub scale: f32,
    pub window: Option<usize>,
    pub softcap: Option<f32>,
}

impl KvCache {
    pub(super) fn new(spec: &CacheSpec, limits: &LimitsSpec) -> Self {
        let slots = limits.page_count * limits.page_tokens;
        KvCache {
            keys: vec![0.0; slots * spec.kv_heads * spec.key_dim],
            values: vec![0.0; slots * spec.kv_heads * spec.value_dim],
            kv_heads: spec.kv_heads,
            key_dim: spec.key_dim,
            value_dim: spec.value_dim,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        (self.keys.len() + self.values.len()) * 4
    }

    /// Stores the step's keys and values at their positions.
    pub(super) fn store(&mut self, step: &StepInput<'_>, k: Rows<'_>, v: Rows<'_>, limits: &LimitsSpec) {
        for sequence in step.sequences {
            for token in sequence.token_start..sequence.token_start + sequence.token_count {
                let slot = slot(step, sequence, step.positions[token as usize] as usize, limits);
                self.keys[slot * k.len..][..k.len].copy_from_slice(k.row(token as usize));
                self.values[slot * v.len..][..v.len].copy_from_slice(v.row(token as usize));
            }
        }
    }
}

/// Where position `position` of `sequence` lives in the pool.
fn slot(step: &StepInput<'_>, sequence: &StepSequence, position: usize, limits: &LimitsSpec) -> usize {
    let page = step.pages[sequence.page_start as usize + position / limits.page_tokens];
    page.0 as usize * limits.page_tokens + position % limits.page_tokens
}

/// Each query of the step against the positions it may see. `head` is the length of a query head.
#[allow(clippy::too_many_arguments)]
pub(super) fn attend(
    rule: Rule,
    step: &StepInput<'_>,
    q: Rows<'_>,
    head: usize,
    cache: &KvCache,
    limits: &LimitsSpec,
    width: usize,
    out: &mut [f32],
) {
    let group = q.len / head / cache.kv_heads;
    for sequence in step.sequences {
        for token in sequence.token_start..sequence.token_start + sequence.token_count {
            let own = step.positions[token as usize] as usize;
            let first = rule.window.map_or(0, |window| (own + 1).saturating_sub(window));
            let slots: Vec<usize> = (first..=own).map(|p| slot(step, sequence, p, limits)).collect();
            let out = &mut out[token as usize * width..][..width];
            for (index, q) in q.row(token as usize).chunks_exact(head).enumerate() {
                let out = &mut out[index * cache.value_dim..][..cache.value_dim];
                one_head(rule, q, index / group, &slots, cache, out);
            }
        }
    }
}

fn one_head(rule: Rule, q: &[f32], kv_head: usize, slots: &[usize], cache: &KvCache, out: &mut [f32]) {
    let scores: Vec<f32> = slots
        .iter()
        .map(|&slot| {
            let key = &cache.keys[(slot * cache.kv_heads + kv_head) * cache.key_dim..][..cache.key_dim];
            let score = dot(q, key) * rule.scale;
            rule.softcap.map_or(score, |cap| softcap(score, cap))
        })
        .collect();
    let top = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = scores
        .iter()
        .map(|&s| (f64::from(s) - f64::from(top)).exp())
        .collect();
    let total: f64 = weights.iter().sum();
    for (column, out) in out.iter_mut().enumerate() {
        let at = |slot: usize| cache.values[(slot * cache.kv_heads + kv_head) * cache.value_dim + column];
        let sum: f64 = slots
            .iter()
            .zip(&weights)
            .map(|(&slot, &w)| w * f64::from(at(slot)))
            .sum();
        *out = (sum / total) as f32;
    }
}
