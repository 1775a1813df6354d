//! Where routed experts come from: sources behind [`ExpertSource`](turbospark_program::ExpertSource).
//!
//! - [`ResidentExperts`]: the mapped checkpoint as it is; [`PackedExperts`]: all of them in an executor's own layout.
//! - [`StreamedExperts`]: read from disk as routers pick them, through a pool of slots within a budget. A [`policy`]
//!   decides who leaves, a [`reader`] reads, [`BatchPlan`] says what the rows of a batch need.
//! - [`trace`]: routing recorded, made up and replayed through any policy and size of pool.
//! - [`memory_limit`]: how much memory there is to spend.

mod batch;
mod memory;
pub mod memory_limit;
mod options;
mod packed;
mod packing;
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
pub use packed::{LoadOptions, PackedExperts};
pub use packing::LayerPacker;
pub use pool::{PoolSizes, SizeClass, Statistics};
pub use resident::ResidentExperts;
pub use streamed::StreamedExperts;
pub use table::{ExpertTable, LayerTable};
