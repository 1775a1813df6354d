//! A packed store gives the bits of the model it was made from, however its experts are read.

mod experts_support;

use std::path::Path;

use experts_support::*;
use turbospark_engine::memory_limit::MemorySize;
use turbospark_engine::pack::{PackOptions, pack};
use turbospark_engine::policy::PolicyKind;
use turbospark_engine::reader::ReaderKind;
use turbospark_engine::{
    Engine, EngineError, ExecutorKind, ExpertPlacement, MemoryError, MemoryOptions, OpenOptions, Prefetch,
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
    for (index, policy) in PolicyKind::ONLINE.into_iter().enumerate() {
        let slots = [cycle, cycle * 13 / 10, 4 * cycle, engine_slots(engine), all][index % 5].min(all);
        let prefetch = [Prefetch::On, Prefetch::Off, Prefetch::Auto][index % 3];
        let (slots, policy, prefetch) = (Some(slots), Some(policy), Some(prefetch));
        ways.push(MemoryOptions { slots, policy, prefetch, ..stream });
    }
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
