//! Logits to token.
//!
//! A [`Sampler`] applies these stages, each of which is off at its neutral value, in the order of llama.cpp's default
//! chain (which has dry, top-n-sigma and xtc between them; those are not here):
//!
//! 1. logit bias (added; minus infinity bans a token)
//! 2. repetition, frequency and presence penalties over the last tokens
//! 3. temperature 0: the largest logit, the smallest id among equals, and nothing more
//! 4. top-k
//! 5. typical-p
//! 6. top-p
//! 7. min-p
//! 8. temperature
//! 9. the draw
//!
//! So top-p and min-p see the distribution before the temperature flattens or sharpens it.
//!
//! The random number of a draw is Philox4x32-10 of the seed (key) and the position (counter): it does not depend on what
//! else is generated, before or beside. exp is the `libm` crate's, so that every platform draws the same token.
//! The vocabulary is never sorted: top-k selects, and top-p and typical-p sort only as many tokens as their mass needs.

mod error;
mod options;
mod philox;
mod sampler;
mod stages;

pub use error::SamplingError;
pub use options::SamplingOptions;
pub use sampler::{Choice, Sampler, TokenLogprob};
