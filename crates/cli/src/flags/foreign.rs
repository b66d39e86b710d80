//! Flags of other servers: a copied command line works, or the answer names the right flag.

use std::ffi::{OsStr, OsString};

use crate::error::CliError;

/// What becomes of a foreign flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// Means the same as this flag of ours.
    Same(&'static str),
    /// Switches this flag of ours to this value; the foreign flag takes none itself.
    Sets(&'static str, &'static str),
    /// Has no meaning here: left out, with this note (refused under `--strict`).
    Moot(&'static str),
    /// Cannot be honoured: refused, with what to use instead.
    Refused(&'static str),
    /// Moot for this value, refused for every other.
    Only(&'static str, &'static str),
}

/// How many values a foreign flag swallows when it is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Takes {
    /// None: a switch.
    Nothing,
    /// The next argument.
    Value,
    /// The next argument if it does not start with a dash.
    Maybe,
}

/// One row of the table.
#[derive(Debug, Clone, Copy)]
pub struct Foreign {
    /// Spellings.
    pub names: &'static [&'static str],
    /// Values.
    pub takes: Takes,
    /// What to do.
    pub fate: Fate,
    /// The commands it is meant for; empty is all.
    pub verbs: &'static [&'static str],
}

const fn row(names: &'static [&'static str], takes: Takes, fate: Fate) -> Foreign {
    Foreign {
        names,
        takes,
        fate,
        verbs: &[],
    }
}

const fn row_of(
    verbs: &'static [&'static str],
    names: &'static [&'static str],
    takes: Takes,
    fate: Fate,
) -> Foreign {
    Foreign {
        names,
        takes,
        fate,
        verbs,
    }
}

use Fate::{Moot, Only, Refused, Same, Sets};
use Takes::{Maybe, Nothing, Value};

const NO_GPU: &str = "this build computes on the CPU";
const DERIVED: &str = "the parser is found from the model's chat template (see /props)";

/// The table: llama.cpp's spellings, vLLM's, SGLang's, TGI's. Our own spellings are not in it.
pub const FOREIGN: &[Foreign] = &[
    row_of(
        &["bench"],
        &["-p", "--n-prompt", "--input-len"],
        Value,
        Same("--prefill"),
    ),
    row_of(
        &["bench"],
        &["-n", "--n-gen", "--output-len"],
        Value,
        Same("--decode"),
    ),
    row_of(&["bench"], &["-d", "--n-depth"], Value, Same("--depth")),
    row_of(&["run"], &["-p"], Value, Same("--prompt")),
    row_of(&["eval"], &["-f", "--file"], Value, Same("--text")),
    row(
        &[
            "-hf",
            "-hfr",
            "--hf-repo",
            "--model-path",
            "--model-id",
            "-mu",
            "--model-url",
        ],
        Value,
        Same("--model"),
    ),
    row(
        &[
            "--ctx-size",
            "--max-model-len",
            "--context-length",
            "--max-total-tokens",
        ],
        Value,
        Same("--context"),
    ),
    row(
        &[
            "-np",
            "--parallel",
            "--max-num-seqs",
            "--max-running-requests",
            "--max-concurrent-requests",
        ],
        Value,
        Same("--sequences"),
    ),
    row(
        &[
            "-b",
            "--batch-size",
            "-ub",
            "--ubatch-size",
            "--max-num-batched-tokens",
            "--chunked-prefill-size",
            "--max-batch-prefill-tokens",
        ],
        Value,
        Same("--step-tokens"),
    ),
    row(&["--block-size", "--page-size"], Value, Same("--page-tokens")),
    row(&["--served-model-name", "-a", "--alias"], Value, Same("--name")),
    row(&["--hostname"], Value, Same("--host")),
    row(
        &["--cors-allow-origin", "--allowed-origins"],
        Value,
        Same("--cors-origin"),
    ),
    row(
        &["--download-dir", "--huggingface-hub-cache"],
        Value,
        Same("--cache-dir"),
    ),
    row(&["--chat-template-file"], Value, Same("--chat-template")),
    row(
        &["--graceful-termination-timeout", "--shutdown-timeout"],
        Value,
        Same("--drain-seconds"),
    ),
    row(&["--temp"], Value, Same("--temperature")),
    row(&["--repeat-penalty"], Value, Same("--repetition-penalty")),
    row(
        &["--n-predict", "--predict", "--max-tokens", "--max-new-tokens"],
        Value,
        Same("--tokens"),
    ),
    row(&["-sys", "--system-prompt"], Value, Same("--system")),
    row(
        &["-tb", "--threads-batch"],
        Value,
        Moot("one pool of --threads does prefill and decode"),
    ),
    row(
        &["--enable-prefix-caching", "--cache-prompt"],
        Nothing,
        Sets("--prefix-cache", "true"),
    ),
    row(
        &[
            "--no-enable-prefix-caching",
            "--disable-radix-cache",
            "--no-cache-prompt",
        ],
        Nothing,
        Sets("--prefix-cache", "false"),
    ),
    row(&["--no-webui", "--no-ui"], Nothing, Sets("--web", "false")),
    row(&["--webui"], Nothing, Sets("--web", "true")),
    row(&["-ngl", "--gpu-layers", "--n-gpu-layers"], Value, Moot(NO_GPU)),
    row(
        &["-fa", "--flash-attn"],
        Maybe,
        Moot("attention is always computed blockwise"),
    ),
    row(
        &[
            "-sm",
            "--split-mode",
            "-ts",
            "--tensor-split",
            "-mg",
            "--main-gpu",
        ],
        Value,
        Moot(NO_GPU),
    ),
    row(&["-cmoe", "--cpu-moe"], Nothing, Moot(NO_GPU)),
    row(&["-ncmoe", "--n-cpu-moe"], Value, Moot(NO_GPU)),
    row(
        &["-ot", "--override-tensor", "-dev", "--device"],
        Value,
        Moot(NO_GPU),
    ),
    row(
        &[
            "--gpu-memory-utilization",
            "--mem-fraction-static",
            "--cuda-memory-fraction",
        ],
        Value,
        Moot("this build computes on the CPU; --cache-memory sets the size of the key/value pool in MiB"),
    ),
    row(
        &[
            "--tensor-parallel-size",
            "-tp",
            "--tp-size",
            "--tp",
            "--num-shard",
            "--pipeline-parallel-size",
            "-pp",
            "--data-parallel-size",
            "-dp",
        ],
        Value,
        Only("1", "this build computes on one CPU: leave it out or give 1"),
    ),
    row(&["--swap-space", "--cpu-offload-gb"], Value, Moot(NO_GPU)),
    row(
        &["--enforce-eager", "--disable-cuda-graph"],
        Nothing,
        Moot("a step is always the same compiled program"),
    ),
    row(&["--jinja"], Nothing, Moot("chat templates are always rendered")),
    row(
        &["--no-jinja"],
        Nothing,
        Refused("the model's chat template is always used; --chat-template FILE replaces it"),
    ),
    row(
        &["--enable-auto-tool-choice"],
        Nothing,
        Moot("tool calls are always parsed when a request brings tools"),
    ),
    row(
        &["--tool-call-parser", "--reasoning-parser", "--reasoning-format"],
        Value,
        Moot(DERIVED),
    ),
    row(
        &["--metrics", "--enable-metrics"],
        Nothing,
        Moot("/metrics is always there"),
    ),
    row(
        &["--slots"],
        Nothing,
        Moot("the engine has no slots; /metrics shows what runs"),
    ),
    row(
        &["-cb", "--cont-batching", "--enable-chunked-prefill"],
        Nothing,
        Moot("batching is always continuous"),
    ),
    row(
        &["--mlock", "--no-mmap"],
        Nothing,
        Moot("weights are packed once into memory of their own"),
    ),
    row(
        &["--trust-remote-code"],
        Nothing,
        Moot("no code from a model's folder is ever run"),
    ),
    row(
        &["--dtype"],
        Value,
        Moot("weights keep the format of the checkpoint; --cpu-math exact computes in f32"),
    ),
    row(
        &["--quantization"],
        Value,
        Moot("the format is read from the checkpoint; `user/model:Q4_0` chooses a file"),
    ),
    row(
        &["-ctk", "--cache-type-k", "-ctv", "--cache-type-v"],
        Value,
        Only("f16", "keys and values are kept in f16: leave it out or give f16"),
    ),
    row(
        &["--kv-cache-dtype"],
        Value,
        Only(
            "auto",
            "keys and values are kept in f16: leave it out or give auto",
        ),
    ),
    row(
        &["--lora", "--lora-modules"],
        Value,
        Refused("adapters are not supported: merge them into the checkpoint"),
    ),
    row(
        &["--enable-lora"],
        Nothing,
        Refused("adapters are not supported: merge them into the checkpoint"),
    ),
    row(
        &["-md", "--model-draft", "--speculative-config"],
        Value,
        Refused("speculative decoding is not built in: leave it out"),
    ),
    row(
        &["--mmproj"],
        Value,
        Refused("images are not supported: leave it out"),
    ),
    row(
        &["--rope-scaling", "--rope-freq-base", "--rope-freq-scale"],
        Value,
        Refused("rotary settings are read from the checkpoint"),
    ),
    row(
        &[
            "--ssl-keyfile",
            "--ssl-certfile",
            "--ssl-key-file",
            "--ssl-cert-file",
        ],
        Value,
        Refused("put a TLS proxy in front of the port"),
    ),
    row(
        &["--embedding", "--embeddings", "--reranking"],
        Nothing,
        Refused("embeddings are not served"),
    ),
    row(
        &["-cnv", "--conversation", "--interactive", "-no-cnv"],
        Nothing,
        Refused("use `galvani chat` to talk, `galvani run` for one answer"),
    ),
    row(&["--keepalive", "--ttl"], Value, Moot("the model stays loaded")),
];

/// A command line in our own words, and what was left out.
#[derive(Debug, Default, PartialEq)]
pub struct Translated {
    /// Arguments for clap.
    pub arguments: Vec<OsString>,
    /// One sentence for each flag left out.
    pub notes: Vec<String>,
}

/// Rewrites foreign flags. Everything after `--` is left alone.
///
/// # Errors
/// For a flag that cannot be honoured, with what to use instead.
pub fn translate(arguments: Vec<OsString>) -> Result<Translated, CliError> {
    let mut out = Translated::default();
    let verb = arguments
        .iter()
        .skip(1)
        .find(|a| !a.to_string_lossy().starts_with('-'))
        .cloned()
        .unwrap_or_default();
    let mut rest = arguments.into_iter().peekable();
    while let Some(argument) = rest.next() {
        if argument == "--" {
            out.arguments.push(argument);
            out.arguments.extend(rest);
            break;
        }
        let Some((row, name, inline)) = lookup(&argument, &verb) else {
            out.arguments.push(argument);
            continue;
        };
        let value = match (inline, row.takes, row.fate) {
            (Some(value), _, _) => Some(value),
            // Our own parser takes the value that follows.
            (None, _, Fate::Same(_)) | (None, Takes::Nothing, _) => None,
            (None, Takes::Value, _) => rest.next(),
            (None, Takes::Maybe, _) => rest.next_if(|next| !next.to_string_lossy().starts_with('-')),
        };
        apply(&mut out, row, name, value)?;
    }
    Ok(out)
}

fn apply(out: &mut Translated, row: &Foreign, name: &str, value: Option<OsString>) -> Result<(), CliError> {
    match row.fate {
        Fate::Same(ours) => {
            let mut joined = OsString::from(ours);
            if let Some(value) = value {
                joined.push("=");
                joined.push(value);
            }
            out.arguments.push(joined);
        }
        Fate::Sets(ours, to) => out.arguments.push(format!("{ours}={to}").into()),
        Fate::Moot(note) => out.notes.push(format!("{name} is left out: {note}")),
        Fate::Refused(instead) => return Err(CliError::Usage(format!("{name}: {instead}"))),
        Fate::Only(allowed, otherwise) => {
            let got = value.unwrap_or_default();
            if got != OsStr::new(allowed) {
                return Err(CliError::Usage(format!(
                    "{name} {}: {otherwise}",
                    got.to_string_lossy()
                )));
            }
        }
    }
    Ok(())
}

fn lookup(argument: &OsStr, verb: &OsStr) -> Option<(&'static Foreign, &'static str, Option<OsString>)> {
    let text = argument.to_str()?;
    if !text.starts_with('-') {
        return None;
    }
    let (flag, inline) = match text.split_once('=') {
        Some((flag, value)) => (flag, Some(OsString::from(value))),
        None => (text, None),
    };
    // Underscores are as good as hyphens in vLLM's long flags.
    let hyphens = if flag.starts_with("--") {
        flag.replace('_', "-")
    } else {
        flag.to_owned()
    };
    FOREIGN
        .iter()
        .filter(|row| row.verbs.is_empty() || row.verbs.iter().any(|v| verb == *v))
        .find_map(|row| {
            let name = row.names.iter().find(|name| **name == hyphens)?;
            Some((row, *name, inline.clone()))
        })
}
