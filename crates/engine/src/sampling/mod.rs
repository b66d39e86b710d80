//! From a row of logits to a token and its log-probabilities.

mod choose;
mod random;
mod scan;

use std::collections::HashMap;

pub use choose::Buffers;
pub use random::mix;

use crate::request::{SamplingParams, TokenLogprob, TokenMask};

/// What the penalties know of a token.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    generated: u32,
}

/// Chooses the tokens of one request. Its state is a function of the request and the tokens chosen so far.
pub struct Sampler {
    params: SamplingParams,
    // Tokens of prompt and output, kept only where a penalty needs them.
    seen: HashMap<u32, Seen>,
    penalises: bool,
}

/// Buffers for one thread, reused for each row.
#[derive(Default)]
pub struct Scratch {
    allowed: Vec<u32>,
    changed: Vec<(u32, f32)>,
    top: Vec<(f32, u32)>,
    buffers: Buffers,
}

/// What a row is chosen under, beside the request's own parameters.
pub struct Conditions<'a> {
    /// Index of the token among the generated ones; the random number depends on it.
    pub index: usize,
    /// Tokens that may not come yet (end tokens before `tokens_min`).
    pub banned: &'a [u32],
    /// Constraint.
    pub mask: Option<&'a mut (dyn TokenMask + 'static)>,
    /// Alternatives wanted with the log-probability.
    pub logprobs: Option<usize>,
}

impl Sampler {
    /// A sampler at the start of the answer to `prompt`.
    pub fn new(params: SamplingParams, prompt: &[u32]) -> Self {
        let repeats = params.repetition_penalty != 1.0;
        let penalises = repeats || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;
        let mut seen = HashMap::new();
        if repeats {
            seen.extend(prompt.iter().map(|token| (*token, Seen::default())));
        }
        Self {
            params,
            seen,
            penalises,
        }
    }

    /// Chooses from `row`, which is overwritten, and takes note of the choice.
    ///
    /// # Errors
    /// When a logit is not finite, the constraint fails, or it leaves no token; the message is for the client.
    pub fn choose(
        &mut self,
        row: &mut [f32],
        conditions: Conditions<'_>,
        scratch: &mut Scratch,
    ) -> Result<(u32, Option<TokenLogprob>), String> {
        let raw = scan::peak_checked(row).map_err(not_finite)?;
        // The model's own distribution, before anything below changes the row.
        let reported = conditions.logprobs.map(|count| {
            let normaliser = f64::from(raw.value) + scan::sum_exp(row, raw.value, 1.0).ln();
            (normaliser, best(row, count, normaliser, &mut scratch.top))
        });
        scratch.changed.clear();
        let untouched = self.params.logit_bias.is_empty()
            && conditions.banned.is_empty()
            && conditions.mask.is_none()
            && !self.penalises;
        let peak = if untouched {
            raw
        } else {
            self.adjust(row, &conditions, scratch);
            restrict(row, conditions.banned, conditions.mask, scratch)?
        };
        let token = if self.params.temperature > 0.0 {
            choose::draw(
                &self.params,
                row,
                peak.value,
                conditions.index as u64,
                &mut scratch.buffers,
            )
        } else {
            peak.token as u32
        };
        if self.penalises {
            self.seen.entry(token).or_default().generated += 1;
        }
        let logprob = reported.map(|(normaliser, top)| {
            let changed = scratch.changed.iter().find(|(changed, _)| *changed == token);
            let logit = changed.map_or(row[token as usize], |(_, logit)| *logit);
            TokenLogprob {
                token,
                logprob: (f64::from(logit) - normaliser) as f32,
                top,
            }
        });
        Ok((token, logprob))
    }

    /// Logit bias and penalties, with the old values put down in `scratch.changed` (the first entry of a token counts).
    fn adjust(&self, row: &mut [f32], conditions: &Conditions<'_>, scratch: &mut Scratch) {
        let params = &self.params;
        let keep_old = conditions.logprobs.is_some();
        let mut change = |row: &mut [f32], token: u32, to: f32| {
            let slot = &mut row[token as usize];
            if keep_old {
                scratch.changed.push((token, *slot));
            }
            // Extreme but legal parameters must not make infinities: these mean something else below.
            *slot = to.clamp(f32::MIN, f32::MAX);
        };
        for (token, bias) in &params.logit_bias {
            let to = row[*token as usize] + bias;
            change(row, *token, to);
        }
        if !self.penalises {
            return;
        }
        for (token, seen) in &self.seen {
            let mut x = row[*token as usize];
            x = if x > 0.0 {
                x / params.repetition_penalty
            } else {
                x * params.repetition_penalty
            };
            if seen.generated > 0 {
                x -= params.presence_penalty + params.frequency_penalty * seen.generated as f32;
            }
            change(row, *token, x);
        }
    }
}

/// Log-probability of `token`, which follows the position of `row`, under the model.
///
/// # Errors
/// When a logit is not finite.
pub fn token_logprob(
    row: &[f32],
    token: u32,
    top_count: usize,
    scratch: &mut Scratch,
) -> Result<TokenLogprob, String> {
    let peak = scan::peak_checked(row).map_err(not_finite)?;
    let normaliser = f64::from(peak.value) + scan::sum_exp(row, peak.value, 1.0).ln();
    Ok(TokenLogprob {
        token,
        logprob: (f64::from(row[token as usize]) - normaliser) as f32,
        top: best(row, top_count, normaliser, &mut scratch.top),
    })
}

fn best(row: &[f32], count: usize, normaliser: f64, top: &mut Vec<(f32, u32)>) -> Vec<(u32, f32)> {
    choose::largest(row, count, top);
    top.iter()
        .map(|(logit, token)| (*token, (f64::from(*logit) - normaliser) as f32))
        .collect()
}

fn not_finite(fault: scan::NotFinite) -> String {
    format!(
        "the model gave a logit that is not finite ({} for token {})",
        fault.value, fault.token
    )
}

/// Sets what may not be chosen to minus infinity and finds the peak of the rest.
fn restrict(
    row: &mut [f32],
    banned: &[u32],
    mask: Option<&mut (dyn TokenMask + 'static)>,
    scratch: &mut Scratch,
) -> Result<scan::Peak, String> {
    if let Some(mask) = mask {
        scratch.allowed.clear();
        scratch.allowed.resize(row.len().div_ceil(32), 0);
        mask.allowed(&mut scratch.allowed)?;
        apply(row, &scratch.allowed);
        if scan::peak(row).value == f32::NEG_INFINITY {
            return Err("the constraint allows no token here".to_owned());
        }
    }
    let mut held = Vec::new();
    for token in banned {
        let slot = &mut row[*token as usize];
        held.push(*slot);
        *slot = f32::NEG_INFINITY;
    }
    let peak = scan::peak(row);
    if peak.value > f32::NEG_INFINITY {
        return Ok(peak);
    }
    // The constraint leaves nothing but an end token: it has precedence over the least number of tokens. In reverse, so
    // that a token banned twice gets its first value back.
    for (token, old) in banned.iter().zip(held).rev() {
        row[*token as usize] = old;
    }
    match scan::peak(row) {
        peak if peak.value > f32::NEG_INFINITY => Ok(peak),
        _ => Err("no token is left to choose from".to_owned()),
    }
}

fn apply(row: &mut [f32], allowed: &[u32]) {
    for (part, word) in row.chunks_mut(32).zip(allowed) {
        match *word {
            u32::MAX => {}
            0 => part.fill(f32::NEG_INFINITY),
            word => {
                for (bit, x) in part.iter_mut().enumerate() {
                    *x = if word >> bit & 1 == 1 {
                        *x
                    } else {
                        f32::NEG_INFINITY
                    };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
