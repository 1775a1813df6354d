//! Experts as panels: gate, up and down in one region.

use turbospark_formats::{MatrixLayout, MatrixRef};
use turbospark_program::{ExpertLayout, ExpertPacker, ExpertPart, ExpertRef, RowPacker};

use super::LANES;
use super::layout::{PANELS_ID, PanelLayout, PanelRef};
use super::pack::pack_panels;
use crate::isa::Isa;

/// Matrices begin at multiples of this within an expert's region.
const ALIGNMENT: usize = 64;

/// Packs the three matrices of an expert one after the other, each of its own format.
#[derive(Clone, Copy, Debug)]
pub struct PanelPacker {
    isa: Isa,
}

impl PanelPacker {
    /// A packer that runs on `isa`; the bytes are the same on any.
    pub fn new(isa: Isa) -> PanelPacker {
        PanelPacker { isa }
    }
}

/// Where the matrices of a packed expert lie.
struct Region {
    layouts: [PanelLayout; 3],
    starts: [usize; 3],
    bytes: usize,
}

impl Region {
    fn of(matrices: [&MatrixLayout; 3]) -> Option<Region> {
        let mut bytes = 0usize;
        let mut starts = [0; 3];
        let [gate, up, down] = matrices.map(PanelLayout::of);
        let layouts = [gate?, up?, down?];
        for (start, layout) in starts.iter_mut().zip(&layouts) {
            *start = bytes;
            bytes = bytes.checked_add(layout.bytes())?.checked_next_multiple_of(ALIGNMENT)?;
        }
        Some(Region { layouts, starts, bytes })
    }
}

impl ExpertPacker for PanelPacker {
    fn id(&self) -> &'static str {
        PANELS_ID
    }

    fn bytes(&self, raw: &ExpertLayout) -> usize {
        Region::of([&raw.gate.layout, &raw.up.layout, &raw.down.layout])
            .expect("expert matrices are whole blocks and fit in memory")
            .bytes
    }

    fn pack(&self, raw: &ExpertRef<'_>, out: &mut [u8]) {
        let matrices = [&raw.gate, &raw.up, &raw.down];
        let region = Region::of(matrices.map(|matrix| matrix.layout()))
            .expect("expert matrices are whole blocks and fit in memory");
        assert_eq!(out.len(), region.bytes);
        for ((matrix, layout), start) in matrices.iter().zip(&region.layouts).zip(region.starts) {
            let end = start + layout.bytes();
            pack_panels(self.isa, matrix, layout, 0..layout.panels(), &mut out[start..end]);
            let padding = end.next_multiple_of(ALIGNMENT);
            out[end..padding].fill(0);
        }
    }

    fn by_rows(&self) -> Option<&dyn RowPacker> {
        Some(self)
    }
}

impl RowPacker for PanelPacker {
    fn grain(&self) -> usize {
        LANES
    }

    fn pack_rows(
        &self,
        raw: &ExpertLayout,
        part: ExpertPart,
        first: usize,
        rows: &MatrixRef<'_>,
        out: &mut [u8],
    ) {
        let region = Region::of([&raw.gate.layout, &raw.up.layout, &raw.down.layout])
            .expect("expert matrices are whole blocks and fit in memory");
        let (whole, start) = (region.layouts[part as usize], region.starts[part as usize]);
        let layout = PanelLayout::of(rows.layout()).expect("rows of such a matrix are whole blocks");
        assert!(first.is_multiple_of(LANES) && first + rows.rows() <= whole.rows());
        let from = start + first / LANES * whole.panel_bytes();
        let to = from + layout.bytes();
        pack_panels(self.isa, rows, &layout, 0..layout.panels(), &mut out[from..to]);
        if first + rows.rows() == whole.rows() {
            out[to..to.next_multiple_of(ALIGNMENT)].fill(0);
        }
    }
}

/// The matrices of an expert that [`PanelPacker`] packed.
#[derive(Clone, Copy, Debug)]
pub struct ExpertPanels<'a> {
    /// [intermediate, hidden]
    pub gate: PanelRef<'a>,
    /// [intermediate, hidden]
    pub up: PanelRef<'a>,
    /// [hidden, intermediate]
    pub down: PanelRef<'a>,
}

impl<'a> ExpertPanels<'a> {
    /// Finds the matrices in the region of an expert of this raw layout; none if the region has another size.
    pub fn new(raw: &ExpertLayout, region: &'a [u8]) -> Option<ExpertPanels<'a>> {
        let Region { layouts, starts, bytes } =
            Region::of([&raw.gate.layout, &raw.up.layout, &raw.down.layout])?;
        if region.len() != bytes {
            return None;
        }
        let view = |i: usize| PanelRef::new(layouts[i], &region[starts[i]..starts[i] + layouts[i].bytes()]);
        Some(ExpertPanels { gate: view(0)?, up: view(1)?, down: view(2)? })
    }
}

#[cfg(test)]
mod tests {
    use turbospark_formats::{Float, Format, RowMap};
    use turbospark_program::ExpertMatrix;

    use super::*;
    use crate::panels::PackedMatrix;
    use crate::testing::{Flavour, OwnedMatrix, Random};

    #[test]
    fn a_region_holds_the_panels_of_each_matrix() {
        let mut random = Random::new(7);
        let half = |start| {
            let mut layout = MatrixLayout::plain(Format::MXFP4, 40, 256);
            (layout.stored_rows, layout.row_map) = (80, RowMap::Strided { start, step: 2 });
            layout
        };
        let layouts = [half(0), half(1), MatrixLayout::plain(Format::Float(Float::BF16), 256, 40)];
        let matrices = layouts.map(|layout| OwnedMatrix::random(layout, Flavour::Usual, &mut random));
        let [gate, up, down] = layouts.map(|layout| ExpertMatrix { layout, slices: vec![0] });
        let raw = ExpertLayout { gate, up, down, slice_bytes: vec![] };
        let packer = PanelPacker::new(Isa::detect());
        let mut region = vec![0xa5; packer.bytes(&raw)];
        let [gate, up, down] = &matrices;
        packer.pack(&ExpertRef { gate: gate.view(), up: up.view(), down: down.view() }, &mut region);
        assert!(ExpertPanels::new(&raw, &region[1..]).is_none());
        let view = ExpertPanels::new(&raw, &region).unwrap();
        for (found, matrix) in [view.gate, view.up, view.down].iter().zip(&matrices) {
            let layout = PanelLayout::of(&matrix.layout).unwrap();
            let expected = PackedMatrix::pack(Isa::SCALAR, layout, &matrix.view()).unwrap();
            assert_eq!(*found.layout(), layout);
            assert_eq!(found.bytes(), expected.panels().bytes());
        }
        // The same bytes in pieces.
        let mut pieces = vec![0xa5; region.len()];
        for (part, matrix) in [ExpertPart::Gate, ExpertPart::Up, ExpertPart::Down].into_iter().zip(&matrices)
        {
            for first in (0..matrix.layout.rows).step_by(2 * LANES) {
                let rows = first..(first + 2 * LANES).min(matrix.layout.rows);
                let layout = MatrixLayout::plain(matrix.layout.format, rows.len(), matrix.layout.columns);
                let bytes: Vec<u8> = rows.flat_map(|row| matrix.view().row_bytes(0, row).to_vec()).collect();
                packer.pack_rows(
                    &raw,
                    part,
                    first,
                    &MatrixRef::new(&layout, &[&bytes]).unwrap(),
                    &mut pieces,
                );
            }
        }
        assert!(pieces == region);
    }
}
