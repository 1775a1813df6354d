//! Captured rows on disk: one safetensors file, written row by row as they come.
//!
//! | tensor | type and shape | content |
//! |---|---|---|
//! | the name of each tap | F32 [rows, layers, width] | its rows; `embedding` has one layer |
//! | `prompt` | I32 [rows] | prompt of each row, from 0 |
//! | `position` | I32 [rows] | position of each row in its prompt |
//!
//! The metadata has `format`: `turbospark capture 1`, `model`, and as JSON `layers` (a list), `prompts` (texts, null
//! where there were only token ids) and `token_ids` (a list for each prompt).

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, json};

use super::TapKind;

/// The longest header that safetensors allows.
const MAX_HEADER: usize = 100_000_000;

/// What a capture file is to hold.
#[derive(Clone, Debug, Default)]
pub struct CaptureHeader {
    /// Kind of the model.
    pub model: String,
    /// Taps, each of all layers.
    pub taps: Vec<TapKind>,
    /// The layers.
    pub layers: Vec<usize>,
    /// Elements of a tap's row.
    pub width: usize,
    /// The prompts, in order.
    pub prompts: Vec<CapturedPrompt>,
}

/// A prompt of a capture.
#[derive(Clone, Debug, Default)]
pub struct CapturedPrompt {
    /// Its text, if it was given as one.
    pub text: Option<String>,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// Rows that will be kept of it.
    pub rows: usize,
}

/// A capture file that cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The model.
    #[error(transparent)]
    Engine(#[from] crate::EngineError),
    /// The file system.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// More prompts than a header holds.
    #[error(
        "{}: prompts and token ids take {bytes} bytes, a safetensors header holds 100000000; capture fewer at a time",
        path.display()
    )]
    Header {
        /// The file.
        path: PathBuf,
        /// Bytes they take.
        bytes: usize,
    },
    /// Rows that were not announced.
    #[error("{}: {found} rows of {elements} elements came, the header has {rows} of {expected}", path.display())]
    Rows {
        /// The file.
        path: PathBuf,
        /// Rows that came.
        found: usize,
        /// Elements of the last.
        elements: usize,
        /// Rows announced.
        rows: usize,
        /// Elements announced.
        expected: usize,
    },
}

/// A capture file being written. It has its name only when it is complete.
#[derive(Debug)]
pub struct CaptureFile {
    path: PathBuf,
    unfinished: PathBuf,
    file: File,
    /// For each tap where the rows begin, and bytes of a row.
    tensors: Vec<(u64, usize)>,
    rows: usize,
    prompts: Vec<i32>,
    positions: Vec<i32>,
}

impl CaptureFile {
    /// Writes the header of a file whose rows are to come.
    pub fn create(path: &Path, header: &CaptureHeader) -> Result<CaptureFile, CaptureError> {
        let rows: usize = header.prompts.iter().map(|prompt| prompt.rows).sum();
        let mut entries = Map::new();
        let texts: Vec<_> = header.prompts.iter().map(|prompt| &prompt.text).collect();
        let ids: Vec<_> = header.prompts.iter().map(|prompt| &prompt.ids).collect();
        let metadata = json!({
            "format": "turbospark capture 1",
            "model": header.model,
            "layers": json!(header.layers).to_string(),
            "prompts": json!(texts).to_string(),
            "token_ids": json!(ids).to_string(),
        });
        entries.insert("__metadata__".to_owned(), metadata);
        let (mut end, mut tensors) = (0usize, Vec::new());
        for tap in &header.taps {
            let layers = if *tap == TapKind::Embedding { 1 } else { header.layers.len() };
            let row = layers * header.width * size_of::<f32>();
            let shape = [rows, layers, header.width];
            let offsets = [end, end + rows * row];
            entries.insert(
                tap.name().to_owned(),
                json!({"dtype": "F32", "shape": shape, "data_offsets": offsets}),
            );
            tensors.push((end as u64, row));
            end = offsets[1];
        }
        for name in ["prompt", "position"] {
            let offsets = [end, end + rows * size_of::<i32>()];
            entries
                .insert(name.to_owned(), json!({"dtype": "I32", "shape": [rows], "data_offsets": offsets}));
            end = offsets[1];
        }
        let mut text = serde_json::Value::Object(entries).to_string();
        text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(8) - text.len()));
        if text.len() > MAX_HEADER {
            return Err(CaptureError::Header { path: path.to_owned(), bytes: text.len() });
        }
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(".unfinished");
        let unfinished = PathBuf::from(unfinished);
        let wrong = |error| CaptureError::File { path: unfinished.clone(), error };
        let mut file = File::create(&unfinished).map_err(wrong)?;
        file.write_all(&(text.len() as u64).to_le_bytes()).map_err(wrong)?;
        file.write_all(text.as_bytes()).map_err(wrong)?;
        let data = (8 + text.len()) as u64;
        file.set_len(data + end as u64).map_err(wrong)?;
        tensors.iter_mut().for_each(|(start, _)| *start += data);
        let (path, prompts, positions) =
            (path.to_owned(), Vec::with_capacity(rows), Vec::with_capacity(rows));
        Ok(CaptureFile { path, unfinished, file, tensors, rows, prompts, positions })
    }

    /// Writes the next row: its taps one after the other, each of all layers.
    pub fn push(&mut self, prompt: usize, position: usize, row: &[f32]) -> Result<(), CaptureError> {
        let index = self.prompts.len();
        let expected: usize = self.tensors.iter().map(|(_, bytes)| bytes / size_of::<f32>()).sum();
        if index == self.rows || row.len() != expected {
            return Err(self.miscounted(index + 1, row.len(), expected));
        }
        let bytes: Vec<u8> = row.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut rest = &bytes[..];
        for &(start, size) in &self.tensors {
            let (part, others) = rest.split_at(size);
            rest = others;
            let place = SeekFrom::Start(start + (index * size) as u64);
            let written = self.file.seek(place).and_then(|_| self.file.write_all(part));
            written.map_err(|error| CaptureError::File { path: self.unfinished.clone(), error })?;
        }
        self.prompts.push(prompt as i32);
        self.positions.push(position as i32);
        Ok(())
    }

    /// Ends the file and gives it its name.
    pub fn finish(mut self) -> Result<(), CaptureError> {
        if self.prompts.len() != self.rows {
            return Err(self.miscounted(self.prompts.len(), 0, 0));
        }
        let tail: Vec<u8> =
            self.prompts.iter().chain(&self.positions).flat_map(|n| n.to_le_bytes()).collect();
        let place = SeekFrom::End(-(tail.len() as i64));
        let written = self.file.seek(place).and_then(|_| self.file.write_all(&tail));
        written
            .and_then(|()| std::fs::rename(&self.unfinished, &self.path))
            .map_err(|error| CaptureError::File { path: self.path.clone(), error })
    }

    fn miscounted(&self, found: usize, elements: usize, expected: usize) -> CaptureError {
        CaptureError::Rows { path: self.path.clone(), found, elements, rows: self.rows, expected }
    }
}
