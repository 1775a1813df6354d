use turbospark_formats::MetadataError;
use turbospark_program::BuildError;

/// A checkpoint that no program can be made of.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum FamilyError {
    /// The checkpoint does not say what it is.
    #[error(
        "config.json names neither a model_type nor architectures; it is not the config of a language model"
    )]
    NoModelType,
    /// An architecture that is not among the families.
    #[error("models of type {found} are not supported; supported types are {supported}")]
    Unsupported {
        /// What the checkpoint calls itself.
        found: String,
        /// All types that are.
        supported: String,
    },
    /// A hyper-parameter that must be there.
    #[error("{key} is missing")]
    Missing {
        /// The file and the key.
        key: String,
    },
    /// A hyper-parameter with a value that cannot be or is not supported.
    #[error("{key} is {found}, expected {expected}")]
    Unexpected {
        /// The file and the key.
        key: String,
        /// What the file has, shortened.
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// Two spellings of one hyper-parameter with different values.
    #[error("{first} is {first_value}, but {second}, another name of it, is {second_value}")]
    Contradiction {
        /// The file and one key.
        first: String,
        /// Its value.
        first_value: String,
        /// The other key.
        second: String,
        /// Its value.
        second_value: String,
    },
    /// Rotary parameters that lead to no numbers.
    #[error("the config's rotary parameters lead to frequencies that are not finite")]
    Rope,
    /// A tensor that must be there to know the model's shape.
    #[error("tensor {name} is missing or misshapen; {reason}")]
    Tensor {
        /// Canonical name.
        name: String,
        /// What it is needed for.
        reason: &'static str,
    },
    /// A tensor that the config leaves no place for, and that would change the result.
    #[error("tensor {name} is in the checkpoint, but its config leaves no place for it")]
    Unplaced {
        /// Canonical name.
        name: String,
    },
    /// A GGUF key of another type.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// Sizes that do not go together.
    #[error("the config's sizes do not go together: {0}")]
    Build(#[from] BuildError),
}
