//! Runs sequences through a program in any order of steps, and keeps the output of every position.

use galvani_graph::{
    Backend, BackendError, Graph, LimitsSpec, PageId, StepInput, StepSequence, WeightSource,
};

/// A sequence of known tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// Its tokens.
    pub tokens: Vec<u32>,
}

impl Sequence {
    /// 0, 1, 2, .. below `vocabulary`.
    pub fn counting(len: usize, vocabulary: usize) -> Self {
        Sequence {
            tokens: (0..len).map(|i| (i % vocabulary) as u32).collect(),
        }
    }

    /// Tokens that depend on `seed`.
    pub fn random(len: usize, vocabulary: usize, seed: u64) -> Self {
        let mut random = crate::weights::Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Sequence {
            tokens: (0..len)
                .map(|_| (random.bits() >> 20) as u32 % vocabulary as u32)
                .collect(),
        }
    }
}

/// One step: which sequences take part, each with how many tokens.
pub type Step = Vec<(usize, usize)>;

/// Sequence 0 alone, `len` tokens in chunks.
pub fn alone(len: usize, chunk: usize) -> Vec<Step> {
    (0..len)
        .step_by(chunk)
        .map(|start| vec![(0, chunk.min(len - start))])
        .collect()
}

/// Limits that hold for all `sequences` in one step.
pub fn limits(sequences: &[Sequence], page_tokens: usize) -> LimitsSpec {
    let total: usize = sequences.iter().map(|s| s.tokens.len()).sum();
    let pages = sequences
        .iter()
        .map(|s| s.tokens.len().div_ceil(page_tokens))
        .sum();
    LimitsSpec {
        step_tokens_max: total,
        step_rows_max: total,
        step_sequences_max: sequences.len(),
        page_tokens,
        page_count: pages,
        context_max: total,
    }
}

/// A compiled graph, ready to be driven.
pub struct Machine<'b, B: Backend> {
    backend: &'b B,
    /// The program.
    pub program: B::Program,
    width: usize,
    page_tokens: usize,
}

impl<'b, B: Backend> Machine<'b, B> {
    /// Compiles `graph` for all `sequences` in one step.
    ///
    /// # Errors
    /// What the backend says.
    pub fn new(
        backend: &'b B,
        graph: &Graph,
        weights: &dyn WeightSource,
        sequences: &[Sequence],
        page_tokens: usize,
    ) -> Result<Self, BackendError> {
        let program = backend.compile(graph, weights, limits(sequences, page_tokens))?;
        let width = graph.output.map_or(0, |id| graph.value(id).row_len());
        Ok(Machine {
            backend,
            program,
            width,
            page_tokens,
        })
    }

    /// Runs `steps`; returns for each sequence the outputs of all its positions, one after the other. Pages are handed
    /// out so that neighbours in a sequence are not neighbours in the pool.
    ///
    /// # Errors
    /// What the backend says.
    pub fn drive(&mut self, sequences: &[Sequence], steps: &[Step]) -> Result<Vec<Vec<f32>>, BackendError> {
        let tables = page_tables(sequences, self.page_tokens);
        let mut done = vec![0usize; sequences.len()];
        let mut outputs = vec![Vec::new(); sequences.len()];
        for step in steps {
            let (mut tokens, mut positions, mut parts, mut pages) = (vec![], vec![], vec![], vec![]);
            for &(index, count) in step {
                let start = done[index];
                parts.push(StepSequence {
                    token_start: tokens.len() as u32,
                    token_count: count as u32,
                    position_start: start as u32,
                    page_start: pages.len() as u32,
                    page_count: tables[index].len() as u32,
                });
                tokens.extend_from_slice(&sequences[index].tokens[start..start + count]);
                positions.extend((start..start + count).map(|p| p as u32));
                pages.extend_from_slice(&tables[index]);
                done[index] += count;
            }
            let rows: Vec<u32> = (0..tokens.len() as u32).collect();
            let input = StepInput {
                tokens: &tokens,
                positions: &positions,
                sequences: &parts,
                pages: &pages,
                rows: &rows,
            };
            let mut logits = vec![f32::NAN; rows.len() * self.width];
            self.backend.run(&mut self.program, &input, &mut logits)?;
            let mut from = 0;
            for &(index, count) in step {
                outputs[index].extend_from_slice(&logits[from * self.width..(from + count) * self.width]);
                from += count;
            }
        }
        Ok(outputs)
    }
}

/// Pages in turn: page 0 to the last sequence, page 1 to the one before, and so on.
fn page_tables(sequences: &[Sequence], page_tokens: usize) -> Vec<Vec<PageId>> {
    let wanted: Vec<usize> = sequences
        .iter()
        .map(|s| s.tokens.len().div_ceil(page_tokens))
        .collect();
    let mut tables: Vec<Vec<PageId>> = vec![Vec::new(); sequences.len()];
    let mut next = 0;
    while tables
        .iter()
        .zip(&wanted)
        .any(|(table, &wanted)| table.len() < wanted)
    {
        for index in (0..tables.len()).rev().filter(|&index| wanted[index] > 0) {
            if tables[index].len() < wanted[index] {
                tables[index].push(PageId(next));
                next += 1;
            }
        }
    }
    tables.iter_mut().for_each(|table| table.reverse());
    tables
}
