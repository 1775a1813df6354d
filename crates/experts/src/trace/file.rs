//! Traces on disk: one safetensors file.
//!
//! | tensor | type and shape | content |
//! |---|---|---|
//! | `layers` | U32 [layers] | model layer of each expert layer |
//! | `experts` | U32 [layers] | experts of each |
//! | `tokens` | U32 [tokens] | token ids |
//! | `passes` | U32 [tokens] | the pass over the layers that each token was computed in: tokens of one pass ask for their experts together |
//! | `ids` | U16 [tokens, layers, k] | the experts, in falling order of the router's logits |
//!
//! The metadata has `format`: `turbospark routing 1`.

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};

use super::Trace;

const FORMAT: &str = "turbospark routing 1";

/// A trace that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file system.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: std::path::PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// Not safetensors, or without a tensor of a trace.
    #[error("not a routing trace: {0}")]
    Format(#[from] SafeTensorError),
    /// Tensors that make no trace.
    #[error("not a routing trace: {0}")]
    Content(String),
}

impl Trace {
    /// Writes the trace to a file.
    pub fn save(&self, path: &Path) -> Result<(), TraceError> {
        let bytes = self.to_bytes()?;
        std::fs::write(path, bytes).map_err(|error| TraceError::File { path: path.to_owned(), error })
    }

    /// Reads a trace from a file.
    pub fn load(path: &Path) -> Result<Trace, TraceError> {
        let bytes = std::fs::read(path).map_err(|error| TraceError::File { path: path.to_owned(), error })?;
        Trace::from_bytes(&bytes)
    }

    /// The content of a trace file.
    pub fn to_bytes(&self) -> Result<Vec<u8>, TraceError> {
        let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
        let (layers, experts) = (words(&self.layers), words(&self.experts));
        let (tokens, passes) = (words(&self.tokens), words(&self.passes));
        let ids: Vec<u8> = self.ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        let (l, t) = (self.layers.len(), self.len());
        let tensors = [
            ("layers", TensorView::new(Dtype::U32, vec![l], &layers)?),
            ("experts", TensorView::new(Dtype::U32, vec![l], &experts)?),
            ("tokens", TensorView::new(Dtype::U32, vec![t], &tokens)?),
            ("passes", TensorView::new(Dtype::U32, vec![t], &passes)?),
            ("ids", TensorView::new(Dtype::U16, vec![t, l, self.k], &ids)?),
        ];
        let metadata = HashMap::from([("format".to_owned(), FORMAT.to_owned())]);
        Ok(safetensors::serialize(tensors, Some(metadata))?)
    }

    /// Reads the content of a trace file; every id is checked.
    pub fn from_bytes(bytes: &[u8]) -> Result<Trace, TraceError> {
        let wrong = |what: &str| TraceError::Content(what.to_owned());
        let (_, metadata) = SafeTensors::read_metadata(bytes)?;
        let format = metadata.metadata().as_ref().and_then(|map| map.get("format"));
        if format.map(String::as_str) != Some(FORMAT) {
            return Err(TraceError::Content(format!("its format is {format:?}, not {FORMAT:?}")));
        }
        let file = SafeTensors::deserialize(bytes)?;
        let words = |name: &str| -> Result<Vec<u32>, TraceError> {
            let tensor = file.tensor(name)?;
            if tensor.dtype() != Dtype::U32 || tensor.shape().len() != 1 {
                return Err(TraceError::Content(format!("{name} is not a vector of U32")));
            }
            let (words, _) = tensor.data().as_chunks::<4>();
            Ok(words.iter().map(|&word| u32::from_le_bytes(word)).collect())
        };
        let (layers, experts) = (words("layers")?, words("experts")?);
        let (tokens, passes) = (words("tokens")?, words("passes")?);
        let ids = file.tensor("ids")?;
        let (Dtype::U16, &[t, l, k]) = (ids.dtype(), ids.shape()) else {
            return Err(wrong("ids is not [tokens, layers, k] of U16"));
        };
        if (t, l) != (tokens.len(), layers.len()) || t != passes.len() || l != experts.len() {
            return Err(wrong("its tensors are of different numbers of tokens or layers"));
        }
        if !passes.is_sorted() {
            return Err(wrong("its passes go back"));
        }
        if experts.iter().any(|&count| count > u32::from(u16::MAX)) {
            return Err(wrong("a layer has more experts than ids can name"));
        }
        let (ids, _) = ids.data().as_chunks::<2>();
        let ids: Vec<u16> = ids.iter().map(|&id| u16::from_le_bytes(id)).collect();
        let in_range = |(at, &id): (usize, &u16)| u32::from(id) < experts[at / k % l];
        if !ids.iter().enumerate().all(in_range) {
            return Err(wrong("it uses experts that its layers do not have"));
        }
        Ok(Trace { layers, experts, k, tokens, passes, ids })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Routing, Synthetic};

    #[test]
    fn what_is_written_is_read() {
        let trace = Synthetic::new(Routing::Zipf { exponent: 1.0 }, 5).trace(40);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("routing.safetensors");
        trace.save(&path).unwrap();
        assert_eq!(Trace::load(&path).unwrap(), trace);
        assert!(Trace::load(&directory.path().join("none")).unwrap_err().to_string().contains("none"));
        let empty = Trace::new(vec![], vec![], 0);
        assert_eq!(Trace::from_bytes(&empty.to_bytes().unwrap()).unwrap(), empty);
    }

    #[test]
    fn files_that_are_no_traces_are_refused() {
        let trace = Synthetic::new(Routing::Uniform, 5).trace(3);
        let refused = |bytes: &[u8]| Trace::from_bytes(bytes).unwrap_err().to_string();
        let bytes = trace.to_bytes().unwrap();
        refused(b"");
        refused(&bytes[..bytes.len() - 1]);
        let text = |from: &str, to: &str| {
            let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
            let mut bytes = bytes.clone();
            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
            bytes
        };
        assert!(refused(&text("routing 1", "routing 2")).contains("routing 2"));
        refused(&text("\"tokens\"", "\"tikens\""));
        let mut ids = trace.clone();
        ids.ids[7] = 32;
        assert!(refused(&ids.to_bytes().unwrap()).contains("experts that its layers do not have"));
        let mut passes = trace.clone();
        passes.passes[2] = 0;
        assert!(refused(&passes.to_bytes().unwrap()).contains("go back"));
    }
}
