//! A packed store gives the bits of the model it was made from, however its experts are read; what is damaged is
//! named and never computed with.

mod packed_support;

use std::path::Path;

use packed_support::*;
use turbospark_engine::memory_limit::MemorySize;
use turbospark_engine::pack::{DamageKind, PackOptions, pack, verify};
use turbospark_engine::reader::ReaderKind;
use turbospark_engine::{
    Engine, EngineError, ExecutorKind, ExpertPlacement, Keep, MemoryError, MemoryOptions, OpenOptions,
    Residency,
};
use turbospark_formats::{Checkpoint, Format};

/// Float, k-quants, MXFP4 and MLX; GGUF and Hugging Face; plain, fused, transposed.
const MODELS: [&str; 14] = [
    "gpt_oss/hf",
    "gpt_oss/hf-mxfp4",
    "gpt_oss/gguf-mxfp4.gguf",
    "gpt_oss/gguf-q4_k_m.gguf",
    "gpt_oss/mlx-4bit",
    "gemma4_moe/hf",
    "gemma4_moe/gguf-bf16.gguf",
    "gemma4_moe/mlx-4bit",
    "qwen3_moe/hf",
    "qwen3_moe/gguf-mxfp4.gguf",
    "qwen3_moe_wide/gguf-zoo.gguf",
    "mixtral/hf",
    "mixtral/gguf-mxfp4.gguf",
    "demo",
];

/// Every way to have the experts of a store.
fn ways(engine: &Engine) -> Vec<MemoryOptions> {
    let layers = engine.program().expert_layers();
    let cycle: usize = layers.iter().map(|layer| layer.k).sum();
    let all: usize = layers.iter().map(|layer| layer.experts).sum();
    let stream = MemoryOptions { residency: Residency::Stream, ..MemoryOptions::default() };
    let mut ways = vec![
        resident(),
        MemoryOptions { verify_reads: true, ..resident() },
        MemoryOptions { residency: Residency::Mapped, ..MemoryOptions::default() },
        stream,
        MemoryOptions { slots: Some(all.min(cycle * 13 / 10)), verify_reads: true, ..stream },
    ];
    let mut readers = vec![ReaderKind::Auto, ReaderKind::Direct, ReaderKind::Buffered];
    if cfg!(target_os = "linux") {
        readers.push(ReaderKind::Uring);
    }
    let smallest = engine_slots(engine);
    for (index, reader) in readers.into_iter().enumerate() {
        ways.push(MemoryOptions {
            slots: Some(smallest),
            reader: Some(reader),
            verify_reads: index % 2 == 0,
            ..stream
        });
    }
    ways
}

#[test]
fn a_store_gives_the_bits_of_its_source() {
    for name in MODELS {
        let source = checkpoint(name);
        let mut plain = engine(&source, resident());
        let (expected, together) = (logits(&mut plain), four(&mut plain));
        let store = Store::of(&source);
        let opened = Checkpoint::open(store.path()).unwrap();
        for memory in ways(&plain) {
            let mut packed = engine(&opened, memory);
            assert!(logits(&mut packed) == expected, "{name}: {memory:?}");
            assert!(four(&mut packed) == together, "{name}: {memory:?}, four sequences");
            let statistics = packed.take_statistics();
            if memory.residency == Residency::Stream {
                assert!(statistics.prefill.misses > 0 && statistics.prefill.bytes_read > 0, "{name}");
            }
        }
    }
}

#[test]
fn a_store_has_the_metadata_and_the_resident_bytes_of_its_source() {
    for name in MODELS {
        let source = checkpoint(name);
        let store = Store::of(&source);
        let opened = Checkpoint::open(store.path()).unwrap();
        assert_eq!(format!("{:?}", opened.metadata), format!("{:?}", source.metadata), "{name}");
        assert_eq!(format!("{:?}", opened.tokenizer), format!("{:?}", source.tokenizer), "{name}");
        let names = |checkpoint: &Checkpoint| {
            let shapes =
                checkpoint.tensors().map(|(name, tensor)| (name.to_owned(), tensor.shape().to_vec()));
            shapes.collect::<Vec<_>>()
        };
        assert_eq!(names(&opened), names(&source), "{name}");
        for (tensor, packed) in opened.tensors().filter(|(_, packed)| packed.count() > 0) {
            let source = source.get(tensor).unwrap();
            assert_eq!(packed.layout(), source.layout(), "{name}: {tensor}");
            let same = (0..source.count())
                .all(|i| packed.slices(i).iter().map(|s| &s[..]).eq(source.slices(i).iter().map(|s| &s[..])));
            assert!(same, "{name}: {tensor}");
        }
        // Every file of the folder is found again from itself.
        for file in ["turbospark.json", "resident.safetensors", "experts-00000.safetensors"] {
            let path = store.path().join(file);
            if path.exists() {
                assert_eq!(Checkpoint::open(&path).unwrap().path, store.path());
            }
        }
    }
}

#[test]
fn a_store_is_the_same_bytes_with_any_number_of_threads() {
    let source = checkpoint("demo");
    let one = Store::with(&source, &PackOptions { threads: 1, ..PackOptions::default() });
    let many = Store::with(&source, &PackOptions { threads: 5, ..PackOptions::default() });
    assert!(files(one.path()) == files(many.path()));
    // Again into the same folder: it is complete and stays as it is.
    let before = files(one.path());
    let again = pack(&source, one.path(), &PackOptions::default(), &|_, _| {}).unwrap();
    assert_eq!(again.kept, again.bytes);
    assert!(files(one.path()) == before);
}

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
fn what_cannot_be_packed_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |source: &Checkpoint, path: &Path, options: &PackOptions| {
        pack(source, path, options, &|_, _| {}).err().unwrap().to_string()
    };
    let plain = PackOptions::default();
    let dense = refused(&checkpoint("llama3/hf"), &folder.path().join("a"), &plain);
    assert!(dense.contains("no routed experts"), "{dense}");
    assert!(!folder.path().join("a").exists());
    let source = checkpoint("mixtral/gguf-mxfp4.gguf");
    let store = Store::of(&source);
    let twice = refused(&Checkpoint::open(store.path()).unwrap(), &folder.path().join("b"), &plain);
    assert!(twice.contains("packed store already"), "{twice}");
    std::fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    let full = refused(&source, folder.path(), &plain);
    assert!(full.contains("notes.txt"), "{full}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    let other = refused(&checkpoint("qwen3_moe/hf"), store.path(), &plain);
    assert!(other.contains("another model"), "{other}");
    let with = |quantize| PackOptions { quantize: Some(quantize), ..plain };
    let already = refused(&source, &folder.path().join("c"), &with(Format::Q8_0));
    assert!(already.contains("MXFP4 already") && already.contains("--quantize"), "{already}");
    let narrow = refused(&checkpoint("mixtral/hf"), &folder.path().join("c"), &with(Format::Q4_K));
    assert!(narrow.contains("blocks of 256"), "{narrow}");
}

#[test]
fn what_cannot_be_done_with_a_store_is_refused_by_name() {
    let store = Store::of(&checkpoint("mixtral/gguf-mxfp4.gguf"));
    let opened = Checkpoint::open(store.path()).unwrap();
    let refused = |checkpoint: &Checkpoint, executor, memory| {
        let options = OpenOptions { executor, memory, ..OpenOptions::default() };
        Engine::new(checkpoint, options).err().unwrap().to_string()
    };
    let none = MemoryOptions::default();
    let reference = refused(&opened, ExecutorKind::Reference, none);
    assert!(reference.contains("--executor reference") && reference.contains("packed"), "{reference}");
    let mapped = MemoryOptions { residency: Residency::Mapped, ..none };
    let checked = MemoryOptions { verify_reads: true, ..none };
    for (checkpoint, memory, option) in [
        (&opened, MemoryOptions { verify_reads: true, ..mapped }, "--verify-reads"),
        (&opened, MemoryOptions { slots: Some(2), ..mapped }, "--slots 2"),
        (&checkpoint("mixtral/hf"), checked, "--verify-reads"),
        (&checkpoint("llama3/hf"), checked, "--verify-reads"),
        (&checkpoint("mixtral/hf"), mapped, "--expert-residency mapped"),
    ] {
        let message = refused(checkpoint, ExecutorKind::Cpu, memory);
        assert!(message.contains(option), "{option}: {message}");
    }
}

#[test]
fn a_store_of_another_layout_is_refused_by_its_name() {
    let source = checkpoint("mixtral/gguf-mxfp4.gguf");
    let folder = tempfile::tempdir().unwrap();
    let refused = |packing: &str, more: usize| {
        let store = folder.path().join(packing);
        made_up(&source, &store, packing, more);
        let opened = Checkpoint::open(&store).unwrap();
        assert_eq!(opened.packed().unwrap().packing(), packing);
        Engine::new(&opened, OpenOptions::default()).err().unwrap().to_string()
    };
    let unknown = refused("panels-7", 0);
    assert!(unknown.contains("packed as panels-7") && unknown.contains("reads panels-1"), "{unknown}");
    let size = refused("panels-1", 64);
    assert!(size.contains("layer 0") && size.contains("pack the model again"), "{size}");
}

#[test]
fn the_plan_of_a_store_has_no_buffers_for_raw_experts() {
    let source = checkpoint("demo");
    let store = Store::of(&source);
    let opened = Checkpoint::open(store.path()).unwrap();
    let stream = MemoryOptions { residency: Residency::Stream, slots: Some(5), ..MemoryOptions::default() };
    let staging = |checkpoint: &Checkpoint| {
        let engine = engine(checkpoint, stream);
        match &engine.memory().placement {
            ExpertPlacement::Streamed { sizes, .. } => (sizes.staging, engine.memory().experts),
            other => panic!("{other:?}"),
        }
    };
    let expert = opened.packed().unwrap().layers()[0].experts[0].len();
    assert_eq!(staging(&opened), (0, 5 * expert));
    assert!(staging(&source).0 > 0);
    // Mapped experts count, and the smallest budget that is named works.
    for residency in [Residency::Mapped, Residency::Stream, Residency::Resident] {
        let with = |bytes| {
            let budget = Some(MemorySize::Bytes(bytes));
            let memory = MemoryOptions { budget, residency, ..MemoryOptions::default() };
            Engine::new(&opened, OpenOptions { memory, ..OpenOptions::default() })
        };
        let least = match with(1 << 20).err() {
            Some(EngineError::Memory(MemoryError::TooSmall { least, .. })) => least,
            other => panic!("{residency}: {other:?}"),
        };
        let works = with(least).unwrap();
        assert!(works.memory().total() as u64 <= least);
        if residency != Residency::Stream {
            assert!(works.memory().experts >= opened.packed().unwrap().expert_bytes(), "{residency}");
        }
    }
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

#[test]
fn quantised_experts_are_those_of_the_quantiser() {
    for (name, formats) in [
        ("mixtral/hf", &[Format::MXFP4, Format::Q4_0, Format::Q8_0][..]),
        ("gpt_oss/hf", &[Format::Q8_0][..]),
        ("wide floats", &[Format::Q4_K][..]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let source = if name == "wide floats" { wide_floats(folder.path()) } else { checkpoint(name) };
        let expected = logits(&mut engine(&source, resident()));
        for &format in formats {
            let quantize = PackOptions { quantize: Some(format), ..PackOptions::default() };
            let store = Store::with(&source, &quantize);
            let opened = Checkpoint::open(store.path()).unwrap();
            assert_eq!(opened.packed().unwrap().quantized(), Some(format));
            check_quantised(&source, &opened, format);
            let found = logits(&mut engine(&opened, resident()));
            let off = relative_error(&found, &expected);
            let most = if format == Format::Q8_0 { 0.02 } else { 0.3 };
            assert!(off > 0.0 && off < most, "{name} {format}: {off}");
            // Another format is another store.
            let other = pack(&source, store.path(), &PackOptions::default(), &|_, _| {}).err().unwrap();
            assert!(other.to_string().contains("other options"), "{other}");
        }
    }
}
