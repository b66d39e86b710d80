mod length;

use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::Detokenizer;

const TINY: &[u8] = include_bytes!("../../../../goldens/text/tiny.tokenizer.json");
const CONFIG: &[u8] =
    br#"{"bos_token": "<|endoftext|>", "eos_token": {"content": "<|im_end|>"}, "pad_token": "<|pad|>"}"#;

fn hub(config: &[u8]) -> Tokenizer {
    Tokenizer::from_hub(HubFiles {
        tokenizer_json: TINY,
        tokenizer_config: Some(config),
        generation_config: None,
    })
    .expect("the tiny tokenizer loads")
}

fn tiny() -> Arc<Tokenizer> {
    static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| Arc::new(hub(CONFIG)));
    TOKENIZER.clone()
}

/// The tiny tokenizer as GGUF metadata.
fn tiny_gguf() -> GgufVocab {
    let file: Value = serde_json::from_slice(TINY).expect("JSON");
    let vocab = file["model"]["vocab"].as_object().expect("an object");
    let mut tokens = vec![String::new(); 512];
    let mut token_types = vec![1; 512];
    for (token, id) in vocab {
        tokens[id.as_u64().expect("an id") as usize] = token.clone();
    }
    for added in file["added_tokens"].as_array().expect("an array") {
        let id = added["id"].as_u64().expect("an id") as usize;
        tokens[id] = added["content"].as_str().expect("text").to_owned();
        token_types[id] = 3;
    }
    let merge = |m: &Value| {
        format!(
            "{} {}",
            m[0].as_str().expect("text"),
            m[1].as_str().expect("text")
        )
    };
    GgufVocab {
        model: "gpt2".into(),
        pre: Some("qwen2".into()),
        tokens,
        token_types,
        merges: file["model"]["merges"]
            .as_array()
            .expect("an array")
            .iter()
            .map(merge)
            .collect(),
        bos: Some(506),
        eos: Some(508),
        add_bos: Some(false),
        ..GgufVocab::default()
    }
}

const TEXTS: [&str; 14] = [
    "",
    " ",
    "a",
    "Hello, world! It's 12345 o'clock.",
    "  two  blanks\tand\ta tab ",
    "\n\n\r\n x\n",
    "def f(x):\n    return x ** 2  # 1e-5\n",
    "caf\u{e9} na\u{ef}ve \u{4f60}\u{597d}\u{ff0c}\u{4e16}\u{754c} \u{43f}\u{440}\u{438}\u{432}\u{435}\u{442}",
    "\u{1f638}\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467} \u{1f1e9}\u{1f1ea}",
    "WE'LL SEE'm isn't",
    "\u{0}\u{1}\u{7f}\u{a0}\u{2028}",
    "<|im_start|>user\nhi<|im_end|>",
    "<|im_end|><|im_end|> <think>x</think>",
    "<|im_end <|im_endx|> <|",
];

#[test]
fn gguf_and_tokenizer_json_agree() {
    let (hub, gguf) = (tiny(), Tokenizer::from_gguf(tiny_gguf()).expect("loads"));
    for special in [Special::Parse, Special::Plain] {
        for text in TEXTS {
            let ids = hub.encode(text, special, false).expect("encodes");
            assert_eq!(
                ids,
                gguf.encode(text, special, false).expect("encodes"),
                "{text:?} {special:?}"
            );
            assert_eq!(hub.decode(&ids, false), text, "{special:?}");
        }
    }
    for id in 0..513 {
        assert_eq!(hub.token_bytes(id), gguf.token_bytes(id), "{id}");
        assert_eq!(hub.is_special(id), gguf.is_special(id), "{id}");
    }
    assert_eq!(
        (hub.vocab_size(), hub.eos_ids(), hub.pad()),
        (512, &[506, 508][..], Some(511))
    );
}

/// Reduced vocabularies with the ids that the models' own tokenizers give.
#[test]
fn known_ids() {
    macro_rules! vocabularies {
        ($($name:literal),*) => { [$(($name, include_str!(concat!("../../../../goldens/text/vocab-", $name, ".json")))),*] };
    }
    let all = vocabularies!(
        "gpt-2",
        "qwen2",
        "qwen35",
        "llama-bpe",
        "starcoder",
        "deepseek-coder",
        "falcon",
        "command-r",
        "llama-spm",
        "phi-3"
    );
    let mut wrong = Vec::new();
    for (name, source) in all {
        let file: Value = serde_json::from_str(source).expect("JSON");
        let list = |key: &str| file[key].as_array().expect("an array").clone();
        let text = |v: &Value| v.as_str().expect("text").to_owned();
        let id = |key: &str| file[key].as_u64().map(|id| id as u32);
        let tokenizer = Tokenizer::from_gguf(GgufVocab {
            model: text(&file["model"]),
            pre: file["pre"].as_str().map(str::to_owned),
            tokens: list("tokens").iter().map(text).collect(),
            token_types: list("token_types")
                .iter()
                .map(|t| t.as_i64().expect("a number") as i32)
                .collect(),
            merges: list("merges").iter().map(text).collect(),
            scores: list("scores")
                .iter()
                .map(|s| s.as_f64().expect("a number") as f32)
                .collect(),
            bos: id("bos"),
            eos: id("eos"),
            unk: id("unk"),
            ..GgufVocab::default()
        })
        .expect("loads");
        for case in list("cases") {
            let input = text(&case[0]);
            let want: Vec<u32> = case[1]
                .as_array()
                .expect("ids")
                .iter()
                .map(|i| i.as_u64().expect("an id") as u32)
                .collect();
            let got = tokenizer.encode(&input, Special::Parse, false).expect("encodes");
            if got != want {
                wrong.push(format!("{name} {input:?}: {got:?}, not {want:?}"));
            }
            if tokenizer.decode(&got, false) != input {
                wrong.push(format!(
                    "{name} {input:?} comes back as {:?}",
                    tokenizer.decode(&got, false)
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// P19: the begin token comes first exactly once, wherever it comes from.
#[test]
fn begin_token_once() {
    let (with, without) = (
        hub(br#"{"bos_token": "<|endoftext|>", "add_bos_token": true}"#),
        tiny(),
    );
    let bos = 506;
    for text in ["hi", "", "<|endoftext|>hi", "<|endoftext|><|endoftext|>hi"] {
        let ids = with.encode(text, Special::Parse, true).expect("encodes");
        assert_eq!(ids.iter().filter(|&&id| id == bos).count(), 1, "{text:?}");
        assert_eq!(ids[0], bos, "{text:?}");
        let prompt = Prompt::from_template_text(text);
        assert_eq!(with.encode_prompt(&prompt).expect("encodes"), ids, "{text:?}");
        let plain = without.encode(text, Special::Parse, true).expect("encodes");
        assert_eq!(
            plain,
            without.encode(text, Special::Parse, false).expect("encodes"),
            "{text:?}"
        );
    }
    assert_eq!(
        with.encode("hi", Special::Parse, false).expect("encodes"),
        without.encode("hi", Special::Parse, false).expect("encodes")
    );
    assert!(with.adds_bos() && !without.adds_bos());
}

/// A post-processor that puts the begin token first says so without tokenizer_config.json.
#[test]
fn begin_token_of_a_post_processor() {
    let mut file: Value = serde_json::from_slice(TINY).expect("JSON");
    file["post_processor"] = json!({"type": "Sequence", "processors": [
        {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [], "special_tokens": {}},
    ]});
    let bytes = serde_json::to_vec(&file).expect("JSON");
    let files = HubFiles {
        tokenizer_json: &bytes,
        tokenizer_config: None,
        generation_config: Some(br#"{"eos_token_id": [7, 99999]}"#),
    };
    let tokenizer = Tokenizer::from_hub(files).expect("loads");
    assert_eq!((tokenizer.bos(), tokenizer.adds_bos()), (Some(507), true));
    assert_eq!(tokenizer.eos_ids(), [7, 506, 508]);
    let off = HubFiles {
        tokenizer_config: Some(br#"{"add_bos_token": false}"#),
        ..files
    };
    assert!(!Tokenizer::from_hub(off).expect("loads").adds_bos());
}

/// P20, the tokenizer's half.
#[test]
fn plain_text_never_becomes_a_control_token() {
    let tokenizer = tiny();
    for text in TEXTS {
        let ids = tokenizer.encode(text, Special::Plain, true).expect("encodes");
        assert!(ids.iter().all(|&id| !tokenizer.is_special(id)), "{text:?}");
        assert_eq!(tokenizer.decode(&ids, true), text);
    }
}

#[test]
fn decoding_skips_control_tokens() {
    let tokenizer = tiny();
    let ids = tokenizer
        .encode("<|im_start|>a<|im_end|>", Special::Parse, false)
        .expect("encodes");
    assert_eq!(tokenizer.decode(&ids, true), "a");
    assert_eq!(tokenizer.decode(&[9999, ids[1]], true), "a");
    assert_eq!(tokenizer.special_id("<|im_end|>"), Some(508));
    assert_eq!(tokenizer.token_text(508).as_deref(), Some("<|im_end|>"));
}

/// P01 with real tokens.
#[test]
fn characters_over_several_tokens() {
    let tokenizer = tiny();
    let text = "a\u{1f638}!\u{4f60}<|im_end|>";
    let ids = tokenizer.encode(text, Special::Parse, false).expect("encodes");
    assert!(ids.len() > 7, "the tiny vocabulary has no such characters");
    let mut stream = Detokenizer::new(tokenizer.clone(), true);
    let parts: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
    assert!(parts.iter().all(|p| !p.contains('\u{fffd}')));
    assert_eq!(parts.concat() + &stream.finish(), "a\u{1f638}!\u{4f60}");
    let mut cut = Detokenizer::new(tokenizer.clone(), true);
    let joined: String = ids[..3].iter().map(|&id| cut.push(id)).collect();
    assert_eq!(joined + &cut.finish(), "a\u{fffd}");
    assert_eq!(
        tokenizer.decode(&ids[..3], true),
        "a\u{fffd}",
        "the same without a stream"
    );
}

#[test]
fn faults_are_named() {
    let base = tiny_gguf();
    let longest = base
        .tokens
        .iter()
        .max_by_key(|t| t.len())
        .expect("tokens")
        .clone();
    let spm = GgufVocab {
        model: "llama".into(),
        scores: vec![0.0; 512],
        ..tiny_gguf()
    };
    let cases: [(GgufVocab, &[&str]); 12] = [
        (
            GgufVocab {
                pre: Some("nobody".into()),
                ..base.clone()
            },
            &["pre-tokenizer", "`nobody`", "qwen2", "llama-bpe"],
        ),
        (
            GgufVocab {
                pre: None,
                ..base.clone()
            },
            &["tokenizer.ggml.pre is missing"],
        ),
        (
            GgufVocab {
                model: "bert".into(),
                ..base.clone()
            },
            &["model `bert`", "gpt2, llama"],
        ),
        (
            GgufVocab {
                tokens: vec![],
                ..base.clone()
            },
            &["tokens is empty"],
        ),
        (
            GgufVocab {
                token_types: vec![1],
                ..base.clone()
            },
            &["token_type has 1 entries for 512"],
        ),
        (
            GgufVocab {
                token_types: vec![9; 512],
                ..base.clone()
            },
            &["token_type[0] is 9", "1 to 6"],
        ),
        (
            GgufVocab {
                merges: vec!["ab".into()],
                ..base.clone()
            },
            &["merges[0]", "\"ab\""],
        ),
        (
            GgufVocab {
                merges: vec!["zz qq".into()],
                ..base.clone()
            },
            &["merges"],
        ),
        (
            GgufVocab {
                merges: vec![format!("{longest} {longest}")],
                ..base.clone()
            },
            &["merges[0]", "longer token"],
        ),
        (
            GgufVocab {
                eos: Some(512),
                ..base.clone()
            },
            &["eos token 512", "512"],
        ),
        (
            GgufVocab {
                scores: vec![],
                ..spm.clone()
            },
            &["scores is missing"],
        ),
        (
            GgufVocab {
                scores: vec![f32::NAN; 512],
                ..spm.clone()
            },
            &["scores[0] is not a number"],
        ),
    ];
    for (vocab, signs) in cases {
        let message = Tokenizer::from_gguf(vocab).expect_err("refused").to_string();
        assert!(
            signs.iter().all(|s| message.contains(s)),
            "{message} should have {signs:?}"
        );
    }
    let hub: [(&[u8], &str); 5] = [
        (b"", "tokenizer.json"),
        (b"{}", "model"),
        (br#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#, "decoder"),
        (br#"{"decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 4000000000}, "merges": []}}"#, "token id"),
        (br#"{"decoder": {"type": "ByteLevel"}, "normalizer": {"type": "Unheard"}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}"#, "normalizer `Unheard`"),
    ];
    for (json, sign) in hub {
        let files = HubFiles {
            tokenizer_json: json,
            tokenizer_config: None,
            generation_config: None,
        };
        let message = Tokenizer::from_hub(files).expect_err("refused").to_string();
        assert!(message.contains(sign), "{message} should have {sign}");
    }
}

/// A vocabulary in the manner of Gemma: runs of blanks are added tokens, and match in plain text too.
/// Found by fuzzing: the reader of BPE models panics on these.
#[test]
fn models_that_their_reader_trusts_too_much_are_refused() {
    let refused = |change: &dyn Fn(&mut Value), words: &[&str]| {
        let mut file: Value = serde_json::from_slice(TINY).expect("JSON");
        change(&mut file["model"]);
        let json = file.to_string();
        let result = Tokenizer::from_hub(HubFiles {
            tokenizer_json: json.as_bytes(),
            tokenizer_config: None,
            generation_config: None,
        });
        let message = result.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(message.is_empty(), words.is_empty(), "{message}");
        for word in words {
            assert!(
                message.contains(word),
                "expected `{word}`, the message is: {message}"
            );
        }
    };
    refused(&|_| {}, &[]);
    refused(&|model| model["continuing_subword_prefix"] = "".into(), &[]);
    refused(
        &|model| model["continuing_subword_prefix"] = "##".into(),
        &["continuing_subword_prefix", "\"##\""],
    );
    let small = |merges: Value| {
        move |model: &mut Value| {
            model["vocab"] = json!({"a": 0, "b": 1, "ab": 2});
            model["merges"] = merges.clone();
        }
    };
    let long = "makes a token of 3 bytes, but the longest in the vocabulary has 2";
    refused(&small(json!([["a", "b"], ["ab", "a"]])), &["merge 1", long]);
    refused(&small(json!(["a b", "ab a"])), &["merge 1", long]);
}

#[test]
fn added_blanks_match_in_plain_text() {
    let mut vocab = tiny_gguf();
    vocab.tokens.extend(["\n\n".into(), "<tool>".into()]);
    vocab.token_types.extend([4, 4]);
    let tokenizer = Tokenizer::from_gguf(vocab).expect("loads");
    for (special, want) in [(Special::Parse, (true, true)), (Special::Plain, (true, false))] {
        let ids = tokenizer.encode("a\n\nb<tool>", special, false).expect("encodes");
        assert_eq!((ids.contains(&512), ids.contains(&513)), want, "{special:?}");
    }
    assert_eq!(tokenizer.kind(513), TokenKind::UserDefined);
    assert_eq!(
        tokenizer.decode(&[513], true),
        "<tool>",
        "shown, as it is no control token"
    );
}

/// SentencePiece in a vocabulary small enough to check by hand.
#[test]
fn merges_by_score() {
    let tokens = [
        "<unk>",
        "<s>",
        "</s>",
        "<0x0A>",
        "<0xC3>",
        "<0xA9>",
        "\u{2581}",
        "a",
        "b",
        "ab",
        "bb",
        "\u{2581}a",
        "abb",
        "\u{2581}ab",
    ];
    let scores = [
        0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -3.0, -1.0, -4.0, -5.0, -2.0,
    ];
    let kinds = [2, 3, 3, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1];
    let vocab = |prefix: bool| GgufVocab {
        model: "llama".into(),
        tokens: tokens.iter().map(|t| t.to_string()).collect(),
        token_types: kinds.to_vec(),
        scores: scores.to_vec(),
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        add_space_prefix: Some(prefix),
        ..GgufVocab::default()
    };
    let cases: [(bool, &str, &[u32]); 8] = [
        (false, "ab", &[9]),
        (false, "abb", &[12]), // b b first (-1), then a bb (-5)
        (false, "aabb", &[7, 12]),
        (true, "ab", &[13]),
        (true, "a\u{e9}\n", &[11, 4, 5, 3]),
        (true, "</s>a", &[2, 11]), // SentencePiece begins again after a marker
        (false, "z", &[0]),
        (true, "", &[]),
    ];
    for (prefix, text, want) in cases {
        let tokenizer = Tokenizer::from_gguf(vocab(prefix)).expect("loads");
        assert_eq!(
            tokenizer.encode(text, Special::Parse, false).expect("encodes"),
            want,
            "{prefix} {text:?}"
        );
    }
    let tokenizer = Tokenizer::from_gguf(vocab(true)).expect("loads");
    assert_eq!(
        tokenizer.encode("ab", Special::Parse, true).expect("encodes"),
        [1, 13],
        "SentencePiece adds the begin token"
    );
    assert_eq!(
        tokenizer.decode(&[1, 13, 13], true),
        "ab ab",
        "only the first blank is the tokenizer's own"
    );
}

proptest! {
    #[test]
    fn any_text_comes_back(text in r"[a-c \n\u{e9}\u{4e2d}\u{1f638}<|>im_end/think]{0,40}") {
        let tokenizer = tiny();
        for special in [Special::Parse, Special::Plain] {
            let ids = tokenizer.encode(&text, special, false).expect("encodes");
            prop_assert_eq!(tokenizer.decode(&ids, false), text.clone());
            let mut stream = Vec::new();
            for id in &ids {
                stream.extend_from_slice(tokenizer.token_bytes(*id).expect("in the vocabulary"));
            }
            prop_assert_eq!(String::from_utf8(stream).expect("text"), text.clone());
        }
    }
}
