//! Text in and out of a model: tokenizers, chat templates, the streaming detokenizer, stop tokens and strings, and the
//! dialects in which models reason and call tools.
//!
//! [`TextModel`] is the whole of it for one checkpoint:
//!
//! ```no_run
//! # fn generate(_: &[u32]) -> Vec<u32> { Vec::new() }
//! # fn example(checkpoint: &turbospark_formats::Checkpoint) -> Result<(), turbospark_text::TextError> {
//! use turbospark_text::{Event, Message, RenderOptions, StopStrings, TextModel};
//!
//! let text = TextModel::open(checkpoint)?;
//! let prompt = text.prompt_ids(&[Message::new("user", "Hello!")], &RenderOptions::prompt())?;
//! let mut reply = text.reply(&prompt, StopStrings::default())?;
//! let mut events = Vec::new();
//! for id in generate(&prompt) {
//!     if reply.push(id, &mut events)?.is_some() {
//!         break;
//!     }
//! }
//! reply.finish(&mut events);
//! for event in events {
//!     if let Event::Answer(text) = event {
//!         print!("{text}");
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod detokenizer;
mod dialect;
mod error;
mod message;
mod reply;
mod stop;
mod stop_strings;
mod template;
mod text_model;
mod tokenizer;

pub use detokenizer::Detokenizer;
pub use dialect::{Dialect, Event, Parser, Piece};
pub use error::TextError;
pub use message::{FunctionCall, Message, ToolCall};
pub use reply::{Reply, Stop};
pub use stop::stop_ids;
pub use stop_strings::StopStrings;
pub use template::{ChatTemplate, RenderOptions};
pub use text_model::TextModel;
pub use tokenizer::{Special, Tokenizer};
