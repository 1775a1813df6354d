//! Steering: directions from files, and the edits that they make of a model's rows.

mod error;
mod gguf;
mod npz;
mod steer;
mod tensors;
pub mod train;
mod vectors;

pub use error::{SteeringError, VectorFault};
pub use steer::{Mode, Place, Steer, TokenRange};
pub use vectors::SteeringVectors;

use turbospark_program::Program;

use crate::edits::Edits;

/// The edits that uses of steering files come to, in order, on a model of the kind that [`crate::model_kind`] names.
pub fn edits(steers: &[Steer], kind: &str, program: &Program) -> Result<Edits, SteeringError> {
    let mut edits = Edits::default();
    for steer in steers {
        steer.add_to(&mut edits, kind, program)?;
    }
    Ok(edits)
}

/// The layer in `direction.N`.
fn layer_of(name: &str) -> Option<usize> {
    let digits = name.strip_prefix("direction.")?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

/// Directions of a tensor `direction.N` [width] or `directions` [layers, width]; none where `values` are none yet.
fn rows_of(name: &str, shape: &[usize], values: Vec<f32>) -> Result<Vec<(usize, Vec<f32>)>, VectorFault> {
    let shaped = |expected| VectorFault::Shape { tensor: name.to_owned(), shape: shape.to_vec(), expected };
    match (layer_of(name), name, shape) {
        (Some(layer), _, [_]) => Ok(if values.is_empty() { Vec::new() } else { vec![(layer, values)] }),
        (Some(_), ..) => Err(shaped("[width]")),
        (None, "directions", &[_, width]) if width > 0 => {
            Ok(values.chunks_exact(width).map(<[f32]>::to_vec).enumerate().collect())
        }
        (None, "directions", _) => Err(shaped("[layers, width]")),
        _ => Err(VectorFault::Name(name.to_owned(), ", or directions for all layers")),
    }
}
