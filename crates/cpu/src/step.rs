//! What every program checks before it runs a step: a scheduler's mistake becomes an error, never a wild read.

use galvani_graph::{BackendError, Graph, LimitsSpec, Op, StepInput};

/// Smallest vocabulary among the graph's embedding tables; ids must lie below it.
pub(crate) fn vocabulary(graph: &Graph) -> usize {
    graph
        .nodes
        .iter()
        .filter(|node| matches!(node.op, Op::Embed { .. }))
        .map(|node| graph.weight(node.weights[0]).row_count())
        .min()
        .unwrap_or(usize::MAX)
}

/// Checks `step` against the limits a program was compiled for.
///
/// # Errors
/// [`BackendError::Step`], naming the number and the limit it breaks.
pub(crate) fn check_step(
    step: &StepInput<'_>,
    limits: &LimitsSpec,
    vocabulary: usize,
) -> Result<(), BackendError> {
    let tokens = step.tokens.len();
    at_most("tokens", tokens, limits.step_tokens_max)?;
    at_most("rows", step.rows.len(), limits.step_rows_max)?;
    at_most("sequences", step.sequences.len(), limits.step_sequences_max)?;
    ensure(step.positions.len() == tokens, || {
        format!("{} positions for {tokens} tokens", step.positions.len())
    })?;
    if let Some(id) = step.tokens.iter().find(|&&id| id as usize >= vocabulary) {
        return Err(BackendError::Step(format!("token {id}, vocabulary {vocabulary}")));
    }
    let ascending = step.rows.windows(2).all(|pair| pair[0] < pair[1]);
    ensure(ascending, || "rows are not ascending".into())?;
    if let Some(row) = step.rows.last().filter(|&&row| row as usize >= tokens) {
        return Err(BackendError::Step(format!("row {row} of {tokens} tokens")));
    }
    check_sequences(step, limits)
}

fn check_sequences(step: &StepInput<'_>, limits: &LimitsSpec) -> Result<(), BackendError> {
    let mut next = 0usize;
    for (index, sequence) in step.sequences.iter().enumerate() {
        let (start, count) = (sequence.token_start as usize, sequence.token_count as usize);
        ensure(start == next && count > 0, || {
            format!("sequence {index} holds tokens {start}+{count}, expected to start at {next}")
        })?;
        next = start + count;
        ensure(next <= step.tokens.len(), || {
            format!("sequence {index} ends at token {next} of {}", step.tokens.len())
        })?;
        let first = sequence.position_start as usize;
        let consecutive = step.positions[start..next]
            .iter()
            .enumerate()
            .all(|(i, &p)| p as usize == first + i);
        ensure(consecutive, || {
            format!("sequence {index}: positions do not run up from {first}")
        })?;
        at_most("context", first + count, limits.context_max)?;
        let pages = sequence.page_start as usize..sequence.page_start as usize + sequence.page_count as usize;
        let Some(table) = step.pages.get(pages.clone()) else {
            return Err(BackendError::Step(format!(
                "sequence {index}: pages {pages:?} of {}",
                step.pages.len()
            )));
        };
        ensure(table.len() * limits.page_tokens >= first + count, || {
            format!(
                "sequence {index}: {} pages for {} positions",
                table.len(),
                first + count
            )
        })?;
        if let Some(page) = table.iter().find(|page| page.0 as usize >= limits.page_count) {
            return Err(BackendError::Step(format!(
                "sequence {index}: page {} of {}",
                page.0, limits.page_count
            )));
        }
    }
    ensure(next == step.tokens.len(), || {
        format!("sequences hold {next} of {} tokens", step.tokens.len())
    })
}

fn at_most(what: &str, got: usize, most: usize) -> Result<(), BackendError> {
    ensure(got <= most, || format!("{got} {what}, compiled for {most}"))
}

fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), BackendError> {
    if holds {
        Ok(())
    } else {
        Err(BackendError::Step(message()))
    }
}

#[cfg(test)]
mod tests {
    use galvani_graph::{PageId, StepSequence};

    use super::*;

    const LIMITS: LimitsSpec = LimitsSpec {
        step_tokens_max: 4,
        step_rows_max: 2,
        step_sequences_max: 2,
        page_tokens: 16,
        page_count: 3,
        context_max: 40,
    };

    fn sequence(token_start: u32, token_count: u32, position_start: u32, page_count: u32) -> StepSequence {
        StepSequence {
            token_start,
            token_count,
            position_start,
            page_start: 0,
            page_count,
        }
    }

    #[test]
    fn each_broken_limit_is_named() {
        let pages = [PageId(0), PageId(2), PageId(1)];
        let good = [sequence(0, 3, 14, 2)];
        let positions = [14, 15, 16];
        let step = StepInput {
            tokens: &[0, 9, 1],
            positions: &positions,
            sequences: &good,
            pages: &pages,
            rows: &[0, 2],
        };
        assert!(check_step(&step, &LIMITS, 10).is_ok());
        let bad_pages = [PageId(0), PageId(3)];
        let short = [sequence(0, 3, 14, 1)];
        let outside = [StepSequence {
            page_start: 2,
            ..sequence(0, 3, 14, 2)
        }];
        let gap = [sequence(1, 2, 14, 2)];
        let far = [sequence(0, 3, 38, 3)];
        let cases: [(&str, StepInput<'_>, usize); 10] = [
            ("token 9", step, 9),
            (
                "5 tokens",
                StepInput {
                    tokens: &[0; 5],
                    ..step
                },
                10,
            ),
            (
                "positions for",
                StepInput {
                    positions: &[14, 15],
                    ..step
                },
                10,
            ),
            (
                "run up",
                StepInput {
                    positions: &[14, 15, 17],
                    ..step
                },
                10,
            ),
            (
                "ascending",
                StepInput {
                    rows: &[2, 2],
                    ..step
                },
                10,
            ),
            (
                "row 3",
                StepInput {
                    rows: &[0, 3],
                    ..step
                },
                10,
            ),
            (
                "1 pages",
                StepInput {
                    sequences: &short,
                    ..step
                },
                10,
            ),
            (
                "pages 2..4",
                StepInput {
                    sequences: &outside,
                    ..step
                },
                10,
            ),
            (
                "page 3",
                StepInput {
                    pages: &bad_pages,
                    ..step
                },
                10,
            ),
            (
                "start at 0",
                StepInput {
                    sequences: &gap,
                    ..step
                },
                10,
            ),
        ];
        for (wanted, step, vocabulary) in cases {
            let message = check_step(&step, &LIMITS, vocabulary)
                .expect_err(wanted)
                .to_string();
            assert!(message.contains(wanted), "{message} lacks {wanted}");
        }
        let step = StepInput {
            sequences: &far,
            positions: &[38, 39, 40],
            ..step
        };
        let message = check_step(&step, &LIMITS, 10).expect_err("context").to_string();
        assert!(message.contains("41 context"), "{message}");
    }
}
