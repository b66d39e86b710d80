//! Goldens, and a small driver that feeds a program the way the engine does: paged, in chunks.

#![allow(dead_code)]

use std::borrow::Cow;
use std::ops::Range;
use std::path::PathBuf;

use galvani_cpu::{CpuBackend, CpuMath, CpuOptions};
use galvani_graph::{
    Backend, BackendError, Format, Graph, LimitsSpec, PageId, StepInput, StepSequence, Weight, WeightSource,
};
use galvani_weights::safetensors::Safetensors;
use galvani_weights::{Checkpoint, quant};

pub const FAMILIES: [&str; 7] = [
    "llama",
    "smollm3",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "granite",
    "gemma3_text",
];

/// A path below `goldens/`.
pub fn golden_path(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../goldens")
        .join(path)
}

/// Both containers of a tiny checkpoint.
pub fn containers(family: &str) -> [(&'static str, Checkpoint); 2] {
    let folder = golden_path(&format!("tiny/{family}"));
    [
        ("safetensors", Checkpoint::open(&folder).unwrap()),
        ("gguf", Checkpoint::open(&folder.join("model-f32.gguf")).unwrap()),
    ]
}

/// Token ids and their logits, `[tokens, vocab]`.
pub struct Golden {
    pub ids: Vec<u32>,
    pub logits: Vec<f32>,
}

pub fn golden(folder: &str) -> Golden {
    let file = Safetensors::open(&golden_path(folder).join("golden.safetensors")).unwrap();
    let bytes = |name: &str| {
        let tensor = file.tensor(name).unwrap();
        let mut bytes = vec![0; tensor.byte_count()];
        file.read(tensor, 0..bytes.len(), &mut bytes).unwrap();
        bytes
    };
    let ids = bytes("ids")
        .chunks_exact(8)
        .map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32)
        .collect();
    let logits = bytes("logits")
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    Golden { ids, logits }
}

pub const LIMITS: LimitsSpec = LimitsSpec {
    step_tokens_max: 64,
    step_rows_max: 64,
    step_sequences_max: 2,
    page_tokens: 16,
    page_count: 8,
    context_max: 64,
};

/// How a prompt is fed.
#[derive(Debug, Clone, Copy)]
pub enum Feed {
    Whole,
    OneByOne,
    /// Chunks that straddle pages.
    Chunks(usize),
}

/// Logits of every position.
pub fn logits<B: Backend>(
    backend: &B,
    graph: &Graph,
    weights: &dyn WeightSource,
    ids: &[u32],
    feed: Feed,
) -> Vec<f32> {
    let mut program = backend.compile(graph, weights, LIMITS).unwrap();
    feed_steps(ids, feed, vocab(graph), |step, out| {
        backend.run(&mut program, step, out).unwrap()
    })
}

pub fn vocab(graph: &Graph) -> usize {
    graph.value(graph.output.unwrap()).row_len()
}

/// Makes the steps of a prompt, pages in no order, and gathers what `run` answers.
pub fn feed_steps(
    ids: &[u32],
    feed: Feed,
    vocab: usize,
    mut run: impl FnMut(&StepInput<'_>, &mut [f32]),
) -> Vec<f32> {
    let pages = [5, 2, 7, 0].map(PageId);
    let chunk = match feed {
        Feed::Whole => ids.len(),
        Feed::OneByOne => 1,
        Feed::Chunks(n) => n,
    };
    let mut all = Vec::new();
    for start in (0..ids.len()).step_by(chunk) {
        let tokens = &ids[start..(start + chunk).min(ids.len())];
        let positions: Vec<u32> = (start..start + tokens.len()).map(|p| p as u32).collect();
        let rows: Vec<u32> = (0..tokens.len() as u32).collect();
        let page_count = (start + tokens.len()).div_ceil(LIMITS.page_tokens);
        let sequence = StepSequence {
            token_start: 0,
            token_count: tokens.len() as u32,
            position_start: start as u32,
            page_start: 0,
            page_count: page_count as u32,
        };
        let step = StepInput {
            tokens,
            positions: &positions,
            sequences: &[sequence],
            pages: &pages[..page_count],
            rows: &rows,
        };
        let mut out = vec![f32::NAN; tokens.len() * vocab];
        run(&step, &mut out);
        all.extend(out);
    }
    all
}

/// Largest difference; NaN counts as infinite.
pub fn worst(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |worst, d| {
        if d.is_nan() { f32::INFINITY } else { d.max(worst) }
    })
}

/// A checkpoint whose weights are all given as F32.
pub struct Dequantised<'a>(pub &'a Checkpoint);

impl Dequantised<'_> {
    pub fn graph(mut graph: Graph) -> Graph {
        graph
            .weights
            .iter_mut()
            .for_each(|weight| weight.format = Format::F32);
        graph
    }
}

impl WeightSource for Dequantised<'_> {
    fn rows(&self, weight: &Weight, rows: Range<usize>) -> Result<Cow<'_, [u8]>, BackendError> {
        let format = self.0.tensor(&weight.name).unwrap().format;
        let stored = Weight {
            format,
            ..weight.clone()
        };
        let bytes = self.0.rows(&stored, rows.clone())?;
        let mut numbers = vec![0.0; rows.len() * weight.row_len()];
        quant::dequantize(format, &bytes, &mut numbers).unwrap();
        Ok(Cow::Owned(numbers.iter().flat_map(|n| n.to_le_bytes()).collect()))
    }
}

/// The CPU backend with exact arithmetic, on the fastest instructions here.
pub fn cpu_exact() -> CpuBackend {
    CpuBackend::new(CpuOptions {
        threads: 2,
        math: CpuMath::Exact,
        isa: None,
    })
    .unwrap()
}
