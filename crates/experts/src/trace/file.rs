//! Traces on disk: one safetensors file.
//!
//! | tensor | type and shape | content |
//! |---|---|---|
//! | `layers` | U32 [layers] | model layer of each expert layer |
//! | `experts` | U32 [layers] | experts of each |
//! | `tokens` | U32 [tokens] | token ids |
//! | `passes` | U32 [tokens] | the pass over the layers that each token was computed in: tokens of one pass ask for their experts together |
//! | `ids` | U16 [tokens, layers, k] | the experts, in falling order of the router's logits |
//! | `foretold` | U16 [tokens, layers, k] | what the layer before foretold of them, in no order, 65535 in the places left over; missing where nothing was |
//!
//! The metadata has `format`: `turbospark routing 2`. Files of format 1, which has no `foretold`, are read as well.

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensorError, SafeTensors};

use super::{NONE, Trace};

const FORMAT: &str = "turbospark routing 2";
/// Read as well.
const OLDER: &str = "turbospark routing 1";

/// Experts of one layer that a trace file may speak of: tables of pairs are made from it.
pub const MOST_EXPERTS_OF_A_LAYER: usize = 4096;

/// Experts of all layers that a trace file may speak of.
pub const MOST_EXPERTS: usize = 1 << 17;

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
        let shorts = |shorts: &[u16]| shorts.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
        let (ids, foretold) = (shorts(&self.ids), shorts(&self.foretold));
        let (l, t) = (self.layers.len(), self.len());
        let mut tensors = vec![
            ("layers", TensorView::new(Dtype::U32, vec![l], &layers)?),
            ("experts", TensorView::new(Dtype::U32, vec![l], &experts)?),
            ("tokens", TensorView::new(Dtype::U32, vec![t], &tokens)?),
            ("passes", TensorView::new(Dtype::U32, vec![t], &passes)?),
            ("ids", TensorView::new(Dtype::U16, vec![t, l, self.k], &ids)?),
        ];
        if !foretold.is_empty() {
            tensors.push(("foretold", TensorView::new(Dtype::U16, vec![t, l, self.k], &foretold)?));
        }
        let metadata = HashMap::from([("format".to_owned(), FORMAT.to_owned())]);
        Ok(safetensors::serialize(tensors, Some(metadata))?)
    }

    /// Reads the content of a trace file; every id is checked.
    pub fn from_bytes(bytes: &[u8]) -> Result<Trace, TraceError> {
        let wrong = |what: &str| TraceError::Content(what.to_owned());
        let (_, metadata) = SafeTensors::read_metadata(bytes)?;
        let format = metadata.metadata().as_ref().and_then(|map| map.get("format"));
        if !matches!(format.map(String::as_str), Some(FORMAT | OLDER)) {
            let format = format.map_or("missing".to_owned(), |format| format!("{format:?}"));
            return Err(TraceError::Content(format!("its format is {format}, not {FORMAT:?}")));
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
        let shorts = |name: &str| -> Result<(Vec<u16>, [usize; 3]), TraceError> {
            let tensor = file.tensor(name)?;
            let (Dtype::U16, &[t, l, k]) = (tensor.dtype(), tensor.shape()) else {
                return Err(TraceError::Content(format!("{name} is not [tokens, layers, k] of U16")));
            };
            let (shorts, _) = tensor.data().as_chunks::<2>();
            Ok((shorts.iter().map(|&id| u16::from_le_bytes(id)).collect(), [t, l, k]))
        };
        let (ids, [t, l, k]) = shorts("ids")?;
        let (foretold, shape) = match file.names().contains(&"foretold") {
            true => shorts("foretold")?,
            false => (Vec::new(), [t, l, k]),
        };
        if shape != [t, l, k] {
            return Err(wrong("foretold and ids are of different shapes"));
        }
        if (t, l) != (tokens.len(), layers.len()) || t != passes.len() || l != experts.len() {
            return Err(wrong("its tensors are of different numbers of tokens or layers"));
        }
        if !passes.is_sorted() {
            return Err(wrong("its passes go back"));
        }
        let of_a_layer = experts.iter().copied().max().unwrap_or(0) as usize;
        let of_all: u64 = experts.iter().map(|&count| u64::from(count)).sum();
        if of_a_layer > MOST_EXPERTS_OF_A_LAYER || of_all > MOST_EXPERTS as u64 {
            let found = format!("{of_a_layer} experts in a layer and {of_all} in all");
            let reason = format!("{found}; at most {MOST_EXPERTS_OF_A_LAYER} and {MOST_EXPERTS} are read");
            return Err(TraceError::Content(reason));
        }
        // Of each expert, the choice that named it last.
        let mut named = vec![0; of_a_layer];
        // Elements exist only where k and l are more than zero.
        for (choice, ids) in ids.chunks(k.max(1)).enumerate() {
            for &id in ids {
                if u32::from(id) >= experts[choice % l] {
                    return Err(wrong("it uses experts that its layers do not have"));
                }
                if std::mem::replace(&mut named[usize::from(id)], choice + 1) == choice + 1 {
                    return Err(wrong("a token uses an expert of a layer twice"));
                }
            }
        }
        let known = |(at, &id): (usize, &u16)| id == NONE || u32::from(id) < experts[at / k % l];
        if !foretold.iter().enumerate().all(known) {
            return Err(wrong("it foretells experts that its layers do not have"));
        }
        Ok(Trace { layers, experts, k, tokens, passes, ids, foretold })
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
        let mut foretold = trace.clone();
        foretold.foretell(3, &[7, 5]).unwrap();
        foretold.save(&path).unwrap();
        assert_eq!(Trace::load(&path).unwrap().foretold(39, 3), Some(&[7, 5][..]));
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
        assert!(refused(&text("routing 2", "routing 3")).contains("routing 3"));
        assert_eq!(Trace::from_bytes(&text("routing 2", "routing 1")).unwrap(), trace, "the older format");
        refused(&text("\"tokens\"", "\"tikens\""));
        let mut ids = trace.clone();
        ids.ids[7] = 32;
        assert!(refused(&ids.to_bytes().unwrap()).contains("experts that its layers do not have"));
        let mut twice = trace.clone();
        twice.ids[1] = twice.ids[0];
        assert!(refused(&twice.to_bytes().unwrap()).contains("twice"));
        let mut foretold = trace.clone();
        foretold.foretold = vec![32; foretold.ids.len()];
        assert!(refused(&foretold.to_bytes().unwrap()).contains("foretells"));
        foretold.foretold.fill(NONE);
        assert!(Trace::from_bytes(&foretold.to_bytes().unwrap()).unwrap().foretold(0, 0).is_none());
        let mut many = trace.clone();
        many.experts[0] = 65535;
        assert!(refused(&many.to_bytes().unwrap()).contains("at most 4096"));
        let (layers, experts) = ((0..100_000).collect(), vec![4096; 100_000]);
        assert!(refused(&Trace::new(layers, experts, 0).to_bytes().unwrap()).contains("409600000 in all"));
        let mut passes = trace.clone();
        passes.passes[2] = 0;
        assert!(refused(&passes.to_bytes().unwrap()).contains("go back"));
    }

    /// Whatever a file says, it is refused, or everything that is done with a trace can be done with it.
    #[test]
    fn mutations_are_refused_or_usable() {
        use crate::trace::{Contender, Contest, TraceStatistics};

        let model = Synthetic { layers: 2, experts: 6, k: 2, ..Synthetic::new(Routing::Uniform, 5) };
        let mut trace = model.trace(6);
        trace.foretell(1, &[2, 3]).unwrap();
        let bytes = trace.to_bytes().unwrap();
        let mut random = crate::random::Random::new(11);
        let mut read = 0;
        for _ in 0..20_000 {
            let mut bytes = bytes.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len());
                match random.below(4) {
                    0 => bytes[at] ^= 1 << random.below(8),
                    1 => bytes[at] = b'0' + random.below(10) as u8,
                    2 => bytes[at] = random.below(256) as u8,
                    _ => bytes.truncate(at.max(1)),
                }
            }
            let Ok(trace) = Trace::from_bytes(&bytes) else { continue };
            read += 1;
            TraceStatistics::of(&trace);
            for contender in Contender::all() {
                Contest::new(&trace).hit_rate(contender, 3);
            }
        }
        assert!(read > 100, "{read} were read: mutations that nothing survives test little");
    }
}
