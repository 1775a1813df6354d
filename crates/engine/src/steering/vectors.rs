//! Directions by layer, and their files.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use turbospark_formats::Source;

use super::error::{SteeringError, VectorFault};
use super::{gguf, npz, tensors};

/// A direction for each of some layers of a model; layers count from 0.
#[derive(Clone, Debug, PartialEq)]
pub struct SteeringVectors {
    /// What kind of model they were made for, where the file says so.
    pub model: Option<String>,
    /// Layers of that model, where the file says so.
    pub layers: Option<usize>,
    /// How they were made; kept in files, not interpreted.
    pub notes: BTreeMap<String, String>,
    directions: BTreeMap<usize, Arc<[f32]>>,
    width: usize,
}

impl SteeringVectors {
    /// Checks that there are directions, of one width and finite.
    pub fn new(
        directions: impl IntoIterator<Item = (usize, Vec<f32>)>,
    ) -> Result<SteeringVectors, VectorFault> {
        let mut checked: BTreeMap<usize, Arc<[f32]>> = BTreeMap::new();
        let mut width = None;
        for (layer, direction) in directions {
            let expected = *width.get_or_insert(direction.len());
            if direction.len() != expected {
                return Err(VectorFault::Widths { layer, found: direction.len(), expected });
            }
            if let Some(index) = direction.iter().position(|x| !x.is_finite()) {
                return Err(VectorFault::NotFinite { layer, index, value: direction[index] });
            }
            if checked.insert(layer, direction.into()).is_some() {
                return Err(VectorFault::Twice(layer));
            }
        }
        let width = width.filter(|&width| width > 0).ok_or(VectorFault::Empty)?;
        let (model, layers, notes) = (None, None, BTreeMap::new());
        Ok(SteeringVectors { model, layers, notes, directions: checked, width })
    }

    /// Reads a control-vector GGUF, safetensors or .npz file, told apart by their first bytes.
    pub fn load(path: &Path) -> Result<SteeringVectors, SteeringError> {
        let source = Source::open(path).map_err(SteeringError::file(path))?;
        let bytes = source.bytes();
        let named = |extension: &str| path.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension));
        if bytes.starts_with(b"GGUF") || named("gguf") {
            gguf::read(&source)
        } else if bytes.starts_with(b"PK") || named("npz") {
            npz::read(bytes).map_err(SteeringError::content(path))
        } else if bytes.get(8) == Some(&b'{') || named("safetensors") {
            tensors::read(&source)
        } else {
            Err(SteeringError::content(path)(VectorFault::UnknownFormat))
        }
    }

    /// Writes .gguf or .safetensors, by the name of the file. Returns the layers that the format has no place for:
    /// a control-vector GGUF cannot hold layer 0.
    pub fn save(&self, path: &Path) -> Result<Vec<usize>, SteeringError> {
        let extension = path.extension().and_then(|e| e.to_str()).map(str::to_ascii_lowercase);
        let (bytes, left_out) = match extension.as_deref() {
            Some("gguf") => {
                let zero = self.directions.contains_key(&0);
                (gguf::write(self), zero.then_some(0).into_iter().collect())
            }
            Some("safetensors") => (tensors::write(self), Vec::new()),
            _ => (Err(VectorFault::UnknownExtension), Vec::new()),
        };
        let bytes = bytes.map_err(SteeringError::content(path))?;
        std::fs::write(path, bytes).map_err(SteeringError::file(path))?;
        Ok(left_out)
    }

    /// Elements of a direction.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The direction of a layer.
    pub fn direction(&self, layer: usize) -> Option<&Arc<[f32]>> {
        self.directions.get(&layer)
    }

    /// Layers and directions, ascending.
    pub fn directions(&self) -> impl Iterator<Item = (usize, &Arc<[f32]>)> {
        self.directions.iter().map(|(&layer, direction)| (layer, direction))
    }

    /// Layers that have a direction, for people: `1-23`, `4, 7-9`.
    pub fn layer_list(&self) -> String {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for &layer in self.directions.keys() {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == layer => *last = layer,
                _ => runs.push((layer, layer)),
            }
        }
        let run = |&(first, last): &(usize, usize)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        format!("layers {}", runs.iter().map(run).collect::<Vec<_>>().join(", "))
    }

    /// Checks that they can be of a model of this kind, depth and width.
    pub(super) fn check_model(&self, model: &str, layers: usize, width: usize) -> Result<(), VectorFault> {
        let made_for = self.model.clone().unwrap_or_default();
        if let Some(kind) = &self.model
            && family(kind) != family(model)
        {
            return Err(VectorFault::Model { made_for, model: model.to_owned() });
        }
        if self.width != width {
            let made_for =
                if made_for.is_empty() { made_for } else { format!(": it was made for another {made_for}") };
            let (found, model) = (self.width, model.to_owned());
            return Err(VectorFault::Width { found, expected: width, model, made_for });
        }
        if let Some(found) = self.layers.filter(|&found| found != layers) {
            let made_for = if made_for.is_empty() { made_for } else { made_for + " " };
            return Err(VectorFault::Layers { made_for, found, expected: layers });
        }
        match self.directions.keys().next_back() {
            Some(&layer) if layer >= layers => {
                Err(VectorFault::Layer { layer, last: layers.saturating_sub(1) })
            }
            _ => Ok(()),
        }
    }
}

/// What a kind of model is called regardless of who names it: GGUF says gpt-oss, Hugging Face gpt_oss; a Mistral or
/// Mixtral is a llama in GGUF.
fn family(model: &str) -> String {
    let mut name: String = model.to_lowercase().chars().filter(char::is_ascii_alphanumeric).collect();
    if let Some(short) = name.strip_suffix("text") {
        name.truncate(short.len());
    }
    if ["mistral", "mixtral"].contains(&name.as_str()) { "llama".to_owned() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_are_checked() {
        let new = |list: Vec<(usize, Vec<f32>)>| SteeringVectors::new(list).unwrap_err().to_string();
        assert!(new(vec![]).contains("no directions"));
        assert!(new(vec![(1, vec![1.0, 2.0]), (2, vec![1.0])]).contains("layer 2 has 1 elements"));
        assert!(new(vec![(3, vec![1.0, f32::NAN])]).contains("layer 3 has NaN at element 1"));
        assert!(new(vec![(3, vec![1.0]), (3, vec![1.0])]).contains("two directions"));
    }

    #[test]
    fn lists_of_layers_are_short() {
        let vectors = SteeringVectors::new([1, 2, 3, 5, 8, 9].map(|layer| (layer, vec![1.0]))).unwrap();
        assert_eq!(vectors.layer_list(), "layers 1-3, 5, 8-9");
    }

    #[test]
    fn names_of_families_agree() {
        assert_eq!(family("gpt-oss"), family("gpt_oss"));
        assert_eq!(family("gemma3_text"), family("gemma3"));
        assert_eq!(family("mistral"), family("llama"));
        assert_ne!(family("gemma3"), family("gemma4"));
    }
}
