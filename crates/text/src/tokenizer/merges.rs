//! A check of tokenizer.json's merges before the `tokenizers` crate sees them.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::TextError;

/// The `tokenizers` crate indexes a buffer as long as the longest token with each merge, so a longer merge would end the
/// process: such files are refused here. Nothing is kept of the file, and its vocabulary is read past, not stored.
pub(super) fn check(bytes: &[u8]) -> Result<(), TextError> {
    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        model: Model,
    }
    #[derive(Deserialize, Default)]
    struct Model {
        #[serde(default)]
        vocab: LongestToken,
        #[serde(default)]
        merges: LongestMerge,
    }
    let file: File = serde_json::from_slice(bytes).map_err(|e| TextError::TokenizerJson(e.to_string()))?;
    let LongestMerge { rank, len } = file.model.merges;
    if len > file.model.vocab.0 {
        let problem = format!("merge {rank} makes a token of {len} bytes that the vocabulary does not have");
        return Err(TextError::vocabulary("tokenizer.json model.merges", problem));
    }
    Ok(())
}

/// Length in bytes of the longest key of a map; other shapes (Unigram's list) count as zero.
#[derive(Default)]
struct LongestToken(usize);

/// Rank and length of the longest merge.
#[derive(Default)]
struct LongestMerge {
    rank: usize,
    len: usize,
}

/// Length of a merge: `"a b"` or `["a", "b"]`.
struct MergeLength(usize);

struct TokenVisitor;
struct MergesVisitor;
struct MergeVisitor;

impl<'de> Deserialize<'de> for LongestToken {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TokenVisitor)
    }
}

impl<'de> Deserialize<'de> for LongestMerge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MergesVisitor)
    }
}

impl<'de> Deserialize<'de> for MergeLength {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MergeVisitor)
    }
}

impl<'de> Visitor<'de> for TokenVisitor {
    type Value = LongestToken;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a vocabulary")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<LongestToken, A::Error> {
        let mut longest = 0;
        while let Some((key, IgnoredAny)) = map.next_entry::<Cow<'de, str>, IgnoredAny>()? {
            longest = longest.max(key.len());
        }
        Ok(LongestToken(longest))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<LongestToken, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(LongestToken(0))
    }
}

impl<'de> Visitor<'de> for MergesVisitor {
    type Value = LongestMerge;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of merges")
    }

    fn visit_unit<E: Error>(self) -> Result<LongestMerge, E> {
        Ok(LongestMerge::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<LongestMerge, A::Error> {
        let mut longest = LongestMerge::default();
        let mut rank = 0;
        while let Some(MergeLength(len)) = seq.next_element()? {
            if len > longest.len {
                longest = LongestMerge { rank, len };
            }
            rank += 1;
        }
        Ok(longest)
    }
}

impl<'de> Visitor<'de> for MergeVisitor {
    type Value = MergeLength;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a merge")
    }

    fn visit_str<E: Error>(self, line: &str) -> Result<MergeLength, E> {
        Ok(MergeLength(line.len().saturating_sub(1)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<MergeLength, A::Error> {
        let mut len = 0;
        while let Some(part) = seq.next_element::<Cow<'de, str>>()? {
            len += part.len();
        }
        Ok(MergeLength(len))
    }
}
