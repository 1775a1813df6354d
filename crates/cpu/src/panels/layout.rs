//! Panels as memory: layouts, borrowed and owned matrices.

use std::ops::Range;

use turbospark_formats::{MatrixLayout, MatrixRef};

use super::kind::{LANES, PanelKind};
use super::memory::Buffer;
use super::pack::pack_panels;
use crate::isa::Isa;

/// Name and version of the byte layout of panels. A store that keeps panels records it, and refuses others.
pub const PANELS_ID: &str = "panels-1";

/// A matrix of [rows, columns] as panels of 16 rows, the last one padded with zero rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PanelLayout {
    kind: PanelKind,
    rows: usize,
    columns: usize,
    panel_bytes: usize,
}

impl PanelLayout {
    /// None if `columns` is not a multiple of the kind's unit or the bytes cannot be counted.
    pub fn new(kind: PanelKind, rows: usize, columns: usize) -> Option<PanelLayout> {
        let panel_bytes = kind.panel_bytes(columns)?;
        rows.div_ceil(LANES).checked_mul(panel_bytes)?;
        Some(PanelLayout { kind, rows, columns, panel_bytes })
    }

    /// The panels of a matrix for linears that may quantise their input.
    pub fn of(matrix: &MatrixLayout) -> Option<PanelLayout> {
        PanelLayout::new(PanelKind::of(matrix.format), matrix.rows, matrix.columns)
    }

    /// The panels of a matrix for linears whose input stays f32.
    pub fn of_full(matrix: &MatrixLayout) -> Option<PanelLayout> {
        PanelLayout::new(PanelKind::of_full(matrix.format), matrix.rows, matrix.columns)
    }

    /// How numbers are stored.
    pub fn kind(&self) -> PanelKind {
        self.kind
    }

    /// Rows of the matrix: outputs of a linear.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Columns of the matrix: inputs of a linear.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Number of panels.
    pub fn panels(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Bytes of one panel.
    pub fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// Bytes of all panels.
    pub fn bytes(&self) -> usize {
        self.panels() * self.panel_bytes
    }

    /// The matrix rows of a range of panels.
    pub fn outputs(&self, panels: Range<usize>) -> Range<usize> {
        (panels.start * LANES).min(self.rows)..(panels.end * LANES).min(self.rows)
    }

    /// The range that worker `index` of `count` should take: contiguous runs of almost equal length, and
    /// of at least 16 panels where there is more than one.
    pub fn share(&self, index: usize, count: usize) -> Range<usize> {
        let panels = self.panels();
        let count = count.min(panels / 16).max(1);
        let cut = |i: usize| panels * i.min(count) / count;
        cut(index)..cut(index + 1)
    }
}

/// Panels in borrowed memory.
#[derive(Clone, Copy, Debug)]
pub struct PanelRef<'a> {
    layout: PanelLayout,
    bytes: &'a [u8],
}

impl<'a> PanelRef<'a> {
    /// None if the bytes are not as many as the layout asks for.
    pub fn new(layout: PanelLayout, bytes: &'a [u8]) -> Option<PanelRef<'a>> {
        (bytes.len() == layout.bytes()).then_some(PanelRef { layout, bytes })
    }

    /// The layout.
    pub fn layout(&self) -> &PanelLayout {
        &self.layout
    }

    /// All panels.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes of some panels.
    pub fn panels(&self, range: Range<usize>) -> &'a [u8] {
        &self.bytes[range.start * self.layout.panel_bytes..range.end * self.layout.panel_bytes]
    }
}

/// A matrix packed into memory of its own.
#[derive(Debug)]
pub struct PackedMatrix {
    layout: PanelLayout,
    memory: Buffer,
}

impl PackedMatrix {
    /// A matrix of zeros, to be filled through [`PackedMatrix::bytes_mut`] and [`pack_panels`].
    pub fn zeroed(layout: PanelLayout) -> std::io::Result<PackedMatrix> {
        Ok(PackedMatrix { layout, memory: Buffer::zeroed(layout.bytes())? })
    }

    /// Packs a whole matrix in one thread.
    pub fn pack(isa: Isa, layout: PanelLayout, matrix: &MatrixRef<'_>) -> std::io::Result<PackedMatrix> {
        let mut packed = PackedMatrix::zeroed(layout)?;
        pack_panels(isa, matrix, &layout, 0..layout.panels(), packed.bytes_mut());
        Ok(packed)
    }

    /// The layout.
    pub fn layout(&self) -> &PanelLayout {
        &self.layout
    }

    /// All panels, one after the other; `chunks_mut` of whole panels may go to several threads.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut_slice()
    }

    /// The panels.
    pub fn panels(&self) -> PanelRef<'_> {
        PanelRef { layout: self.layout, bytes: self.memory.as_slice() }
    }
}
