//! What can be wrong with steering files, and with their use on a model.

use std::path::{Path, PathBuf};

use turbospark_formats::{GgufError, SafetensorsError};

/// A steering file or option that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SteeringError {
    /// The file system.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// Not a valid GGUF.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// Not a valid safetensors file.
    #[error(transparent)]
    Safetensors(#[from] SafetensorsError),
    /// A valid file whose content cannot be used.
    #[error("{}: {fault}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        fault: VectorFault,
    },
    /// An option that says nothing understandable.
    #[error("--steer {given}: {reason}")]
    Spelling {
        /// The option's value.
        given: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl SteeringError {
    pub(super) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> SteeringError {
        move |error| SteeringError::File { path: path.to_owned(), error }
    }

    pub(super) fn content(path: &Path) -> impl FnOnce(VectorFault) -> SteeringError {
        move |fault| SteeringError::Content { path: path.to_owned(), fault }
    }
}

/// What is wrong with steering vectors.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum VectorFault {
    /// None of the known formats.
    #[error("not a steering file: expected a control-vector GGUF, safetensors or a NumPy .npz")]
    UnknownFormat,
    /// A name to write to that is of no format we write.
    #[error("steering vectors are written as .gguf or .safetensors; name the file so")]
    UnknownExtension,
    /// A GGUF of something else.
    #[error("general.architecture is {0:?}, a control vector has \"controlvector\"")]
    Architecture(String),
    /// A tensor whose name gives no layer.
    #[error("tensor {0:?} is not a direction: the names are direction.N with the layer N{1}")]
    Name(String, &'static str),
    /// Not of a type we read.
    #[error("{tensor} has elements of type {found}, expected {expected}")]
    Type {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
        /// Types that are read.
        expected: &'static str,
    },
    /// Not of the shape it should have.
    #[error("{tensor} has the shape {shape:?}, expected {expected}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// Shape wanted.
        expected: &'static str,
    },
    /// Directions of several widths.
    #[error("the direction of layer {layer} has {found} elements, the others have {expected}")]
    Widths {
        /// The layer.
        layer: usize,
        /// Its elements.
        found: usize,
        /// Elements of the others.
        expected: usize,
    },
    /// The same layer twice.
    #[error("layer {0} has two directions")]
    Twice(usize),
    /// Not a number, or infinite.
    #[error("the direction of layer {layer} has {value} at element {index}; every element must be finite")]
    NotFinite {
        /// The layer.
        layer: usize,
        /// The element.
        index: usize,
        /// The value.
        value: f32,
    },
    /// Nothing to steer with.
    #[error("it has no directions")]
    Empty,
    /// A layer of the file that the model does not have.
    #[error(
        "it has a direction for layer {layer}, the model has layers 0-{last}: it was made for another model"
    )]
    Layer {
        /// The layer.
        layer: usize,
        /// Last layer of the model.
        last: usize,
    },
    /// Made for another kind of model.
    #[error("it was made for a {made_for} model, this model is {model}")]
    Model {
        /// What the file says.
        made_for: String,
        /// What the model is.
        model: String,
    },
    /// Made for a model of another depth.
    #[error("it was made for a {made_for}model of {found} layers, this model has {expected}")]
    Layers {
        /// What the file says, with a space after it.
        made_for: String,
        /// Layers in the file.
        found: usize,
        /// Layers of the model.
        expected: usize,
    },
    /// Made for a model of another width.
    #[error(
        "its directions have {found} elements, the residual stream of this {model} model has {expected}{made_for}"
    )]
    Width {
        /// Elements of a direction.
        found: usize,
        /// Width of the model.
        expected: usize,
        /// What the model is.
        model: String,
        /// What the file says it is for.
        made_for: String,
    },
    /// A range past the last layer.
    #[error("layers {first}-{last} are asked for, the model has layers 0-{end}")]
    Range {
        /// First asked for.
        first: usize,
        /// Last asked for.
        last: usize,
        /// Last layer of the model.
        end: usize,
    },
    /// A layer that was asked for and has no direction.
    #[error("it has no direction for layer {layer}, which was asked for; it has {have}")]
    Missing {
        /// The layer.
        layer: usize,
        /// Layers it has.
        have: String,
    },
    /// A direction without one.
    #[error(
        "the direction of layer {0} is zero, and only a direction with a length can be ablated, clamped or gated"
    )]
    Zero(usize),
    /// A place that the model does not have.
    #[error("the model has no {0}")]
    Tap(turbospark_program::Tap),
    /// A NumPy archive that cannot be read.
    #[error("{0}")]
    Npz(String),
    /// Metadata that cannot be read.
    #[error("{0}")]
    Metadata(String),
}
