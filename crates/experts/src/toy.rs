//! Small made-up experts for tests.

use std::path::Path;
use std::sync::Arc;

use turbospark_formats::{ByteSlice, Float, Format, MatrixLayout, RowMap, Source};
use turbospark_program::{ExpertLayout, ExpertMatrix, ExpertPacker, ExpertRef, Lease};

use crate::table::{ExpertTable, LayerTable};

/// Sizes of a made-up model. Layer i has an intermediate width of `intermediate[i]`.
pub(crate) struct Toy {
    pub experts: usize,
    pub hidden: usize,
    pub intermediate: Vec<usize>,
    /// Whether gate and up are the halves of one matrix.
    pub fused: bool,
    /// Bytes before the first tensor, so that slices are not aligned.
    pub lead: usize,
}

impl Toy {
    pub fn new(layers: usize, experts: usize) -> Toy {
        Toy { experts, hidden: 8, intermediate: vec![12; layers], fused: false, lead: 40 }
    }

    /// The bytes of the file: a hash of its position in every byte.
    pub fn bytes(&self) -> Vec<u8> {
        (0..self.end()).map(byte_at).collect()
    }

    pub fn in_memory(&self) -> ExpertTable {
        self.table(&Source::owned("toy", self.bytes()))
    }

    pub fn on_disk(&self, path: &Path) -> ExpertTable {
        std::fs::write(path, self.bytes()).unwrap();
        self.table(&Source::open(path).unwrap())
    }

    fn end(&self) -> usize {
        let elements: usize = self.intermediate.iter().map(|i| i * self.hidden * 3 * self.experts).sum();
        self.lead + elements * 4
    }

    fn table(&self, source: &Arc<Source>) -> ExpertTable {
        let mut at = self.lead;
        let mut stack = |bytes: usize| {
            let start = at;
            at += bytes * self.experts;
            let slice = move |e: usize| start + e * bytes..start + (e + 1) * bytes;
            (0..self.experts).map(|e| ByteSlice::new(source, slice(e)).unwrap()).collect::<Vec<_>>()
        };
        let f32s = Format::Float(Float::F32);
        let layer = |(index, &intermediate): (usize, &usize)| {
            let plain = MatrixLayout::plain(f32s, intermediate, self.hidden);
            let one = intermediate * self.hidden * 4;
            let down = MatrixLayout::plain(f32s, self.hidden, intermediate);
            let (gate, up, bytes) = if self.fused {
                let half = |which| MatrixLayout {
                    stored_rows: 2 * intermediate,
                    row_map: RowMap::Strided { start: which * intermediate, step: 1 },
                    ..plain
                };
                ((half(0), vec![0]), (half(1), vec![0]), vec![2 * one, one])
            } else {
                ((plain, vec![0]), (plain, vec![1]), vec![one, one, one])
            };
            let columns: Vec<_> = bytes.iter().map(|&bytes| stack(bytes)).collect();
            let slices = (0..self.experts).flat_map(|e| columns.iter().map(move |c| c[e].clone())).collect();
            let matrix = |(layout, slices)| ExpertMatrix { layout, slices };
            let last = bytes.len() - 1;
            let layout = ExpertLayout {
                gate: matrix(gate),
                up: matrix(up),
                down: matrix((down, vec![last])),
                slice_bytes: bytes,
            };
            LayerTable::new(index, layout, slices).unwrap()
        };
        ExpertTable::new(self.intermediate.iter().enumerate().map(layer).collect())
    }
}

pub(crate) fn byte_at(position: usize) -> u8 {
    (position as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_be_bytes()[1]
}

/// Whether a lease has the bytes that the table says its expert has.
pub(crate) fn is_right(table: &ExpertTable, layer: usize, lease: &Lease) -> bool {
    let slices = table.layers()[layer].slices(lease.expert as usize);
    slices.iter().enumerate().all(|(i, slice)| lease.slice(i) == &slice[..])
}

/// A packer that joins the three matrices and ends with a mark.
pub(crate) struct Join;

impl Join {
    pub fn expected(table: &ExpertTable, layer: usize, expert: u32) -> Vec<u8> {
        let layer = &table.layers()[layer];
        let slices: Vec<&[u8]> = layer.slices(expert as usize).iter().map(|s| &s[..]).collect();
        let mut out = vec![0; Join.bytes(layer.layout())];
        Join.pack(&layer.layout().matrices(&slices).unwrap(), &mut out);
        out
    }
}

impl ExpertPacker for Join {
    fn id(&self) -> &'static str {
        "join"
    }

    fn bytes(&self, raw: &ExpertLayout) -> usize {
        raw.bytes() + 1
    }

    fn pack(&self, raw: &ExpertRef<'_>, out: &mut [u8]) {
        let parts = [raw.down.part(0), raw.gate.part(0), raw.up.part(0)];
        let mut at = 0;
        for part in parts {
            // Halves of a fused matrix are the same part twice: it fits once.
            if at + part.len() < out.len() {
                out[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
        }
        out[at] = 0xA5;
    }
}
