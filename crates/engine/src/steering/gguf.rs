//! llama.cpp's control vectors: a GGUF of tensors `direction.N`, F32 [width].
//!
//! llama.cpp adds direction.N to what layer N gives, layers counted from 0, so N is our layer N; but it refuses
//! direction.0, so layer 0 cannot be steered by such a file.

use std::sync::Arc;

use turbospark_formats::{Float, Format, GgufFile, Source};

use super::error::{SteeringError, VectorFault};
use super::vectors::SteeringVectors;

const ARCHITECTURE: &str = "controlvector";
/// Keys of ours, which llama.cpp passes over.
const NOTE: &str = "turbospark.steering.";
const ALIGNMENT: usize = 32;

pub(super) fn read(source: &Arc<Source>) -> Result<SteeringVectors, SteeringError> {
    let file = GgufFile::read(source)?;
    vectors(&file).map_err(SteeringError::content(source.path()))
}

fn vectors(file: &GgufFile) -> Result<SteeringVectors, VectorFault> {
    let wrong = |error: turbospark_formats::MetadataError| VectorFault::Metadata(error.to_string());
    let architecture = file.metadata.architecture().map_err(wrong)?;
    if architecture != ARCHITECTURE {
        return Err(VectorFault::Architecture(architecture.to_owned()));
    }
    let mut directions = Vec::new();
    for tensor in &file.tensors {
        let layer = super::layer_of(&tensor.name)
            .filter(|&layer| layer > 0)
            .ok_or_else(|| VectorFault::Name(tensor.name.clone(), ", from 1 on"))?;
        if tensor.format != Format::Float(Float::F32) {
            let (tensor, found) = (tensor.name.clone(), tensor.format.to_string());
            return Err(VectorFault::Type { tensor, found, expected: "F32" });
        }
        if tensor.shape.len() != 1 {
            let (tensor, shape) = (tensor.name.clone(), tensor.shape.clone());
            return Err(VectorFault::Shape { tensor, shape, expected: "[width]" });
        }
        directions.push((layer, super::floats(&tensor.bytes)));
    }
    let mut vectors = SteeringVectors::new(directions)?;
    let hint = file.metadata.string("controlvector.model_hint").map_err(wrong)?;
    vectors.model = hint.filter(|hint| !hint.is_empty()).map(str::to_owned);
    for (key, value) in file.metadata.iter() {
        if let (Some(key), turbospark_formats::GgufValue::String(value)) = (key.strip_prefix(NOTE), value) {
            vectors.notes.insert(key.to_owned(), value.clone());
        }
    }
    if let Some(layers) = vectors.notes.remove("layers") {
        let layers =
            layers.parse().map_err(|_| VectorFault::Metadata(format!("{NOTE}layers is {layers:?}")))?;
        vectors.layers = Some(layers);
    }
    Ok(vectors)
}

pub(super) fn write(vectors: &SteeringVectors) -> Result<Vec<u8>, VectorFault> {
    let directions: Vec<_> = vectors.directions().filter(|(layer, _)| *layer > 0).collect();
    if directions.is_empty() {
        return Err(VectorFault::Empty);
    }
    let string = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let mut pairs = vec![("general.architecture".to_owned(), ARCHITECTURE.to_owned())];
    pairs.extend(vectors.model.iter().map(|model| ("controlvector.model_hint".to_owned(), model.clone())));
    pairs.extend(vectors.layers.iter().map(|layers| (format!("{NOTE}layers"), layers.to_string())));
    pairs.extend(vectors.notes.iter().map(|(key, value)| (format!("{NOTE}{key}"), value.clone())));
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((directions.len() as u64).to_le_bytes());
    out.extend((pairs.len() as u64 + 1).to_le_bytes());
    for (key, value) in &pairs {
        string(&mut out, key);
        out.extend(8u32.to_le_bytes());
        string(&mut out, value);
    }
    string(&mut out, "controlvector.layer_count");
    out.extend(5u32.to_le_bytes());
    out.extend((directions.len() as i32).to_le_bytes());
    let each = (vectors.width() * 4).next_multiple_of(ALIGNMENT);
    for (index, (layer, _)) in directions.iter().enumerate() {
        string(&mut out, &format!("direction.{layer}"));
        out.extend(1u32.to_le_bytes());
        out.extend((vectors.width() as u64).to_le_bytes());
        out.extend(0u32.to_le_bytes());
        out.extend(((index * each) as u64).to_le_bytes());
    }
    for (_, direction) in directions {
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out.extend(direction.iter().flat_map(|x| x.to_le_bytes()));
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    Ok(out)
}
