//! Manifests and files of packed stores that are wrong: each is refused by name, and none ends the program.

mod support;

use std::fs;
use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};
use support::{refused, safetensors, safetensors_with};
use turbospark_formats::packed::{ExpertStacks, StorePlan, StoreWriter, verify};
use turbospark_formats::{Checkpoint, Float, Format, MatrixLayout, OpenError};

const MANIFEST: &str = "turbospark.json";
const EXPERTS: &str = "experts-00001.safetensors";

/// A model of one layer of experts, with a quantised matrix and fused biases, as a store of made-up panels.
fn store(folder: &Path) {
    let model = folder.join("model");
    fs::create_dir(&model).unwrap();
    let config = json!({"model_type": "gpt_oss", "quantization": {"group_size": 64, "bits": 4}});
    fs::write(model.join("config.json"), config.to_string()).unwrap();
    let bytes = safetensors(&[
        ("model.norm.weight", "BF16", &[4]),
        ("model.layers.0.mlp.up_proj.weight", "U32", &[4, 8]),
        ("model.layers.0.mlp.up_proj.scales", "F16", &[4, 1]),
        ("model.layers.0.mlp.up_proj.biases", "F16", &[4, 1]),
        ("model.layers.1.mlp.experts.gate_up_proj_bias", "BF16", &[3, 4]),
        ("model.layers.1.mlp.experts.gate_up_proj", "F16", &[3, 6, 4]),
        ("model.layers.1.mlp.experts.down_proj", "F16", &[3, 2, 6]),
    ]);
    fs::write(model.join("model.safetensors"), bytes).unwrap();
    let checkpoint = Checkpoint::open(&model).unwrap();
    let layout = |rows, columns| MatrixLayout::plain(Format::Float(Float::F16), rows, columns);
    let stack = |matrix: &str| format!("model.layers.1.mlp.experts.{matrix}_proj.weight");
    let stacks = ExpertStacks {
        layer: 1,
        stacks: ["gate", "up", "down"].map(stack),
        matrices: [layout(2, 6), layout(2, 6), layout(6, 2)],
        experts: 3,
        bytes: 4100,
    };
    let plan = StorePlan::new(&checkpoint, "toy-1", None, &[stacks]).unwrap();
    let mut writer = StoreWriter::begin(&folder.join("store"), plan, &mut |_| {}).unwrap().unwrap();
    writer.write_resident(&mut |_| {}).unwrap();
    let expert = |index: usize| vec![index as u8 + 1; 8192];
    let write =
        |sink: &turbospark_formats::packed::Sink<'_>| (0..3).try_for_each(|i| sink.put(i, &expert(i)));
    writer.write_experts(0, write).unwrap();
    writer.finish().unwrap();
}

/// The text of a manifest with a digest that is right.
fn sealed(manifest: &[u8]) -> Vec<u8> {
    let rest = [b"\",", manifest.strip_prefix(b"{").unwrap_or(manifest)].concat();
    [b"{\"digest\":\"", blake3::hash(&rest).to_hex().as_bytes(), &rest].concat()
}

/// A store that can be opened with other manifests.
struct Store {
    folder: tempfile::TempDir,
    manifest: Value,
}

impl Store {
    fn new() -> Store {
        let folder = tempfile::tempdir().unwrap();
        store(folder.path());
        let text = fs::read(folder.path().join("store").join(MANIFEST)).unwrap();
        let mut manifest: Value = serde_json::from_slice(&text).unwrap();
        manifest.as_object_mut().unwrap().shift_remove("digest");
        Store { folder, manifest }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("store")
    }

    fn open(&self) -> Result<Checkpoint, OpenError> {
        let opened = Checkpoint::open(&self.path());
        if let Ok(checkpoint) = &opened {
            read(checkpoint);
        }
        // Whatever it says, it ends.
        let _ = verify(&self.path(), 2, &|_, _| {});
        opened
    }

    /// Gives it another manifest: a new file, since some file systems write one that was truncated to disk at once.
    fn replace(&self, text: &[u8]) {
        let path = self.path().join(MANIFEST);
        let _ = fs::remove_file(&path);
        fs::write(path, text).unwrap();
    }

    fn open_with(&self, text: &[u8]) -> Result<Checkpoint, OpenError> {
        self.replace(text);
        self.open()
    }

    /// Opens it with the value at `place` replaced.
    fn with(&self, place: &str, value: Value) -> Result<Checkpoint, OpenError> {
        let mut manifest = self.manifest.clone();
        *manifest.pointer_mut(place).unwrap_or_else(|| panic!("no {place}")) = value;
        self.open_with(&sealed(manifest.to_string().as_bytes()))
    }

    /// The place in the manifest of a file, a tensor or a layer.
    fn place(&self, list: &str, name: &str) -> String {
        let list_of = self.manifest[list].as_array().unwrap();
        format!("/{list}/{}", list_of.iter().position(|entry| entry["name"] == name).unwrap())
    }
}

/// Reads every tensor of what was opened.
fn read(checkpoint: &Checkpoint) {
    for (_, tensor) in checkpoint.tensors() {
        if tensor.count() > 0 {
            assert_eq!(tensor.to_f32().len(), tensor.shape().iter().product::<usize>());
        }
        tensor.bytes();
    }
    for layer in checkpoint.packed().unwrap().layers() {
        assert_eq!(layer.experts.len(), layer.digests.len());
        assert!(
            layer.experts.iter().all(|expert| expert.len() >= layer.bytes && expert.offset() % 4096 == 0)
        );
    }
}

#[test]
fn the_store_itself_opens() {
    let store = Store::new();
    let opened = store.open().unwrap();
    let packed = opened.packed().unwrap();
    assert_eq!((packed.packing(), packed.quantized(), packed.layers().len()), ("toy-1", None, 1));
    assert_eq!(&packed.layers()[0].experts[2][..], &[3; 8192]);
    assert_eq!(packed.expert_bytes(), 3 * 8192);
    packed.check_resident().unwrap();
    // Gate and up biases view the same bytes, which are stored once.
    let bias = |matrix: &str| opened.get(&format!("model.layers.1.mlp.experts.{matrix}_proj.bias")).unwrap();
    assert_eq!(bias("gate").slices(0)[0].as_ptr(), bias("up").slices(0)[0].as_ptr());
    assert!(opened.get("model.layers.1.mlp.experts.gate_proj.weight").unwrap().to_f32().is_empty());
    store.with("/packing", json!("toy-1")).unwrap();
}

#[test]
fn every_changed_byte_of_the_manifest_is_seen() {
    let store = Store::new();
    let text = fs::read(store.path().join(MANIFEST)).unwrap();
    for at in 0..text.len() {
        let mut changed = text.clone();
        changed[at] ^= 1 << (at % 8);
        store.replace(&changed);
        refused(Checkpoint::open(&store.path()), "manifest is damaged");
        if at % 8 == 0 {
            refused(store.open_with(&text[..at]), "manifest is damaged");
        }
    }
    refused(store.open_with(&[&text[..], b" "].concat()), "manifest is damaged");
}

#[test]
fn wrong_values_are_refused_by_name() {
    let store = Store::new();
    let (file, norm) = (store.place("files", EXPERTS), store.place("tensors", "model.norm.weight"));
    let up = store.place("tensors", "model.layers.0.mlp.up_proj.weight");
    let bias = store.place("tensors", "model.layers.1.mlp.experts.up_proj.bias");
    let huge = || json!(1u64 << 60);
    for (place, value, part) in [
        ("/version".to_owned(), json!(2), "version 2"),
        ("/version".to_owned(), json!("1"), "not the manifest"),
        ("/format".to_owned(), json!("another store"), "another store"),
        ("/quantized".to_owned(), json!("Q9"), "Q9"),
        ("/files".to_owned(), json!([]), "which no file has"),
        (format!("{file}/name"), json!("../model/model.safetensors"), "../model"),
        (format!("{file}/name"), json!("/etc/passwd"), "/etc/passwd"),
        (format!("{file}/name"), json!("model/config.json"), "model/config.json"),
        (format!("{file}/name"), json!("C:x"), "C:x"),
        (format!("{file}/name"), json!(""), "plain name"),
        (format!("{file}/name"), json!(".."), "plain name"),
        (format!("{file}/name"), json!(MANIFEST), "plain name"),
        (format!("{file}/name"), json!("config.json"), "there twice"),
        (format!("{file}/name"), json!("absent.safetensors"), "absent.safetensors: the file is missing"),
        (format!("{file}/bytes"), json!(0), "fewer bytes than its tensors"),
        (format!("{file}/bytes"), huge(), "the manifest says"),
        (format!("{file}/bytes"), json!(-1), "not the manifest"),
        (format!("{file}/digest"), Value::Null, "not the manifest"),
        (format!("{file}/digest"), json!("00"), "64 hexadecimal"),
        (format!("{file}/digest"), json!("0".repeat(64)), "the header is damaged"),
        (format!("{file}/tensors/0/name"), json!("model.norm.weight"), "should have"),
        (format!("{file}/tensors/0/bytes"), huge(), "fewer bytes than its tensors"),
        (format!("{file}/tensors/0/bytes"), json!(8191), "is damaged"),
        (format!("{file}/tensors/0/digest"), json!(7), "not the manifest"),
        (format!("{norm}/count"), json!(0), "cannot be 0 of"),
        (format!("{norm}/count"), huge(), "model.norm.weight"),
        (format!("{norm}/shape"), json!([5]), "shape [5]"),
        (format!("{norm}/shape"), json!([]), "shape []"),
        (format!("{norm}/parts"), json!([]), "0 parts"),
        (format!("{norm}/parts/0"), json!("nothing"), "needs nothing"),
        (format!("{norm}/layout/format"), json!("F64"), "F64"),
        (format!("{norm}/layout/format"), json!("F32"), "cannot be made of the 8 bytes"),
        (format!("{norm}/layout/rows"), json!(0), "no elements"),
        (format!("{norm}/layout/stored_rows"), json!(3), "maps 4 rows to 3"),
        (format!("{norm}/layout/stored_rows"), huge(), "cannot be made of"),
        (format!("{norm}/name"), json!("model.layers.0.mlp.up_proj.weight"), "there twice"),
        (format!("{norm}/name"), json!("model.layers.1.mlp.experts.up_proj.weight"), "there twice"),
        (format!("{up}/layout/columns"), json!(32), "model.layers.0.mlp.up_proj.weight"),
        (format!("{up}/layout/format"), json!("MLX_4_0_F16"), "MLX_4_0_F16"),
        (format!("{bias}/layout/row_map"), json!({"strided": {"start": 1, "step": u64::MAX}}), "stored ones"),
        (format!("{bias}/layout/row_map"), json!({"strided": {"start": 3, "step": 1}}), "stored ones"),
        (format!("{bias}/layout/row_map"), json!({"paired_heads": {"head": 0}}), "stored ones"),
        (format!("{bias}/layout/row_map"), json!({"spiral": 1}), "not the manifest"),
        ("/experts/0/file".to_owned(), json!("absent"), "does not list"),
        ("/experts/0/file".to_owned(), json!("config.json"), "the file has 0"),
        ("/experts/0/experts".to_owned(), json!(2), "should be 2, the file has 3"),
        ("/experts/0/experts".to_owned(), huge(), "the file has 3"),
        ("/experts/0/bytes".to_owned(), json!(0), "whole pages"),
        ("/experts/0/bytes".to_owned(), json!(9000), "whole pages"),
        ("/experts/0/bytes".to_owned(), json!(u64::MAX), "whole pages"),
        ("/experts/0/gate/format".to_owned(), json!("Q4_K"), "cannot be Q4_K of 2 x 6"),
        ("/experts/0/gate/rows".to_owned(), json!(3), "do not fit one another"),
        ("/experts/0/gate/rows".to_owned(), huge(), "cannot be F16"),
        ("/experts/0/down/columns".to_owned(), json!(0), "cannot be F16"),
        ("/experts/0/up/stack".to_owned(), json!("model.norm.weight"), "there twice"),
    ] {
        match store.with(&place, value.clone()) {
            Ok(_) => panic!("{place} = {value} was opened"),
            Err(error) => assert!(error.to_string().contains(part), "{place} = {value}: {error}"),
        }
    }
    let mut twice = store.manifest.clone();
    let layer = twice["experts"][0].clone();
    twice["experts"].as_array_mut().unwrap().push(layer);
    refused(store.open_with(&sealed(twice.to_string().as_bytes())), "is there twice");
    for key in ["files", "tensors", "experts", "packing", "identity", "version"] {
        let mut without = store.manifest.clone();
        without.as_object_mut().unwrap().shift_remove(key);
        refused(store.open_with(&sealed(without.to_string().as_bytes())), "not the manifest");
    }
}

#[test]
fn experts_that_are_not_aligned_are_refused() {
    let store = Store::new();
    let path = store.path().join(EXPERTS);
    let bytes = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let text = std::str::from_utf8(&bytes[8..header]).unwrap().trim_end();
    let other = safetensors_with(text, &bytes[header..]);
    fs::write(&path, &other).unwrap();
    let (mut manifest, file) = (store.manifest.clone(), store.place("files", EXPERTS));
    let head = &other[..8 + text.len()];
    manifest.pointer_mut(&file).unwrap()["bytes"] = json!(other.len());
    manifest.pointer_mut(&file).unwrap()["digest"] = json!(blake3::hash(head).to_string());
    refused(store.open_with(&sealed(manifest.to_string().as_bytes())), "at offset");
}

/// Numbers of a JSON value, and its strings, by place.
fn leaves(value: &Value, place: &str, all: &mut Vec<String>) {
    match value {
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(i, item)| leaves(item, &format!("{place}/{i}"), all));
        }
        Value::Object(items) => {
            items.iter().for_each(|(key, item)| leaves(item, &format!("{place}/{key}"), all));
        }
        _ => all.push(place.to_owned()),
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let number = prop_oneof![0u64..20, Just(4096), Just(8192), any::<u64>(), Just(u64::MAX), Just(1 << 63)];
    let text = prop_oneof![Just("F32"), Just("Q4_K"), Just("MXFP4_SPLIT"), Just("config.json"), Just("a/b")];
    prop_oneof![number.prop_map(Value::from), text.prop_map(Value::from), Just(json!([])), Just(Value::Null)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_values(changes in prop::collection::vec((any::<prop::sample::Index>(), any_value()), 1..4)) {
        thread_local!(static STORE: Store = Store::new());
        STORE.with(|store| {
            let mut all = Vec::new();
            leaves(&store.manifest, "", &mut all);
            let mut manifest = store.manifest.clone();
            for (index, value) in &changes {
                if let Some(leaf) = manifest.pointer_mut(index.get(&all[..]).as_str()) {
                    *leaf = value.clone();
                }
            }
            let _ = store.open_with(&sealed(manifest.to_string().as_bytes()));
        });
    }

    #[test]
    fn changed_bytes(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        thread_local!(static STORE: Store = Store::new());
        STORE.with(|store| {
            let mut text = store.manifest.to_string().into_bytes();
            for (index, value) in &changes {
                let at = index.index(text.len());
                text[at] = *value;
            }
            let _ = store.open_with(&sealed(&text));
        });
    }
}
