//! Packing: a matrix of a file becomes panels.

use std::ops::Range;

use turbospark_formats::{Float, Format, MatrixRef};

use super::codes::{self, QUADS};
use super::kind::{BLOCK, Head, LANES, PanelKind, Shape};
use super::layout::PanelLayout;
use super::sources::{self, Row, Source};
use super::super_blocks;
use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;

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

/// Packing is plain code; it only runs faster when it is compiled for wider vectors. (For AVX-512 the compiler
/// would choose scatters, which are slower than what it does for AVX2.)
fn run<S: Source>(isa: Isa, job: Job<'_>, source: S) {
    #[cfg(target_arch = "x86_64")]
    if matches!(isa.level(), Level::Avx2 | Level::Avx512) {
        #[target_feature(enable = "avx2,bmi2")]
        fn wide<S: Source>(job: Job<'_>, source: S) {
            pack(job, source);
        }
        // SAFETY: the machine has AVX2, and what has that has BMI2, or there would be no such `Isa`.
        return unsafe { wide(job, source) };
    }
    let _ = isa;
    pack(job, source);
}

#[inline(always)]
fn pack<S: Source>(mut job: Job<'_>, source: S) {
    let shape = job.layout.kind().shape().expect("blocks have a shape");
    let parts = job.matrix.layout().format.parts();
    let blocks = job.layout.columns() / BLOCK;
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
        let first_blocks = (0..blocks).step_by(shape.unit);
        for (first, unit) in first_blocks.zip(panel.chunks_mut(shape.unit_bytes())) {
            pack_unit(shape, source, &rows[..count], first..blocks.min(first + shape.unit), unit);
        }
    }
}

#[inline(always)]
fn pack_unit<S: Source>(shape: Shape, source: S, rows: &[Row<'_>], blocks: Range<usize>, out: &mut [u8]) {
    let (heads, out) = out.split_at_mut(shape.factors_start());
    let (factors, planes) = out.split_at_mut(shape.codes_start() - shape.factors_start());
    // Rows beyond the matrix are zero: their scales are, or where those cannot be (E8M0), their codes.
    if blocks.len() < shape.unit {
        heads.fill(0);
    }
    let groups = blocks.start / shape.head_blocks..blocks.end / shape.head_blocks;
    for (group, out) in groups.zip(heads.chunks_exact_mut(shape.head.bytes())) {
        let mut head = [[0; LANES]; 2];
        for (lane, row) in rows.iter().enumerate() {
            let [scale, addend] = source.head(row, group);
            (head[0][lane], head[1][lane]) = (scale, addend);
        }
        write_head(shape.head, &head, out);
    }
    let mut codes = [[0; BLOCK]; LANES];
    for (i, block) in blocks.enumerate() {
        let size = shape.factors.bytes();
        if size > 0 {
            let mut pairs = [[0; LANES]; 2];
            for (lane, row) in rows.iter().enumerate() {
                let [first, second] = source.factors(row, block);
                (pairs[0][lane], pairs[1][lane]) = (first, second);
            }
            factors[i * size..(i + 1) * size].copy_from_slice(&pairs.as_flattened()[..size]);
        }
        let size = S::BITS * LANES * BLOCK / 8;
        let planes = &mut planes[i * size..(i + 1) * size];
        if S::BITS == 4 {
            let mut pairs = [[0; LANES]; QUADS / 2];
            for (lane, row) in rows.iter().enumerate() {
                for (pairs, pair) in pairs.iter_mut().zip(source.quad_pairs(row, block)) {
                    pairs[lane] = pair;
                }
            }
            for (out, pair) in planes.as_chunks_mut::<4>().0.iter_mut().zip(pairs.as_flattened()) {
                *out = pair.to_le_bytes();
            }
            continue;
        }
        for (codes, row) in codes.iter_mut().zip(rows) {
            source.codes(row, block, codes);
        }
        match S::BITS {
            2 => codes::write::<2>(&codes, planes),
            3 => codes::write::<3>(&codes, planes),
            5 => codes::write::<5>(&codes, planes),
            6 => codes::write::<6>(&codes, planes),
            _ => codes::write::<8>(&codes, planes),
        }
    }
}

#[inline(always)]
fn write_head(head: Head, values: &[[u32; LANES]; 2], out: &mut [u8]) {
    let values = values.as_flattened();
    match head {
        Head::E8m0 => out.iter_mut().zip(values).for_each(|(out, value)| *out = *value as u8),
        Head::Scale(Float::F32) => {
            // Only files' halves are widened.
            for (out, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                *out = half::f16::from_bits(*value as u16).to_f32().to_le_bytes();
            }
        }
        Head::Pair(Float::F32) => {
            for (out, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                *out = value.to_le_bytes();
            }
        }
        Head::Scale(_) | Head::Pair(_) => {
            for (out, value) in out.as_chunks_mut::<2>().0.iter_mut().zip(values) {
                *out = (*value as u16).to_le_bytes();
            }
        }
    }
}

/// Floats of any storage order, type unchanged.
fn floats(job: Job<'_>) {
    match job.matrix.layout().format.block_bytes(0) {
        2 => floats_of::<2>(job),
        _ => floats_of::<4>(job),
    }
}

fn floats_of<const SIZE: usize>(mut job: Job<'_>) {
    let layout = job.matrix.layout();
    let out = std::mem::take(&mut job.out);
    for (index, panel) in out.chunks_exact_mut(job.layout.panel_bytes()).enumerate() {
        let range = job.rows(index);
        let panel = panel.as_chunks_mut::<SIZE>().0;
        if range.len() < LANES {
            panel.fill([0; SIZE]);
        }
        if layout.transposed {
            let lines = job.matrix.part(0).as_chunks::<SIZE>().0.chunks_exact(layout.stored_rows);
            for (out, line) in panel.chunks_exact_mut(LANES).zip(lines) {
                for (out, row) in out.iter_mut().zip(range.clone()) {
                    *out = line[layout.row_map.stored(row)];
                }
            }
            continue;
        }
        let mut rows: [&[[u8; SIZE]]; LANES] = [&[]; LANES];
        for (lane, row) in range.clone().enumerate() {
            rows[lane] = &job.matrix.row_bytes(0, row).as_chunks().0[..layout.columns];
        }
        for (k, out) in panel.chunks_exact_mut(LANES).enumerate() {
            for (out, row) in out.iter_mut().zip(&rows[..range.len()]) {
                *out = row[k];
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
