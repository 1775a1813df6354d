//! Models, stores and what is computed with them.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use turbospark_cpu::{Isa, PanelPacker};
use turbospark_engine::pack::{PackOptions, pack};
use turbospark_engine::{
    Edits, Engine, Keep, MemoryOptions, OpenOptions, Progress, Request, Residency, demo_source,
};
use turbospark_formats::packed::{ExpertStacks, Sink, StorePlan, StoreWriter};
use turbospark_formats::{Checkpoint, Format, MatrixLayout, MatrixRef, Tensor, quantize_row};
use turbospark_program::{ExpertLayout, ExpertMatrix, ExpertPacker, ExpertRef};
use turbospark_sampling::{Sampler, SamplingOptions};

pub fn checkpoint(name: &str) -> Checkpoint {
    let fixtures: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    match name {
        "demo" => Checkpoint::from_gguf(demo_source()).unwrap(),
        name => Checkpoint::open(&fixtures.join(name)).unwrap(),
    }
}

pub fn engine(checkpoint: &Checkpoint, memory: MemoryOptions) -> Engine {
    let options = OpenOptions { prefill_chunk: Some(16), memory, ..OpenOptions::default() };
    Engine::new(checkpoint, options).unwrap_or_else(|error| panic!("{memory:?}: {error}"))
}

pub fn resident() -> MemoryOptions {
    MemoryOptions { residency: Residency::Resident, ..MemoryOptions::default() }
}

pub fn tokens(engine: &Engine, count: usize, seed: usize) -> Vec<u32> {
    let vocabulary = engine.program().vocabulary();
    (0..count).map(|i| ((i * i * 31 + i * 7 + seed * 101) % vocabulary) as u32).collect()
}

/// Logits of a prompt in chunks, then of tokens one by one.
pub fn logits(engine: &mut Engine) -> Vec<f32> {
    let prompt = tokens(engine, 40, 1);
    let mut all = engine.evaluate(&prompt, &Keep::default()).unwrap().logits;
    for length in 1..6 {
        all.extend(engine.evaluate(&prompt[..length], &Keep::default()).unwrap().logits);
    }
    all
}

/// What four sequences generate together; log-probabilities stand for their logits.
pub fn four(engine: &mut Engine) -> Vec<(usize, u32, u32)> {
    let requests = (0..4).map(|index| Request {
        session: engine.open_session(),
        prompt: tokens(engine, 5 + 6 * index, index),
        sampler: Sampler::new(SamplingOptions { seed: index as u64, ..SamplingOptions::default() }).unwrap(),
        stop: Vec::new(),
        max_tokens: 6,
        edits: Edits::default(),
    });
    let requests = requests.collect();
    let mut generation = engine.generate(requests).unwrap();
    let mut chosen = Vec::new();
    loop {
        let progress = generation.step().unwrap();
        if progress.is_empty() {
            break;
        }
        chosen.extend(progress.iter().filter_map(|(index, progress)| match progress {
            Progress::Token { id, logprob } => Some((*index, *id, logprob.to_bits())),
            _ => None,
        }));
    }
    assert_eq!(chosen.len(), 24);
    chosen
}

/// Slots of the smallest pool: one for each size of expert.
pub fn engine_slots(engine: &Engine) -> usize {
    let layers = engine.program().expert_layers();
    let mut sizes: Vec<_> = layers.iter().map(|layer| (layer.intermediate, layer.hidden)).collect();
    sizes.dedup();
    // Mixed formats give more sizes than shapes.
    (sizes.len() + 1).min(layers.iter().map(|layer| layer.experts).sum())
}

/// A store in a folder of its own.
pub struct Store(tempfile::TempDir);

impl Store {
    pub fn of(source: &Checkpoint) -> Store {
        Store::with(source, &PackOptions::default())
    }

    pub fn with(source: &Checkpoint, options: &PackOptions) -> Store {
        let folder = tempfile::tempdir().unwrap();
        let packed = pack(source, folder.path(), options, &|_, _| {}).unwrap();
        assert_eq!(packed.kept, 0);
        Store(folder)
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

/// Writes a store in the layout `packing`, with experts of zeros that are `more` bytes too long for panels.
pub fn made_up(source: &Checkpoint, folder: &Path, packing: &str, more: usize) {
    let packer = PanelPacker::new(Isa::SCALAR);
    let stacks = (0..2).map(|layer| {
        let stack = |matrix| format!("model.layers.{layer}.block_sparse_moe.experts.{matrix}_proj.weight");
        let stacks = ["gate", "up", "down"].map(stack);
        let matrices = stacks.each_ref().map(|name| *source.get(name).unwrap().layout());
        let [gate, up, down] = matrices.map(|layout| ExpertMatrix { layout, slices: Vec::new() });
        let bytes = packer.bytes(&ExpertLayout { gate, up, down, slice_bytes: Vec::new() }) + more;
        let experts = source.get(&stacks[0]).unwrap().count();
        ExpertStacks { layer, stacks, matrices, experts, bytes }
    });
    let stacks: Vec<_> = stacks.collect();
    let plan = StorePlan::new(source, packing, None, &stacks).unwrap();
    let mut writer = StoreWriter::begin(folder, plan, &mut |_| {}).unwrap().unwrap();
    writer.write_resident(&mut |_| {}).unwrap();
    for (index, layer) in stacks.iter().enumerate() {
        let fill =
            |sink: &Sink<'_>| (0..layer.experts).try_for_each(|e| sink.put(e, &vec![0; layer.padded()]));
        writer.write_experts(index, fill).unwrap();
    }
    writer.finish().unwrap();
}

/// Every file of a folder with its content.
pub fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| {
        let entry = entry.unwrap();
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    });
    entries.collect()
}

pub fn flip(path: &Path, at: impl TryInto<u64>) {
    let at = at.try_into().ok().unwrap();
    let mut file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(at)).unwrap();
    file.read_exact(&mut byte).unwrap();
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&[byte[0] ^ 0x10]).unwrap();
}

/// Some places of a file: its ends, around pages, and a few between.
pub fn places(length: usize) -> Vec<usize> {
    let mut places = vec![0, 1, 9, 40, 4095, 4096, length / 3, length / 2, length - 1];
    places.extend((0..8).map(|i| length * (2 * i + 1) / 16));
    places.retain(|&at| at < length);
    places.sort_unstable();
    places.dedup();
    places
}

/// Makes of a complete store one whose last file was being written.
pub fn interrupt(store: &Store, source: &Checkpoint) {
    let manifest = std::fs::read(store.path().join("turbospark.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    let mut done = manifest["files"].as_array().unwrap().clone();
    let last = done.pop().unwrap();
    let last = store.path().join(last["name"].as_str().unwrap());
    let mut part = last.clone().into_os_string();
    part.push(".part");
    std::fs::rename(&last, &part).unwrap();
    File::options().write(true).open(&part).unwrap().set_len(5000).unwrap();
    // The stamps of the model's files are those that a run of its own writes.
    let journal = store.path().join("turbospark.unfinished.json");
    let stamps: Vec<_> = sources(source).iter().map(|path| stamp(path)).collect();
    let state = serde_json::json!({"identity": manifest["identity"], "sources": stamps, "files": done});
    std::fs::write(journal, state.to_string()).unwrap();
    std::fs::remove_file(store.path().join("turbospark.json")).unwrap();
}

fn sources(source: &Checkpoint) -> Vec<PathBuf> {
    let all = source.tensors().flat_map(|(_, tensor)| (0..tensor.count()).flat_map(|i| tensor.slices(i)));
    let mut paths: Vec<_> = all.map(|slice| slice.source().path().to_owned()).collect();
    paths.sort();
    paths.dedup();
    paths
}

fn stamp(path: &Path) -> serde_json::Value {
    let metadata = std::fs::metadata(path).unwrap();
    let modified = metadata.modified().unwrap().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    serde_json::json!({"path": path.canonicalize().unwrap(), "bytes": metadata.len(), "modified": modified as u64})
}

/// A float model whose rows are whole blocks of 256, in `folder`: a quantised one widened, with experts made up.
pub fn wide_floats(folder: &Path) -> Checkpoint {
    let quantised = checkpoint("qwen3_moe_wide/gguf-zoo.gguf");
    let config =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/qwen3_moe_wide/hf/config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(config).unwrap()).unwrap();
    config["moe_intermediate_size"] = 256.into();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut seed = 1u64;
    let mut random = || {
        seed = seed.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (seed >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    let all = quantised.tensors().map(|(name, tensor)| {
        let (mut shape, mut values) = (tensor.shape().to_vec(), tensor.to_f32());
        if name.contains(".experts.") {
            shape[1..].fill(256);
            values = (0..shape.iter().product()).map(|_| 0.2 * random()).collect();
        }
        (name, shape, values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())
    });
    let all: Vec<_> = all.collect();
    let view = |shape: &[usize], bytes| TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap();
    let views = all.iter().map(|(name, shape, bytes)| (*name, view(shape, bytes)));
    safetensors::serialize_to_file(views, None, &folder.join("model.safetensors")).unwrap();
    Checkpoint::open(folder).unwrap()
}

/// Whether every expert of `store` is what packing the quantised rows of `source` gives.
pub fn check_quantised(source: &Checkpoint, store: &Checkpoint, format: Format) {
    let packer = PanelPacker::new(Isa::SCALAR);
    for layer in store.packed().unwrap().layers() {
        let stacks = layer.stacks.each_ref().map(|name| source.get(name).unwrap());
        for (expert, bytes) in layer.experts.iter().enumerate() {
            let matrices = stacks.map(|stack| quantised(stack, expert, format));
            let [gate, up, down] =
                matrices.each_ref().map(|(layout, bytes)| MatrixRef::new(layout, &[&bytes[..]]).unwrap());
            let mut expected = vec![0; layer.bytes];
            packer.pack(&ExpertRef { gate, up, down }, &mut expected);
            assert!(bytes[..layer.bytes] == expected[..], "{:?}, expert {expert}", layer.stacks);
            assert!(bytes[layer.bytes..].iter().all(|&byte| byte == 0));
        }
    }
}

fn quantised(stack: &Tensor, expert: usize, format: Format) -> (MatrixLayout, Vec<u8>) {
    let matrix = stack.matrix(expert);
    let layout = MatrixLayout::plain(format, matrix.rows(), matrix.columns());
    let row = format.row_bytes(0, matrix.columns()).unwrap();
    let mut bytes = vec![0; row * matrix.rows()];
    for (values, out) in matrix.to_f32().chunks_exact(matrix.columns()).zip(bytes.chunks_exact_mut(row)) {
        quantize_row(format, values, out).unwrap();
    }
    (layout, bytes)
}

/// Root mean square of the difference, over that of what is expected.
pub fn relative_error(found: &[f32], expected: &[f32]) -> f64 {
    let square = |sum: f64, x: f64| sum + x * x;
    let difference = found.iter().zip(expected).map(|(a, b)| f64::from(a - b)).fold(0.0, square);
    (difference / expected.iter().map(|&x| f64::from(x)).fold(0.0, square)).sqrt()
}
