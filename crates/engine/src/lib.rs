//! Opening a model and generating from one or several sequences.
//!
//! [`Model`] is a checkpoint with its tokenizer, template and [`Engine`]; [`Engine`] works on token ids alone.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use turbospark_engine::{AnswerOptions, Model, OpenOptions, Update};
//! use turbospark_text::{Event, Message, RenderOptions};
//!
//! let mut model = Model::demo(OpenOptions::default())?;
//! let messages = [Message::new("user", "Tell me a story about a fox.")];
//! let prompt = model.prompt(&messages, &RenderOptions::prompt())?;
//! let options = AnswerOptions { sampling: model.sampling.clone(), ..AnswerOptions::default() };
//! let session = model.engine.open_session();
//! let answer = model.answer(session, prompt, &options, |update| {
//!     if let Update::Event(Event::Answer(text)) = update {
//!         print!("{text}");
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! println!("\n{:?} after {} tokens", answer.finish_reason, answer.token_ids.len());
//! # Ok::<(), turbospark_engine::EngineError>(())
//! ```

mod answer;
pub mod bench;
pub mod capture;
mod demo;
mod divergence;
mod edits;
mod engine;
mod evaluate;
mod generate;
mod memory;
mod model;
pub mod pack;
pub mod planning;
pub mod plot;
pub mod routes;
mod score;
mod statistics;
pub mod steering;
mod trace;

pub use answer::{Answer, AnswerOptions, Call, Timings, Update};
pub use demo::{DEMO_NAME, demo_source};
pub use divergence::Divergence;
pub use edits::Edits;
pub use engine::{DEFAULT_CONTEXT, Engine, EngineError, ExecutorKind, OpenOptions, SessionId};
pub use evaluate::{Evaluation, Keep, LayerRoutes};
pub use generate::{Finish, Generation, Progress, Request};
pub use memory::{
    ExpertPlacement, MemoryError, MemoryOptions, MemoryPlan, RefusedOption, Residency, UnknownResidency,
};
pub use model::{Model, model_kind};
pub use score::Likelihood;
pub use statistics::{PhaseStatistics, RunStatistics};
pub use turbospark_cpu::{Ceilings, CpuOptions, Isa, KvFormat, WeightUse, weight_uses};
pub use turbospark_experts::trace::Trace;
pub use turbospark_experts::{Prefetch, Statistics, StreamedExperts, memory_limit, policy, reader};
