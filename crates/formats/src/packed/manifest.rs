//! The manifest as JSON.

use std::collections::HashSet;
use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::error::PackedFault;
use super::spelling;
use super::{JOURNAL, MANIFEST};
use crate::{Format, MatrixLayout, RowMap};

pub(super) const FORMAT: &str = "turbospark packed store";
pub(super) const VERSION: u64 = 1;

/// The manifest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Manifest {
    pub format: String,
    pub version: u64,
    /// Id and version of the layout that experts are in.
    pub packing: String,
    /// Format that experts were quantised to.
    pub quantized: Option<String>,
    /// Digest of what decides the store's content, weights apart.
    pub identity: Digest,
    pub files: Vec<FileEntry>,
    pub tensors: Vec<TensorEntry>,
    pub experts: Vec<LayerEntry>,
}

/// A file: `digest` is that of the bytes before the first tensor, or of the whole file if it has none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct FileEntry {
    pub name: String,
    pub bytes: u64,
    pub digest: Digest,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tensors: Vec<PartEntry>,
}

impl FileEntry {
    /// Bytes before the first tensor; none if the tensors have more than the file.
    pub fn head(&self) -> Option<u64> {
        self.tensors.iter().try_fold(self.bytes, |left, tensor| left.checked_sub(tensor.bytes))
    }
}

/// A tensor of a safetensors file; tensors follow one another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PartEntry {
    pub name: String,
    pub bytes: u64,
    pub digest: Digest,
}

/// A resident tensor: its view of the stored bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct TensorEntry {
    /// Canonical name.
    pub name: String,
    pub shape: Vec<usize>,
    /// Matrices of the stack, 1 if it is none.
    pub count: usize,
    pub layout: LayoutEntry,
    /// For each part of the format, the tensor of resident.safetensors that has it for the whole stack.
    pub parts: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LayoutEntry {
    pub format: String,
    pub rows: usize,
    pub columns: usize,
    pub stored_rows: usize,
    #[serde(default, skip_serializing_if = "RowMapEntry::is_identity")]
    pub row_map: RowMapEntry,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transposed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RowMapEntry {
    #[default]
    Identity,
    Strided {
        start: usize,
        step: usize,
    },
    PairedHeads {
        head: usize,
    },
}

impl RowMapEntry {
    fn is_identity(&self) -> bool {
        *self == RowMapEntry::Identity
    }
}

/// The experts of a layer, in a file of their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LayerEntry {
    pub file: String,
    pub experts: usize,
    /// Bytes of a packed expert, without the zeros at its end.
    pub bytes: usize,
    pub gate: MatrixEntry,
    pub up: MatrixEntry,
    pub down: MatrixEntry,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct MatrixEntry {
    /// Canonical name of the stack.
    pub stack: String,
    pub format: String,
    pub rows: usize,
    pub columns: usize,
}

impl LayoutEntry {
    pub fn of(layout: &MatrixLayout) -> LayoutEntry {
        LayoutEntry {
            format: spelling::name(layout.format),
            rows: layout.rows,
            columns: layout.columns,
            stored_rows: layout.stored_rows,
            row_map: match layout.row_map {
                RowMap::Identity => RowMapEntry::Identity,
                RowMap::Strided { start, step } => RowMapEntry::Strided { start, step },
                RowMap::PairedHeads { head } => RowMapEntry::PairedHeads { head },
            },
            transposed: layout.transposed,
        }
    }

    /// The layout, if it is one that rows can be read from.
    pub fn layout(&self) -> Result<MatrixLayout, String> {
        let format = format(&self.format)?;
        let (rows, stored) = (self.rows, self.stored_rows);
        if rows == 0 || self.columns == 0 {
            return Err("has no elements".to_owned());
        }
        let row_map = match self.row_map {
            RowMapEntry::Identity if rows <= stored => RowMap::Identity,
            RowMapEntry::Strided { start, step }
                if (rows - 1)
                    .checked_mul(step)
                    .and_then(|n| n.checked_add(start))
                    .is_some_and(|n| n < stored) =>
            {
                RowMap::Strided { start, step }
            }
            RowMapEntry::PairedHeads { head }
                if head > 0 && head % 2 == 0 && rows.is_multiple_of(head) && rows <= stored =>
            {
                RowMap::PairedHeads { head }
            }
            other => return Err(format!("maps {rows} rows to {stored} stored ones by {other:?}")),
        };
        if self.transposed && !format.is_float() {
            return Err(format!("is transposed, which {format} cannot be"));
        }
        let (columns, transposed) = (self.columns, self.transposed);
        Ok(MatrixLayout { format, rows, columns, stored_rows: stored, row_map, transposed })
    }
}

impl MatrixEntry {
    /// The layout before the expert was packed.
    pub fn layout(&self) -> Result<MatrixLayout, String> {
        let layout = MatrixLayout::plain(format(&self.format)?, self.rows, self.columns);
        // Layouts of executors pad rows and widen scales; far below the limit no product of theirs overflows.
        let elements = self.rows.checked_mul(self.columns).filter(|&n| n > 0 && n < 1 << 40);
        let blocks = (0..layout.format.parts()).all(|part| layout.part_bytes(part).is_some());
        match elements {
            Some(_) if blocks => Ok(layout),
            _ => Err(format!("cannot be {} of {} x {}", self.format, self.rows, self.columns)),
        }
    }
}

fn format(name: &str) -> Result<Format, String> {
    spelling::parse(name).ok_or_else(|| format!("has the unknown format {name:?}"))
}

/// What the manifest begins with; its digest follows, which is that of all text behind it.
const HEAD: &[u8] = b"{\"digest\":\"";
const DIGITS: usize = 64;

impl Manifest {
    /// The text of the file.
    pub fn seal(&self) -> Result<Vec<u8>, serde_json::Error> {
        let body = serde_json::to_string_pretty(self)?;
        let rest = format!("\",{}\n", body.strip_prefix('{').unwrap_or(&body));
        let digest = Digest::of(rest.as_bytes()).to_string();
        Ok([HEAD, digest.as_bytes(), rest.as_bytes()].concat())
    }

    /// Reads the text of the file; only the manifest itself is checked, and that its files are within the folder.
    pub fn parse(text: &[u8]) -> Result<Manifest, PackedFault> {
        let sealed = || {
            let (digits, rest) = text.strip_prefix(HEAD)?.split_at_checked(DIGITS)?;
            let digest = Digest::parse(std::str::from_utf8(digits).ok()?)?;
            (digest == Digest::of(rest)).then_some(())
        };
        if sealed().is_none() {
            return Err(PackedFault::Manifest);
        }
        #[derive(Deserialize)]
        struct Version {
            version: u64,
        }
        let Version { version } = serde_json::from_slice(text).map_err(PackedFault::Json)?;
        if version != VERSION {
            return Err(PackedFault::Version { found: version, known: VERSION });
        }
        let manifest: Manifest = serde_json::from_slice(text).map_err(PackedFault::Json)?;
        if manifest.format != FORMAT {
            return Err(invalid("format", format!("is {:?}, expected {FORMAT:?}", manifest.format)));
        }
        manifest.check_files()?;
        Ok(manifest)
    }

    fn check_files(&self) -> Result<(), PackedFault> {
        let mut names = HashSet::new();
        for file in &self.files {
            let name = &file.name;
            let mut components = Path::new(name).components();
            let plain = matches!((components.next(), components.next()), (Some(Component::Normal(one)), None) if one == name.as_str());
            if !plain || name.contains(['/', '\\', ':', '\0']) || [MANIFEST, JOURNAL].contains(&&name[..]) {
                return Err(PackedFault::FileName(name.clone()));
            }
            if !names.insert(name) {
                return Err(invalid(format!("file {name}"), "is there twice"));
            }
            if file.head().is_none() {
                return Err(invalid(format!("file {name}"), "has fewer bytes than its tensors"));
            }
        }
        Ok(())
    }
}

pub(super) fn invalid(what: impl Into<String>, reason: impl Into<String>) -> PackedFault {
    PackedFault::Invalid { what: what.into(), reason: reason.into() }
}
