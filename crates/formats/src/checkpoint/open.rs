//! Opening a model from whatever its path is.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::{Checkpoint, Metadata, OpenError, TokenizerFiles, files};
use crate::Source;
use crate::assemble::{Assembled, Assembler};
use crate::gguf::{GgufFile, SplitName, join};
use crate::joined::{Joined, Joiner};
use crate::names::hugging_face::{self, Experts};
use crate::names::{Role, gguf};
use crate::packed;
use crate::quantization::MlxQuantization;
use crate::safetensors::{Index, SafetensorsFile, SafetensorsTensor};
use crate::stored::Stored;

const INDEX: &str = "model.safetensors.index.json";

impl Checkpoint {
    /// Opens the model at `path`: a GGUF file (of a split model, any part), a folder with config.json and
    /// safetensors, a folder with one GGUF, a packed store, or a file within such a folder.
    pub fn open(path: &Path) -> Result<Checkpoint, OpenError> {
        let io = |error| OpenError::Io { path: path.to_owned(), error };
        if std::fs::metadata(path).map_err(io)?.is_dir() {
            return if packed::is_store(path) { packed::open(path) } else { open_folder(path) };
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let folder = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if packed::stands_for_store(&name) && packed::is_store(folder) {
            return packed::open(folder);
        }
        let mut magic = Vec::new();
        File::open(path).map_err(io)?.take(4).read_to_end(&mut magic).map_err(io)?;
        if magic == b"GGUF" {
            return open_gguf(path);
        }
        if name == "config.json" || name == INDEX {
            return open_folder(folder);
        }
        if name.ends_with(".safetensors") {
            return open_safetensors_file(folder, path, &name);
        }
        let found = if name.ends_with(".gguf") {
            "it does not start with \"GGUF\""
        } else {
            "a file of another kind"
        };
        Err(OpenError::NotAModel { path: path.to_owned(), found: found.to_owned() })
    }

    /// Reads a GGUF whose bytes are given, of a file or embedded in the program.
    pub fn from_gguf(source: Arc<Source>) -> Result<Checkpoint, OpenError> {
        let path = source.path().to_owned();
        let file = GgufFile::read(&source)?;
        let file = join(file, &path, source.is_file()).map_err(Box::new)?;
        let layout = |error| OpenError::Layout { path: path.clone(), error: Box::new(error) };
        let names = gguf::Names::of(&file.metadata)
            .map_err(|error| OpenError::Metadata { path: path.clone(), error: Box::new(error) })?;
        let mut assembler = Assembler::default();
        for tensor in file.tensors {
            let role = names.role(&tensor.name);
            let stored = Stored {
                name: tensor.name,
                shape: tensor.shape,
                format: tensor.format,
                parts: vec![tensor.bytes],
            };
            assembler.add(stored, role).map_err(layout)?;
        }
        let assembled = assembler.finish().map_err(layout)?;
        let pairs = Some(file.pairs);
        let metadata = Metadata::Gguf(file.metadata);
        let opened = checkpoint(path, metadata, TokenizerFiles::default(), assembled);
        Ok(Checkpoint { gguf_pairs: pairs, ..opened })
    }

    /// Reads a Hugging Face or MLX model whose files are given: config.json and the safetensors. `path` stands
    /// for the model in messages.
    pub fn from_safetensors(
        path: &Path,
        config: &[u8],
        shards: &[Arc<Source>],
    ) -> Result<Checkpoint, OpenError> {
        let config = files::object(&path.join("config.json"), config)?;
        let mut tensors = Vec::new();
        for shard in shards {
            tensors.extend(SafetensorsFile::read(shard)?.tensors);
        }
        let assembled = assemble(path, &config, tensors)?;
        let metadata = Metadata::Config { config, generation: None };
        Ok(checkpoint(path.to_owned(), metadata, TokenizerFiles::default(), assembled))
    }
}

fn checkpoint(
    path: PathBuf,
    metadata: Metadata,
    tokenizer: TokenizerFiles,
    assembled: Assembled,
) -> Checkpoint {
    let Assembled { tensors, skipped } = assembled;
    Checkpoint { path, metadata, tokenizer, skipped, tensors, packed: None, gguf_pairs: None }
}

fn open_gguf(path: &Path) -> Result<Checkpoint, OpenError> {
    let source = Source::open(path).map_err(|error| OpenError::Io { path: path.to_owned(), error })?;
    Checkpoint::from_gguf(source)
}

fn open_folder(folder: &Path) -> Result<Checkpoint, OpenError> {
    let names = list(folder)?;
    let has = |name: &str| names.iter().any(|other| other == name);
    let shards: Vec<&String> = names.iter().filter(|name| name.ends_with(".safetensors")).collect();
    if has("config.json") && (!shards.is_empty() || has(INDEX)) {
        if has("model.safetensors") {
            return open_with_config(folder, folder, read_shard(&folder.join("model.safetensors"))?);
        }
        if has(INDEX) {
            let (index, file) = read_index(folder)?;
            return open_with_config(folder, folder, index.open(&file)?);
        }
        return match shards[..] {
            [one] => open_with_config(folder, folder, read_shard(&folder.join(one))?),
            _ => Err(OpenError::NoIndex { path: folder.to_owned(), count: shards.len() }),
        };
    }
    // A projector of images beside the model is no model; of a split model the first part stands for all.
    let models: Vec<&String> = names
        .iter()
        .filter(|name| name.ends_with(".gguf") && !name.starts_with("mmproj"))
        .filter(|name| SplitName::parse(Path::new(name)).is_none_or(|split| split.number == 1))
        .collect();
    match models[..] {
        [one] => open_gguf(&folder.join(one)),
        [] => {
            let found = match (has("config.json"), shards.is_empty()) {
                (true, _) => "the folder has config.json but no *.safetensors",
                (false, false) => "the folder has *.safetensors but no config.json",
                (false, true) => "the folder has neither config.json nor a *.gguf file",
            };
            Err(OpenError::NotAModel { path: folder.to_owned(), found: found.to_owned() })
        }
        _ => {
            let files = models.iter().take(5).map(|name| (*name).clone()).collect();
            Err(OpenError::Ambiguous { path: folder.to_owned(), files })
        }
    }
}

/// A safetensors file by name: the sharded model it is part of, or itself.
fn open_safetensors_file(folder: &Path, path: &Path, name: &str) -> Result<Checkpoint, OpenError> {
    if folder.join(INDEX).exists() {
        let (index, file) = read_index(folder)?;
        if index.names(name) {
            return open_with_config(path, folder, index.open(&file)?);
        }
    }
    open_with_config(path, folder, read_shard(path)?)
}

fn open_with_config(
    path: &Path,
    folder: &Path,
    tensors: Vec<SafetensorsTensor>,
) -> Result<Checkpoint, OpenError> {
    let file = folder.join("config.json");
    let Some(config) = files::read(&file, files::MAX_CONFIG)? else {
        let found = "there is no config.json beside the *.safetensors".to_owned();
        return Err(OpenError::NotAModel { path: folder.to_owned(), found });
    };
    let config = files::object(&file, &config)?;
    let read = |name: &str, limit| files::read(&folder.join(name), limit);
    let generation = files::read_json(folder, "generation_config.json", &read)?;
    let tokenizer = files::tokenizer(folder, &read)?;
    let assembled = assemble(folder, &config, tensors)?;
    Ok(checkpoint(path.to_owned(), Metadata::Config { config, generation }, tokenizer, assembled))
}

fn assemble(path: &Path, config: &Value, tensors: Vec<SafetensorsTensor>) -> Result<Assembled, OpenError> {
    let path = || path.to_owned();
    let mlx = MlxQuantization::of(config)
        .map_err(|error| OpenError::Quantization { path: path(), error: error.into() })?;
    let model_type = config.get("model_type").or_else(|| config.get("text_config")?.get("model_type"));
    let family = Experts::of(model_type.and_then(Value::as_str).unwrap_or_default());
    let mut assembler = Assembler::default();
    // Before parts are joined: how another tower is quantised does not matter.
    let mut needed = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        match hugging_face::unneeded(&tensor.name) {
            Some(reason) => assembler.skip(tensor.name, reason),
            None => needed.push(tensor),
        }
    }
    let mut joiner = Joiner::new(needed, mlx.as_ref())
        .map_err(|tensor| OpenError::DuplicateTensor { path: path(), tensor })?;
    while let Some(next) = joiner.next() {
        let (name, joined) = next.map_err(|error| OpenError::Join { path: path(), error: error.into() })?;
        match (hugging_face::role(&name, family), joined) {
            (Role::Skip(reason), _) => assembler.skip(name, reason),
            (role, Joined::Tensor(stored)) => {
                assembler
                    .add(stored, role)
                    .map_err(|error| OpenError::Layout { path: path(), error: error.into() })?;
            }
            (_, Joined::Other(error)) => return Err(OpenError::Join { path: path(), error: error.into() }),
        }
    }
    assembler.finish().map_err(|error| OpenError::Layout { path: path(), error: error.into() })
}

fn read_shard(path: &Path) -> Result<Vec<SafetensorsTensor>, OpenError> {
    let source = Source::open(path).map_err(|error| OpenError::Io { path: path.to_owned(), error })?;
    Ok(SafetensorsFile::read(&source)?.tensors)
}

fn read_index(folder: &Path) -> Result<(Index, PathBuf), OpenError> {
    let file = folder.join(INDEX);
    let bytes = files::read(&file, files::MAX_INDEX)?.unwrap_or_default();
    Ok((Index::parse(&file, &bytes)?, file))
}

fn list(folder: &Path) -> Result<Vec<String>, OpenError> {
    let io = |error| OpenError::Io { path: folder.to_owned(), error };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        if let Ok(name) = entry.map_err(io)?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
