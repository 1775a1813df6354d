//! Resident weights: matrices as panels, vectors as f32, tables of rows where they are.

use std::collections::HashMap;

use turbospark_formats::{ByteSlice, Checkpoint, RowMap, Tensor};
use turbospark_program::{Op, Precision, Program, StepError, Weight, Weights};

use crate::error::OpenError;
use crate::isa::Isa;
use crate::panels::{PackedMatrix, PanelKind, PanelLayout, pack_panels};
use crate::pool::Pool;
use crate::registers::Shared;
use crate::uses;

/// Bytes that are packed before the mapped pages they came from are let go.
const PIECE: usize = 32 << 20;
/// Panels that a thread packs at a time.
const GRAIN: usize = 4;

/// The weights of a program.
pub(crate) struct Loaded {
    tensors: Weights,
    matrices: Vec<PackedMatrix>,
    /// For each op that is a linear, its matrix.
    matrix_of: Vec<Option<usize>>,
    vectors: Vec<Option<Vec<f32>>>,
    /// For each op that is a norm, its factors with the offset added.
    factors: Vec<Option<Vec<f32>>>,
    /// Tables of which rows are read where they lie in their files.
    tables: Vec<Weight>,
}

/// How weights are packed.
#[derive(Clone, Copy)]
pub(crate) struct Packing {
    pub isa: Isa,
    /// Whether what was read leaves the page cache.
    pub evict: bool,
}

/// A matrix that some linears read.
struct Wanted {
    weight: Weight,
    layout: PanelLayout,
}

/// The matrices of a program, each once for every way it is read, and which one each op reads.
fn matrices(program: &Program, tensors: &Weights) -> Result<(Vec<Wanted>, Vec<Option<usize>>), OpenError> {
    let mut known: HashMap<(Weight, Precision), usize> = HashMap::new();
    let mut wanted = Vec::new();
    let mut matrix_of = Vec::new();
    for op in program.ops() {
        let Op::Linear { weight, precision, .. } = *op else {
            matrix_of.push(None);
            continue;
        };
        if let Some(&index) = known.get(&(weight, precision)) {
            matrix_of.push(Some(index));
            continue;
        }
        let matrix = tensors.get(weight).layout();
        let kind = uses::panels(matrix.format, precision);
        let layout = PanelLayout::new(kind, matrix.rows, matrix.columns);
        let layout = layout.ok_or_else(|| OpenError::Columns {
            name: program.weights()[weight.index()].name.clone(),
            columns: matrix.columns,
            format: matrix.format,
        })?;
        known.insert((weight, precision), wanted.len());
        matrix_of.push(Some(wanted.len()));
        wanted.push(Wanted { weight, layout });
    }
    Ok((wanted, matrix_of))
}

/// Weights that are kept as f32 vectors.
fn vectors(program: &Program) -> impl Iterator<Item = Weight> {
    program.ops().iter().flat_map(uses::vectors)
}

/// Bytes that [`Loaded`] will take.
pub(crate) fn bytes(program: &Program, checkpoint: &Checkpoint) -> Result<usize, OpenError> {
    let tensors = Weights::bind(program, checkpoint)?;
    let (wanted, _) = matrices(program, &tensors)?;
    let panels: usize = wanted.iter().map(|wanted| wanted.layout.bytes()).sum();
    let size = |weight: Weight| program.weights()[weight.index()].shape.iter().product::<usize>() * 4;
    let norms = program.ops().iter().filter_map(|op| match op {
        Op::RmsNorm { weight, .. } => *weight,
        _ => None,
    });
    Ok(panels + vectors(program).chain(norms).map(size).sum::<usize>())
}

impl Loaded {
    /// Finds and packs the weights. `progress` is told the bytes of panels done.
    pub fn open(
        program: &Program,
        checkpoint: &Checkpoint,
        packing: Packing,
        pool: &mut Pool,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Loaded, OpenError> {
        let tensors = Weights::bind(program, checkpoint)?;
        let (wanted, matrix_of) = matrices(program, &tensors)?;
        let mut matrices = Vec::with_capacity(wanted.len());
        let mut done = 0;
        for Wanted { weight, layout } in wanted {
            let packed =
                pack(tensors.get(weight), layout, packing, pool).map_err(|error| OpenError::Memory {
                    name: program.weights()[weight.index()].name.clone(),
                    bytes: layout.bytes(),
                    error,
                })?;
            matrices.push(packed);
            done += layout.bytes();
            progress(done);
        }
        let mut widened: Vec<Option<Vec<f32>>> = program.weights().iter().map(|_| None).collect();
        for weight in vectors(program) {
            widened[weight.index()].get_or_insert_with(|| tensors.get(weight).to_f32());
        }
        let factors = program.ops().iter().map(|op| match op {
            Op::RmsNorm { weight: Some(weight), offset, .. } => {
                Some(tensors.get(*weight).to_f32().iter().map(|w| offset + w).collect())
            }
            _ => None,
        });
        let factors = factors.collect();
        let tables = program.ops().iter().filter_map(|op| match op {
            Op::Embed { table, .. } => Some(*table),
            _ => None,
        });
        let tables = tables.collect();
        let loaded = Loaded { matrices, matrix_of, vectors: widened, factors, tensors, tables };
        if packing.evict {
            loaded.tensors.iter().for_each(evict_file);
            for slice in loaded.tables() {
                slice.source().expect_random_reads(slice.offset()..slice.offset() + slice.len());
            }
        }
        Ok(loaded)
    }

    /// Bytes in memory.
    pub fn bytes(&self) -> usize {
        let panels: usize = self.matrices.iter().map(|matrix| matrix.layout().bytes()).sum();
        let vectors = self.vectors.iter().chain(&self.factors).flatten();
        panels + vectors.map(|vector| vector.len() * 4).sum::<usize>()
    }

    /// The matrix of the linear that is op `op`.
    pub fn matrix(&self, op: usize) -> Option<&PackedMatrix> {
        self.matrices.get(self.matrix_of[op]?)
    }

    /// The kind of panels of the linear that is op `op`.
    pub fn kind(&self, op: usize) -> Option<PanelKind> {
        Some(self.matrix(op)?.layout().kind())
    }

    /// A bias, a learned factor, sinks.
    pub fn vector(&self, weight: Weight) -> &[f32] {
        self.vectors[weight.index()].as_deref().unwrap_or_default()
    }

    /// Factors of the norm that is op `op`.
    pub fn factors(&self, op: usize) -> Option<&[f32]> {
        self.factors[op].as_deref()
    }

    fn tables(&self) -> impl Iterator<Item = &ByteSlice> {
        self.tables.iter().flat_map(|&weight| self.tensors.get(weight).slices(0))
    }

    /// Fails if the file of a table that is read by row was cut: touching its rows would end the process.
    pub fn check_tables(&self) -> Result<(), StepError> {
        self.tables().try_for_each(|slice| {
            let source = slice.source();
            source.check_whole().map_err(|error| StepError::Table { path: source.path().to_owned(), error })
        })
    }

    /// Lets go of the pages of tables that are read by row.
    pub fn evict_tables(&self) {
        for slice in self.tables() {
            slice.source().evict(slice.offset()..slice.offset() + slice.len());
        }
    }

    /// A table that is read by row.
    pub fn table(&self, weight: Weight) -> &Tensor {
        self.tensors.get(weight)
    }
}

/// Packs a matrix with all threads, and lets go of the mapped pages as they have been read.
fn pack(
    tensor: &Tensor,
    layout: PanelLayout,
    Packing { isa, evict }: Packing,
    pool: &mut Pool,
) -> std::io::Result<PackedMatrix> {
    let mut packed = PackedMatrix::zeroed(layout)?;
    let matrix = tensor.matrix(0);
    let panel = layout.panel_bytes();
    let piece = (PIECE / panel.max(1)).max(GRAIN);
    let in_order = matches!(tensor.layout().row_map, RowMap::Identity | RowMap::PairedHeads { .. });
    let stored = tensor.layout().stored_rows.max(1);
    for start in (0..layout.panels()).step_by(piece) {
        let end = layout.panels().min(start + piece);
        let out = Shared::new(&mut packed.bytes_mut()[start * panel..end * panel]);
        pool.run(end - start, GRAIN, &|_, range| {
            // SAFETY: ranges of a region do not overlap.
            let out = unsafe { out.part(range.start * panel, range.len() * panel) };
            pack_panels(isa, &matrix, &layout, start + range.start..start + range.end, out);
        });
        if in_order && !tensor.layout().transposed {
            release(tensor, layout.outputs(start..end), stored, evict);
        }
    }
    release(tensor, 0..stored, stored, evict);
    if evict {
        evict_file(tensor);
    }
    Ok(packed)
}

/// Lets go of all pages of a tensor's files: reading one part, the system has read parts around it ahead.
fn evict_file(tensor: &Tensor) {
    if let Some(slice) = tensor.slices(0).first() {
        slice.source().evict(0..slice.source().bytes().len());
    }
}

/// Lets go of the mapped pages of some stored rows. What is needed again is read again.
fn release(tensor: &Tensor, rows: std::ops::Range<usize>, stored: usize, evict: bool) {
    for slice in tensor.slices(0) {
        let row = slice.len() / stored;
        let range = slice.offset() + rows.start * row..slice.offset() + rows.end * row;
        if evict { slice.source().evict(range) } else { slice.source().release(range) }
    }
}
