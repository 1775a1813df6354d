//! The key-value pairs of a GGUF file.

use std::collections::BTreeMap;

/// A value of a GGUF key.
#[derive(Clone, Debug, PartialEq)]
pub enum GgufValue {
    /// Any unsigned integer type.
    Unsigned(u64),
    /// Any signed integer type.
    Signed(i64),
    /// f32 or f64.
    Float(f64),
    /// One byte, 0 or 1.
    Bool(bool),
    /// UTF-8.
    String(String),
    /// Elements of one type; may nest.
    Array(Vec<GgufValue>),
}

/// The pairs by key, with getters that accept every integer width and the scalar-or-array spellings.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufMetadata {
    pub(crate) pairs: BTreeMap<String, GgufValue>,
}

/// A key that is missing or not of the type its reader needs.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum MetadataError {
    /// The key is not in the file.
    #[error("metadata key {0} is missing")]
    Missing(String),
    /// The key is there with another type or an impossible value.
    #[error("metadata key {key} is {found}, expected {expected}")]
    Unexpected {
        /// The key.
        key: String,
        /// What the file has, shortened.
        found: String,
        /// What was wanted.
        expected: &'static str,
    },
}

impl GgufMetadata {
    /// From pairs that did not come from a file.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (String, GgufValue)>) -> Self {
        GgufMetadata { pairs: pairs.into_iter().collect() }
    }

    /// The raw value.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.pairs.get(key)
    }

    /// All pairs in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &GgufValue)> {
        self.pairs.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// general.architecture
    pub fn architecture(&self) -> Result<&str, MetadataError> {
        self.string("general.architecture")?
            .ok_or_else(|| MetadataError::Missing("general.architecture".into()))
    }

    /// A string, if the key is present.
    pub fn string(&self, key: &str) -> Result<Option<&str>, MetadataError> {
        self.typed(key, "a string", |v| match v {
            GgufValue::String(s) => Some(s.as_str()),
            _ => None,
        })
    }

    /// A boolean, if the key is present.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, MetadataError> {
        self.typed(key, "a boolean", |v| match v {
            GgufValue::Bool(b) => Some(*b),
            _ => None,
        })
    }

    /// A number as f64, if the key is present.
    pub fn float(&self, key: &str) -> Result<Option<f64>, MetadataError> {
        self.typed(key, "a number", |v| match v {
            GgufValue::Float(x) => Some(*x),
            GgufValue::Unsigned(x) => Some(*x as f64),
            GgufValue::Signed(x) => Some(*x as f64),
            _ => None,
        })
    }

    /// A non-negative integer, if the key is present.
    pub fn integer(&self, key: &str) -> Result<Option<u64>, MetadataError> {
        self.typed(key, "a non-negative integer", GgufValue::as_integer)
    }

    /// A non-negative integer or an array of them, one for each layer; a scalar stands for every layer.
    pub fn integers(&self, key: &str) -> Result<Option<PerLayer<u64>>, MetadataError> {
        self.typed(key, "non-negative integers", |v| PerLayer::read(v, GgufValue::as_integer))
    }

    /// A boolean for each layer, or the scalar that the key may hold instead (a period).
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>, MetadataError> {
        self.typed(key, "booleans", |v| match v {
            GgufValue::Array(items) => items
                .iter()
                .map(|v| match v {
                    GgufValue::Bool(b) => Some(*b),
                    other => other.as_integer().map(|x| x != 0),
                })
                .collect(),
            _ => None,
        })
    }

    /// An array of strings, if the key is present.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&str>>, MetadataError> {
        self.typed(key, "strings", |v| match v {
            GgufValue::Array(items) => items
                .iter()
                .map(|v| match v {
                    GgufValue::String(s) => Some(s.as_str()),
                    _ => None,
                })
                .collect(),
            _ => None,
        })
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        read: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<Option<T>, MetadataError> {
        let Some(value) = self.pairs.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| {
            let mut found = format!("{value:?}");
            if found.len() > 60 {
                let end = (0..=57).rev().find(|&i| found.is_char_boundary(i)).unwrap_or(0);
                found.truncate(end);
                found.push_str("...");
            }
            MetadataError::Unexpected { key: key.to_owned(), found, expected }
        })
    }
}

impl GgufValue {
    /// A non-negative integer of any width.
    pub fn as_integer(&self) -> Option<u64> {
        match self {
            GgufValue::Unsigned(x) => Some(*x),
            GgufValue::Signed(x) => u64::try_from(*x).ok(),
            _ => None,
        }
    }
}

/// A hyper-parameter that is the same for every layer or given for each.
#[derive(Clone, Debug, PartialEq)]
pub enum PerLayer<T> {
    /// One value for all layers.
    All(T),
    /// A value for each layer.
    Each(Vec<T>),
}

impl<T: Copy> PerLayer<T> {
    /// The value of layer `layer`, `None` past the end of the array.
    pub fn at(&self, layer: usize) -> Option<T> {
        match self {
            PerLayer::All(x) => Some(*x),
            PerLayer::Each(xs) => xs.get(layer).copied(),
        }
    }

    fn read(value: &GgufValue, one: impl Fn(&GgufValue) -> Option<T>) -> Option<PerLayer<T>> {
        match value {
            GgufValue::Array(items) => items.iter().map(one).collect::<Option<_>>().map(PerLayer::Each),
            scalar => one(scalar).map(PerLayer::All),
        }
    }
}
