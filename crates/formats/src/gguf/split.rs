//! Models split into several GGUF files: NAME-00001-of-00003.gguf, the first of which has the metadata.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::{GgufError, GgufFile, MetadataError};
use crate::Source;

/// Parts of a split model that do not make a whole.
#[derive(Debug, thiserror::Error)]
pub enum SplitError {
    /// A part cannot be opened.
    #[error("{}: part {number} of {count} of the model cannot be opened: {error}", file.display())]
    Part {
        /// The part's file.
        file: PathBuf,
        /// Its number, from 1.
        number: u64,
        /// How many parts there are.
        count: u64,
        /// Why.
        error: std::io::Error,
    },
    /// A part cannot be read.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A key about the split is wrong.
    #[error("{}: {error}", file.display())]
    Metadata {
        /// The part's file.
        file: PathBuf,
        /// The key.
        error: MetadataError,
    },
    /// The file's name does not say where its siblings are.
    #[error(
        "{}: the file is part {number} of a model in {count} files; name them NAME-00001-of-{count:05}.gguf and \
         so on, in one folder",
        file.display()
    )]
    Name {
        /// The file.
        file: PathBuf,
        /// Its number, from 1.
        number: u64,
        /// How many parts there are.
        count: u64,
    },
    /// A file is not the part that its name says.
    #[error("{}: expected {key} {expected}, found {found}; the files are not of one model", file.display())]
    Mismatch {
        /// The file.
        file: PathBuf,
        /// The key.
        key: &'static str,
        /// What its name or the first part says.
        expected: u64,
        /// What it says.
        found: String,
    },
    /// Two parts have a tensor of the same name.
    #[error("{}: tensor {tensor} is in an earlier part too", file.display())]
    DuplicateTensor {
        /// The later part.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
}

/// The name of a part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SplitName {
    /// NAME, with the folder.
    pub prefix: PathBuf,
    /// From 1.
    pub number: u64,
    /// How many parts there are.
    pub count: u64,
}

impl SplitName {
    /// Takes NAME-00001-of-00003.gguf apart.
    pub fn parse(path: &Path) -> Option<SplitName> {
        let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = |s: &str| if s.len() == 5 { s.parse::<u64>().ok() } else { None };
        let (number, count) = (digits(number)?, digits(count)?);
        (1..=count).contains(&number).then(|| SplitName {
            prefix: path.with_file_name(prefix),
            number,
            count,
        })
    }

    /// The file of part `number`.
    pub fn part(&self, number: u64) -> PathBuf {
        let mut name = self.prefix.clone().into_os_string();
        name.push(format!("-{number:05}-of-{:05}.gguf", self.count));
        name.into()
    }
}

/// Joins `file`, read from `path`, with the other parts of its model, if it is one of several. `path` is `None`
/// for bytes that are not a file.
pub(crate) fn join(file: GgufFile, path: &Path, on_disk: bool) -> Result<GgufFile, SplitError> {
    let (number, count) = (key(&file, path, "split.no")?.unwrap_or(0), key(&file, path, "split.count")?);
    let count = match count {
        None | Some(0 | 1) => return Ok(file),
        Some(count) => count,
    };
    let name = SplitName::parse(path)
        .filter(|name| on_disk && name.count == count && Some(name.number) == number.checked_add(1));
    let Some(name) = name else {
        return Err(SplitError::Name { file: path.to_owned(), number: number.saturating_add(1), count });
    };
    let mut whole = if number == 0 { file } else { open(&name, 1)? };
    let total = key(&whole, &name.part(1), "split.tensors.count")?;
    let mut names: HashSet<String> = whole.tensors.iter().map(|t| t.name.clone()).collect();
    for number in 2..=count {
        let part = open(&name, number)?;
        for tensor in part.tensors {
            if !names.insert(tensor.name.clone()) {
                return Err(SplitError::DuplicateTensor { file: name.part(number), tensor: tensor.name });
            }
            whole.tensors.push(tensor);
        }
    }
    match total {
        Some(total) if total != whole.tensors.len() as u64 => Err(SplitError::Mismatch {
            file: name.part(1),
            key: "split.tensors.count",
            expected: total,
            found: whole.tensors.len().to_string(),
        }),
        _ => Ok(whole),
    }
}

fn open(name: &SplitName, number: u64) -> Result<GgufFile, SplitError> {
    let file = name.part(number);
    let source = Source::open(&file).map_err(|error| SplitError::Part {
        file: file.clone(),
        number,
        count: name.count,
        error,
    })?;
    let part = GgufFile::read(&source)?;
    for (key_name, expected) in [("split.no", number - 1), ("split.count", name.count)] {
        let found = key(&part, &file, key_name)?;
        if found != Some(expected) {
            let found = found.map_or_else(|| "none".to_owned(), |n| n.to_string());
            return Err(SplitError::Mismatch { file, key: key_name, expected, found });
        }
    }
    Ok(part)
}

fn key(file: &GgufFile, path: &Path, name: &str) -> Result<Option<u64>, SplitError> {
    file.metadata.integer(name).map_err(|error| SplitError::Metadata { file: path.to_owned(), error })
}
