//! From a store's folder to a checkpoint.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::digest::Digest;
use super::error::{PackedError, PackedFault};
use super::manifest::{FileEntry, LayerEntry, Manifest, TensorEntry, invalid};
use super::verify::read_small;
use super::{GGUF_METADATA, JOURNAL, MANIFEST, PACKED_ALIGNMENT, PackedLayer, PackedStore};
use crate::assemble::MAX_EXPERTS;
use crate::checkpoint::files::{self, MAX_CONFIG, MAX_TOKENIZER};
use crate::gguf::GgufFile;
use crate::safetensors::SafetensorsFile;
use crate::{ByteSlice, Checkpoint, Metadata, OpenError, Source, Tensor, TokenizerFiles};

/// Opens the store in `folder`. The lengths of all files are checked, and the digests of headers, configuration and
/// tokenizer; weights are not read.
pub(crate) fn open(folder: &Path) -> Result<Checkpoint, OpenError> {
    let path = folder.join(MANIFEST);
    let Some(text) = read_small(&path)? else {
        debug_assert!(folder.join(JOURNAL).exists());
        return Err(PackedError::new(folder, PackedFault::Unfinished).into());
    };
    let manifest = Manifest::parse(&text).map_err(|fault| PackedError::new(&path, fault))?;
    let mut stored = Stored::default();
    for entry in &manifest.files {
        check_length(folder, entry)?;
        if !entry.tensors.is_empty() {
            stored.add(folder, entry)?;
        }
    }
    let wrong = |fault| PackedError::new(&path, fault);
    let mut tensors = BTreeMap::new();
    let mut insert = |name: &str, tensor| match tensors.insert(name.to_owned(), tensor) {
        Some(_) => Err(wrong(invalid(format!("tensor {name}"), "is there twice"))),
        None => Ok(()),
    };
    for entry in &manifest.tensors {
        let tensor = resident(entry, &stored)
            .map_err(|reason| wrong(invalid(format!("tensor {}", entry.name), reason)))?;
        insert(&entry.name, tensor)?;
    }
    let mut layers = Vec::with_capacity(manifest.experts.len());
    for entry in &manifest.experts {
        let layer = experts(entry, &manifest, &stored)
            .map_err(|reason| wrong(invalid(format!("experts of {}", entry.file), reason)))?;
        for (name, layout) in layer.stacks.iter().zip(layer.matrices) {
            let shape = vec![entry.experts, layout.rows, layout.columns];
            insert(name, Tensor { shape, layout, slices: Vec::new() })?;
        }
        layers.push(layer);
    }
    let quantized = manifest.quantized.as_deref().map(|name| {
        super::spelling::parse(name).ok_or_else(|| wrong(invalid("quantized", format!("is {name:?}"))))
    });
    let quantized = quantized.transpose()?;
    let small = Small { folder, manifest: &manifest };
    let (metadata, tokenizer) = small.metadata()?;
    let (packing, resident) = (manifest.packing, stored.resident);
    let packed = PackedStore { packing, quantized, layers, resident };
    Ok(Checkpoint {
        path: folder.to_owned(),
        metadata,
        tokenizer,
        skipped: Vec::new(),
        tensors,
        packed: Some(packed),
        gguf_pairs: None,
    })
}

fn check_length(folder: &Path, entry: &FileEntry) -> Result<(), PackedError> {
    let path = folder.join(&entry.name);
    let fault = match std::fs::metadata(&path) {
        Ok(metadata) if metadata.len() == entry.bytes => return Ok(()),
        Ok(metadata) => PackedFault::Length { found: metadata.len(), expected: entry.bytes },
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => PackedFault::Missing,
        Err(error) => PackedFault::Io(error),
    };
    Err(PackedError::new(&path, fault))
}

/// The tensors of the store's files.
#[derive(Default)]
struct Stored {
    tensors: HashMap<String, ByteSlice>,
    resident: Vec<(String, ByteSlice, Digest)>,
}

impl Stored {
    /// Reads the header of a file, which has to be the one that was written.
    fn add(&mut self, folder: &Path, entry: &FileEntry) -> Result<(), OpenError> {
        let path = folder.join(&entry.name);
        let source = Source::open(&path).map_err(|error| OpenError::Io { path: path.clone(), error })?;
        let head = entry.head().and_then(|head| source.bytes().get(..usize::try_from(head).ok()?));
        if head.map(Digest::of) != Some(entry.digest) {
            let what = "the header".to_owned();
            return Err(PackedError::new(&path, PackedFault::Damaged { what }).into());
        }
        let file = SafetensorsFile::read(&source)?;
        let wrong = |fault| OpenError::from(PackedError::new(&folder.join(MANIFEST), fault));
        if file.tensors.len() != entry.tensors.len() {
            let reason = format!("has {} tensors, not {}", file.tensors.len(), entry.tensors.len());
            return Err(wrong(invalid(format!("file {}", entry.name), reason)));
        }
        for (tensor, listed) in file.tensors.into_iter().zip(&entry.tensors) {
            if tensor.name != listed.name || tensor.bytes.len() as u64 != listed.bytes {
                let reason = format!("should have {} of {} bytes there", listed.name, listed.bytes);
                return Err(wrong(invalid(format!("tensor {} of {}", tensor.name, entry.name), reason)));
            }
            if entry.name == super::RESIDENT {
                self.resident.push((listed.name.clone(), tensor.bytes.clone(), listed.digest));
            }
            if self.tensors.insert(tensor.name, tensor.bytes).is_some() {
                return Err(wrong(invalid(format!("tensor {}", listed.name), "is in two files")));
            }
        }
        Ok(())
    }
}

fn resident(entry: &TensorEntry, stored: &Stored) -> Result<Tensor, String> {
    let layout = entry.layout.layout()?;
    let (count, rows, columns) = (entry.count, layout.rows, layout.columns);
    let shapes: [(bool, &[usize]); 4] = [
        (count == 1 && columns == 1, &[rows]),
        (count == 1, &[rows, columns]),
        (columns == 1, &[count, rows]),
        (true, &[count, rows, columns]),
    ];
    if !shapes.contains(&(true, &entry.shape)) || count == 0 || count > MAX_EXPERTS {
        return Err(format!("of shape {:?} cannot be {count} of {rows} x {columns}", entry.shape));
    }
    let parts = layout.format.parts();
    if entry.parts.len() != parts {
        return Err(format!("has {} parts, {} has {parts}", entry.parts.len(), layout.format));
    }
    let mut whole = Vec::with_capacity(parts);
    for (part, name) in entry.parts.iter().enumerate() {
        let bytes = stored.tensors.get(name).ok_or_else(|| format!("needs {name}, which no file has"))?;
        let need = layout.part_bytes(part).and_then(|bytes| bytes.checked_mul(count));
        if need != Some(bytes.len()) {
            return Err(format!("cannot be made of the {} bytes of {name}", bytes.len()));
        }
        whole.push(bytes);
    }
    let slices = (0..count).flat_map(|i| whole.iter().map(move |part| part.piece(i, count))).collect();
    Ok(Tensor { shape: entry.shape.clone(), layout, slices })
}

fn experts(entry: &LayerEntry, manifest: &Manifest, stored: &Stored) -> Result<PackedLayer, String> {
    let file = manifest.files.iter().find(|file| file.name == entry.file);
    let file = file.ok_or("are in a file that the manifest does not list")?;
    if entry.experts == 0 || entry.experts > MAX_EXPERTS || entry.experts != file.tensors.len() {
        return Err(format!("should be {}, the file has {}", entry.experts, file.tensors.len()));
    }
    let matrices = [&entry.gate, &entry.up, &entry.down];
    let layout = |matrix: &super::manifest::MatrixEntry| {
        matrix.layout().map_err(|reason| format!("are wrong: {} {reason}", matrix.stack))
    };
    let [gate, up, down] = [layout(&entry.gate)?, layout(&entry.up)?, layout(&entry.down)?];
    if (gate.rows, gate.columns) != (up.rows, up.columns)
        || (gate.rows, gate.columns) != (down.columns, down.rows)
    {
        return Err("have gate, up and down of shapes that do not fit one another".to_owned());
    }
    let padded = entry.bytes.checked_next_multiple_of(PACKED_ALIGNMENT).filter(|&bytes| bytes > 0);
    let mut experts = Vec::with_capacity(file.tensors.len());
    for part in &file.tensors {
        let bytes = stored.tensors.get(&part.name).ok_or_else(|| format!("lack {}", part.name))?;
        if Some(bytes.len()) != padded || !bytes.offset().is_multiple_of(PACKED_ALIGNMENT) {
            let (length, offset) = (bytes.len(), bytes.offset());
            let need = format!("{} bytes need whole pages of {PACKED_ALIGNMENT}", entry.bytes);
            return Err(format!("have {} in {length} bytes at offset {offset}; {need}", part.name));
        }
        experts.push(bytes.clone());
    }
    Ok(PackedLayer {
        stacks: matrices.map(|matrix| matrix.stack.clone()),
        matrices: [gate, up, down],
        bytes: entry.bytes,
        experts,
        digests: file.tensors.iter().map(|part| part.digest).collect(),
    })
}

/// Configuration and tokenizer.
struct Small<'a> {
    folder: &'a Path,
    manifest: &'a Manifest,
}

impl Small<'_> {
    /// The content of a small file, `None` if the manifest does not name it.
    fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, OpenError> {
        let Some(entry) = self.manifest.files.iter().find(|file| file.name == name) else { return Ok(None) };
        let path = self.folder.join(name);
        let bytes = files::read(&path, limit)?;
        match &bytes {
            Some(bytes) if Digest::of(bytes) == entry.digest => {}
            Some(_) => {
                let what = "the file".to_owned();
                return Err(PackedError::new(&path, PackedFault::Damaged { what }).into());
            }
            None => return Err(PackedError::new(&path, PackedFault::Missing).into()),
        }
        Ok(bytes)
    }

    fn metadata(&self) -> Result<(Metadata, TokenizerFiles), OpenError> {
        if let Some(bytes) = self.read(GGUF_METADATA, MAX_TOKENIZER)? {
            let path = self.folder.join(GGUF_METADATA);
            let file = GgufFile::read(&Source::owned(&path.to_string_lossy(), bytes))?;
            return Ok((Metadata::Gguf(file.metadata), TokenizerFiles::default()));
        }
        let path = self.folder.join("config.json");
        let Some(config) = self.read("config.json", MAX_CONFIG)? else {
            let found = "the packed store has neither config.json nor metadata.gguf".to_owned();
            return Err(OpenError::NotAModel { path: self.folder.to_owned(), found });
        };
        let config = files::object(&path, &config)?;
        let read = |name: &str, limit| self.read(name, limit);
        let generation = files::read_json(self.folder, "generation_config.json", &read)?;
        let tokenizer = files::tokenizer(self.folder, &read)?;
        Ok((Metadata::Config { config, generation }, tokenizer))
    }
}
