//! Which bytes of which file each expert is made of.

use std::sync::Arc;

use turbospark_formats::packed::{Digest, PackedLayer, PackedStore};
use turbospark_formats::{ByteSlice, Checkpoint, Tensor};
use turbospark_program::{ExpertError, ExpertLayer, ExpertLayout, ExpertMatrix, ExpertPacker, Program};

/// The experts of one layer: their common layout, and the byte slices of each.
#[derive(Clone, Debug)]
pub struct LayerTable {
    layer: usize,
    layout: ExpertLayout,
    /// The slices of each expert in a row, `layout.slice_bytes.len()` of them.
    slices: Vec<ByteSlice>,
    packed: Option<Packed>,
}

/// What is known of experts that lie packed in their file.
#[derive(Clone, Debug)]
struct Packed {
    /// Bytes of an expert; its one slice has more.
    bytes: usize,
    /// Of each expert's slice.
    digests: Vec<Digest>,
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
        slices.chunks_exact(each).all(fits).then_some(LayerTable { layer, layout, slices, packed: None })
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

    /// Bytes of an expert if it lies packed in its file; its one slice ends with zeros up to a whole page.
    pub fn packed_bytes(&self) -> Option<usize> {
        self.packed.as_ref().map(|packed| packed.bytes)
    }

    /// The digest that an expert's slice should have, if that is known.
    pub(crate) fn digest(&self, expert: u32) -> Option<Digest> {
        self.packed.as_ref()?.digests.get(expert as usize).copied()
    }

    /// Finds the packed experts of an expert layer.
    fn find_packed(layer: &ExpertLayer, store: &PackedStore) -> Result<LayerTable, ExpertError> {
        let error = |reason: String| ExpertError::Tensor { name: layer.gate.clone(), reason };
        let stacks = [&layer.gate, &layer.up, &layer.down];
        let found = store.layers().iter().find(|packed| packed.stacks.each_ref() == stacks);
        let found = found.ok_or_else(|| error("the packed store does not have them".to_owned()))?;
        let PackedLayer { matrices, bytes, experts, digests, .. } = found;
        let [gate, up, down] = matrices.map(|layout| ExpertMatrix { layout, slices: Vec::new() });
        let shape = (experts.len(), gate.layout.rows, gate.layout.columns);
        if shape != (layer.experts, layer.intermediate, layer.hidden) {
            let asked = (layer.experts, layer.intermediate, layer.hidden);
            return Err(error(format!("the shape is {shape:?}, the model's config asks for {asked:?}")));
        }
        let slice_bytes = experts.first().map(|slice| slice.len()).into_iter().collect();
        let layout = ExpertLayout { gate, up, down, slice_bytes };
        let table = LayerTable::new(layer.layer, layout, experts.clone());
        let table = table.ok_or_else(|| error("experts of one layer have different sizes".to_owned()))?;
        Ok(LayerTable { packed: Some(Packed { bytes: *bytes, digests: digests.clone() }), ..table })
    }

    /// Finds the three stacks of an expert layer.
    fn find(layer: &ExpertLayer, checkpoint: &Checkpoint) -> Result<LayerTable, ExpertError> {
        if let Some(store) = checkpoint.packed() {
            return LayerTable::find_packed(layer, store);
        }
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
    packing: Option<Arc<str>>,
}

impl ExpertTable {
    /// Finds every expert of `program`; nothing is read.
    pub fn find(program: &Program, checkpoint: &Checkpoint) -> Result<ExpertTable, ExpertError> {
        let layers = program.expert_layers().iter().map(|layer| LayerTable::find(layer, checkpoint));
        let packing = checkpoint.packed().map(|store| store.packing().into());
        Ok(ExpertTable { layers: layers.collect::<Result<_, _>>()?, packing })
    }

    /// A table of layers that were made by hand.
    pub fn new(layers: Vec<LayerTable>) -> ExpertTable {
        ExpertTable { layers, packing: None }
    }

    /// The layout that experts are packed in; none if they are as a model's own files have them.
    pub fn packing(&self) -> Option<&str> {
        self.packing.as_deref()
    }

    /// Bytes of all experts in the layout of `packer`, as they lie in memory.
    pub fn bytes_in_memory(&self, packer: &dyn ExpertPacker) -> usize {
        let each = |layer: &LayerTable| match layer.packed {
            Some(_) => layer.layout.bytes(),
            None => packer.bytes(&layer.layout),
        };
        self.layers.iter().map(|layer| layer.experts() * each(layer)).sum()
    }

    /// Whether experts have to go through `packer`: not if they are packed in its layout. Any other packed layout is
    /// an error.
    pub fn needs(&self, packer: &dyn ExpertPacker) -> Result<bool, ExpertError> {
        match self.packing() {
            None => return Ok(true),
            Some(packing) if packing == packer.id() => {}
            Some(found) => {
                return Err(ExpertError::Packing { wanted: packer.id(), found: found.to_owned() });
            }
        }
        for layer in &self.layers {
            let (expected, packing) = (packer.bytes(&layer.layout), packer.id());
            match layer.packed_bytes() {
                Some(found) if found != expected => {
                    return Err(ExpertError::PackedSize { layer: layer.layer, found, expected, packing });
                }
                _ => {}
            }
        }
        Ok(false)
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
