//! Pre-tokenizers by the names that GGUF files use: how text is cut before the merges run.
//!
//! Each row is a list of regular expressions, applied one after the other to the pieces of the one before; a match and the
//! text between two matches are pieces of their own. The names and expressions are facts about the vocabularies; a name that
//! is not here is refused, since a guess would give wrong ids without a word.

/// One pre-tokenizer.
pub(super) struct PreTokenizer {
    pub names: &'static [&'static str],
    pub regexes: &'static [&'static str],
    /// A piece that is a token as a whole is not merged from its parts (tiktoken vocabularies).
    pub whole_first: bool,
    /// Text is brought to normal form C first.
    pub nfc: bool,
    /// Whether a text starts with the begin token where the file does not say.
    pub add_bos: bool,
}

/// GPT-2's expression.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// cl100k-like with single digits.
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// As QWEN2 with combining marks in words.
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// As QWEN2 with up to three digits.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const DEEPSEEK_V3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// Lines, and runs of line breaks.
const LINES: &str = r"[^\n]+|[\n]+";

const fn row(names: &'static [&'static str], regexes: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer {
        names,
        regexes,
        whole_first: false,
        nfc: false,
        add_bos: false,
    }
}

pub(super) static PRE_TOKENIZERS: &[PreTokenizer] = &[
    row(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "modern-bert",
        ],
        &[GPT2],
    ),
    row(
        &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        &[r"\p{N}", GPT2],
    ),
    PreTokenizer {
        whole_first: true,
        add_bos: true,
        ..row(
            &[
                "llama-bpe",
                "llama3",
                "llama-v3",
                "falcon3",
                "falcon-h1",
                "pixtral",
                "midm-2.0",
                "lfm2",
            ],
            &[LLAMA3],
        )
    },
    row(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA3]),
    PreTokenizer {
        whole_first: true,
        ..row(&["glm4", "glm5"], &[LLAMA3])
    },
    PreTokenizer {
        nfc: true,
        ..row(&["qwen2", "deepseek-r1-qwen", "kormo", "megrez"], &[QWEN2])
    },
    row(&["stablelm2", "hunyuan", "solar-open", "grok-2"], &[QWEN2]),
    row(&["qwen35"], &[QWEN35]),
    PreTokenizer {
        whole_first: true,
        add_bos: true,
        ..row(&["tekken"], &[TEKKEN])
    },
    row(&["gpt-4o", "llama4", "kanana2", "minimax-m2"], &[O200K]),
    row(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[
            r"\p{N}{1,3}",
            "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
            DEEPSEEK_V3,
        ],
    ),
    row(
        &["deepseek-coder"],
        &[
            r"[\r\n]",
            r"\s?\p{L}+",
            r"\s?\p{P}+",
            "[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+",
            r"\p{N}",
        ],
    ),
    row(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"]),
    row(&["laguna"], &[LINES, QWEN2]),
];

/// The row of a name.
pub(super) fn find(name: &str) -> Option<&'static PreTokenizer> {
    PRE_TOKENIZERS.iter().find(|row| row.names.contains(&name))
}

/// Whether an expression is one of these, and matches across no place of [`super::bounds::cut`].
pub(super) fn cuts_between_words(regex: &str) -> bool {
    let mut known = PRE_TOKENIZERS.iter().flat_map(|row| row.regexes);
    regex != LINES && known.any(|known| *known == regex)
}

/// Whether an expression matches every text from end to end.
pub(super) fn covers(regex: &str) -> bool {
    [GPT2, QWEN2, QWEN35, LLAMA3, TEKKEN, O200K, DEEPSEEK_V3].contains(&regex)
}

/// Names of all pre-tokenizers that GGUF files may name.
pub fn known_pre_tokenizers() -> Vec<&'static str> {
    PRE_TOKENIZERS
        .iter()
        .flat_map(|row| row.names.iter().copied())
        .collect()
}
