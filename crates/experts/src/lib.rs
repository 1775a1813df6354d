//! Where routed experts come from: sources behind [`ExpertSource`](turbospark_program::ExpertSource).
//!
//! [`ResidentExperts`] gives experts that are in memory already, [`PackedExperts`] all of them in an executor's
//! own layout.

mod memory;
mod packed;
mod resident;
mod table;
#[cfg(test)]
mod toy;

pub use packed::PackedExperts;
pub use resident::ResidentExperts;
pub use table::{ExpertTable, LayerTable};
