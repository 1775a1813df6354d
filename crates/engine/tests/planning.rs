//! Plans against what then happens.

use std::path::Path;

use turbospark_engine::memory_limit::MemorySize;
use turbospark_engine::planning::{HitSource, Planning};
use turbospark_engine::{
    Engine, EngineError, Keep, MemoryError, MemoryOptions, OpenOptions, Prefetch, Residency, Trace,
    demo_source,
};
use turbospark_formats::Checkpoint;
use turbospark_text::{Special, TextModel};

fn demo() -> Checkpoint {
    Checkpoint::from_gguf(demo_source()).unwrap()
}

fn streamed(slots: usize) -> OpenOptions {
    let memory = MemoryOptions {
        slots: Some(slots),
        prefetch: Some(Prefetch::Off),
        budget: Some(MemorySize::Bytes(1 << 30)),
        ..MemoryOptions::default()
    };
    OpenOptions { memory, prefill_chunk: Some(1), ..OpenOptions::default() }
}

/// Token ids of a story text, and the trace of a run through `slots` slots with the hit rate of its second half.
fn run(checkpoint: &Checkpoint, slots: usize) -> (Trace, f64) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/demo/heldout.txt");
    let text = std::fs::read_to_string(path).unwrap();
    let tokenizer = TextModel::open(checkpoint).unwrap().tokenizer;
    let tokens = tokenizer.encode_prompt(&text[..4000], Special::Parse).unwrap();
    let mut options = streamed(slots);
    options.cpu.predict = true;
    let mut engine = Engine::new(checkpoint, options).unwrap();
    engine.start_trace().unwrap();
    let (first, second) = tokens[..600].split_at(300);
    let keep = Keep { logits: Some(0..0), ..Keep::default() };
    engine.evaluate(first, &keep).unwrap();
    engine.take_statistics();
    engine.evaluate(second, &keep).unwrap();
    let rate = engine.take_statistics().prefill.hit_rate().unwrap();
    (engine.take_trace().unwrap(), rate)
}

#[test]
fn the_hit_rate_of_a_trace_is_that_of_a_run() {
    let checkpoint = demo();
    for slots in [12, 24, 48] {
        let (trace, found) = run(&checkpoint, slots);
        let mut planning = Planning::new(&checkpoint, streamed(slots)).unwrap();
        let plan = planning.plan().unwrap();
        assert_eq!((plan.slots(), planning.hit_source()), (Some(slots), HitSource::Uniform));
        let rates = planning.measure(&plan).unwrap();
        let uniform = planning.estimate(&plan, &rates);
        // What uniform routing finds is about what the pool holds of all experts.
        let held = slots as f64 / plan.expert_count as f64;
        assert!((uniform.hit_rate.unwrap() - held).abs() < 0.03, "{slots}: {uniform:?}");
        planning.set_trace(trace).unwrap();
        let estimate = planning.estimate(&plan, &rates);
        let expected = estimate.hit_rate.unwrap();
        assert!((expected - found).abs() < 0.03, "{slots} slots: {expected} is not {found}");
        // Experts of the demo model are of one size.
        let token = planning.token();
        let missed = (1.0 - expected) * token.expert_file_bytes as f64;
        assert!((estimate.missed_bytes - missed).abs() < 1.0, "{estimate:?}");
        let seconds = estimate.shared_seconds + estimate.expert_seconds.max(estimate.disk_seconds);
        assert_eq!((estimate.seconds, estimate.tokens_per_second), (seconds, 1.0 / seconds));
    }
}

#[test]
fn routes_do_not_depend_on_what_is_foretold() {
    let checkpoint = demo();
    let (trace, _) = run(&checkpoint, 24);
    let foretold = (0..trace.len()).map(|token| trace.foretold(token, 3).is_some());
    // With prefetching off nobody asks ahead.
    assert_eq!(foretold.filter(|&is| is).count(), 0);
    let mut options = OpenOptions { prefill_chunk: Some(1), ..OpenOptions::default() };
    options.cpu.predict = true;
    let mut engine = Engine::new(&checkpoint, options).unwrap();
    engine.start_trace().unwrap();
    let keep = Keep { logits: Some(0..0), ..Keep::default() };
    for part in trace.tokens().chunks(300) {
        engine.evaluate(part, &keep).unwrap();
    }
    let resident = engine.take_trace().unwrap();
    let (mut recalled, mut all) = (0, 0);
    for token in 0..trace.len() {
        assert!(resident.foretold(token, 0).is_none(), "nothing is before the first layer");
        for layer in 0..trace.layers().len() {
            assert_eq!(resident.routes(token, layer), trace.routes(token, layer));
            let Some(foretold) = resident.foretold(token, layer) else { continue };
            assert_eq!(foretold.len(), 4);
            all += 4;
            recalled += foretold.iter().filter(|id| trace.routes(token, layer).contains(id)).count();
        }
    }
    assert_eq!(all, trace.len() * 5 * 4);
    assert!(recalled * 2 > all, "{recalled} of {all}: chance alone gives a quarter");
}

#[test]
fn budgets_rise_from_the_smallest_that_works_to_all_experts() {
    let checkpoint = demo();
    let planning = Planning::new(&checkpoint, OpenOptions::default()).unwrap();
    let plan = planning.plan().unwrap();
    let rates = planning.measure(&plan).unwrap();
    let budgets = planning.budgets(&plan, &rates).unwrap();
    assert!(budgets.windows(2).all(|pair| pair[0].0.total() <= pair[1].0.total()));
    assert!(budgets.iter().any(|(other, _)| *other == plan));
    assert_eq!(budgets.last().unwrap().0.slots(), None, "everything is resident");
    let least = budgets[0].0.budget.unwrap();
    let with = |budget: u64| {
        let memory = MemoryOptions { budget: Some(MemorySize::Bytes(budget)), ..MemoryOptions::default() };
        Planning::new(&checkpoint, OpenOptions { memory, ..OpenOptions::default() }).unwrap().plan()
    };
    with(least).unwrap();
    match with(least - (1 << 20)) {
        Err(EngineError::Memory(MemoryError::TooSmall { least: named, .. })) => assert_eq!(named, least),
        other => panic!("{other:?}"),
    }
    let memory = MemoryOptions { residency: Residency::Resident, ..MemoryOptions::default() };
    let resident = Planning::new(&checkpoint, OpenOptions { memory, ..OpenOptions::default() }).unwrap();
    let plan = resident.plan().unwrap();
    assert_eq!(resident.budgets(&plan, &rates).unwrap().len(), 1);
}

#[test]
fn traces_of_other_models_are_refused() {
    let checkpoint = demo();
    let mut planning = Planning::new(&checkpoint, OpenOptions::default()).unwrap();
    let mut other = Trace::new((0..6).collect(), vec![16; 6], 3);
    other.push(&[1], &[0, 1, 2].repeat(6)).unwrap();
    let error = planning.set_trace(other).unwrap_err().to_string();
    assert!(error.contains("16 experts, 3 a token") && error.contains("16 experts, 4 a token"), "{error}");
    let empty = Trace::new((0..6).collect(), vec![16; 6], 4);
    assert!(planning.set_trace(empty).unwrap_err().to_string().contains("0 tokens"));
}
