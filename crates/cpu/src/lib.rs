//! The fast CPU executor: canonical arithmetic at the speed of memory.

mod activations;
mod isa;
mod kernels;
mod linear;
mod math;
mod ops;
mod panels;
mod pool;
#[cfg(test)]
mod testing;
mod topology;
mod vector;

pub use activations::{Activations, Form, TILE, TileMut};
pub use isa::{Isa, Level};
pub use linear::{Outputs, linear};
pub use panels::{
    BLOCK, Buffer, ExpertPanels, LANES, PANELS_ID, PackedMatrix, PanelKind, PanelLayout, PanelPacker, PanelRef,
    pack_panels,
};
