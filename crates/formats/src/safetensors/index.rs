//! model.safetensors.index.json: which shard has which tensor.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use serde::Deserialize;

use super::{SafetensorsError, SafetensorsFault, SafetensorsFile, SafetensorsTensor};
use crate::Source;

/// The index of a sharded model.
#[derive(Deserialize)]
pub(crate) struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Index {
    /// Parses the index; `file` is for messages.
    pub fn parse(file: &Path, json: &[u8]) -> Result<Index, SafetensorsError> {
        serde_json::from_slice(json).map_err(|error| at(file, SafetensorsFault::Index(error)))
    }

    /// Whether `shard` is one of the index's files.
    pub fn names(&self, shard: &str) -> bool {
        self.weight_map.values().any(|file| file == shard)
    }

    /// Opens the shards in the folder of the index and reads their headers.
    pub fn open(&self, file: &Path) -> Result<Vec<SafetensorsTensor>, SafetensorsError> {
        let mut shards: BTreeMap<&str, &str> = BTreeMap::new();
        for (tensor, shard) in &self.weight_map {
            let mut components = Path::new(shard).components();
            let inside = components.clone().next().is_some()
                && components.all(|component| matches!(component, Component::Normal(_)));
            if !inside {
                let fault = SafetensorsFault::ShardPath { tensor: tensor.clone(), shard: shard.clone() };
                return Err(at(file, fault));
            }
            shards.entry(shard).or_insert(tensor);
        }
        let mut tensors: Vec<SafetensorsTensor> = Vec::new();
        let mut places: BTreeMap<String, &str> = BTreeMap::new();
        for (shard, tensor) in shards {
            let source = Source::open(&file.with_file_name(shard)).map_err(|error| {
                let (shard, tensor) = (shard.to_owned(), tensor.to_owned());
                at(file, SafetensorsFault::Shard { shard, tensor, error })
            })?;
            for tensor in SafetensorsFile::read(&source)?.tensors {
                if let Some(first) = places.insert(tensor.name.clone(), shard) {
                    let (first, second) = (first.to_owned(), shard.to_owned());
                    let fault = SafetensorsFault::DuplicateInShards { tensor: tensor.name, first, second };
                    return Err(at(file, fault));
                }
                tensors.push(tensor);
            }
        }
        for (tensor, shard) in &self.weight_map {
            if places.get(tensor) != Some(&shard.as_str()) {
                let fault = SafetensorsFault::NotInShard { tensor: tensor.clone(), shard: shard.clone() };
                return Err(at(file, fault));
            }
        }
        Ok(tensors)
    }
}

fn at(file: &Path, fault: SafetensorsFault) -> SafetensorsError {
    SafetensorsError { file: file.to_owned(), fault: Box::new(fault) }
}
