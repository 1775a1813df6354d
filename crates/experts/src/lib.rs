//! Where routed experts come from: sources behind [`ExpertSource`](turbospark_program::ExpertSource).
//!
//! [`ResidentExperts`] gives experts that are in memory already.

mod resident;
mod table;
#[cfg(test)]
mod toy;

pub use resident::ResidentExperts;
pub use table::{ExpertTable, LayerTable};
