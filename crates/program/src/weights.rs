//! A program's resident weights, found in a checkpoint.

use turbospark_formats::{Checkpoint, Tensor};

use crate::program::{Program, Weight};

/// The tensors that a program names, with the shapes it expects.
#[derive(Clone, Debug)]
pub struct Weights {
    tensors: Vec<Tensor>,
}

/// A tensor that a program needs and a checkpoint does not have as it must be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeightError {
    /// Not in the checkpoint.
    #[error("tensor {name} is missing; the checkpoint is incomplete or of another architecture")]
    Missing {
        /// Canonical name.
        name: String,
    },
    /// Another shape.
    #[error("tensor {name} has shape {found:?}, the model's config asks for {expected:?}")]
    Shape {
        /// Canonical name.
        name: String,
        /// Shape in the file.
        found: Vec<usize>,
        /// Shape the config leads to.
        expected: Vec<usize>,
    },
}

impl Weights {
    /// Finds every resident weight of `program`, and checks that the experts are there.
    pub fn bind(program: &Program, checkpoint: &Checkpoint) -> Result<Weights, WeightError> {
        let find = |name: &str, shape: &[usize]| {
            let tensor =
                checkpoint.get(name).ok_or_else(|| WeightError::Missing { name: name.to_owned() })?;
            if tensor.shape() != shape {
                return Err(WeightError::Shape {
                    name: name.to_owned(),
                    found: tensor.shape().to_vec(),
                    expected: shape.to_vec(),
                });
            }
            Ok(tensor.clone())
        };
        let specs = program.weights().iter();
        let tensors = specs.map(|spec| find(&spec.name, &spec.shape)).collect::<Result<_, _>>()?;
        for layer in program.expert_layers() {
            find(&layer.gate, &[layer.experts, layer.intermediate, layer.hidden])?;
            find(&layer.up, &[layer.experts, layer.intermediate, layer.hidden])?;
            find(&layer.down, &[layer.experts, layer.hidden, layer.intermediate])?;
        }
        Ok(Weights { tensors })
    }

    /// One weight.
    pub fn get(&self, weight: Weight) -> &Tensor {
        &self.tensors[weight.index()]
    }

    /// The weights in the order of [`Program::weights`].
    pub fn iter(&self) -> impl Iterator<Item = &Tensor> {
        self.tensors.iter()
    }
}
