//! tokenizer.json: any file gives a tokenizer that encodes and decodes, or words.

use galvani_text::{HubFiles, Special, Tokenizer};

use super::{Target, fixture};

pub const TARGET: Target = Target {
    name: "tokenizer",
    about: "tokenizer.json: load, encode, decode",
    run,
    seeds: || {
        vec![
            fixture("tiny/llama/tokenizer.json"),
            fixture("tiny/gemma3_text/tokenizer.json"),
            small().into_bytes(),
        ]
    },
    dictionary: &[
        b"\"type\": \"BPE\"",
        b"\"type\": \"ByteLevel\"",
        b"\"type\": \"Split\"",
        b"\"Regex\": \"(a+)+$\"",
        b"\"merges\": [",
        b"null",
        b"\"byte_fallback\": true",
        b"\"special\": true",
        b"4294967295",
        b"-1",
        b"\"NFC\"",
        b"\\ud800",
        b"\"add_prefix_space\": true",
    ],
};

/// A tokenizer of a few tokens, so that mutations often hit what matters.
fn small() -> String {
    let vocab: Vec<String> = "abcdeĠ"
        .chars()
        .enumerate()
        .map(|(id, c)| format!("\"{c}\": {id}"))
        .collect();
    format!(
        r#"{{"added_tokens": [{{"id": 8, "content": "<|im_end|>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}}],
 "normalizer": null, "pre_tokenizer": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}},
 "post_processor": null, "decoder": {{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}},
 "model": {{"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
 "fuse_unk": false, "byte_fallback": false, "vocab": {{{}, "ab": 6, "abc": 7}}, "merges": ["a b", "ab c"]}}}}"#,
        vocab.join(", ")
    )
}

fn run(input: &[u8]) -> String {
    let files = HubFiles {
        tokenizer_json: input,
        tokenizer_config: None,
        generation_config: None,
    };
    let tokenizer = match Tokenizer::from_hub(files) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return error.to_string(),
    };
    let mut said = "loads".to_owned();
    for (text, special) in [
        ("abc de<|im_end|> é", Special::Parse),
        ("aaa\n\n bb<|im_end|>", Special::Plain),
    ] {
        match tokenizer.encode(text, special, true) {
            Ok(ids) => {
                assert!(
                    ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()),
                    "ids out of range: {ids:?}"
                );
                tokenizer.decode(&ids, false);
                tokenizer.decode(&ids, true);
                said.push_str(", encodes");
            }
            Err(error) => said.push_str(&error.to_string()),
        }
    }
    for id in [0, 7, 511, 100_000, u32::MAX] {
        tokenizer.token_bytes(id);
        tokenizer.token_text(id);
    }
    said
}
