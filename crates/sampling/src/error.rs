//! What can be wrong with options or logits.

/// An error of sampling.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// An option has a value that makes no sense.
    #[error("{option} is {value}, expected {expected}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// What was given.
        value: String,
        /// What is possible.
        expected: &'static str,
    },
    /// The model produced something that is not a number.
    #[error("logit {index} is {value}: the model's output is broken, no token can be chosen")]
    NonFinite {
        /// The token whose logit it is.
        index: usize,
        /// NaN or an infinity.
        value: f32,
    },
    /// There are no logits.
    #[error("no logits to choose from")]
    Empty,
    /// logit_bias names a token that does not exist.
    #[error("logit_bias: token {id} is outside the vocabulary of {size} tokens")]
    BiasToken {
        /// The token.
        id: u32,
        /// Number of logits.
        size: usize,
    },
    /// Every token is banned.
    #[error("logit_bias bans every token")]
    AllBanned,
}
