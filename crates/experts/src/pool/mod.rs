//! Slots for experts that are read when a router picks them.

mod meter;
mod request;
pub(crate) mod residency;
pub(crate) mod sizes;
mod state;
mod statistics;
#[cfg(test)]
mod tests;

pub use residency::SizeClass;
pub use sizes::PoolSizes;
pub use statistics::Statistics;

pub(crate) use request::Failure;
pub(crate) use state::{Held, Next, Prefetching, State, Work};
