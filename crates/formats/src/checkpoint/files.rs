//! The small files of a model's folder.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{OpenError, TokenizerFiles};

const MIB: u64 = 1 << 20;
/// config.json and its like.
pub(super) const MAX_CONFIG: u64 = 16 * MIB;
/// The index of a model with some hundred thousand tensors.
pub(super) const MAX_INDEX: u64 = 64 * MIB;
const MAX_TOKENIZER: u64 = 256 * MIB;

/// The content of `path`, `None` if there is no such file.
pub(super) fn read(path: &Path, limit: u64) -> Result<Option<Vec<u8>>, OpenError> {
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

pub(super) fn json(path: &Path, bytes: &[u8]) -> Result<Value, OpenError> {
    serde_json::from_slice(bytes).map_err(|error| OpenError::Json { path: path.to_owned(), error })
}

pub(super) fn read_json(path: &Path, limit: u64) -> Result<Option<Value>, OpenError> {
    read(path, limit)?.map(|bytes| json(path, &bytes)).transpose()
}

/// The tokenizer's files in `folder`.
pub(super) fn tokenizer(folder: &Path) -> Result<TokenizerFiles, OpenError> {
    let chat_template = match read(&folder.join("chat_template.jinja"), MAX_CONFIG)? {
        Some(bytes) => Some(text(folder.join("chat_template.jinja"), bytes)?),
        None => {
            let old = read_json(&folder.join("chat_template.json"), MAX_CONFIG)?;
            old.as_ref().and_then(|old| old.get("chat_template")).and_then(Value::as_str).map(str::to_owned)
        }
    };
    Ok(TokenizerFiles {
        tokenizer: read(&folder.join("tokenizer.json"), MAX_TOKENIZER)?,
        config: read_json(&folder.join("tokenizer_config.json"), MAX_CONFIG)?,
        chat_template,
        special_tokens: read_json(&folder.join("special_tokens_map.json"), MAX_CONFIG)?,
    })
}

fn text(path: PathBuf, bytes: Vec<u8>) -> Result<String, OpenError> {
    String::from_utf8(bytes).map_err(|_| OpenError::Utf8 { path })
}
