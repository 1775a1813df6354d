//! Streamed experts give the bits of resident ones: whole logits with `==`, for every reader, policy and size of the
//! pool, with and without reading ahead, prompts in chunks and tokens one by one, one sequence and four.

mod experts_support;

use experts_support::{checkpoint, engine, four, logits, resident, tokens};
use turbospark_engine::memory_limit::MemorySize;
use turbospark_engine::policy::PolicyKind;
use turbospark_engine::reader::ReaderKind;
use turbospark_engine::{
    Engine, EngineError, ExecutorKind, Keep, MemoryError, MemoryOptions, OpenOptions, Prefetch, Residency,
};
use turbospark_formats::Checkpoint;

/// Float, k-quants, MXFP4 and MLX; GGUF and Hugging Face; plain, fused, transposed.
const MODELS: [&str; 10] = [
    "gpt_oss/hf",
    "gpt_oss/hf-mxfp4",
    "gpt_oss/gguf-mxfp4.gguf",
    "gpt_oss/gguf-q4_k_m.gguf",
    "gpt_oss/mlx-4bit",
    "gemma4_moe/hf",
    "gemma4_moe/gguf-bf16.gguf",
    "qwen3_moe/hf",
    "mixtral/hf",
    "mixtral/gguf-mxfp4.gguf",
];

/// Pools from the smallest legal one to four token cycles, or to all experts if they are fewer.
fn pools(engine: &Engine) -> [usize; 4] {
    let layers = engine.program().expert_layers();
    let cycle: usize = layers.iter().map(|layer| layer.k).sum();
    let all: usize = layers.iter().map(|layer| layer.experts).sum();
    [1, cycle, cycle * 13 / 10, 4 * cycle].map(|slots| slots.min(all))
}

/// Ways to stream: what the options choose by themselves, then every pair of pool, policy, reader and prefetch
/// somewhere; with `TURBOSPARK_SWEEP=1` every combination.
fn streams(engine: &Engine) -> Vec<MemoryOptions> {
    let base = MemoryOptions { residency: Residency::Stream, ..MemoryOptions::default() };
    let mut readers = vec![ReaderKind::Auto, ReaderKind::Direct, ReaderKind::Buffered];
    if cfg!(target_os = "linux") {
        readers.push(ReaderKind::Uring);
    }
    let hints = [Prefetch::On, Prefetch::Off];
    let sweep = std::env::var_os("TURBOSPARK_SWEEP").is_some();
    let mut ways = vec![base];
    for (p, slots) in pools(engine).into_iter().enumerate() {
        for (q, policy) in PolicyKind::ONLINE.into_iter().enumerate() {
            for (r, reader) in readers.iter().enumerate() {
                for (h, prefetch) in hints.iter().enumerate() {
                    if sweep || r == (p + q) % readers.len() && h == (p + q / 2) % 2 {
                        let (policy, reader) = (Some(policy), Some(*reader));
                        let (slots, prefetch) = (Some(slots), Some(*prefetch));
                        ways.push(MemoryOptions { slots, policy, reader, prefetch, ..base });
                    }
                }
            }
        }
    }
    ways
}

#[test]
fn streamed_experts_give_the_bits_of_resident_ones() {
    for name in MODELS.iter().chain(&["demo"]) {
        let checkpoint = checkpoint(name);
        let mut plain = engine(&checkpoint, resident());
        assert!(plain.streamed().is_none());
        let (expected, together) = (logits(&mut plain), four(&mut plain));
        let cycle = pools(&plain)[1];
        for memory in streams(&plain) {
            let mut streamed = engine(&checkpoint, memory);
            assert_eq!(memory.slots.or(streamed.memory().slots()), streamed.memory().slots());
            assert!(streamed.streamed().is_some());
            assert!(logits(&mut streamed) == expected, "{name}: {memory:?}");
            assert!(four(&mut streamed) == together, "{name}: {memory:?}, four sequences");
            let statistics = streamed.take_statistics();
            assert!(statistics.prefill.misses > 0 && statistics.prefill.bytes_read > 0, "{name}: {memory:?}");
            let hinted = statistics.decode.hinted;
            match memory.prefetch {
                Some(Prefetch::Off) => assert_eq!(hinted, 0, "{name}: {memory:?}"),
                // Where all experts have slots nothing is foretold.
                _ if streamed.memory().slots() == Some(streamed.memory().expert_count) => {
                    assert_eq!(hinted, 0, "{name}: {memory:?}");
                }
                _ if memory.slots.is_some_and(|slots| slots >= cycle) => {
                    assert!(hinted > 0, "{name}: {memory:?}");
                }
                _ => {}
            }
        }
    }
}

#[test]
fn each_expert_is_read_once_a_chunk() {
    let checkpoint = checkpoint("demo");
    let memory = MemoryOptions { slots: Some(1), prefetch: Some(Prefetch::Off), ..MemoryOptions::default() };
    let options = OpenOptions { prefill_chunk: Some(64), memory, ..OpenOptions::default() };
    let mut engine = Engine::new(&checkpoint, options).unwrap();
    let prompt = tokens(&engine, 64, 1);
    engine.evaluate(&prompt, &Keep::default()).unwrap();
    let statistics = engine.streamed().unwrap().statistics();
    let experts: usize = engine.program().expert_layers().iter().map(|layer| layer.experts).sum();
    assert!(statistics.reads <= experts as u64, "{} reads of {experts} experts", statistics.reads);
}

/// The smallest budget that a refusal names.
fn refused(checkpoint: &Checkpoint, options: &OpenOptions) -> u64 {
    match Engine::new(checkpoint, options.clone()).err() {
        Some(EngineError::Memory(MemoryError::TooSmall { least, arithmetic, .. })) => {
            assert!(arithmetic.contains("keys and values"), "{arithmetic}");
            least
        }
        other => panic!("not refused for its budget: {other:?}"),
    }
}

#[test]
fn too_small_a_budget_names_the_smallest_that_works() {
    let with = |residency: Residency, bytes: u64| {
        let memory =
            MemoryOptions { budget: Some(MemorySize::Bytes(bytes)), residency, ..MemoryOptions::default() };
        OpenOptions { memory, ..OpenOptions::default() }
    };
    for (name, residency) in [
        ("demo", Residency::Auto),
        ("demo", Residency::Stream),
        ("demo", Residency::Resident),
        ("gpt_oss/hf", Residency::Auto),
        ("llama3/hf", Residency::Auto),
    ] {
        let checkpoint = checkpoint(name);
        let least = refused(&checkpoint, &with(residency, 1 << 20));
        let works = Engine::new(&checkpoint, with(residency, least)).unwrap();
        assert!(works.memory().total() as u64 <= least);
        assert_eq!(refused(&checkpoint, &with(residency, least - (1 << 20))), least, "{name} {residency}");
    }
}

#[test]
fn what_fits_stays_in_memory_and_the_rest_is_streamed() {
    let checkpoint = checkpoint("demo");
    let open = |bytes| {
        let budget = Some(MemorySize::Bytes(bytes));
        engine(&checkpoint, MemoryOptions { budget, ..MemoryOptions::default() })
    };
    let roomy = open(1 << 30);
    assert!(roomy.streamed().is_none());
    let total = roomy.memory().total() as u64;
    assert!(open(total).streamed().is_none());
    let short = open(total - (1 << 20));
    assert!(short.streamed().is_some());
    assert!((short.memory().total() as u64) < total);
    assert!(short.memory().slots().unwrap() > 10, "{}", short.memory());
}

#[test]
fn options_that_cannot_apply_are_refused_by_name() {
    let refused = |name: &str, executor: ExecutorKind, memory: MemoryOptions| {
        let options = OpenOptions { executor, memory, ..OpenOptions::default() };
        match Engine::new(&checkpoint(name), options).err() {
            Some(EngineError::Memory(error)) => error.to_string(),
            other => panic!("{name}: {other:?}"),
        }
    };
    let none = MemoryOptions::default();
    let (cpu, reference) = (ExecutorKind::Cpu, ExecutorKind::Reference);
    let stream = Residency::Stream;
    for (option, name, executor, memory) in [
        ("--expert-residency stream", "llama3/hf", cpu, MemoryOptions { residency: stream, ..none }),
        ("--policy lru", "llama3/hf", cpu, MemoryOptions { policy: Some(PolicyKind::Lru), ..none }),
        ("--reader direct", "demo", cpu, MemoryOptions { reader: Some(ReaderKind::Direct), ..none }),
        ("--prefetch on", "demo", reference, MemoryOptions { prefetch: Some(Prefetch::On), ..none }),
        ("--slots 8", "demo", cpu, MemoryOptions { slots: Some(8), residency: Residency::Resident, ..none }),
        ("--slots 1000", "demo", cpu, MemoryOptions { slots: Some(1000), ..none }),
        ("--slots 0", "demo", cpu, MemoryOptions { slots: Some(0), ..none }),
        ("--expert-residency mapped", "demo", cpu, MemoryOptions { residency: Residency::Mapped, ..none }),
        ("--expert-residency stream", "demo", reference, MemoryOptions { residency: stream, ..none }),
        (
            "--memory 1GiB",
            "demo",
            reference,
            MemoryOptions { budget: Some(MemorySize::Bytes(1 << 30)), ..none },
        ),
    ] {
        let message = refused(name, executor, memory);
        assert!(message.contains(option), "{option}: {message}");
    }
    let mapped = MemoryOptions { residency: Residency::Mapped, ..none };
    let options = OpenOptions { executor: reference, memory: mapped, ..OpenOptions::default() };
    assert!(Engine::new(&checkpoint("demo"), options).is_ok());
}
