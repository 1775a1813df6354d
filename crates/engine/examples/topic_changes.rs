//! A thousand changes of topic in a pool that is too small: the hot experts of every layer are others each time. Between
//! topics the model answers, with the same bits each time, and the process does not grow.
//!
//!     cargo run --release -p turbospark-engine --example topic_changes MODEL [MEMORY] [CHANGES]

use turbospark_engine::{Engine, EngineError, Keep, OpenOptions, Residency};
use turbospark_experts::memory_limit::MemorySize;
use turbospark_experts::trace::{Routing, Synthetic};
use turbospark_formats::Checkpoint;
use turbospark_program::ExpertSource;

/// Tokens of a topic.
const TOKENS: usize = 8;
/// Topics between two answers of the model.
const BETWEEN: usize = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: topic_changes MODEL [MEMORY] [CHANGES]")?;
    let budget: Option<MemorySize> = arguments.next().map(|text| text.parse()).transpose()?;
    let changes: usize = arguments.next().map_or(Ok(1000), |text| text.parse())?;

    let mut options = OpenOptions { context: Some(64), ..OpenOptions::default() };
    (options.memory.budget, options.memory.residency) = (budget, Residency::Stream);
    let mut engine = Engine::new(&Checkpoint::open(path.as_ref())?, options)?;
    println!("{}", engine.memory());
    let layers = engine.program().expert_layers();
    let first = layers.first().ok_or("a model without routed experts has no topics")?;
    let (experts, k) = (first.experts, first.k);
    let routing = Routing::Drift { every: TOKENS, hot: experts.div_ceil(4).max(k), share: 0.9 };
    let topics = Synthetic { layers: layers.len(), experts, k, routing, seed: 1 };
    let topics = topics.trace(changes * TOKENS);

    let expected = answer(&mut engine)?;
    let mut settled = 0;
    for topic in 0..changes {
        for token in topic * TOKENS..(topic + 1) * TOKENS {
            for layer in 0..topics.layers().len() {
                let ids: Vec<u32> = topics.routes(token, layer).iter().map(|&id| u32::from(id)).collect();
                let source = engine.streamed().ok_or("the experts are not streamed")?;
                let mut request = source.begin(layer, &ids)?;
                while request.next()?.is_some() {}
            }
        }
        if (topic + 1) % BETWEEN == 0 || topic + 1 == changes {
            if answer(&mut engine)? != expected {
                return Err(format!("after topic {topic} the model's answer is another").into());
            }
            let resident = resident_memory();
            if settled == 0 {
                settled = resident;
            }
            let statistics = engine.streamed().map(|source| source.statistics()).unwrap_or_default();
            println!(
                "{:5} topics: {} hits, {} misses, {} MiB resident ({:+} KiB since the first line)",
                topic + 1,
                statistics.hits,
                statistics.misses,
                resident >> 10,
                resident as i64 - settled as i64
            );
        }
    }
    Ok(())
}

/// The logits after a few tokens, as bits.
fn answer(engine: &mut Engine) -> Result<Vec<u32>, EngineError> {
    let evaluation = engine.evaluate(&[1, 2, 3, 4], &Keep { logits: Some(3..4), ..Keep::default() })?;
    Ok(evaluation.logits.iter().map(|value| value.to_bits()).collect())
}

/// Memory of the process in KiB, 0 where the system does not say.
fn resident_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
}
