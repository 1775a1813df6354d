//! Packing: a matrix of a file becomes panels.

use std::ops::Range;

use turbospark_formats::{Float, Format, MatrixRef};

use super::codes;
use super::kind::{BLOCK, Head, LANES, PanelKind, Shape};
use super::layout::PanelLayout;
use super::sources::{self, Row, Source};
use super::super_blocks;
use crate::isa::{Isa, Level};

/// Packs panels of `matrix` into `out`, the bytes of just those panels. Ranges may be packed by several threads.
///
/// The layout must be one that [`PanelLayout::of`] or [`PanelLayout::of_full`] gives for the matrix.
pub fn pack_panels(
    isa: Isa,
    matrix: &MatrixRef<'_>,
    layout: &PanelLayout,
    panels: Range<usize>,
    out: &mut [u8],
) {
    assert_eq!((matrix.rows(), matrix.columns()), (layout.rows(), layout.columns()));
    assert!(panels.start <= panels.end && panels.end <= layout.panels());
    assert_eq!(out.len(), panels.len() * layout.panel_bytes());
    if out.is_empty() {
        return;
    }
    let job = Job { matrix, layout, first: panels.start, out };
    let format = matrix.layout().format;
    match (layout.kind(), format) {
        (PanelKind::Dense(to), Format::Float(from)) if to == from => floats(job),
        (PanelKind::Dense(Float::F32), _) => dequantized(job),
        (kind, format) => {
            assert_eq!(kind, PanelKind::of(format), "the panels are of another format than the matrix");
            blocks(isa, job, format);
        }
    }
}

struct Job<'a> {
    matrix: &'a MatrixRef<'a>,
    layout: &'a PanelLayout,
    first: usize,
    out: &'a mut [u8],
}

impl Job<'_> {
    /// The matrix rows of the `index`-th panel of the job.
    fn rows(&self, index: usize) -> Range<usize> {
        let start = (self.first + index) * LANES;
        start..self.matrix.rows().min(start + LANES)
    }
}

fn blocks(isa: Isa, job: Job<'_>, format: Format) {
    match format {
        Format::MXFP4 => run(isa, job, sources::Mxfp4),
        Format::Mxfp4Split => run(isa, job, sources::Mxfp4Split),
        Format::Q4_0 | Format::IQ4_NL => run(isa, job, sources::Q4_0),
        Format::Q4_1 => run(isa, job, sources::Q4_1),
        Format::Q5_0 => run(isa, job, sources::Q5_0),
        Format::Q5_1 => run(isa, job, sources::Q5_1),
        Format::Q8_0 => run(isa, job, sources::Q8_0),
        Format::Q2_K => run(isa, job, super_blocks::Q2K),
        Format::Q3_K => run(isa, job, super_blocks::Q3K),
        Format::Q4_K => run(isa, job, super_blocks::Q4K),
        Format::Q5_K => run(isa, job, super_blocks::Q5K),
        Format::Q6_K => run(isa, job, super_blocks::Q6K),
        Format::IQ4_XS => run(isa, job, super_blocks::Iq4Xs),
        Format::MlxAffine { bits, scales, .. } => match bits {
            2 => run(isa, job, sources::Affine::<2> { scales }),
            3 => run(isa, job, sources::Affine::<3> { scales }),
            4 => run(isa, job, sources::Affine::<4> { scales }),
            5 => run(isa, job, sources::Affine::<5> { scales }),
            6 => run(isa, job, sources::Affine::<6> { scales }),
            8 => run(isa, job, sources::Affine::<8> { scales }),
            bits => unreachable!("{bits} bits are refused when a file is opened"),
        },
        Format::Float(_) => unreachable!("floats are packed as they are"),
    }
}

/// Packing is plain code; it only runs faster when it is compiled for wider vectors.
fn run<S: Source>(isa: Isa, job: Job<'_>, source: S) {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => {
            #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512dq")]
            fn wide<S: Source>(job: Job<'_>, source: S) {
                pack(job, source);
            }
            // SAFETY: the machine has AVX-512, or there would be no such `Isa`.
            unsafe { wide(job, source) }
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => {
            #[target_feature(enable = "avx2,fma,f16c")]
            fn wide<S: Source>(job: Job<'_>, source: S) {
                pack(job, source);
            }
            // SAFETY: the machine has AVX2, or there would be no such `Isa`.
            unsafe { wide(job, source) }
        }
        _ => pack(job, source),
    }
}

#[inline(always)]
fn pack<S: Source>(mut job: Job<'_>, source: S) {
    let shape = job.layout.kind().shape().expect("blocks have a shape");
    let parts = job.matrix.layout().format.parts();
    let out = std::mem::take(&mut job.out);
    for (index, panel) in out.chunks_exact_mut(job.layout.panel_bytes()).enumerate() {
        let mut rows: [Row<'_>; LANES] = [[&[]; _]; LANES];
        let range = job.rows(index);
        let count = range.len();
        for (row, parts_of) in range.zip(&mut rows) {
            for (part, bytes) in parts_of[..parts].iter_mut().enumerate() {
                *bytes = job.matrix.row_bytes(part, row);
            }
        }
        for (group, bytes) in panel.chunks_exact_mut(shape.group_bytes()).enumerate() {
            pack_group(shape, source, &rows[..count], group, bytes);
        }
    }
}

#[inline(always)]
fn pack_group<S: Source>(shape: Shape, source: S, rows: &[Row<'_>], group: usize, out: &mut [u8]) {
    let (head, blocks) = out.split_at_mut(shape.head.bytes());
    // Rows beyond the matrix are zero: their scales are, or where those cannot be (E8M0), their codes.
    if rows.len() < LANES {
        head.fill(0);
    }
    for (lane, row) in rows.iter().enumerate() {
        let [scale, addend] = source.head(row, group).map(u32::to_le_bytes);
        let bytes = shape.head.bytes() / LANES;
        match shape.head {
            Head::E8m0 => head[lane] = scale[0],
            Head::Scale(_) => head[lane * bytes..(lane + 1) * bytes].copy_from_slice(&scale[..bytes]),
            Head::Pair(_) => {
                let (scales, addends) = head.split_at_mut(LANES * bytes / 2);
                let range = lane * bytes / 2..(lane + 1) * bytes / 2;
                scales[range.clone()].copy_from_slice(&scale[..bytes / 2]);
                addends[range].copy_from_slice(&addend[..bytes / 2]);
            }
        }
    }
    for (b, out) in blocks.chunks_exact_mut(shape.block_bytes()).enumerate() {
        let block = group * shape.blocks + b;
        let (factors, planes) = out.split_at_mut(shape.factors.bytes());
        let mut codes = [[0; BLOCK]; LANES];
        let mut pairs = [[0; 2]; LANES];
        for ((codes, pair), row) in codes.iter_mut().zip(&mut pairs).zip(rows) {
            source.codes(row, block, codes);
            *pair = source.factors(row, block);
        }
        for (i, factor) in factors.iter_mut().enumerate() {
            *factor = pairs[i % LANES][i / LANES];
        }
        match S::BITS {
            2 => codes::write::<2>(&codes, planes),
            3 => codes::write::<3>(&codes, planes),
            4 => codes::write::<4>(&codes, planes),
            5 => codes::write::<5>(&codes, planes),
            6 => codes::write::<6>(&codes, planes),
            _ => codes::write::<8>(&codes, planes),
        }
    }
}

/// Floats of any storage order, type unchanged.
fn floats(mut job: Job<'_>) {
    let layout = job.matrix.layout();
    let size = layout.format.block_bytes(0);
    let columns = layout.columns;
    let out = std::mem::take(&mut job.out);
    for (index, panel) in out.chunks_exact_mut(job.layout.panel_bytes()).enumerate() {
        let range = job.rows(index);
        if range.len() < LANES {
            panel.fill(0);
        }
        for (lane, row) in range.enumerate() {
            let (bytes, start, step) = if layout.transposed {
                (job.matrix.part(0), layout.row_map.stored(row) * size, layout.stored_rows * size)
            } else {
                (job.matrix.row_bytes(0, row), 0, size)
            };
            for k in 0..columns {
                let (to, from) = ((k * LANES + lane) * size, start + k * step);
                panel[to..to + size].copy_from_slice(&bytes[from..from + size]);
            }
        }
    }
}

/// Any format as the f32 values that it stands for.
fn dequantized(mut job: Job<'_>) {
    let columns = job.matrix.columns();
    let mut row_values = vec![0.0; columns];
    let out = std::mem::take(&mut job.out);
    for (index, panel) in out.chunks_exact_mut(job.layout.panel_bytes()).enumerate() {
        let range = job.rows(index);
        if range.len() < LANES {
            panel.fill(0);
        }
        let elements = panel.as_chunks_mut::<4>().0;
        for (lane, row) in range.enumerate() {
            job.matrix.dequantize_row(row, &mut row_values);
            for (k, value) in row_values.iter().enumerate() {
                elements[k * LANES + lane] = value.to_le_bytes();
            }
        }
    }
}
