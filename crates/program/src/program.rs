//! The data structure that describes a model.

use std::ops::Range;

use crate::op::Op;
use crate::rope::RopeTable;

/// A register: f32 rows of one width, or routes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Reg(pub(crate) u32);

impl Reg {
    /// Index into [`Program::registers`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A resident weight, by its place in [`Program::weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Weight(pub(crate) u32);

impl Weight {
    /// Index into [`Program::weights`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Which rows of the batch a register holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowSet {
    /// Every row.
    All,
    /// The rows whose logits are wanted.
    Wanted,
}

/// Shape and storage of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Elements a row; for a route register, experts a row.
    pub width: usize,
    /// Which rows it holds.
    pub rows: RowSet,
    /// Whether it holds routes (ids and weights) instead of activations.
    pub route: bool,
    /// Index into [`Program::buffers`]: registers whose lives do not overlap may share one.
    pub buffer: usize,
    /// Index of the last op that reads it; the program's result lives to the end.
    pub last_use: usize,
}

/// Memory that registers of disjoint lives share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Elements a row.
    pub width: usize,
    /// Whether it holds routes.
    pub route: bool,
}

/// A resident weight's name and the shape it must have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WeightSpec {
    /// Canonical tensor name.
    pub name: String,
    /// Expected shape.
    pub shape: Vec<usize>,
}

/// The routed experts of one layer; their weights come from an [`crate::ExpertSource`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpertLayer {
    /// Model layer, for messages and traces.
    pub layer: usize,
    /// Number of experts.
    pub experts: usize,
    /// Experts a row uses.
    pub k: usize,
    /// Width of input and output.
    pub hidden: usize,
    /// Width between.
    pub intermediate: usize,
    /// Canonical name of the [experts, intermediate, hidden] stack.
    pub gate: String,
    /// Canonical name of the [experts, intermediate, hidden] stack.
    pub up: String,
    /// Canonical name of the [experts, hidden, intermediate] stack.
    pub down: String,
}

/// A key-value cache: one for each layer that computes keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLayer {
    /// Model layer that appends to it.
    pub layer: usize,
    /// Key elements a position.
    pub key_width: usize,
    /// Value elements a position.
    pub value_width: usize,
    /// Positions that later ones can see, none for all.
    pub window: Option<usize>,
}

/// A run of ops that needs nothing from outside once begun.
///
/// A new segment starts at every [`Op::Experts`], whose weights may have to be waited for, and where the rows
/// change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Indices into [`Program::ops`].
    pub ops: Range<usize>,
    /// The rows its ops work on.
    pub rows: RowSet,
}

/// A model: ops over registers, and everything they refer to. Made by [`crate::Builder`], which checks it.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    pub(crate) ops: Vec<Op>,
    pub(crate) registers: Vec<Register>,
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) weights: Vec<WeightSpec>,
    pub(crate) expert_layers: Vec<ExpertLayer>,
    pub(crate) kv_layers: Vec<KvLayer>,
    pub(crate) ropes: Vec<RopeTable>,
    pub(crate) logits: Reg,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) max_positions: usize,
}

impl Program {
    /// The ops in order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }
    /// All registers.
    pub fn registers(&self) -> &[Register] {
        &self.registers
    }
    /// One register.
    pub fn register(&self, reg: Reg) -> &Register {
        &self.registers[reg.index()]
    }
    /// The memory registers share.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }
    /// The runs of ops between waits.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
    /// Resident weights.
    pub fn weights(&self) -> &[WeightSpec] {
        &self.weights
    }
    /// Layers with routed experts.
    pub fn expert_layers(&self) -> &[ExpertLayer] {
        &self.expert_layers
    }
    /// Key-value caches.
    pub fn kv_layers(&self) -> &[KvLayer] {
        &self.kv_layers
    }
    /// Rotary tables.
    pub fn ropes(&self) -> &[RopeTable] {
        &self.ropes
    }
    /// The result: [wanted rows, vocabulary].
    pub fn logits(&self) -> Reg {
        self.logits
    }
    /// Number of logits a row; token ids are below it.
    pub fn vocabulary(&self) -> usize {
        self.register(self.logits).width
    }
    /// Width of the residual stream.
    pub fn hidden(&self) -> usize {
        self.hidden
    }
    /// Number of layers.
    pub fn layers(&self) -> usize {
        self.layers
    }
    /// Positions the model was made for.
    pub fn max_positions(&self) -> usize {
        self.max_positions
    }
    /// Width of the register that a tap reads, if the program has that tap.
    pub fn tap_width(&self, tap: crate::Tap) -> Option<usize> {
        self.ops.iter().find_map(|op| match op {
            Op::Tap { x, tap: t } if *t == tap => Some(self.register(*x).width),
            _ => None,
        })
    }
    /// Bytes of one KV page of `layer` with elements of `element` bytes.
    pub fn page_elements(&self, layer: usize) -> usize {
        let kv = &self.kv_layers[layer];
        (kv.key_width + kv.value_width) * crate::PAGE_POSITIONS
    }
}
