//! Writers of small model files, right and wrong.
#![allow(dead_code)]

use std::sync::Arc;

use turbospark_formats::{Checkpoint, GgufFile, OpenError, Source};

/// A GGUF file in the making; what it states can be made to disagree with what it has.
#[derive(Clone)]
pub struct Gguf {
    pub version: u32,
    pub pairs: Vec<Vec<u8>>,
    pub entries: Vec<Vec<u8>>,
    pub claimed_pairs: Option<u64>,
    pub claimed_tensors: Option<u64>,
    pub alignment: usize,
    pub data: Vec<u8>,
}

pub fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// A key with a value of type `kind`.
pub fn pair(key: &str, kind: u32, value: &[u8]) -> Vec<u8> {
    [&string(key.as_bytes()), &kind.to_le_bytes()[..], value].concat()
}

/// The value of an array.
pub fn array(kind: u32, count: u64, items: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes(), &count.to_le_bytes()[..], items].concat()
}

/// The entry of a tensor; dimensions in the file's order, fastest first.
pub fn entry(name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let mut entry = string(name.as_bytes());
    entry.extend((dimensions.len() as u32).to_le_bytes());
    entry.extend(dimensions.iter().flat_map(|n| n.to_le_bytes()));
    entry.extend(kind.to_le_bytes());
    entry.extend(offset.to_le_bytes());
    entry
}

impl Gguf {
    pub fn new(architecture: &str) -> Gguf {
        Gguf {
            version: 3,
            pairs: vec![pair("general.architecture", 8, &string(architecture.as_bytes()))],
            entries: Vec::new(),
            claimed_pairs: None,
            claimed_tensors: None,
            alignment: 32,
            data: Vec::new(),
        }
    }

    pub fn pair(mut self, key: &str, kind: u32, value: &[u8]) -> Gguf {
        self.pairs.push(pair(key, kind, value));
        self
    }

    pub fn u32(self, key: &str, value: u32) -> Gguf {
        self.pair(key, 4, &value.to_le_bytes())
    }

    /// A tensor whose bytes follow those of the one before.
    pub fn tensor(mut self, name: &str, dimensions: &[u64], kind: u32, bytes: &[u8]) -> Gguf {
        self.entries.push(entry(name, dimensions, kind, self.data.len() as u64));
        self.data.extend(bytes);
        self.data.resize(self.data.len().next_multiple_of(self.alignment), 0);
        self
    }

    /// An F32 tensor of 0, 1, 2, ..
    pub fn floats(self, name: &str, dimensions: &[u64]) -> Gguf {
        let count: u64 = dimensions.iter().product();
        let bytes: Vec<u8> = (0..count).flat_map(|i| (i as f32).to_le_bytes()).collect();
        self.tensor(name, dimensions, 0, &bytes)
    }

    /// An entry as it is, without data.
    pub fn entry(mut self, name: &str, dimensions: &[u64], kind: u32, offset: u64) -> Gguf {
        self.entries.push(entry(name, dimensions, kind, offset));
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.version.to_le_bytes());
        bytes.extend(self.claimed_tensors.unwrap_or(self.entries.len() as u64).to_le_bytes());
        bytes.extend(self.claimed_pairs.unwrap_or(self.pairs.len() as u64).to_le_bytes());
        bytes.extend(self.pairs.concat());
        bytes.extend(self.entries.concat());
        bytes.resize(bytes.len().next_multiple_of(self.alignment), 0);
        bytes.extend(&self.data);
        bytes
    }

    pub fn open(&self) -> Result<Checkpoint, OpenError> {
        open_gguf(self.bytes())
    }
}

pub fn open_gguf(bytes: Vec<u8>) -> Result<Checkpoint, OpenError> {
    Checkpoint::from_gguf(Source::owned("model.gguf", bytes))
}

pub fn read_gguf(bytes: Vec<u8>) -> Result<GgufFile, String> {
    GgufFile::read(&Source::owned("model.gguf", bytes)).map_err(|e| e.to_string())
}

/// A safetensors file with the given header.
pub fn safetensors_with(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// A safetensors file of tensors (name, type, shape); the bytes count up from 0.
pub fn safetensors(tensors: &[(&str, &str, &[usize])]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, dtype, shape) in tensors {
        let size = match *dtype {
            "F32" | "U32" => 4,
            "F16" | "BF16" => 2,
            "I64" => 8,
            _ => 1,
        };
        let start = end;
        end += shape.iter().product::<usize>() * size;
        header.insert(
            (*name).to_owned(),
            serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]}),
        );
    }
    let data: Vec<u8> = (0..end).map(|i| i as u8).collect();
    safetensors_with(&serde_json::Value::Object(header).to_string(), &data)
}

/// Opens a model of one safetensors file.
pub fn open_safetensors(config: &str, bytes: Vec<u8>) -> Result<Checkpoint, OpenError> {
    let source: Arc<Source> = Source::owned("model.safetensors", bytes);
    Checkpoint::from_safetensors("model".as_ref(), config.as_bytes(), &[source])
}

/// The error of a result, which must have `part` in its message.
#[track_caller]
pub fn refused<T, E: std::fmt::Display>(result: Result<T, E>, part: &str) {
    match result {
        Ok(_) => panic!("opened, expected an error with {part:?}"),
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains(part), "{message:?} does not contain {part:?}");
        }
    }
}
