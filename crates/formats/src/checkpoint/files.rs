//! The small files of a model's folder.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{OpenError, TokenizerFiles};

const MIB: u64 = 1 << 20;
/// config.json and its like.
pub(crate) const MAX_CONFIG: u64 = 16 * MIB;
/// The index of a model with some hundred thousand tensors.
pub(crate) const MAX_INDEX: u64 = 64 * MIB;
pub(crate) const MAX_TOKENIZER: u64 = 256 * MIB;

/// The content of `path`, `None` if there is no such file.
pub(crate) fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, OpenError> {
    let io = |error| OpenError::Io { path: path.to_owned(), error };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error)),
    };
    let mut bytes = Vec::new();
    // One byte more than the limit tells a file at the limit from one beyond it, pipes included.
    file.take(limit + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > limit {
        return Err(OpenError::FileTooLarge { path: path.to_owned(), limit });
    }
    Ok(Some(bytes))
}

pub(crate) fn json(path: &Path, bytes: &[u8]) -> Result<Value, OpenError> {
    serde_json::from_slice(bytes).map_err(|error| OpenError::Json { path: path.to_owned(), error })
}

/// The content of config.json.
pub(crate) fn object(path: &Path, bytes: &[u8]) -> Result<Value, OpenError> {
    let config = json(path, bytes)?;
    if config.is_object() { Ok(config) } else { Err(OpenError::Config { path: path.to_owned() }) }
}

/// Reads the file of that name and of at most so many bytes; `None` if there is no such file.
pub(crate) type ReadFile<'a> = dyn Fn(&str, u64) -> Result<Option<Vec<u8>>, OpenError> + 'a;

pub(crate) fn read_json(folder: &Path, name: &str, read: &ReadFile<'_>) -> Result<Option<Value>, OpenError> {
    read(name, MAX_CONFIG)?.map(|bytes| json(&folder.join(name), &bytes)).transpose()
}

/// The tokenizer's files; `folder` is where they are, for messages.
pub(crate) fn tokenizer(folder: &Path, read: &ReadFile<'_>) -> Result<TokenizerFiles, OpenError> {
    let chat_template = match read("chat_template.jinja", MAX_CONFIG)? {
        Some(bytes) => Some(text(folder.join("chat_template.jinja"), bytes)?),
        None => {
            let old = read_json(folder, "chat_template.json", read)?;
            old.as_ref().and_then(|old| old.get("chat_template")).and_then(Value::as_str).map(str::to_owned)
        }
    };
    Ok(TokenizerFiles {
        tokenizer: read("tokenizer.json", MAX_TOKENIZER)?,
        config: read_json(folder, "tokenizer_config.json", read)?,
        chat_template,
        special_tokens: read_json(folder, "special_tokens_map.json", read)?,
    })
}

fn text(path: PathBuf, bytes: Vec<u8>) -> Result<String, OpenError> {
    String::from_utf8(bytes).map_err(|_| OpenError::Utf8 { path })
}
