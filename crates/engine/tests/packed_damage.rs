//! What is damaged in a packed store is named and never computed with, and packing again mends it.

mod experts_support;

use std::path::Path;

use experts_support::*;
use turbospark_engine::pack::{DamageKind, PackOptions, pack, verify};
use turbospark_engine::{Engine, EngineError, Keep, MemoryOptions, OpenOptions, Residency};
use turbospark_formats::Checkpoint;

#[test]
fn an_unfinished_store_is_refused_and_goes_on() {
    let source = checkpoint("gpt_oss/hf-mxfp4");
    let whole = Store::of(&source);
    let expected = files(whole.path());
    // What a run leaves that is ended after some of its files: the journal, those files, parts of others.
    let store = Store::of(&source);
    interrupt(&store, &source);
    let refused = Checkpoint::open(store.path()).err().unwrap().to_string();
    assert!(refused.contains("not finished") && refused.contains("turbospark pack"), "{refused}");
    let refused = verify(store.path(), 1, &|_, _| {}).err().unwrap().to_string();
    assert!(refused.contains("not finished"), "{refused}");
    // Of another model it is not taken for its own.
    let other = pack(&checkpoint("mixtral/hf"), store.path(), &PackOptions::default(), &|_, _| {});
    let other = other.err().unwrap().to_string();
    assert!(other.contains("another model"), "{other}");
    // A file that was damaged meanwhile is written again.
    flip(&store.path().join("experts-00000.safetensors"), 5000);
    let packed = pack(&source, store.path(), &PackOptions::default(), &|_, _| {}).unwrap();
    assert!(packed.kept > 0 && packed.kept < packed.bytes);
    assert!(files(store.path()) == expected);
}

#[test]
fn what_is_damaged_is_written_again_and_only_from_the_same_model() {
    let source = checkpoint("gpt_oss/hf-mxfp4");
    let store = Store::of(&source);
    let expected = files(store.path());
    for file in ["experts-00001.safetensors", "resident.safetensors", "config.json"] {
        let path = store.path().join(file);
        flip(&path, expected[file].len() - 20);
        let packed = pack(&source, store.path(), &PackOptions::default(), &|_, _| {}).unwrap();
        assert_eq!(packed.bytes - packed.kept, expected[file].len() as u64);
        assert!(files(store.path()) == expected);
        std::fs::remove_file(&path).unwrap();
        pack(&source, store.path(), &PackOptions::default(), &|_, _| {}).unwrap();
        assert!(files(store.path()) == expected);
    }
    // The same shapes with other weights.
    let folder = tempfile::tempdir().unwrap();
    for (file, bytes) in files(&source.path) {
        std::fs::write(folder.path().join(file), bytes).unwrap();
    }
    let model = folder.path().join("model.safetensors");
    for at in 1..400 {
        flip(&model, std::fs::metadata(&model).unwrap().len() - 200 * at);
    }
    std::fs::remove_file(store.path().join("experts-00001.safetensors")).unwrap();
    let other = Checkpoint::open(folder.path()).unwrap();
    let error = pack(&other, store.path(), &PackOptions::default(), &|_, _| {}).err().unwrap().to_string();
    assert!(error.contains("not the one that this store was packed from"), "{error}");
    assert!(!store.path().join("experts-00001.safetensors").exists());
    // A manifest that is damaged says nothing of the rest.
    flip(&store.path().join("turbospark.json"), 500);
    let error = pack(&source, store.path(), &PackOptions::default(), &|_, _| {}).err().unwrap().to_string();
    assert!(error.contains("manifest is damaged"), "{error}");
}

#[test]
fn a_flipped_byte_anywhere_is_named_by_verify() {
    for name in ["gpt_oss/hf-mxfp4", "mixtral/gguf-mxfp4.gguf"] {
        let store = Store::of(&checkpoint(name));
        let sound = verify(store.path(), 2, &|_, _| {}).unwrap();
        assert!(sound.damage.is_empty() && sound.extra.is_empty(), "{sound:?}");
        assert_eq!(sound.files, files(store.path()).len());
        for (file, bytes) in files(store.path()) {
            let path = store.path().join(&file);
            for at in places(bytes.len()) {
                flip(&path, at);
                let found = verify(store.path(), 2, &|_, _| {}).unwrap();
                let [damage] = &found.damage[..] else { panic!("{file} at {at}: {found:?}") };
                assert_eq!(damage.file, file, "{found:?}");
                let tensor = damage.tensor.as_deref();
                match damage.kind {
                    DamageKind::Header | DamageKind::Changed => {}
                    _ => panic!("{found:?}"),
                }
                assert_eq!(tensor.is_some(), file.ends_with(".safetensors") && at >= 4096, "{found:?}");
                flip(&path, at);
            }
        }
        assert!(verify(store.path(), 2, &|_, _| {}).unwrap().damage.is_empty());
    }
}

#[test]
fn missing_cut_and_extra_files_are_named_by_verify_and_refused_by_opening() {
    let store = Store::of(&checkpoint("gpt_oss/hf-mxfp4"));
    std::fs::write(store.path().join("README.md"), "mine").unwrap();
    let extra = verify(store.path(), 1, &|_, _| {}).unwrap();
    assert_eq!((extra.damage.len(), &extra.extra[..]), (0, &["README.md".to_owned()][..]));
    Checkpoint::open(store.path()).unwrap();
    for (file, bytes) in files(store.path()) {
        if ["README.md", "turbospark.json"].contains(&&file[..]) {
            continue;
        }
        let path = store.path().join(&file);
        let named = |store: &Store| {
            let found = verify(store.path(), 1, &|_, _| {}).unwrap();
            assert!(found.damage.iter().all(|damage| damage.file == file), "{found:?}");
            let opened = Checkpoint::open(store.path()).err().unwrap().to_string();
            assert!(opened.contains(&file), "{opened}");
            found.damage
        };
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        let damage = named(&store);
        assert!(matches!(damage[0].kind, DamageKind::Length { .. }), "{damage:?}");
        if file.ends_with(".safetensors") {
            assert_eq!((damage.len(), &damage[1].kind), (2, &DamageKind::CutOff), "{damage:?}");
        }
        std::fs::write(&path, [&bytes[..], b"x"].concat()).unwrap();
        assert!(matches!(named(&store)[0].kind, DamageKind::Length { .. }));
        std::fs::remove_file(&path).unwrap();
        assert_eq!(named(&store)[0].kind, DamageKind::Missing);
        std::fs::write(&path, bytes).unwrap();
    }
    let none = verify(Path::new(env!("CARGO_MANIFEST_DIR")), 1, &|_, _| {}).err().unwrap().to_string();
    assert!(none.contains("not a packed store"), "{none}");
}

#[test]
fn a_damaged_expert_is_an_error_of_checked_reads_and_the_next_request_works() {
    let source = checkpoint("demo");
    let expected = logits(&mut engine(&source, resident()));
    let store = Store::of(&source);
    let opened = Checkpoint::open(store.path()).unwrap();
    let layer = &opened.packed().unwrap().layers()[0];
    let (file, offset) = (layer.experts[3].source().path().to_owned(), layer.experts[3].offset());
    let stream = MemoryOptions { residency: Residency::Stream, slots: Some(2), ..MemoryOptions::default() };
    let checked = MemoryOptions { verify_reads: true, ..stream };
    let mut engine = engine(&opened, checked);
    assert!(logits(&mut engine) == expected);
    let modified = std::fs::metadata(&file).unwrap().modified().unwrap();
    let keep_time = |file: &Path| {
        // A file that was written to is refused for its time already; a disk that rots has no new one.
        std::fs::File::options().write(true).open(file).unwrap().set_modified(modified).unwrap();
    };
    flip(&file, offset as u64 + 99);
    keep_time(&file);
    let prompt = tokens(&engine, 60, 1);
    let error = engine.evaluate(&prompt, &Keep::default()).err().unwrap().to_string();
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(error.contains("expert 3 of layer 0") && error.contains(name), "{error}");
    assert!(error.contains("digest"), "{error}");
    // Brought into memory whole, it is found when the model is opened.
    let all =
        OpenOptions { memory: MemoryOptions { verify_reads: true, ..resident() }, ..OpenOptions::default() };
    let error = Engine::new(&opened, all).err().unwrap().to_string();
    assert!(error.contains("expert 3 of layer 0"), "{error}");
    flip(&file, offset as u64 + 99);
    keep_time(&file);
    assert!(logits(&mut engine) == expected);
    // A resident tensor.
    let path = store.path().join("resident.safetensors");
    flip(&path, std::fs::metadata(&path).unwrap().len() - 9);
    let options = OpenOptions { memory: checked, ..OpenOptions::default() };
    let error = Engine::new(&opened, options).err().unwrap().to_string();
    assert!(error.contains("resident.safetensors") && error.contains("tensor"), "{error}");
}

#[test]
fn a_store_that_is_cut_while_it_is_in_use_is_an_error() {
    let source = checkpoint("demo");
    let stream = MemoryOptions { residency: Residency::Stream, slots: Some(2), ..MemoryOptions::default() };
    let mapped = MemoryOptions { residency: Residency::Mapped, ..MemoryOptions::default() };
    for (memory, file) in [
        (stream, "experts-00000.safetensors"),
        (mapped, "experts-00000.safetensors"),
        (stream, "resident.safetensors"),
    ] {
        let store = Store::of(&source);
        let opened = Checkpoint::open(store.path()).unwrap();
        let mut engine = engine(&opened, memory);
        let prompt = tokens(&engine, 30, 1);
        engine.evaluate(&prompt, &Keep::default()).unwrap();
        let path = store.path().join(file);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let error = engine.evaluate(&prompt, &Keep::default()).err().unwrap();
        assert!(matches!(error, EngineError::Step(_)), "{error}");
        assert!(error.to_string().contains(file), "{error}");
    }
}
