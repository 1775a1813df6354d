//! Stores of models in every arrangement of files have their tensors, bytes and metadata.

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::json;
use support::{Gguf, array, safetensors, string};
use turbospark_formats::packed::{PackError, StorePlan, StoreWriter, verify};
use turbospark_formats::{Checkpoint, Metadata};

fn contents(checkpoint: &Checkpoint) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let tensors = checkpoint.tensors();
    tensors.map(|(name, tensor)| (name.to_owned(), (tensor.shape().to_vec(), tensor.to_f32()))).collect()
}

/// Writes a store without experts, which has everything as the model's files have it.
fn write(model: &Checkpoint, folder: &Path) -> Result<(), PackError> {
    let plan = StorePlan::new(model, "none-1", None, &[]).unwrap();
    let total = plan.bytes();
    let Some(mut writer) = StoreWriter::begin(folder, plan, &mut |_| {})? else { return Ok(()) };
    let mut written = 0;
    writer.write_resident(&mut |bytes| written += bytes)?;
    assert!(written > 0 && written < total);
    writer.finish()
}

fn stored(model: &Checkpoint, folder: &Path) -> Checkpoint {
    write(model, folder).unwrap();
    let found = verify(folder, 1, &|_, _| {}).unwrap();
    assert!(found.damage.is_empty() && found.extra.is_empty(), "{found:?}");
    Checkpoint::open(folder).unwrap()
}

#[test]
fn a_split_gguf() {
    let folder = tempfile::tempdir().unwrap();
    let part = |number: u8| {
        let tokens = [string(b"a"), string("é".as_bytes())].concat();
        let part = Gguf::new("llama").pair("split.no", 2, &[number, 0]).pair("split.count", 2, &[2, 0]);
        match number {
            0 => part.u32("llama.attention.head_count", 2).pair(
                "tokenizer.ggml.tokens",
                9,
                &array(8, 2, &tokens),
            ),
            _ => part,
        }
    };
    // Paired rotary rows and quantised rows.
    let first = part(0).floats("output_norm.weight", &[8]).floats("blk.0.attn_q.weight", &[4, 8]);
    let second = part(1).tensor("token_embd.weight", &[32, 3], 2, &[7; 54]);
    for (number, part) in [(1, first), (2, second)] {
        fs::write(folder.path().join(format!("m-0000{number}-of-00002.gguf")), part.bytes()).unwrap();
    }
    let model = Checkpoint::open(&folder.path().join("m-00002-of-00002.gguf")).unwrap();
    let store = folder.path().join("store");
    let opened = stored(&model, &store);
    assert_eq!(contents(&opened), contents(&model));
    let (Metadata::Gguf(found), Metadata::Gguf(expected)) = (&opened.metadata, &model.metadata) else {
        panic!("both are GGUF")
    };
    assert_eq!(found, expected);
    // The copied metadata stands for the store.
    assert_eq!(Checkpoint::open(&store.join("metadata.gguf")).unwrap().tensors().count(), 3);
}

#[test]
fn sharded_safetensors_with_their_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    fs::create_dir(&model).unwrap();
    let shards = [
        (
            "a.safetensors",
            safetensors(&[("model.norm.weight", "BF16", &[4]), ("lm_head.weight", "F32", &[3, 4])]),
        ),
        ("b.safetensors", safetensors(&[("model.embed_tokens.weight", "F16", &[3, 5])])),
    ];
    for (name, bytes) in shards {
        fs::write(model.join(name), bytes).unwrap();
    }
    let map = json!({"model.norm.weight": "a.safetensors", "lm_head.weight": "a.safetensors",
        "model.embed_tokens.weight": "b.safetensors"});
    let small = [
        ("config.json", json!({"model_type": "llama"}).to_string()),
        ("generation_config.json", json!({"top_k": 3}).to_string()),
        ("tokenizer.json", "[]".to_owned()),
        ("chat_template.jinja", "{{ messages }}".to_owned()),
        ("model.safetensors.index.json", json!({"weight_map": map}).to_string()),
        ("notes.txt", "not of the model".to_owned()),
    ];
    for (name, text) in &small {
        fs::write(model.join(name), text).unwrap();
    }
    let source = Checkpoint::open(&model).unwrap();
    let store = folder.path().join("store");
    let opened = stored(&source, &store);
    assert_eq!(contents(&opened), contents(&source));
    assert_eq!(format!("{:?}", opened.tokenizer), format!("{:?}", source.tokenizer));
    assert_eq!(opened.tokenizer.chat_template.as_deref(), Some("{{ messages }}"));
    assert_eq!(format!("{:?}", opened.metadata), format!("{:?}", source.metadata));
    for (name, text) in &small[..4] {
        assert_eq!(fs::read_to_string(store.join(name)).unwrap(), *text);
    }
    assert!(!store.join("notes.txt").exists());
    // A template that is put beside it later is none of the store's.
    fs::write(store.join("special_tokens_map.json"), "{}").unwrap();
    assert!(Checkpoint::open(&store).unwrap().tokenizer.special_tokens.is_none());
}

#[test]
fn two_runs_do_not_write_to_one_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    fs::write(&path, Gguf::new("llama").floats("output_norm.weight", &[8]).bytes()).unwrap();
    let model = Checkpoint::open(&path).unwrap();
    let store = folder.path().join("store");
    let plan = StorePlan::new(&model, "none-1", None, &[]).unwrap();
    let writer = StoreWriter::begin(&store, plan, &mut |_| {}).unwrap();
    if cfg!(unix) {
        assert!(matches!(write(&model, &store), Err(PackError::Busy(_))));
    }
    drop(writer);
    write(&model, &store).unwrap();
    // Touched between two runs, the model may be another one.
    fs::remove_file(store.join("turbospark.json")).unwrap();
    let plan = StorePlan::new(&model, "none-1", None, &[]).unwrap();
    let files: Vec<_> = fs::read_dir(&store).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.iter().for_each(|file| fs::remove_file(file).unwrap());
    drop(StoreWriter::begin(&store, plan, &mut |_| {}).unwrap());
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(5);
    fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    let error = write(&model, &store).err().unwrap().to_string();
    assert!(error.contains("changed since"), "{error}");
}
