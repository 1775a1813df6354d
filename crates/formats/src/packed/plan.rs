//! What a store will have, known before anything is written.

use std::collections::{HashMap, HashSet};

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::digest::Digest;
use super::manifest::{FORMAT, LayerEntry, LayoutEntry, Manifest, MatrixEntry, TensorEntry, VERSION};
use super::{PACKED_ALIGNMENT, RESIDENT, files, spelling};
use crate::{ByteSlice, Checkpoint, Format, MatrixLayout, OpenError, RowMap, Tensor};

/// The experts of a layer that is to be packed.
#[derive(Clone, Debug)]
pub struct ExpertStacks {
    /// Model layer: the number in the file's name.
    pub layer: usize,
    /// Canonical names of the gate, up and down stacks.
    pub stacks: [String; 3],
    /// What each expert's gate, up and down are packed from. Of the layout only format, rows and columns are kept.
    pub matrices: [MatrixLayout; 3],
    /// Number of experts.
    pub experts: usize,
    /// Bytes of a packed expert.
    pub bytes: usize,
}

impl ExpertStacks {
    /// Bytes that an expert takes in the file.
    pub fn padded(&self) -> usize {
        self.bytes.next_multiple_of(PACKED_ALIGNMENT)
    }
}

/// The files of a store and what goes into them.
pub struct StorePlan {
    pub(super) manifest: Manifest,
    pub(super) files: Vec<PlannedFile>,
    /// The model's own files: a resumed run must find them as they were.
    pub(super) sources: Vec<std::path::PathBuf>,
}

pub(super) struct PlannedFile {
    pub name: String,
    pub head: Vec<u8>,
    /// Name and bytes of each tensor.
    pub tensors: Vec<(String, u64)>,
    pub content: Content,
}

pub(super) enum Content {
    /// The head is all.
    Small,
    /// The bytes of each tensor, piece after piece.
    Resident(Vec<Vec<ByteSlice>>),
    /// Experts of the layer of that index.
    Experts(usize),
}

impl PlannedFile {
    pub fn bytes(&self) -> u64 {
        self.head.len() as u64 + self.tensors.iter().map(|(_, bytes)| bytes).sum::<u64>()
    }
}

/// A tensor of a safetensors header.
struct Listed<'a> {
    name: String,
    dtype: &'static str,
    shape: &'a [usize],
    bytes: u64,
}

impl StorePlan {
    /// Plans the store of `checkpoint` with experts in the layout `packing`, quantised to `quantized` if given.
    pub fn new(
        checkpoint: &Checkpoint,
        packing: &str,
        quantized: Option<Format>,
        layers: &[ExpertStacks],
    ) -> Result<StorePlan, OpenError> {
        let mut planned = Vec::new();
        for (name, head) in files::small(checkpoint)? {
            planned.push(PlannedFile { name, head, tensors: Vec::new(), content: Content::Small });
        }
        let stacks: HashSet<&str> =
            layers.iter().flat_map(|layer| &layer.stacks).map(String::as_str).collect();
        let resident = checkpoint.tensors().filter(|(name, _)| !stacks.contains(name));
        let (tensors, file) = resident_file(resident, packing);
        planned.push(file);
        let mut experts = Vec::new();
        for (index, layer) in layers.iter().enumerate() {
            let file = expert_file(index, layer, packing);
            let entry = |i: usize| MatrixEntry {
                stack: layer.stacks[i].clone(),
                format: spelling::name(layer.matrices[i].format),
                rows: layer.matrices[i].rows,
                columns: layer.matrices[i].columns,
            };
            let (gate, up, down) = (entry(0), entry(1), entry(2));
            let (name, bytes) = (file.name.clone(), layer.bytes);
            experts.push(LayerEntry { file: name, experts: layer.experts, bytes, gate, up, down });
            planned.push(file);
        }
        let heads: Vec<(&str, Digest)> = planned.iter().map(|f| (&f.name[..], Digest::of(&f.head))).collect();
        let quantized = quantized.map(spelling::name);
        let identity = identity(&(VERSION, packing, &quantized, &heads, &tensors, &experts));
        let manifest = Manifest {
            format: FORMAT.to_owned(),
            version: VERSION,
            packing: packing.to_owned(),
            quantized,
            identity,
            files: Vec::new(),
            tensors,
            experts,
        };
        let mut sources: Vec<_> = checkpoint
            .tensors()
            .flat_map(|(_, tensor)| &tensor.slices)
            .filter(|slice| slice.source().is_file())
            .map(|slice| slice.source().path().to_owned())
            .collect();
        sources.dedup();
        sources.sort();
        sources.dedup();
        Ok(StorePlan { manifest, files: planned, sources })
    }

    /// Bytes of all files but the manifest.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(PlannedFile::bytes).sum()
    }
}

/// The digest of what is written as JSON.
fn identity(parts: &impl Serialize) -> Digest {
    // Plain structures of numbers and strings cannot fail to be written.
    Digest::of(&serde_json::to_vec(parts).unwrap_or_default())
}

/// resident.safetensors: each stored range of bytes once, though several tensors may view it.
fn resident_file<'a>(
    tensors: impl Iterator<Item = (&'a str, &'a Tensor)>,
    packing: &str,
) -> (Vec<TensorEntry>, PlannedFile) {
    let mut entries = Vec::new();
    let mut known: HashMap<Vec<(usize, usize, usize)>, String> = HashMap::new();
    let mut stored: Vec<(Listed<'a>, Vec<ByteSlice>)> = Vec::new();
    for (name, tensor) in tensors {
        let layout = tensor.layout();
        let parts = (0..layout.format.parts()).map(|part| {
            let column: Vec<ByteSlice> =
                (0..tensor.count()).map(|i| tensor.slices(i)[part].clone()).collect();
            let place = |s: &ByteSlice| (std::sync::Arc::as_ptr(s.source()).addr(), s.offset(), s.len());
            let entry = known.entry(column.iter().map(place).collect());
            entry
                .or_insert_with(|| {
                    let name = format!("{name}{}", ["", ".scales", ".biases"][part]);
                    let bytes = column.iter().map(|slice| slice.len() as u64).sum();
                    stored.push((
                        Listed { dtype: dtype(tensor), shape: tensor.shape(), bytes, name: name.clone() },
                        column,
                    ));
                    name
                })
                .clone()
        });
        let parts = parts.collect();
        let (shape, count) = (tensor.shape().to_vec(), tensor.count());
        let layout = LayoutEntry::of(layout);
        entries.push(TensorEntry { name: name.to_owned(), shape, count, layout, parts });
    }
    // Wide elements first, so that every tensor is aligned to its elements.
    let order = |dtype: &str| ["F32", "F16", "BF16", "U8"].iter().position(|&known| known == dtype);
    stored.sort_by(|(a, _), (b, _)| order(a.dtype).cmp(&order(b.dtype)).then_with(|| a.name.cmp(&b.name)));
    let (listed, contents): (Vec<_>, Vec<_>) = stored.into_iter().unzip();
    let file = PlannedFile {
        name: RESIDENT.to_owned(),
        head: header(&listed, packing),
        tensors: listed.into_iter().map(|tensor| (tensor.name, tensor.bytes)).collect(),
        content: Content::Resident(contents),
    };
    (entries, file)
}

/// The element type under which other programs can read a tensor; bytes if its view is not plain.
fn dtype(tensor: &Tensor) -> &'static str {
    let layout = tensor.layout();
    let plain = layout.row_map == RowMap::Identity && !layout.transposed && layout.rows == layout.stored_rows;
    match layout.format {
        Format::Float(crate::Float::F32) if plain => "F32",
        Format::Float(crate::Float::F16) if plain => "F16",
        Format::Float(crate::Float::BF16) if plain => "BF16",
        _ => "U8",
    }
}

fn expert_file(index: usize, layer: &ExpertStacks, packing: &str) -> PlannedFile {
    let bytes = layer.padded();
    let shape = [bytes];
    let name = |expert: usize| expert_name(layer.layer, expert);
    let listed = |e: usize| Listed { name: name(e), dtype: "U8", shape: &shape, bytes: bytes as u64 };
    let listed: Vec<_> = (0..layer.experts).map(listed).collect();
    PlannedFile {
        name: format!("experts-{:05}.safetensors", layer.layer),
        head: header(&listed, packing),
        tensors: listed.into_iter().map(|tensor| (tensor.name, tensor.bytes)).collect(),
        content: Content::Experts(index),
    }
}

fn expert_name(layer: usize, expert: usize) -> String {
    format!("layers.{layer}.experts.{expert}")
}

/// The length and the header of a safetensors file, with spaces up to a multiple of [`PACKED_ALIGNMENT`].
fn header(tensors: &[Listed<'_>], packing: &str) -> Vec<u8> {
    let mut entries = Map::new();
    entries.insert("__metadata__".to_owned(), json!({"format": FORMAT, "packing": packing}));
    let mut end = 0;
    for tensor in tensors {
        let start = end;
        end += tensor.bytes;
        let bytes = [tensor.bytes as usize];
        let shape = if tensor.dtype == "U8" { &bytes[..] } else { tensor.shape };
        let entry = json!({"dtype": tensor.dtype, "shape": shape, "data_offsets": [start, end]});
        entries.insert(tensor.name.clone(), entry);
    }
    let mut json = Value::Object(entries).to_string().into_bytes();
    let length = (8 + json.len()).next_multiple_of(PACKED_ALIGNMENT) - 8;
    json.resize(length, b' ');
    [&(length as u64).to_le_bytes()[..], &json].concat()
}
