//! Checkpoints that consist of their hyper-parameters.

use serde_json::Value;
use turbospark_formats::{Checkpoint, GgufValue, Metadata, Source as Bytes};
use turbospark_program::Program;

use crate::source::{Source, Tensors};
use crate::{FamilyError, FamilyOptions, Model, build, build_from};

/// A config.json without weights.
struct NoTensors;

impl Tensors for NoTensors {
    fn shape(&self, _: &str) -> Option<Vec<usize>> {
        None
    }

    fn values(&self, _: &str) -> Option<Vec<f32>> {
        None
    }
}

pub fn try_config(config: &Value, options: &FamilyOptions) -> Result<Model, FamilyError> {
    let metadata = Metadata::Config { config: config.clone(), generation: None };
    build_from(&Source::new(&metadata, &NoTensors)?, options)
}

pub fn from_config(config: &Value) -> Model {
    try_config(config, &FamilyOptions::default()).expect("the config is right")
}

/// The message with which `config` is refused.
pub fn refusal(config: &Value) -> String {
    match try_config(config, &FamilyOptions::default()) {
        Ok(_) => panic!("accepted {config}"),
        Err(error) => error.to_string(),
    }
}

/// `config` with other members: null removes one, a path goes through objects.
pub fn with(config: &Value, changes: &[(&str, Value)]) -> Value {
    let mut config = config.clone();
    for (path, value) in changes {
        let (parents, name) = path.rsplit_once('.').unwrap_or(("", path));
        let mut at = &mut config;
        for parent in parents.split('.').filter(|parent| !parent.is_empty()) {
            at = &mut at[parent];
        }
        let members = at.as_object_mut().expect("an object");
        match value {
            Value::Null => drop(members.remove::<str>(name)),
            value => drop(members.insert((*name).to_owned(), value.clone())),
        }
    }
    config
}

/// A GGUF file in memory with tensors of zeros, those named rope_freqs of `divisor`.
pub fn gguf(pairs: &[(&str, GgufValue)], tensors: &[(&str, &[u64])], divisor: f32) -> Checkpoint {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((pairs.len() as u64).to_le_bytes());
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    };
    for (key, value) in pairs {
        text(&mut bytes, key);
        bytes.extend(kind(value).to_le_bytes());
        put(&mut bytes, value);
    }
    let mut data: Vec<u8> = Vec::new();
    for (name, ne) in tensors {
        text(&mut bytes, name);
        bytes.extend((ne.len() as u32).to_le_bytes());
        ne.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        bytes.extend(0u32.to_le_bytes());
        bytes.extend((data.len() as u64).to_le_bytes());
        let value = if name.starts_with("rope_freqs") { divisor } else { 0.0 };
        (0..ne.iter().product::<u64>()).for_each(|_| data.extend(value.to_le_bytes()));
        data.resize(data.len().next_multiple_of(32), 0);
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend(data);
    Checkpoint::from_gguf(Bytes::owned("test.gguf", bytes)).expect("a GGUF file")
}

pub fn from_gguf(checkpoint: &Checkpoint) -> Program {
    build(checkpoint, &FamilyOptions::default()).expect("the metadata is right").program
}

fn kind(value: &GgufValue) -> u32 {
    match value {
        GgufValue::Float(_) => 6,
        GgufValue::Bool(_) => 7,
        GgufValue::String(_) => 8,
        GgufValue::Array(_) => 9,
        GgufValue::Unsigned(_) => 10,
        GgufValue::Signed(_) => 11,
    }
}

fn put(bytes: &mut Vec<u8>, value: &GgufValue) {
    match value {
        GgufValue::Float(x) => bytes.extend((*x as f32).to_le_bytes()),
        GgufValue::Bool(x) => bytes.push(u8::from(*x)),
        GgufValue::String(x) => {
            bytes.extend((x.len() as u64).to_le_bytes());
            bytes.extend(x.as_bytes());
        }
        GgufValue::Unsigned(x) => bytes.extend(x.to_le_bytes()),
        GgufValue::Signed(x) => bytes.extend(x.to_le_bytes()),
        GgufValue::Array(items) => {
            bytes.extend(items.first().map_or(4, kind).to_le_bytes());
            bytes.extend((items.len() as u64).to_le_bytes());
            items.iter().for_each(|item| put(bytes, item));
        }
    }
}

pub fn text(value: &str) -> GgufValue {
    GgufValue::String(value.to_owned())
}

pub fn integer(value: u64) -> GgufValue {
    GgufValue::Unsigned(value)
}

pub fn float(value: f64) -> GgufValue {
    GgufValue::Float(value)
}
