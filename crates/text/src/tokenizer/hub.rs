//! Tokenizers from the hub's files: tokenizer.json, with tokenizer_config.json and generation_config.json where they exist.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::Model;
use tokenizers::models::ModelWrapper;
use tokenizers::normalizers::NormalizerWrapper;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;

use super::bounds::Bounds;
use super::bytes::{Spelling, TokenBytes, byte_token};
use super::pipeline::{HubPipeline, Pipeline};
use super::{Parts, TokenKind, Tokenizer, model_check};
use crate::TextError;
use crate::markers::{Marker, Markers};

/// Contents of the hub's files.
#[derive(Debug, Clone, Copy)]
pub struct HubFiles<'a> {
    /// tokenizer.json.
    pub tokenizer_json: &'a [u8],
    /// tokenizer_config.json: names of the begin and end tokens, whether a text starts with the begin token.
    pub tokenizer_config: Option<&'a [u8]>,
    /// generation_config.json: more end tokens.
    pub generation_config: Option<&'a [u8]>,
}

/// tokenizer.json; the large part stays text until its type is known.
#[derive(Deserialize)]
struct File<'a> {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(borrow)]
    model: &'a RawValue,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    special: bool,
}

pub(super) fn load(files: HubFiles<'_>) -> Result<Tokenizer, TextError> {
    let file: File = parse("tokenizer.json", files.tokenizer_json)?;
    let config: Value = files
        .tokenizer_config
        .map_or(Ok(Value::Null), |c| parse("tokenizer_config.json", c))?;
    let generation: Value = files
        .generation_config
        .map_or(Ok(Value::Null), |c| parse("generation_config.json", c))?;
    let spelling = spelling(&file.decoder, &file.pre_tokenizer)?;
    model_check::check(file.model.get())?;
    let model: ModelWrapper = serde_json::from_str(file.model.get())
        .map_err(|e| TextError::tokenizer(format!("tokenizer.json: model: {}", e.to_string().trim_end())))?;

    let (names, kinds) = vocabulary(&model, &file.added_tokens, spelling)?;
    let bytes = TokenBytes::new(
        names
            .iter()
            .zip(&kinds)
            .map(|(name, kind)| match (kind, spelling) {
                // Gemma's runs of blanks are added tokens spelled with U+2581.
                (TokenKind::Control, _) | (TokenKind::UserDefined, Spelling::ByteLevel) => {
                    name.clone().into_bytes()
                }
                (TokenKind::UserDefined, Spelling::Blanks) => name.replace('\u{2581}', " ").into_bytes(),
                (TokenKind::Normal | TokenKind::Byte | TokenKind::Unused, _) => spelling.bytes(name),
            }),
    )?;
    let markers = Markers::new(file.added_tokens.iter().map(|t| Marker {
        text: t.content.clone(),
        id: t.id,
        strip_left: t.lstrip,
        strip_right: t.rstrip,
        single_word: t.single_word,
    }));

    let id_of = |key: &str| named(&config, key).and_then(|name| id_of(&model, &markers, &name));
    let bos = id_of("bos_token").or_else(|| first_template_token(&file.post_processor, &markers));
    let add_bos = match config.get("add_bos_token").and_then(Value::as_bool) {
        Some(add) => add,
        None => bos.is_some() && first_template_token(&file.post_processor, &markers) == bos,
    };
    let blank_first = spelling == Spelling::Blanks && puts_blank_first(&file.normalizer, &file.pre_tokenizer);
    let description = format!("tokenizer.json, {}, {} tokens", model_name(&model), kinds.len());
    let normalizer = wrapper::<NormalizerWrapper>("normalizer", file.normalizer)?;
    let pre_tokenizer_inside = inside(&file.pre_tokenizer)
        .map_or(Ok(None), |p| wrapper::<PreTokenizerWrapper>("pre_tokenizer", p))?;
    let pre_tokenizer = wrapper::<PreTokenizerWrapper>("pre_tokenizer", file.pre_tokenizer)?;
    let bounds = match &model {
        ModelWrapper::BPE(_) => Bounds::hub(spelling, &bytes, normalizer.as_ref(), pre_tokenizer.as_ref()),
        ModelWrapper::WordPiece(_) | ModelWrapper::WordLevel(_) | ModelWrapper::Unigram(_) => {
            Bounds::default()
        }
    };
    Parts {
        bounds,
        bos,
        eos: id_of("eos_token"),
        unk: id_of("unk_token"),
        pad: id_of("pad_token"),
        more_eos: ids(generation.get("eos_token_id")),
        add_bos,
        blank_first,
        description,
        kinds,
        bytes,
        markers,
        pipeline: Pipeline::Parts(Box::new(HubPipeline {
            normalizer,
            pre_tokenizer_inside,
            pre_tokenizer,
            model,
        })),
    }
    .finish()
}

fn parse<'a, T: Deserialize<'a>>(name: &str, bytes: &'a [u8]) -> Result<T, TextError> {
    serde_json::from_slice(bytes).map_err(|e| TextError::tokenizer(format!("{name}: {e}")))
}

fn wrapper<T: for<'a> Deserialize<'a>>(part: &'static str, value: Value) -> Result<Option<T>, TextError> {
    if value.is_null() {
        return Ok(None);
    }
    let name = value
        .get("type")
        .and_then(Value::as_str)
        .unwrap_or("(no type)")
        .to_owned();
    serde_json::from_value(value)
        .map(Some)
        .map_err(|e| TextError::UnknownTokenizer {
            part,
            name,
            known: format!("what the tokenizers library 0.23 reads ({e})"),
        })
}

fn model_name(model: &ModelWrapper) -> &'static str {
    match model {
        ModelWrapper::BPE(_) => "BPE",
        ModelWrapper::WordPiece(_) => "WordPiece",
        ModelWrapper::WordLevel(_) => "WordLevel",
        ModelWrapper::Unigram(_) => "Unigram",
    }
}

/// Whether a JSON value holds, at any depth, an object of this `type`.
fn has_type(value: &Value, wanted: &str) -> bool {
    any_object(value, &|o| o.get("type").and_then(Value::as_str) == Some(wanted))
}

fn any_object(value: &Value, test: &dyn Fn(&serde_json::Map<String, Value>) -> bool) -> bool {
    match value {
        Value::Object(object) => test(object) || object.values().any(|v| any_object(v, test)),
        Value::Array(list) => list.iter().any(|v| any_object(v, test)),
        _ => false,
    }
}

/// How the vocabulary spells bytes: what the decoder undoes.
fn spelling(decoder: &Value, pre_tokenizer: &Value) -> Result<Spelling, TextError> {
    let blank = |o: &serde_json::Map<String, Value>| {
        o.get("type").and_then(Value::as_str) == Some("Replace")
            && o.get("pattern")
                .and_then(|p| p.get("String"))
                .and_then(Value::as_str)
                == Some("\u{2581}")
    };
    if has_type(decoder, "ByteLevel") || has_type(pre_tokenizer, "ByteLevel") {
        Ok(Spelling::ByteLevel)
    } else if has_type(decoder, "Metaspace") || any_object(decoder, &blank) {
        Ok(Spelling::Blanks)
    } else {
        let name = decoder
            .get("type")
            .and_then(Value::as_str)
            .unwrap_or("(none)")
            .to_owned();
        Err(TextError::UnknownTokenizer {
            part: "decoder",
            name,
            known: "ByteLevel, Metaspace, Replace of U+2581".into(),
        })
    }
}

/// Names and kinds by id: the model's vocabulary, and the added tokens over it.
fn vocabulary(
    model: &ModelWrapper,
    added: &[Added],
    spelling: Spelling,
) -> Result<(Vec<String>, Vec<TokenKind>), TextError> {
    let vocabulary = model.get_vocab();
    let ids = vocabulary.values().copied().chain(added.iter().map(|t| t.id));
    let size = ids.max().map_or(0, |id| id as usize + 1);
    // Holes are possible, but ids far beyond the number of tokens are damage.
    let limit = (vocabulary.len() + added.len()) * 4 + 65_536;
    if size > limit {
        return Err(TextError::tokenizer(format!(
            "tokenizer.json: token id {} in a vocabulary of {}",
            size - 1,
            vocabulary.len()
        )));
    }
    let mut names = vec![String::new(); size];
    let mut kinds = vec![TokenKind::Unused; size];
    for (name, id) in vocabulary {
        let byte = spelling == Spelling::Blanks && byte_token(&name).is_some();
        kinds[id as usize] = if byte { TokenKind::Byte } else { TokenKind::Normal };
        names[id as usize] = name;
    }
    for token in added {
        kinds[token.id as usize] = if token.special {
            TokenKind::Control
        } else {
            TokenKind::UserDefined
        };
        names[token.id as usize].clone_from(&token.content);
    }
    Ok((names, kinds))
}

/// A token that tokenizer_config.json names, either as text or as an object with `content`.
fn named(config: &Value, key: &str) -> Option<String> {
    let value = config.get(key)?;
    value
        .as_str()
        .or_else(|| value.get("content")?.as_str())
        .map(str::to_owned)
}

fn id_of(model: &ModelWrapper, markers: &Markers, name: &str) -> Option<u32> {
    markers
        .list()
        .iter()
        .find(|m| m.text == name)
        .map(|m| m.id)
        .or_else(|| model.token_to_id(name))
}

fn ids(value: Option<&Value>) -> Vec<u32> {
    let id = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Value::Array(list)) => list.iter().filter_map(id).collect(),
        Some(one) => id(one).into_iter().collect(),
        None => Vec::new(),
    }
}

/// The control token that a post-processor puts before a text.
fn first_template_token(post_processor: &Value, markers: &Markers) -> Option<u32> {
    let mut name = None;
    let found = any_object(post_processor, &|o| {
        o.get("type").and_then(Value::as_str) == Some("TemplateProcessing")
    });
    if found {
        let mut stack = vec![post_processor];
        while let Some(value) = stack.pop() {
            if let Some(first) = value.get("single").and_then(|s| s.get(0)) {
                name = first
                    .get("SpecialToken")
                    .and_then(|t| t.get("id"))
                    .and_then(Value::as_str);
                break;
            }
            stack.extend(
                value
                    .get("processors")
                    .and_then(Value::as_array)
                    .into_iter()
                    .flatten(),
            );
        }
    }
    let name = name?;
    markers.list().iter().find(|m| m.text == name).map(|m| m.id)
}

/// Whether encoding puts a blank before a text.
fn puts_blank_first(normalizer: &Value, pre_tokenizer: &Value) -> bool {
    let prepends = |o: &serde_json::Map<String, Value>| {
        o.get("type").and_then(Value::as_str) == Some("Prepend")
            && o.get("prepend").and_then(Value::as_str) == Some("\u{2581}")
    };
    let metaspace = |o: &serde_json::Map<String, Value>| {
        o.get("type").and_then(Value::as_str) == Some("Metaspace")
            && match o.get("prepend_scheme").and_then(Value::as_str) {
                Some(scheme) => scheme != "never",
                None => o.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(true),
            }
    };
    any_object(normalizer, &prepends) || any_object(pre_tokenizer, &metaspace)
}

/// The pre-tokenizer for text after a marker, where "first" differs from "never".
fn inside(pre_tokenizer: &Value) -> Option<Value> {
    fn patch(value: &mut Value) -> bool {
        let mut changed = false;
        if let Some(scheme) = value.get_mut("prepend_scheme")
            && scheme.as_str() == Some("first")
        {
            *scheme = Value::from("never");
            changed = true;
        }
        if let Some(list) = value.get_mut("pretokenizers").and_then(Value::as_array_mut) {
            changed |= list.iter_mut().fold(false, |any, v| patch(v) | any);
        }
        changed
    }
    let mut copy = pre_tokenizer.clone();
    patch(&mut copy).then_some(copy)
}
