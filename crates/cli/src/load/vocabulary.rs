//! The tokenizer and the chat template from whichever container there is.

use std::path::Path;

use galvani_text::{
    ChatTemplate, GgufVocab, HubFiles, NamedTemplate, Tokenizer, templates_from_tokenizer_config,
};
use galvani_weights::Checkpoint;
use galvani_weights::gguf::Metadata;

use crate::error::CliError;

fn failed(error: impl std::fmt::Display) -> CliError {
    CliError::Failed(error.to_string())
}

/// The checkpoint's tokenizer.
///
/// # Errors
/// When it has none, or one that is not understood.
pub fn tokenizer(checkpoint: &Checkpoint) -> Result<Tokenizer, CliError> {
    if let Some(gguf) = checkpoint.gguf() {
        return Tokenizer::from_gguf(gguf_vocab(gguf.metadata())?)
            .map_err(|error| failed(format!("{}: {error}", checkpoint.origin())));
    }
    let folder = checkpoint
        .folder()
        .ok_or_else(|| failed("the checkpoint has no folder for its tokenizer"))?;
    let path = folder.join("tokenizer.json");
    let tokenizer_json = std::fs::read(&path).map_err(CliError::io(&path))?;
    let config = read_if_there(&folder.join("tokenizer_config.json"))?;
    let generation = read_if_there(&folder.join("generation_config.json"))?;
    let files = HubFiles {
        tokenizer_json: &tokenizer_json,
        tokenizer_config: config.as_deref(),
        generation_config: generation.as_deref(),
    };
    Tokenizer::from_hub(files).map_err(|error| failed(format!("{}: {error}", folder.display())))
}

fn gguf_vocab(metadata: &Metadata) -> Result<GgufVocab, CliError> {
    let strings = |key: &str| -> Result<Vec<String>, CliError> {
        let array = metadata.get_strings(key)?;
        Ok(array
            .map(|list| list.iter().map(str::to_owned).collect())
            .unwrap_or_default())
    };
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let id = |name: &str| metadata.get_u32(&key(name));
    let model = metadata.get_str(&key("model"))?;
    Ok(GgufVocab {
        model: metadata.need(&key("model"), model)?.to_owned(),
        pre: metadata.get_str(&key("pre"))?.map(str::to_owned),
        tokens: strings(&key("tokens"))?,
        token_types: metadata.get_i32s(&key("token_type"))?.unwrap_or_default(),
        merges: strings(&key("merges"))?,
        scores: metadata
            .get_f32s(&key("scores"))?
            .map(<[f32]>::to_vec)
            .unwrap_or_default(),
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        unk: id("unknown_token_id")?,
        pad: id("padding_token_id")?,
        add_bos: metadata.get_bool(&key("add_bos_token"))?,
        add_eos: metadata.get_bool(&key("add_eos_token"))?,
        add_space_prefix: metadata.get_bool(&key("add_space_prefix"))?,
    })
}

/// The chat template: of `file` if given, else the checkpoint's, if it has one.
///
/// # Errors
/// When it does not parse.
pub fn template(
    checkpoint: &Checkpoint,
    tokenizer: &Tokenizer,
    file: Option<&Path>,
) -> Result<Option<ChatTemplate>, CliError> {
    if let Some(path) = file {
        let source = std::fs::read_to_string(path).map_err(CliError::io(path))?;
        let origin = path.file_name().unwrap_or_default().to_string_lossy();
        return ChatTemplate::parse(&source, &origin, tokenizer)
            .map(Some)
            .map_err(failed);
    }
    let (list, origin) = match checkpoint.gguf() {
        Some(gguf) => (gguf_templates(gguf.metadata())?, "tokenizer.chat_template"),
        None => hub_templates(checkpoint.folder())?,
    };
    if list.is_empty() {
        return Ok(None);
    }
    ChatTemplate::parse_named(&list, origin, tokenizer)
        .map(Some)
        .map_err(failed)
}

fn gguf_templates(metadata: &Metadata) -> Result<Vec<NamedTemplate>, CliError> {
    const KEY: &str = "tokenizer.chat_template";
    let named = |name: &str, source: &str| NamedTemplate {
        name: name.to_owned(),
        source: source.to_owned(),
    };
    let mut list: Vec<NamedTemplate> = metadata
        .get_str(KEY)?
        .map(|source| named("default", source))
        .into_iter()
        .collect();
    for (key, _) in metadata.iter() {
        let Some(name) = key.strip_prefix(KEY).and_then(|rest| rest.strip_prefix('.')) else {
            continue;
        };
        if let Some(source) = metadata.get_str(key)? {
            list.push(named(name, source));
        }
    }
    Ok(list)
}

fn hub_templates(folder: Option<&Path>) -> Result<(Vec<NamedTemplate>, &'static str), CliError> {
    let Some(folder) = folder else {
        return Ok((Vec::new(), ""));
    };
    if let Some(bytes) = read_if_there(&folder.join("chat_template.jinja"))? {
        let source = String::from_utf8(bytes).map_err(|_| failed("chat_template.jinja is not UTF-8"))?;
        return Ok((
            vec![NamedTemplate {
                name: "default".into(),
                source,
            }],
            "chat_template.jinja",
        ));
    }
    for (file, origin) in [
        ("chat_template.json", "chat_template.json"),
        ("tokenizer_config.json", "tokenizer_config.json"),
    ] {
        if let Some(bytes) = read_if_there(&folder.join(file))? {
            let list = templates_from_tokenizer_config(&bytes).map_err(failed)?;
            if !list.is_empty() {
                return Ok((list, origin));
            }
        }
    }
    Ok((Vec::new(), ""))
}

fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, CliError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(CliError::Io {
            path: path.to_owned(),
            source,
        }),
    }
}
