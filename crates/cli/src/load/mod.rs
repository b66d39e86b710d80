//! From a model's name to something that answers: checkpoint, graph, fit, backend, engine, text.

mod compute;
mod counted;
mod fit;
mod sampling;
mod vocabulary;

use std::sync::Arc;
use std::time::{Duration, Instant};

use galvani_engine::{Engine, EngineConfig};
use galvani_graph::{Backend, Compiled, Graph};
use galvani_models::{Model, ModelInfo};
use galvani_text::{ChatTemplate, Tokenizer};
use galvani_weights::Checkpoint;

pub use compute::{Compute, Program};
pub use fit::{Fit, Wish, plan_of};
pub use sampling::Defaults;
pub use vocabulary::{template, tokenizer};

use crate::error::CliError;
use crate::flags::{ComputeArgs, ModelArgs};
use crate::hub::{self, Store};
use crate::machine::Machine;
use counted::Counted;

/// A checkpoint of which only headers have been read.
pub struct Opened {
    /// What to call it.
    pub name: String,
    /// The files.
    pub checkpoint: Checkpoint,
    /// Its facts.
    pub info: ModelInfo,
    /// The fused graph.
    pub graph: Graph,
    /// The graph as the family built it.
    pub plain: Graph,
    /// Whether this is the default model, whose sampling we know.
    pub is_default: bool,
}

/// A program ready to run.
pub struct Ready {
    /// The backend.
    pub backend: Compute,
    /// What it runs.
    pub program: Program,
    /// Its sizes.
    pub fit: Fit,
    /// What the backend says of itself.
    pub describe: String,
}

/// A model that answers.
pub struct Loaded {
    /// The engine and its thread.
    pub engine: Engine,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Conversation to text.
    pub template: Option<Arc<ChatTemplate>>,
    /// Facts.
    pub info: ModelInfo,
    /// The publisher's sampling.
    pub defaults: Defaults,
    /// The program's account.
    pub compiled: Compiled,
    /// Sizes in force.
    pub fit: Fit,
    /// What the backend says of itself.
    pub describe: String,
}

/// Finds the model (fetching it if need be) and reads its headers.
///
/// # Errors
/// When there is none, or it is not one we know.
pub fn open(arguments: &ModelArgs, positional: Option<&String>, strict: bool) -> Result<Opened, CliError> {
    let name = positional.or(arguments.model.as_ref()).map(String::as_str);
    open_named(&Store::new(&arguments.store)?, name, strict)
}

/// As [`open`], by name.
///
/// # Errors
/// When there is none, or it is not one we know.
pub fn open_named(store: &Store, name: Option<&str>, strict: bool) -> Result<Opened, CliError> {
    let local = hub::resolve(store, name)?;
    let checkpoint = Checkpoint::open(&local.path)?;
    let Model { graph, info } =
        galvani_models::build(&checkpoint).map_err(|error| CliError::Failed(error.to_string()))?;
    if let Some(warning) = info.warnings.first().filter(|_| strict) {
        return Err(CliError::Strict(warning.clone()));
    }
    for warning in &info.warnings {
        eprintln!("note: {warning}");
    }
    let fused = galvani_graph::fuse(graph.clone());
    Ok(Opened {
        name: local.name,
        checkpoint,
        info,
        graph: fused,
        plain: graph,
        is_default: name.is_none(),
    })
}

/// Packs the weights and makes the program.
///
/// # Errors
/// When the memory is short, a weight cannot be read, or (under `strict`) a slower kernel would be taken.
pub fn compile(
    opened: &Opened,
    arguments: &ComputeArgs,
    fit: Fit,
    quiet: bool,
    told: impl Fn(&str) + Sync,
) -> Result<Ready, CliError> {
    let backend = Compute::new(arguments)?;
    let counted = Counted::new(&opened.checkpoint, opened.info.weight_bytes, quiet, &told);
    let program = backend
        .compile(&opened.graph, &counted, fit.limits.spec())
        .map_err(|error| CliError::Failed(error.to_string()))?;
    drop(counted);
    let slow: Vec<_> = backend
        .compiled(&program)
        .census
        .iter()
        .filter(|row| row.fallback)
        .collect();
    if let Some(row) = slow.first().filter(|_| arguments.strict) {
        return Err(CliError::Strict(format!(
            "{} {} nodes take a slower kernel, the first is `{}`: {} ({})",
            slow.len(),
            row.op,
            row.label,
            row.kernel,
            row.reason
        )));
    }
    let describe = backend.describe();
    Ok(Ready {
        backend,
        program,
        fit,
        describe,
    })
}

/// Loads everything and starts the engine.
///
/// # Errors
/// As [`compile`]; when the tokenizer or the template is not understood.
pub fn load(
    opened: &Opened,
    arguments: &ComputeArgs,
    wish: Wish,
    template_file: Option<&std::path::Path>,
    quiet: bool,
    told: impl Fn(&str) + Sync,
) -> Result<Loaded, CliError> {
    let fit = Fit::derive(opened, arguments, &wish, &Machine::read())?;
    // The text side reads other parts of the files: both at once.
    let (text, ready) = std::thread::scope(|scope| {
        let text = scope.spawn(|| -> Result<_, CliError> {
            let tokenizer = tokenizer(&opened.checkpoint)?;
            let template = template(&opened.checkpoint, &tokenizer, template_file)?;
            Ok((tokenizer, template))
        });
        let ready = compile(opened, arguments, fit, quiet, told);
        let text = text
            .join()
            .unwrap_or_else(|_| Err(CliError::Failed("reading the tokenizer panicked".into())));
        (text, ready)
    });
    let (tokenizer, template) = text?;
    let Ready {
        backend,
        program,
        fit,
        describe,
    } = ready?;
    if tokenizer.vocab_size() > opened.info.vocab {
        return Err(CliError::Failed(format!(
            "the tokenizer has {} tokens, the model only {}",
            tokenizer.vocab_size(),
            opened.info.vocab
        )));
    }
    let compiled = backend.compiled(&program).clone();
    let config = EngineConfig { ..fit.engine.clone() };
    let engine =
        Engine::start(backend, program, config).map_err(|error| CliError::Failed(error.to_string()))?;
    Ok(Loaded {
        engine,
        tokenizer: Arc::new(tokenizer),
        template: template.map(Arc::new),
        info: opened.info.clone(),
        defaults: Defaults::read(opened)?,
        compiled,
        fit,
        describe,
    })
}

/// The census in one line a kernel: how many nodes take it.
pub fn census_lines(compiled: &Compiled) -> Vec<String> {
    let mut counts: Vec<(String, usize, bool, String)> = Vec::new();
    for row in compiled.census.iter().filter(|row| !row.kernel.is_empty()) {
        match counts
            .iter_mut()
            .find(|(kernel, _, fallback, _)| *kernel == row.kernel && *fallback == row.fallback)
        {
            Some(entry) => entry.1 += 1,
            None => counts.push((row.kernel.clone(), 1, row.fallback, row.reason.clone())),
        }
    }
    counts
        .into_iter()
        .map(|(kernel, count, fallback, reason)| {
            if fallback {
                format!("{count:4} {kernel}  (slower than possible: {reason})")
            } else {
                format!("{count:4} {kernel}")
            }
        })
        .collect()
}

/// A stopwatch for the start-up lines.
#[derive(Debug, Clone, Copy)]
pub struct Watch(Instant);

impl Watch {
    /// Starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since.
    pub fn read(&self) -> Duration {
        self.0.elapsed()
    }
}
