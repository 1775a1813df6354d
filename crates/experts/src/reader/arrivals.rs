//! Packing an expert while the rest of it is being read.

use std::marker::PhantomData;
use std::ops::Range;

use turbospark_formats::{MatrixLayout, MatrixRef, RowMap};
use turbospark_program::{ExpertLayout, ExpertMatrix, ExpertPart, RowPacker};

/// What has come of an expert's slices, from the start of each.
pub(super) struct Arrived<'a> {
    memory: *mut u8,
    /// Where each slice lies in the memory, and how much of it is there.
    slices: Vec<(Range<usize>, usize)>,
    _memory: PhantomData<&'a [u8]>,
}

impl<'a> Arrived<'a> {
    /// Nothing yet, of slices that come to lie at `slices` of `memory`.
    ///
    /// # Safety
    /// `memory` is valid for `'a` up to the end of every slice, and nothing writes to bytes of a slice once
    /// [`Arrived::come`] was told of them.
    pub unsafe fn new(memory: *mut u8, slices: &[Range<usize>]) -> Arrived<'a> {
        let slices = slices.iter().map(|slice| (slice.clone(), 0)).collect();
        Arrived { memory, slices, _memory: PhantomData }
    }

    /// So many bytes from the start of a slice are there.
    pub fn come(&mut self, slice: usize, bytes: usize) {
        let (range, there) = &mut self.slices[slice];
        *there = bytes.min(range.len()).max(*there);
    }

    fn bytes(&self, slice: usize, range: Range<usize>) -> &'a [u8] {
        let (lies, there) = &self.slices[slice];
        assert!(range.start <= range.end && range.end <= *there);
        // SAFETY: within what is there, by the assertion; the rest is the promise of `new`.
        unsafe { std::slice::from_raw_parts(self.memory.add(lies.start + range.start), range.len()) }
    }
}

/// Packs the rows of an expert as they become complete.
pub(super) struct RowsOf<'a> {
    layout: &'a ExpertLayout,
    packer: &'a dyn RowPacker,
    /// Rows of gate, up and down that are packed.
    packed: [usize; 3],
}

impl<'a> RowsOf<'a> {
    pub fn new(layout: &'a ExpertLayout, packer: &'a dyn RowPacker) -> RowsOf<'a> {
        RowsOf { layout, packer, packed: [0; 3] }
    }

    /// Packs the rows that have become complete into `out`; whether they fit their layout.
    pub fn pack(&mut self, arrived: &Arrived<'_>, out: &mut [u8]) -> bool {
        let parts = [
            (ExpertPart::Gate, &self.layout.gate),
            (ExpertPart::Up, &self.layout.up),
            (ExpertPart::Down, &self.layout.down),
        ];
        for (part, matrix) in parts {
            let packed = &mut self.packed[part as usize];
            let mut complete = complete_rows(matrix, arrived);
            if complete < matrix.layout.rows {
                complete -= complete % self.packer.grain().max(1);
            }
            if complete <= *packed {
                continue;
            }
            let (layout, stored) = rows(&matrix.layout, *packed..complete);
            let mut bytes = [&[][..]; turbospark_formats::MAX_PARTS];
            for (index, &slice) in matrix.slices.iter().enumerate() {
                let Some(row) = row_bytes(&matrix.layout, index) else { return false };
                bytes[index] = arrived.bytes(slice, stored.start * row..stored.end * row);
            }
            let Some(rows) = MatrixRef::new(&layout, &bytes[..matrix.slices.len()]) else { return false };
            self.packer.pack_rows(self.layout, part, *packed, &rows, out);
            *packed = complete;
        }
        true
    }

    /// Whether every row was packed.
    pub fn is_complete(&self) -> bool {
        let ExpertLayout { gate, up, down, .. } = self.layout;
        [gate, up, down].iter().zip(self.packed).all(|(matrix, packed)| matrix.layout.rows == packed)
    }
}

/// Bytes of a stored row in one part of the format.
fn row_bytes(layout: &MatrixLayout, part: usize) -> Option<usize> {
    layout.part_bytes(part)?.checked_div(layout.stored_rows)
}

/// Logical rows, from the first on, of which all bytes are there.
fn complete_rows(matrix: &ExpertMatrix, arrived: &Arrived<'_>) -> usize {
    let layout = &matrix.layout;
    let mut stored = layout.stored_rows;
    for (part, &slice) in matrix.slices.iter().enumerate() {
        let there = arrived.slices[slice].1;
        let row = row_bytes(layout, part).unwrap_or(0);
        stored = stored.min(there.checked_div(row).unwrap_or(layout.stored_rows));
    }
    match layout.row_map {
        _ if stored == layout.stored_rows => layout.rows,
        _ if layout.transposed => 0,
        RowMap::Identity => stored.min(layout.rows),
        RowMap::Strided { start, step } => {
            stored.saturating_sub(start).div_ceil(step.max(1)).min(layout.rows)
        }
        RowMap::PairedHeads { .. } => 0,
    }
}

/// The layout of some rows alone, and the stored rows that hold them.
fn rows(layout: &MatrixLayout, rows: Range<usize>) -> (MatrixLayout, Range<usize>) {
    // These come whole. Others may share what is stored with rows that are not there yet: fused halves do.
    if layout.transposed || matches!(layout.row_map, RowMap::PairedHeads { .. }) {
        return (*layout, 0..layout.stored_rows);
    }
    let stored = layout.row_map.stored(rows.start)..layout.row_map.stored(rows.end - 1) + 1;
    let row_map = match layout.row_map {
        RowMap::Strided { step, .. } => RowMap::Strided { start: 0, step },
        other => other,
    };
    (MatrixLayout { rows: rows.len(), stored_rows: stored.len(), row_map, ..*layout }, stored)
}

#[cfg(test)]
mod tests {
    use turbospark_formats::{Float, Format};

    use super::*;
    use crate::random::Random;

    /// Writes rows as f32, the three matrices one after the other.
    struct Widen;

    impl RowPacker for Widen {
        fn grain(&self) -> usize {
            4
        }

        fn pack_rows(
            &self,
            raw: &ExpertLayout,
            part: ExpertPart,
            first: usize,
            rows: &MatrixRef<'_>,
            out: &mut [u8],
        ) {
            let before =
                [&raw.gate, &raw.up, &raw.down].map(|matrix| matrix.layout.rows * matrix.layout.columns);
            let start: usize = before[..part as usize].iter().sum();
            assert!(first.is_multiple_of(4));
            for (i, value) in rows.to_f32().into_iter().enumerate() {
                let at = (start + first * rows.columns() + i) * 4;
                assert_eq!(out[at..at + 4], [0xff; 4], "written twice");
                out[at..at + 4].copy_from_slice(&value.to_le_bytes());
            }
        }
    }

    fn matrix(layout: MatrixLayout, slices: &[usize]) -> ExpertMatrix {
        ExpertMatrix { layout, slices: slices.to_vec() }
    }

    /// Layouts of every kind: slices of their own, fused and interleaved, fused halves, transposed, several parts.
    fn layouts() -> Vec<ExpertLayout> {
        let plain = |rows, columns| MatrixLayout::plain(Format::MXFP4, rows, columns);
        let fused = |start, step| MatrixLayout {
            stored_rows: 44,
            row_map: RowMap::Strided { start, step },
            ..plain(22, 64)
        };
        let transposed =
            MatrixLayout { transposed: true, ..MatrixLayout::plain(Format::Float(Float::BF16), 22, 64) };
        let affine =
            MatrixLayout::plain(Format::MlxAffine { bits: 4, group: 32, scales: Float::F16 }, 22, 64);
        let down = plain(64, 32);
        let bytes = |layout: &MatrixLayout, part| layout.part_bytes(part).unwrap();
        let expert = |gate: ExpertMatrix, up: ExpertMatrix, down: ExpertMatrix| {
            let count = [&gate, &up, &down].iter().flat_map(|m| m.slices.iter()).max().unwrap() + 1;
            let mut slice_bytes = vec![0; count];
            for matrix in [&gate, &up, &down] {
                for (part, &slice) in matrix.slices.iter().enumerate() {
                    slice_bytes[slice] = bytes(&matrix.layout, part);
                }
            }
            ExpertLayout { gate, up, down, slice_bytes }
        };
        vec![
            expert(matrix(plain(22, 64), &[0]), matrix(plain(22, 64), &[1]), matrix(down, &[2])),
            expert(matrix(fused(0, 2), &[0]), matrix(fused(1, 2), &[0]), matrix(down, &[1])),
            expert(matrix(fused(0, 1), &[1]), matrix(fused(22, 1), &[1]), matrix(down, &[0])),
            expert(matrix(transposed, &[0]), matrix(transposed, &[1]), matrix(down, &[2])),
            expert(matrix(affine, &[0, 1, 2]), matrix(affine, &[3, 4, 5]), matrix(down, &[6])),
        ]
    }

    #[test]
    fn rows_are_packed_once_and_as_they_are_in_whatever_pieces_they_come() {
        let mut random = Random::new(3);
        for layout in layouts() {
            let mut ranges = Vec::new();
            let mut memory = Vec::new();
            for &bytes in &layout.slice_bytes {
                ranges.push(memory.len()..memory.len() + bytes);
                // No exponent of all ones, so that every value is a number.
                memory.extend((0..bytes).map(|_| random.below(128) as u8));
            }
            let slices: Vec<&[u8]> = ranges.iter().map(|range| &memory[range.clone()]).collect();
            let whole = layout.matrices(&slices).unwrap();
            let values = [whole.gate.to_f32(), whole.up.to_f32(), whole.down.to_f32()].concat();
            let expected: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            for most in [1, 40, 700, 1500, 1 << 20] {
                let mut out = vec![0xff; expected.len()];
                let mut rows = RowsOf::new(&layout, &Widen);
                // SAFETY: the memory is only read from here on, and outlives `arrived`.
                let mut arrived = unsafe { Arrived::new(memory.as_ptr().cast_mut(), &ranges) };
                for (slice, range) in ranges.iter().enumerate() {
                    let mut there = 0;
                    while there < range.len() {
                        assert!(!rows.is_complete());
                        there += 1 + random.below(most);
                        arrived.come(slice, there);
                        assert!(rows.pack(&arrived, &mut out));
                    }
                }
                assert!(rows.is_complete());
                assert!(out == expected, "{layout:?} in pieces of {most}");
            }
        }
    }
}
