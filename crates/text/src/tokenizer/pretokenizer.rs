//! The pre-tokenizers of byte-level vocabularies by the name that GGUF gives them.
//!
//! A pre-tokenizer cuts text into words that merges never cross. The expressions are those of the models'
//! tokenizer.json files; llama.cpp ships the same names (`tokenizer.ggml.pre`).

/// What a `tokenizer.ggml.pre` name stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PreTokenizer {
    /// Applied one after the other, each within the pieces of the one before; matches and gaps both stay.
    pub(crate) splits: &'static [&'static str],
    /// A word that is itself a token is taken whole.
    pub(crate) ignore_merges: bool,
    /// Text is brought to normal form C first, as the models' own tokenizer.json does.
    pub(crate) nfc: bool,
    /// Default of tokenizer.ggml.add_bos_token.
    pub(crate) add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DIGIT: &str = r"\p{N}";
const DEEPSEEK_V3: &[&str] = &[
    r"\p{N}{1,3}",
    r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
];
const DEEPSEEK_LLM: &[&str] = &[
    r"[\r\n]",
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+",
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
    r"\s+$",
    r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+",
    r"\p{N}+",
];
const DEEPSEEK_CODER: &[&str] = &[
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+",
    r"\p{N}",
];
const FALCON: &[&str] = &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"];
const DEFAULT: &[&str] = &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"];

/// The supported names, several to one meaning.
const NAMES: &[(&[&str], PreTokenizer)] = &[
    (&["default", ""], plain(DEFAULT)),
    (
        &[
            "gpt-2",
            "gpt2",
            "phi-2",
            "mpt",
            "olmo",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
            "trillion",
            "granite-docling",
        ],
        plain(&[GPT2]),
    ),
    (
        &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
        PreTokenizer { splits: &[LLAMA3], ignore_merges: true, nfc: false, add_bos: true },
    ),
    (&["dbrx", "smaug-bpe", "chatglm-bpe"], plain(&[LLAMA3])),
    (&["glm4", "glm5"], PreTokenizer { ignore_merges: true, ..plain(&[LLAMA3]) }),
    (&["qwen2"], PreTokenizer { nfc: true, ..plain(&[QWEN2]) }),
    (
        &["deepseek-r1-qwen", "stablelm2", "megrez", "hunyuan", "grok-2", "solar-open", "kormo"],
        plain(&[QWEN2]),
    ),
    (&["qwen35"], plain(&[QWEN35])),
    (&["gpt-4o", "llama4", "kanana2", "minimax-m2"], plain(&[GPT4O])),
    (&["tekken"], PreTokenizer { splits: &[TEKKEN], ignore_merges: true, nfc: false, add_bos: true }),
    (
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"],
        plain(&[DIGIT, GPT2]),
    ),
    (&["deepseek-llm"], plain(DEEPSEEK_LLM)),
    (&["deepseek-coder"], plain(DEEPSEEK_CODER)),
    (&["deepseek-v3", "hunyuan-dense", "joyai-llm"], plain(DEEPSEEK_V3)),
    (&["falcon"], plain(FALCON)),
];

const fn plain(splits: &'static [&'static str]) -> PreTokenizer {
    PreTokenizer { splits, ignore_merges: false, nfc: false, add_bos: false }
}

impl PreTokenizer {
    pub(crate) fn named(name: &str) -> Option<PreTokenizer> {
        NAMES.iter().find(|(names, _)| names.contains(&name)).map(|(_, pre)| *pre)
    }

    pub(crate) fn names() -> String {
        let all: Vec<&str> =
            NAMES.iter().flat_map(|(names, _)| names.iter().copied()).filter(|n| !n.is_empty()).collect();
        all.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
    use tokenizers::{
        OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer as _, SplitDelimiterBehavior,
    };

    use super::*;

    fn words(pre: &PreTokenizer, text: &str) -> Vec<String> {
        let mut pieces = PreTokenizedString::from(text);
        for pattern in pre.splits {
            let pattern = SplitPattern::Regex((*pattern).to_owned());
            let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).expect("a pattern");
            split.pre_tokenize(&mut pieces).expect("splits");
        }
        let words = pieces.get_splits(OffsetReferential::Original, OffsetType::Byte);
        words.into_iter().map(|(word, _, _)| word.to_owned()).collect()
    }

    /// The words of the real models' tokenizer.json files, cut by the Python package.
    #[test]
    fn words_equal_the_python_package() {
        let data: serde_json::Value =
            serde_json::from_str(include_str!("../../tests/data/splits.json")).expect("JSON");
        for (name, expected) in data["words"].as_object().expect("words") {
            let pre = PreTokenizer::named(name).expect(name);
            let expected: Vec<String> = serde_json::from_value(expected.clone()).expect("words");
            assert_eq!(words(&pre, data["text"].as_str().expect("text")), expected, "{name}");
        }
    }

    #[test]
    fn every_pattern_compiles_and_keeps_all_text() {
        let text = "Hello, I'll pay 12345\u{a0}€\n\n  for 中文 \u{301}x!!  ";
        for (names, pre) in NAMES {
            assert_eq!(words(pre, text).concat(), text, "{names:?}");
        }
    }
}
