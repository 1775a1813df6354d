//! Weights as the kernels read them: panels of 16 output rows.
//!
//! A panel holds 16 rows of a matrix with K running along it, so that one vector lane is one output row and a
//! kernel never sums across lanes. A panel is a row of groups: a head (scales, addends), then blocks of 32
//! elements, each with its factors and its codes. [`PANELS_ID`] names this byte layout.

mod codes;
mod experts;
mod kind;
mod layout;
mod memory;
mod pack;
mod sources;
mod super_blocks;

pub(crate) use codes::{QUADS, planes, read as read_codes};
pub use experts::{ExpertPanels, PanelPacker};
pub use kind::{BLOCK, LANES, PanelKind};
pub(crate) use kind::{DOUBLED_E2M1, Factors, Head, NON_LINEAR, Shape, Values};
pub use layout::{PANELS_ID, PackedMatrix, PanelLayout, PanelRef};
pub use memory::Buffer;
pub use pack::pack_panels;
