//! `galvani show`: what a model is.

use serde_json::{Value, json};

use crate::commands::plan::SERVE;
use crate::error::CliError;
use crate::flags::ShowArgs;
use crate::load::{self, Fit, Opened};
use crate::machine::Machine;
use crate::progress::bytes;

/// Prints facts, and the graph, the buffers or the tensors if asked for.
pub fn show(arguments: &ShowArgs) -> Result<(), CliError> {
    let opened = load::open(
        &arguments.model,
        arguments.positional.as_ref(),
        arguments.compute.strict,
    )?;
    if !arguments.graph && !arguments.plan && !arguments.tensors {
        facts(&opened).iter().for_each(|line| println!("{line}"));
        let tokenizer = load::tokenizer(&opened.checkpoint)?;
        println!("tokenizer {}", tokenizer.describe());
        let template = load::template(&opened.checkpoint, &tokenizer, None)?;
        println!(
            "template  {}",
            template.as_ref().map_or("none", |template| template.origin())
        );
    }
    if arguments.tensors {
        for tensor in opened.checkpoint.tensors() {
            println!("{:60} {:8} {:?}", tensor.name, tensor.format.name(), tensor.dims);
        }
    }
    if arguments.graph {
        print!("{}", opened.graph);
    }
    if arguments.plan {
        let fit = Fit::derive(&opened, &arguments.compute, &SERVE, &Machine::read())?;
        let plan = load::plan_of(&opened, &fit.limits);
        println!(
            "arena of {} bytes, steps of {} tokens",
            plan.bytes, fit.limits.step_tokens_max
        );
        println!(
            "{:>12} {:>12} {:>6} {:>6}  value",
            "offset", "bytes", "first", "last"
        );
        for buffer in &plan.buffers {
            let name = &opened.graph.value(buffer.value).name;
            println!(
                "{:12} {:12} {:6} {:6}  {name}",
                buffer.offset, buffer.bytes, buffer.first, buffer.last
            );
        }
    }
    Ok(())
}

/// The facts for people, a line each.
pub fn facts(opened: &Opened) -> Vec<String> {
    let info = &opened.info;
    let formats: Vec<String> = info
        .formats
        .iter()
        .map(|(name, size)| format!("{name} {}", bytes(*size)))
        .collect();
    let mut lines = vec![
        format!(
            "model     {} ({}, family {})",
            opened.name, info.architecture, info.family
        ),
        format!(
            "size      {:.1} M parameters, {} layers, hidden {}, vocabulary {}{}",
            info.parameter_count as f64 / 1e6,
            info.layers,
            info.hidden,
            info.vocab,
            if info.tied { ", tied head" } else { "" }
        ),
        format!(
            "attention {} heads of {}, {} for keys and values; {} bytes of keys and values a token",
            info.heads, info.head_dim, info.kv_heads, info.kv_bytes_per_token
        ),
        format!("context   {} tokens", info.context_max),
        format!("formats   {}", formats.join(", ")),
        format!(
            "file      {} ({:?})",
            bytes(opened.checkpoint.file_bytes()),
            opened.checkpoint.container()
        ),
    ];
    if info.experts > 0 {
        lines.push(format!(
            "experts   {} of {} a token; {:.1} M parameters are active",
            info.experts_per_token,
            info.experts,
            info.active_parameter_count as f64 / 1e6
        ));
    }
    lines
}

/// The facts for programs.
pub fn facts_json(opened: &Opened) -> Value {
    let info = &opened.info;
    json!({
        "name": opened.name,
        "family": info.family,
        "architecture": info.architecture,
        "parameters": info.parameter_count,
        "active_parameters": info.active_parameter_count,
        "layers": info.layers,
        "hidden": info.hidden,
        "heads": info.heads,
        "kv_heads": info.kv_heads,
        "head_dim": info.head_dim,
        "vocab": info.vocab,
        "context_max": info.context_max,
        "weight_bytes": info.weight_bytes,
        "kv_bytes_per_token": info.kv_bytes_per_token,
        "experts": info.experts,
        "experts_per_token": info.experts_per_token,
        "tied": info.tied,
        "formats": info.formats.iter().map(|(name, size)| json!({"format": name, "bytes": size})).collect::<Vec<_>>(),
    })
}
