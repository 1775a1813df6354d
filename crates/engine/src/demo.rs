//! The model that ships with the program.

use std::sync::Arc;

use turbospark_formats::Source;

/// Name of the demo model where a path would stand.
pub const DEMO_NAME: &str = "tiny-storyteller (built in)";

static BYTES: &[u8] = include_bytes!("../assets/tiny-storyteller-mxfp4.gguf");

/// The demo model: a trained gpt-oss-architecture mixture of experts that writes stories for small children. Its
/// model card is assets/MODEL_CARD.md.
pub fn demo_source() -> Arc<Source> {
    Source::embedded(DEMO_NAME, BYTES)
}
