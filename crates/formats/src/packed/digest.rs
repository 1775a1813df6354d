//! BLAKE3 digests.

use std::fmt;

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::ByteSlice;

/// A BLAKE3 digest; written as 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(blake3::Hash);

impl Digest {
    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(blake3::hash(bytes))
    }

    /// 64 lower-case digits; none if they are anything else.
    pub(super) fn parse(hex: &str) -> Option<Digest> {
        let digest = Digest(blake3::Hash::from_hex(hex).ok()?);
        (digest.to_string() == hex).then_some(digest)
    }
}

/// A digest in the making.
#[derive(Default)]
pub(super) struct Hasher(blake3::Hasher);

impl Hasher {
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub fn digest(&self) -> Digest {
        Digest(self.0.finalize())
    }
}

/// Pieces in which large mapped ranges are read, so that their pages can be given back.
pub(super) const PIECE: usize = 4 << 20;

/// The digest of a mapped range, whose pages are given back as it is read.
pub(super) fn of_mapped(bytes: &ByteSlice) -> Digest {
    let mut hasher = Hasher::default();
    let mut at = bytes.offset();
    for piece in bytes.chunks(PIECE) {
        hasher.add(piece);
        bytes.source().release(at..at + piece.len());
        at += piece.len();
    }
    hasher.digest()
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.to_hex())
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.to_hex())
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let hex = String::deserialize(deserializer)?;
        Digest::parse(&hex)
            .ok_or_else(|| D::Error::custom(format!("{hex:?} is not a digest of 64 hexadecimal digits")))
    }
}
