//! Texts in parts, and texts that are too long.

use super::*;

/// Every pre-tokenizer, over texts of all that its expressions tell apart.
#[test]
fn parts_have_the_tokens_of_the_whole() {
    const PIECES: [&str; 24] = [
        "a",
        "bc",
        "Z",
        "\u{e9}",
        "e\u{301}",
        "\u{301}",
        "\u{4e2d}",
        "\u{3002}",
        "\u{304b}\u{3099}",
        "1",
        "234",
        "'",
        "'s",
        "'LL",
        ".",
        ",",
        "!?",
        ")",
        " ",
        " ",
        "  ",
        "\n",
        "\r\n ",
        "\t",
    ];
    let mut state = 1u64;
    let mut next = move |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let mut cuts = 0;
    for name in known_pre_tokenizers() {
        let vocab = GgufVocab {
            pre: Some(name.into()),
            ..tiny_gguf()
        };
        let tokenizer = Tokenizer::from_gguf(vocab).expect(name);
        let whole = ["laguna", "deepseek-coder"].contains(&name);
        assert_eq!(tokenizer.bounds.cuts, !whole, "{name}");
        for _ in 0..100 {
            let text: String = (0..next(30)).map(|_| PIECES[next(PIECES.len())]).collect();
            let encode = |chunk| {
                tokenizer
                    .encode_parts(&text, &[], Special::Plain, (usize::MAX, chunk))
                    .expect("encodes")
            };
            cuts += usize::from(bounds::cut(&text, 1).is_some());
            assert_eq!(encode(1), encode(usize::MAX), "{name}: {text:?}");
        }
    }
    assert!(cuts > 1000, "{cuts}");
}

#[test]
fn more_tokens_than_allowed_are_refused() {
    let long = "w".repeat(5 << 20);
    let words = "some words, ".repeat(100_000);
    let marks = "<|im_end|>".repeat(1000);
    for (name, tokenizer) in [
        ("hub", tiny()),
        (
            "gguf",
            Arc::new(Tokenizer::from_gguf(tiny_gguf()).expect("loads")),
        ),
    ] {
        assert!(
            tokenizer.bounds.token_bytes_max.is_some() && tokenizer.bounds.cuts,
            "{name}"
        );
        for text in ["hello there, all of you", "", &marks] {
            let ids = tokenizer.encode(text, Special::Parse, false).expect("encodes");
            let exact = tokenizer.encode_up_to(text, Special::Parse, false, ids.len());
            assert_eq!(exact.as_ref(), Ok(&ids), "{name}: {text:.30}");
            if let Some(fewer) = ids.len().checked_sub(1) {
                let error = tokenizer
                    .encode_up_to(text, Special::Parse, false, fewer)
                    .expect_err(text);
                assert!(
                    matches!(error, TextError::TooLong { bytes, tokens, tokens_max }
                        if bytes == text.len() && tokens > fewer && tokens <= ids.len() && tokens_max == fewer),
                    "{name}: {error}"
                );
            }
        }
        for text in [&long, &words] {
            // Best of some: a busy machine is no fault.
            let refuse = || {
                let started = std::time::Instant::now();
                let error = tokenizer
                    .encode_up_to(text, Special::Parse, false, 1000)
                    .expect_err("too long");
                assert!(matches!(error, TextError::TooLong { .. }), "{error}");
                started.elapsed()
            };
            let best = (0..5).map(|_| refuse()).min().expect("five times");
            assert!(best.as_millis() < 1000, "{name}: {best:?}");
        }
    }
}
