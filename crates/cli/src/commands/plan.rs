//! `galvani plan`: what a model needs here, from its headers alone.

use serde_json::json;

use crate::commands::show::{facts, facts_json};
use crate::error::CliError;
use crate::flags::PlanArgs;
use crate::load::{self, Fit, Wish};
use crate::machine::Machine;
use crate::progress::bytes;

/// What `serve` wants where the flags are silent.
pub const SERVE: Wish = Wish {
    sequences: 16,
    queue: 256,
    context: None,
};

/// Prints the plan; fails when it does not fit.
pub fn plan(arguments: &PlanArgs) -> Result<(), CliError> {
    let opened = load::open(
        &arguments.model,
        arguments.positional.as_ref(),
        arguments.compute.strict,
    )?;
    let machine = Machine::read();
    let fit = Fit::derive(&opened, &arguments.compute, &SERVE, &machine)?;
    if arguments.json {
        let value = json!({
            "model": facts_json(&opened),
            "weight_bytes": fit.weight_bytes,
            "cache_bytes": fit.cache_bytes,
            "arena_bytes": fit.arena_bytes,
            "logits_bytes": fit.step_bytes,
            "total_bytes": fit.total(),
            "memory_free_bytes": fit.memory_free,
            "fits": fit.fits(),
            "context": fit.limits.context_max,
            "sequences": fit.limits.sequences_max,
            "step_tokens": fit.limits.step_tokens_max,
            "page_tokens": fit.limits.page_tokens,
            "page_count": fit.limits.page_count,
            "threads": fit.threads,
        });
        println!("{value}");
    } else {
        facts(&opened)
            .iter()
            .chain(&fit.lines())
            .for_each(|line| println!("{line}"));
        println!(
            "total     {}, {} free",
            bytes(fit.total()),
            bytes(fit.memory_free)
        );
    }
    if fit.fits() {
        return Ok(());
    }
    Err(CliError::Failed(format!(
        "this does not fit: {} are needed, {} are free; a smaller --context, --sequences or --cache-memory, or a \
         smaller quantisation would do",
        bytes(fit.total()),
        bytes(fit.memory_free)
    )))
}
