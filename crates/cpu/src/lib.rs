//! The fast CPU executor: canonical arithmetic at the speed of memory.

mod activations;
mod attention;
mod ceilings;
mod error;
mod executor;
mod experts;
mod isa;
mod kernels;
mod linear;
mod linears;
mod load;
mod math;
mod ops;
mod options;
mod panels;
mod plan;
mod pool;
mod predict;
mod probe;
mod registers;
mod route;
mod rows;
#[cfg(test)]
mod testing;
mod timings;
mod topology;
mod uses;
mod vector;

pub use activations::{Activations, Form, TILE, TileMut};
pub use ceilings::Ceilings;
pub use error::OpenError;
pub use executor::CpuExecutor;
pub use isa::{Isa, Level};
pub use linear::{Outputs, linear};
pub use options::{CpuOptions, KvFormat};
pub use panels::{
    BLOCK, Buffer, ExpertPanels, LANES, PANELS_ID, PackedMatrix, PanelKind, PanelLayout, PanelPacker,
    PanelRef, pack_panels,
};
pub use probe::Probe;
pub use timings::Timings;
pub use topology::default_threads;
pub use uses::{WeightUse, weight_uses};
