//! `galvani eval`: perplexity in windows, and divergence from another checkpoint.
//!
//! As llama.cpp's `llama-perplexity` counts: windows of N tokens without overlap, the first token of each replaced by the
//! begin token (if the vocabulary has one), the second half of each scored.

use serde_json::json;

use galvani_text::Special;

use crate::direct::{Direct, Part};
use crate::error::CliError;
use crate::flags::EvalArgs;
use crate::hub::Store;
use crate::load::{self, Fit, Opened, Wish};
use crate::machine::Machine;
use crate::progress::Progress;

/// Rows of logits at a time: bounds the memory that a large vocabulary takes.
const ROWS: usize = 64;

/// Scores a file.
pub fn eval(arguments: &EvalArgs) -> Result<(), CliError> {
    if !(4..=65_536).contains(&arguments.window) {
        return Err(CliError::Usage(format!(
            "--window: got {}, allowed: 4 to 65536",
            arguments.window
        )));
    }
    let path = arguments.positional.as_ref().or(arguments.text.as_ref());
    let path = path.expect("clap asks for one of the two");
    let text = std::fs::read_to_string(path).map_err(CliError::io(path))?;
    let quiet = arguments.model.store.quiet;
    let opened = load::open(&arguments.model, None, arguments.compute.strict)?;
    let tokenizer = load::tokenizer(&opened.checkpoint)?;
    let tokens = tokenizer.encode(&text, Special::Plain, true);
    let tokens = tokens.map_err(|error| CliError::Failed(error.to_string()))?;
    let begin = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    let windows = windows(&tokens, arguments.window, arguments.windows, begin)?;
    let mut model = direct(&opened, arguments)?;
    let mut other = match &arguments.against {
        Some(name) => {
            let store = Store::new(&arguments.model.store)?;
            let against = load::open_named(&store, Some(name), arguments.compute.strict)?;
            if against.info.vocab != opened.info.vocab {
                return Err(CliError::Usage(format!(
                    "--against {name}: it has {} tokens, {} has {}; only models of one vocabulary can be compared",
                    against.info.vocab, opened.name, opened.info.vocab
                )));
            }
            Some(direct(&against, arguments)?)
        }
        None => None,
    };
    let mut bar = Progress::new("scoring", windows.len() as u64, 0, quiet);
    let mut score = Score::default();
    for window in &windows {
        score_window(&mut model, other.as_mut(), window, opened.info.vocab, &mut score)?;
        bar.add(1);
    }
    drop(bar);
    report(arguments, &opened, windows.len(), &score);
    Ok(())
}

fn direct(opened: &Opened, arguments: &EvalArgs) -> Result<Direct, CliError> {
    // The engine's limits allow as many rows as there are sequences; eval has one sequence with many rows.
    let wish = Wish {
        sequences: ROWS,
        queue: 1,
        context: Some(arguments.window),
    };
    let mut fit = Fit::derive(opened, &arguments.compute, &wish, &Machine::read())?;
    fit.limits.page_count = arguments.window.div_ceil(fit.limits.page_tokens);
    fit.limits.sequences_max = 1;
    let ready = load::compile(
        opened,
        &arguments.compute,
        fit,
        arguments.model.store.quiet,
        |_| {},
    )?;
    Ok(Direct::new(ready, 1))
}

fn windows(
    tokens: &[u32],
    length: usize,
    most: Option<usize>,
    begin: Option<u32>,
) -> Result<Vec<Vec<u32>>, CliError> {
    let mut windows: Vec<Vec<u32>> = tokens
        .chunks_exact(length)
        .take(most.unwrap_or(usize::MAX))
        .map(<[u32]>::to_vec)
        .collect();
    if windows.is_empty() {
        return Err(CliError::Usage(format!(
            "the text has {} tokens, a window needs {length}: give a longer text or a smaller --window",
            tokens.len()
        )));
    }
    if let Some(begin) = begin {
        windows.iter_mut().for_each(|window| window[0] = begin);
    }
    Ok(windows)
}

/// Sums over all scored tokens.
#[derive(Debug, Default, Clone, Copy)]
struct Score {
    count: usize,
    nll: f64,
    nll_squared: f64,
    divergence: f64,
    divergence_max: f64,
    same_top: usize,
}

fn score_window(
    model: &mut Direct,
    mut other: Option<&mut Direct>,
    window: &[u32],
    vocab: usize,
    score: &mut Score,
) -> Result<(), CliError> {
    let first = window.len() / 2;
    // The last token's prediction has nothing to be held against.
    let end = window.len() - 1;
    let mut start = 0;
    while start < end {
        let scored = start >= first;
        let most = if scored {
            model.rows_max().min(ROWS)
        } else {
            model.width()
        };
        let border = if scored { end } else { first.min(end) };
        let stop = (start + most.min(model.width())).min(border);
        let rows = if scored { stop - start } else { 0 };
        let part = [Part {
            sequence: 0,
            start,
            tokens: &window[start..stop],
            rows,
        }];
        let theirs = match other.as_deref_mut() {
            Some(other) => Some(other.step(&part)?),
            None => None,
        };
        let ours = model.step(&part)?;
        for row in 0..rows {
            let logits = &ours[row * vocab..][..vocab];
            let target = window[start + row + 1];
            add(
                score,
                logits,
                theirs.map(|all| &all[row * vocab..][..vocab]),
                target,
            )?;
        }
        start = stop;
    }
    Ok(())
}

fn add(score: &mut Score, logits: &[f32], theirs: Option<&[f32]>, target: u32) -> Result<(), CliError> {
    let norm = log_sum_exp(logits);
    let nll = norm - f64::from(logits[target as usize]);
    if !nll.is_finite() {
        return Err(CliError::Failed(format!(
            "token {target} has a log-probability that is not finite"
        )));
    }
    score.count += 1;
    score.nll += nll;
    score.nll_squared += nll * nll;
    if let Some(theirs) = theirs {
        // KL(theirs || ours): what is lost by taking our distribution for theirs.
        let their_norm = log_sum_exp(theirs);
        let mut divergence = 0.0;
        for (ours, theirs) in logits.iter().zip(theirs) {
            let log_p = f64::from(*theirs) - their_norm;
            if log_p > -60.0 {
                divergence += log_p.exp() * (log_p - (f64::from(*ours) - norm));
            }
        }
        score.divergence += divergence;
        score.divergence_max = score.divergence_max.max(divergence);
        score.same_top += usize::from(top(logits) == top(theirs));
    }
    Ok(())
}

fn top(logits: &[f32]) -> usize {
    logits.iter().enumerate().fold(
        0,
        |best, (index, value)| if *value > logits[best] { index } else { best },
    )
}

fn log_sum_exp(logits: &[f32]) -> f64 {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|value| f64::from(value - most).exp()).sum();
    f64::from(most) + sum.ln()
}

fn report(arguments: &EvalArgs, opened: &Opened, windows: usize, score: &Score) {
    let count = score.count as f64;
    let mean = score.nll / count;
    let perplexity = mean.exp();
    // Standard error of the mean, carried through the exponential.
    let deviation =
        ((score.nll_squared / count - mean * mean).max(0.0) / (count - 1.0).max(1.0)).sqrt() * perplexity;
    if arguments.json {
        let mut value = json!({
            "model": opened.name,
            "windows": windows,
            "window": arguments.window,
            "tokens_scored": score.count,
            "perplexity": perplexity,
            "perplexity_error": deviation,
            "nll": mean,
        });
        if arguments.against.is_some() {
            value["kl_mean"] = json!(score.divergence / count);
            value["kl_max"] = json!(score.divergence_max);
            value["same_top"] = json!(score.same_top as f64 / count);
        }
        println!("{value}");
        return;
    }
    println!(
        "perplexity {perplexity:.4} +- {deviation:.4} ({} tokens in {windows} windows of {})",
        score.count, arguments.window
    );
    if let Some(name) = &arguments.against {
        println!(
            "divergence from {name}: mean {:.6}, max {:.4}; the same top token for {:.2} %",
            score.divergence / count,
            score.divergence_max,
            score.same_top as f64 / count * 100.0
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_of_known_distributions() {
        let mut score = Score::default();
        let even = [0.0f32; 4];
        add(&mut score, &even, Some(&even), 2).expect("finite");
        assert!((score.nll - 4f64.ln()).abs() < 1e-12 && score.divergence.abs() < 1e-12);
        // KL((1/2, 1/2) || (1/4, 3/4)) = ln 2 - ln(3)/2
        let mut score = Score::default();
        add(&mut score, &[0.0, 3f32.ln()], Some(&[0.0, 0.0]), 0).expect("finite");
        assert!(
            (score.divergence - (2f64.ln() - 3f64.ln() / 2.0)).abs() < 1e-6,
            "{score:?}"
        );
        assert!((score.nll - 4f64.ln()).abs() < 1e-6);
        assert!(add(&mut score, &[f32::NEG_INFINITY, 0.0], None, 0).is_err());
    }

    #[test]
    fn windows_at_their_borders() {
        for (count, length, most, want) in [
            (8, 4, None, 2),
            (7, 4, None, 1),
            (4, 4, None, 1),
            (9, 4, Some(1), 1),
        ] {
            let tokens: Vec<u32> = (10..10 + count).collect();
            let got = windows(&tokens, length, most, Some(1)).expect("long enough");
            assert_eq!(got.len(), want, "{count}");
            assert!(got.iter().all(|w| w[0] == 1 && w[1] != 1));
        }
        assert!(windows(&[1, 2, 3], 4, None, None).is_err());
    }
}
