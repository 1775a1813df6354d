//! Which bytes of which file each expert is made of.

use std::sync::Arc;

use turbospark_formats::{ByteSlice, Checkpoint, Tensor};
use turbospark_program::{ExpertError, ExpertLayer, ExpertLayout, ExpertMatrix, Program};

/// The experts of one layer: their common layout, and the byte slices of each.
#[derive(Clone, Debug)]
pub struct LayerTable {
    layer: usize,
    layout: ExpertLayout,
    /// The slices of each expert in a row, `layout.slice_bytes.len()` of them.
    slices: Vec<ByteSlice>,
}

impl LayerTable {
    /// The experts of model layer `layer`; `slices` holds those of expert 0, then of expert 1, and so on.
    ///
    /// `None` if the slices are not whole experts or their lengths are not those of the layout.
    pub fn new(layer: usize, layout: ExpertLayout, slices: Vec<ByteSlice>) -> Option<LayerTable> {
        let each = layout.slice_bytes.len();
        if each == 0 || !slices.len().is_multiple_of(each) {
            return None;
        }
        let fits = |expert: &[ByteSlice]| expert.iter().zip(&layout.slice_bytes).all(|(s, &n)| s.len() == n);
        slices.chunks_exact(each).all(fits).then_some(LayerTable { layer, layout, slices })
    }

    /// Model layer, for messages and traces.
    pub fn layer(&self) -> usize {
        self.layer
    }

    /// How each expert lies in its slices.
    pub fn layout(&self) -> &ExpertLayout {
        &self.layout
    }

    /// Number of experts.
    pub fn experts(&self) -> usize {
        self.slices.len() / self.layout.slice_bytes.len()
    }

    /// The byte slices of one expert.
    pub fn slices(&self, expert: usize) -> &[ByteSlice] {
        let each = self.layout.slice_bytes.len();
        &self.slices[expert * each..(expert + 1) * each]
    }

    /// Finds the three stacks of an expert layer.
    fn find(layer: &ExpertLayer, checkpoint: &Checkpoint) -> Result<LayerTable, ExpertError> {
        let (wide, narrow) = (layer.intermediate, layer.hidden);
        let gate = stack(checkpoint, &layer.gate, [layer.experts, wide, narrow])?;
        let up = stack(checkpoint, &layer.up, [layer.experts, wide, narrow])?;
        let down = stack(checkpoint, &layer.down, [layer.experts, narrow, wide])?;

        let mut joined = Joined::default();
        let [gate, up, down] = [gate, up, down].map(|tensor| joined.add(tensor));
        let slice_bytes = joined.columns.iter().map(|column| column[0].len()).collect();
        let slices =
            (0..layer.experts).flat_map(|expert| joined.columns.iter().map(move |c| c[expert].clone()));
        let slices = slices.collect();
        let layout = ExpertLayout { gate, up, down, slice_bytes };
        LayerTable::new(layer.layer, layout, slices).ok_or_else(|| ExpertError::Tensor {
            name: layer.gate.clone(),
            reason: "experts of one layer have different sizes".to_owned(),
        })
    }
}

/// The slices of an expert as they are found: a column has one slice of every expert.
#[derive(Default)]
struct Joined<'a> {
    columns: Vec<Vec<&'a ByteSlice>>,
}

impl<'a> Joined<'a> {
    /// Adds a stack; parts that an earlier stack has too (fused gate and up) keep their one column.
    fn add(&mut self, tensor: &'a Tensor) -> ExpertMatrix {
        let parts = tensor.layout().format.parts();
        let column = |part: usize| (0..tensor.count()).map(|i| &tensor.slices(i)[part]).collect::<Vec<_>>();
        let slices = (0..parts).map(|part| {
            let column = column(part);
            let known = |known: &Vec<&ByteSlice>| known.iter().zip(&column).all(|(a, b)| same_bytes(a, b));
            self.columns.iter().position(known).unwrap_or_else(|| {
                self.columns.push(column);
                self.columns.len() - 1
            })
        });
        ExpertMatrix { layout: *tensor.layout(), slices: slices.collect() }
    }
}

fn same_bytes(a: &ByteSlice, b: &ByteSlice) -> bool {
    Arc::ptr_eq(a.source(), b.source()) && a.offset() == b.offset() && a.len() == b.len()
}

fn stack<'a>(checkpoint: &'a Checkpoint, name: &str, shape: [usize; 3]) -> Result<&'a Tensor, ExpertError> {
    let error = |reason: String| ExpertError::Tensor { name: name.to_owned(), reason };
    let tensor = checkpoint.get(name).ok_or_else(|| {
        error("missing; the checkpoint is incomplete or of another architecture".to_owned())
    })?;
    if tensor.shape() != shape {
        let found = tensor.shape();
        return Err(error(format!("the shape is {found:?}, the model's config asks for {shape:?}")));
    }
    // Guards the indexing by expert below; a stack of that shape cannot have another count or be empty.
    if shape[0] == 0 || tensor.count() != shape[0] {
        return Err(error(format!("{} matrices in a stack of {}", tensor.count(), shape[0])));
    }
    Ok(tensor)
}

/// The experts of every layer of a program, found in a checkpoint.
#[derive(Clone, Debug)]
pub struct ExpertTable {
    layers: Vec<LayerTable>,
}

impl ExpertTable {
    /// Finds every expert of `program`; nothing is read.
    pub fn find(program: &Program, checkpoint: &Checkpoint) -> Result<ExpertTable, ExpertError> {
        let layers = program.expert_layers().iter().map(|layer| LayerTable::find(layer, checkpoint));
        Ok(ExpertTable { layers: layers.collect::<Result<_, _>>()? })
    }

    /// A table of layers that were made by hand.
    pub fn new(layers: Vec<LayerTable>) -> ExpertTable {
        ExpertTable { layers }
    }

    /// The layers, in the order of [`Program::expert_layers`].
    pub fn layers(&self) -> &[LayerTable] {
        &self.layers
    }

    /// Bytes of all experts.
    pub fn bytes(&self) -> usize {
        self.layers.iter().map(|layer| layer.experts() * layer.layout.bytes()).sum()
    }

    /// Checks that `layer` has the experts `ids`.
    pub(crate) fn check(&self, layer: usize, ids: &[u32]) -> Result<(), ExpertError> {
        let count = self.layers.get(layer).map_or(0, LayerTable::experts);
        match ids.iter().find(|&&id| id as usize >= count) {
            Some(&expert) => Err(ExpertError::Unknown { layer, expert, count }),
            None => Ok(()),
        }
    }
}
