//! `galvani serve`: the socket first, then the model.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use galvani_server::{GenerationDefaults, LoadProgress, ModelRuntime, Server, ServerConfig, Shutdown};
use galvani_text::grammar::GrammarFactory;
use galvani_text::parsers::ParserStyle;
use std::sync::Arc;

use crate::commands::plan::SERVE;
use crate::commands::show::{facts, facts_json};
use crate::error::CliError;
use crate::flags::ServeArgs;
use crate::load::{self, Defaults, Watch, Wish, census_lines};

/// Serves until a signal.
pub fn serve(arguments: &ServeArgs) -> Result<(), CliError> {
    let watch = Watch::start();
    let config = server_config(arguments)?;
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(if arguments.model.store.quiet {
            tracing::Level::ERROR
        } else {
            tracing::Level::WARN
        })
        .with_target(false)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(CliError::io("the server's threads"))?;
    let arguments = arguments.clone();
    runtime.block_on(async move {
        let failed = |error: galvani_server::ServeError| CliError::Failed(error.to_string());
        let shutdown = Shutdown::on_signals();
        let server = Server::bind(config).await.map_err(failed)?;
        let address = server.local_addr();
        eprintln!(
            "listening on http://{address} after {} ms, loading the model",
            watch.read().as_millis()
        );
        let server = server.on_ready(move || {
            eprintln!(
                "ready in {:.2} s: http://{address} (chat page), http://{address}/v1",
                watch.read().as_secs_f64()
            );
        });
        let load = move |progress: LoadProgress| {
            runtime_of(&arguments, &progress).map_err(|error| error.to_string())
        };
        server.run(load, shutdown).await.map_err(failed)
    })
}

/// The typed flags become what the server means by them.
fn server_config(arguments: &ServeArgs) -> Result<ServerConfig, CliError> {
    let http = &arguments.http;
    let mut config = ServerConfig::loopback(http.port);
    config.host = http.host.to_string();
    config.api_keys = http
        .api_key
        .iter()
        .filter(|key| !key.is_empty())
        .cloned()
        .collect();
    if let Some(path) = &http.api_key_file {
        let text = std::fs::read_to_string(path).map_err(CliError::io(path))?;
        let keys = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        config.api_keys.extend(keys.map(str::to_owned));
        if config.api_keys.is_empty() {
            return Err(CliError::Usage(format!(
                "--api-key-file {}: it holds no key",
                path.display()
            )));
        }
    }
    config.cors_origins = http.cors_origin.clone();
    config.strict = arguments.compute.strict;
    config.page = http.web;
    config.drain_time_max = Duration::from_secs(http.drain_seconds);
    if !(1..=1024).contains(&http.body_limit) {
        return Err(CliError::Usage(format!(
            "--body-limit: got {}, allowed: 1 to 1024 MiB",
            http.body_limit
        )));
    }
    config.limits.body_bytes_max = http.body_limit << 20;
    if !http.host.is_loopback() && config.api_keys.is_empty() {
        eprintln!(
            "note: {} is open to other machines and no --api-key is set",
            http.host
        );
    }
    Ok(config)
}

/// Loads the model and tells about it.
fn runtime_of(arguments: &ServeArgs, progress: &LoadProgress) -> Result<ModelRuntime, CliError> {
    let quiet = arguments.model.store.quiet;
    progress.say("finding the model");
    let opened = load::open(
        &arguments.model,
        arguments.positional.as_ref(),
        arguments.compute.strict,
    )?;
    progress.say("loading");
    let wish = Wish {
        queue: arguments.http.queue,
        ..SERVE
    };
    let template = arguments.http.chat_template.as_deref();
    let told = |text: &str| progress.say(text);
    let loaded = load::load(&opened, &arguments.compute, wish, template, quiet, told)?;
    if !quiet {
        facts(&opened)
            .iter()
            .chain(&loaded.fit.lines())
            .for_each(|line| eprintln!("{line}"));
        eprintln!("compute   {}", loaded.describe);
        census_lines(&loaded.compiled)
            .iter()
            .for_each(|line| eprintln!("          {line}"));
    }
    let mut names = arguments.http.name.iter().cloned();
    let name = names.next().unwrap_or_else(|| opened.name.clone());
    let styles = loaded
        .template
        .as_ref()
        .map(|t| ParserStyle::detect(t.source(true)))
        .unwrap_or_default();
    let grammar = GrammarFactory::new(&loaded.tokenizer, loaded.info.vocab);
    if let Err(error) = &grammar {
        eprintln!("note: structured output is off: {error}");
    }
    let mut info = facts_json(&opened);
    info["compute"] = loaded.describe.clone().into();
    info["kernels"] = census_lines(&loaded.compiled).into();
    info["packed_weight_bytes"] = loaded.compiled.weight_bytes.into();
    info["arena_bytes"] = loaded.compiled.arena_bytes.into();
    info["cache_bytes"] = loaded.compiled.cache_bytes.into();
    Ok(ModelRuntime {
        name,
        aliases: names.collect(),
        engine: loaded.engine.handle(),
        engine_owner: Some(loaded.engine),
        eos_ids: loaded.tokenizer.eos_ids().to_vec(),
        tokenizer: loaded.tokenizer,
        template: loaded.template,
        styles,
        grammar: grammar.ok().map(Arc::new),
        defaults: generation_defaults(&loaded.defaults),
        context_max: loaded.fit.limits.context_max,
        created: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs()),
        info,
    })
}

fn generation_defaults(found: &Defaults) -> GenerationDefaults {
    let plain = GenerationDefaults::openai();
    GenerationDefaults {
        temperature: found.temperature.unwrap_or(plain.temperature),
        top_k: found.top_k.unwrap_or(plain.top_k),
        top_p: found.top_p.unwrap_or(plain.top_p),
        min_p: found.min_p.unwrap_or(plain.min_p),
        repetition_penalty: found.repetition_penalty.unwrap_or(plain.repetition_penalty),
        ..plain
    }
}
