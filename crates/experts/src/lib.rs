//! Where routed experts come from: sources behind [`ExpertSource`](turbospark_program::ExpertSource).
//!
//! [`ResidentExperts`] gives experts that are in memory already, [`PackedExperts`] all of them in an executor's
//! own layout.

mod batch;
mod memory;
pub mod memory_limit;
mod options;
mod packed;
pub mod policy;
mod pool;
mod random;
pub mod reader;
mod resident;
mod streamed;
mod table;
#[cfg(test)]
mod toy;
pub mod trace;

pub use batch::{BatchPlan, RouteError, Use};
pub use options::{Prefetch, StreamOptions, UnknownPrefetch};
pub use packed::PackedExperts;
pub use pool::{PoolSizes, SizeClass, Statistics};
pub use resident::ResidentExperts;
pub use streamed::StreamedExperts;
pub use table::{ExpertTable, LayerTable};
