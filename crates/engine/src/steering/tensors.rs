//! Steering vectors in safetensors.
//!
//! | tensor | type and shape | content |
//! |---|---|---|
//! | `direction.N` | F32 [width] | direction of layer N, from 0 |
//! | or `directions` | F32 [layers, width] | those of all layers |
//!
//! The metadata may have `model` (what kind the model is, as in config.json or GGUF), `layers` (its number of layers)
//! and notes of any name.

use std::collections::HashMap;
use std::sync::Arc;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use turbospark_formats::{SafetensorsFile, Source};

use super::error::{SteeringError, VectorFault};
use super::vectors::SteeringVectors;

const FORMAT: &str = "turbospark steering 1";

pub(super) fn read(source: &Arc<Source>) -> Result<SteeringVectors, SteeringError> {
    let file = SafetensorsFile::read(source)?;
    vectors(source, &file).map_err(SteeringError::content(source.path()))
}

fn vectors(source: &Source, file: &SafetensorsFile) -> Result<SteeringVectors, VectorFault> {
    let mut directions = Vec::new();
    for tensor in &file.tensors {
        if tensor.dtype != Dtype::F32 {
            let (tensor, found) = (tensor.name.clone(), format!("{:?}", tensor.dtype));
            return Err(VectorFault::Type { tensor, found, expected: "F32" });
        }
        directions.extend(super::rows_of(&tensor.name, &tensor.shape, super::floats(&tensor.bytes))?);
    }
    let mut vectors = SteeringVectors::new(directions)?;
    let (_, metadata) = SafeTensors::read_metadata(source.bytes())
        .map_err(|error| VectorFault::Metadata(error.to_string()))?;
    for (key, value) in metadata.metadata().iter().flatten() {
        match key.as_str() {
            "format" => {}
            "model" => vectors.model = Some(value.clone()),
            "layers" => {
                let layers = value.parse();
                let layers =
                    layers.map_err(|_| VectorFault::Metadata(format!("metadata layers is {value:?}")))?;
                vectors.layers = Some(layers);
            }
            _ => {
                vectors.notes.insert(key.clone(), value.clone());
            }
        }
    }
    Ok(vectors)
}

pub(super) fn write(vectors: &SteeringVectors) -> Result<Vec<u8>, VectorFault> {
    let wrong = |error: safetensors::SafeTensorError| VectorFault::Metadata(error.to_string());
    let mut metadata: HashMap<String, String> = vectors.notes.clone().into_iter().collect();
    metadata.insert("format".to_owned(), FORMAT.to_owned());
    metadata.extend(vectors.model.iter().map(|model| ("model".to_owned(), model.clone())));
    metadata.extend(vectors.layers.iter().map(|layers| ("layers".to_owned(), layers.to_string())));
    let bytes: Vec<(String, Vec<u8>)> = vectors
        .directions()
        .map(|(layer, direction)| {
            (format!("direction.{layer}"), direction.iter().flat_map(|x| x.to_le_bytes()).collect())
        })
        .collect();
    let views = bytes
        .iter()
        .map(|(name, bytes)| Ok((name.as_str(), TensorView::new(Dtype::F32, vec![vectors.width()], bytes)?)));
    let views: Vec<_> = views.collect::<Result<_, _>>().map_err(wrong)?;
    safetensors::serialize(views, Some(metadata)).map_err(wrong)
}
