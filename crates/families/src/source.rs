//! Hyper-parameters under the names that Hugging Face and GGUF give them.

use std::borrow::Cow;

use serde_json::{Map, Value};
use turbospark_formats::{Checkpoint, GgufMetadata, GgufValue, Metadata};

use crate::FamilyError;
use crate::field::{Field, short, spelled};

/// Most elements of a list: one for each layer, and more layers are refused.
pub(crate) const MAX_LAYERS: usize = 1024;

/// What a family asks of a checkpoint's tensors.
pub(crate) trait Tensors {
    /// Shape of the tensor, if it is there.
    fn shape(&self, name: &str) -> Option<Vec<usize>>;
    /// Its elements.
    fn values(&self, name: &str) -> Option<Vec<f32>>;
}

impl Tensors for Checkpoint {
    fn shape(&self, name: &str) -> Option<Vec<usize>> {
        self.get(name).map(|tensor| tensor.shape().to_vec())
    }

    fn values(&self, name: &str) -> Option<Vec<f32>> {
        self.get(name).map(|tensor| tensor.to_f32())
    }
}

/// A checkpoint's hyper-parameters and its tensors.
///
/// A key is asked for by its two names: that in config.json (older spellings after a bar: `new|old`) and that in
/// GGUF, without the architecture. An empty name says that the format does not have it.
pub(crate) struct Source<'a> {
    keys: Keys<'a>,
    tensors: &'a dyn Tensors,
    defaults: &'static [(&'static str, f64)],
}

#[derive(Clone, Copy)]
enum Keys<'a> {
    Config { whole: &'a Map<String, Value>, text: &'a Map<String, Value>, place: &'static str },
    Gguf { metadata: &'a GgufMetadata, architecture: &'a str },
}

impl<'a> Source<'a> {
    pub fn new(metadata: &'a Metadata, tensors: &'a dyn Tensors) -> Result<Source<'a>, FamilyError> {
        let keys = match metadata {
            Metadata::Gguf(metadata) => Keys::Gguf { metadata, architecture: metadata.architecture()? },
            Metadata::Config { config, .. } => {
                let whole = config.as_object().ok_or_else(|| FamilyError::Unexpected {
                    key: "config.json".to_owned(),
                    found: short(config),
                    expected: "an object".to_owned(),
                })?;
                match whole.get("text_config").and_then(Value::as_object) {
                    Some(text) => Keys::Config { whole, text, place: "config.json: text_config." },
                    None => Keys::Config { whole, text: whole, place: "config.json: " },
                }
            }
        };
        Ok(Source { keys, tensors, defaults: &[] })
    }

    /// The same with values for keys that a config may leave out.
    pub fn with_defaults(&self, defaults: &'static [(&'static str, f64)]) -> Source<'a> {
        Source { defaults, ..*self }
    }

    pub fn is_gguf(&self) -> bool {
        matches!(self.keys, Keys::Gguf { .. })
    }

    /// What the checkpoint calls itself: model_type, then architectures; a GGUF's architecture.
    pub fn model_types(&self) -> Vec<&'a str> {
        match self.keys {
            Keys::Gguf { architecture, .. } => vec![architecture],
            Keys::Config { whole, .. } => {
                let model_type = whole.get("model_type").and_then(Value::as_str);
                let classes = whole.get("architectures").and_then(Value::as_array);
                let classes = classes.into_iter().flatten().filter_map(Value::as_str);
                model_type.into_iter().chain(classes).collect()
            }
        }
    }

    pub fn shape(&self, tensor: &str) -> Option<Vec<usize>> {
        self.tensors.shape(tensor)
    }

    pub fn has(&self, tensor: &str) -> bool {
        self.shape(tensor).is_some()
    }

    pub fn values(&self, tensor: &str) -> Option<Vec<f32>> {
        self.tensors.values(tensor)
    }

    /// A hyper-parameter, if it is there and not null.
    pub fn find(&self, config: &str, gguf: &str) -> Result<Option<Field<'a>>, FamilyError> {
        match self.keys {
            Keys::Gguf { metadata, architecture } => {
                let key = format!("{architecture}.{gguf}");
                let value = metadata.get(&key).filter(|_| !gguf.is_empty());
                Ok(value.map(|value| Field {
                    key: format!("metadata key {key}"),
                    value: Cow::Owned(json(value)),
                }))
            }
            Keys::Config { text, place, .. } => {
                let default =
                    |value: f64| Field { key: format!("{place}{config}"), value: Cow::Owned(value.into()) };
                let known = self.defaults.iter().find(|(key, _)| *key == config);
                Ok(spelled(text, place, config)?.or_else(|| known.map(|(_, value)| default(*value))))
            }
        }
    }

    /// A hyper-parameter that must be there.
    pub fn field(&self, config: &str, gguf: &str) -> Result<Field<'a>, FamilyError> {
        self.find(config, gguf)?.ok_or_else(|| self.missing(config, gguf))
    }

    pub fn missing(&self, config: &str, gguf: &str) -> FamilyError {
        let key = match self.keys {
            Keys::Gguf { architecture, .. } => format!("metadata key {architecture}.{gguf}"),
            Keys::Config { place, .. } => format!("{place}{}", config.replace('|', " or ")),
        };
        FamilyError::Missing { key }
    }

    /// Whether the config names the key, be it with null.
    pub fn names(&self, config: &str) -> bool {
        matches!(self.keys, Keys::Config { text, .. } if text.contains_key(config))
    }

    /// A key outside text_config, where multi-modal checkpoints keep some of the language model's.
    pub fn find_outside(&self, config: &str) -> Result<Option<Field<'a>>, FamilyError> {
        match self.keys {
            Keys::Config { whole, .. } => spelled(whole, "config.json: ", config),
            Keys::Gguf { .. } => Ok(None),
        }
    }

    /// The number of layers.
    pub fn layers(&self) -> Result<usize, FamilyError> {
        self.field("num_hidden_layers", "block_count")?.integer(1, MAX_LAYERS)
    }

    /// A dimension: positive and sane.
    pub fn size(&self, config: &str, gguf: &str) -> Result<usize, FamilyError> {
        self.field(config, gguf)?.size()
    }

    pub fn find_size(&self, config: &str, gguf: &str) -> Result<Option<usize>, FamilyError> {
        self.find(config, gguf)?.map(|field| field.size()).transpose()
    }

    pub fn number(&self, config: &str, gguf: &str) -> Result<f64, FamilyError> {
        self.field(config, gguf)?.positive()
    }

    pub fn find_number(&self, config: &str, gguf: &str) -> Result<Option<f64>, FamilyError> {
        self.find(config, gguf)?.map(|field| field.positive()).transpose()
    }

    pub fn find_single(&self, config: &str, gguf: &str) -> Result<Option<f32>, FamilyError> {
        self.find(config, gguf)?.map(|field| field.single()).transpose()
    }

    pub fn find_flag(&self, config: &str, gguf: &str) -> Result<Option<bool>, FamilyError> {
        self.find(config, gguf)?.map(|field| field.flag()).transpose()
    }

    /// Whether `module` has a bias: config.json says so by `flag`, or `otherwise` where it does not; in a GGUF the
    /// tensor is there or not.
    pub fn biased(&self, module: &str, flag: &str, otherwise: bool) -> Result<bool, FamilyError> {
        if self.is_gguf() {
            return Ok(self.has(&format!("model.layers.0.{module}.bias")));
        }
        Ok(self.find_flag(flag, "")?.unwrap_or(otherwise))
    }

    /// Refuses any other text than those of `accepted`; null and nothing are accepted too.
    pub fn only(&self, config: &str, accepted: &[&str]) -> Result<(), FamilyError> {
        match self.find(config, "")? {
            Some(field) if !accepted.contains(&field.text()?) => Err(field.unexpected(accepted.join(" or "))),
            _ => Ok(()),
        }
    }
}

/// A GGUF value as JSON. What JSON has no number for, and lists longer than any that is asked for, become null,
/// which no getter accepts.
fn json(value: &GgufValue) -> Value {
    match value {
        GgufValue::Unsigned(x) => Value::from(*x),
        GgufValue::Signed(x) => Value::from(*x),
        GgufValue::Float(x) => Value::from(*x),
        GgufValue::Bool(x) => Value::from(*x),
        GgufValue::String(x) => Value::from(x.as_str()),
        GgufValue::Array(items) if items.len() <= MAX_LAYERS => items.iter().map(json).collect(),
        GgufValue::Array(_) => Value::Null,
    }
}
