//! Two stories from one model at once: their rows share batches, and each is what it would be alone.
//!
//!     cargo run --release -p turbospark-engine --example two_stories

use turbospark_engine::{EngineError, Model, OpenOptions, Progress, Request};
use turbospark_sampling::{Sampler, SamplingOptions};
use turbospark_text::{Message, RenderOptions};

fn main() -> Result<(), EngineError> {
    let mut model = Model::demo(OpenOptions::default())?;
    let mut requests = Vec::new();
    for animal in ["a fox", "an owl"] {
        let message = Message::new("user", format!("Tell me a story about {animal} and a lantern."));
        requests.push(Request {
            prompt: model.prompt(&[message], &RenderOptions::prompt())?,
            session: model.engine.open_session(),
            sampler: Sampler::new(SamplingOptions {
                temperature: 0.5,
                seed: 3,
                ..SamplingOptions::default()
            })?,
            stop: model.text()?.stop_ids.clone(),
            max_tokens: 300,
            edits: Default::default(),
        });
    }
    let prompts: Vec<Vec<u32>> = requests.iter().map(|request| request.prompt.clone()).collect();
    let mut stories = vec![Vec::new(); requests.len()];
    let mut generation = model.engine.generate(requests)?;
    loop {
        let progress = generation.step()?;
        if progress.is_empty() {
            break;
        }
        for (request, progress) in progress {
            if let Progress::Token { id, .. } = progress {
                stories[request].push(id);
            }
        }
    }
    let text = model.text()?;
    for (prompt, ids) in prompts.iter().zip(stories) {
        let mut reply = text.reply(prompt, Default::default())?;
        let mut events = Vec::new();
        for id in ids {
            reply.push(id, &mut events)?;
        }
        reply.finish(&mut events);
        for event in events {
            if let turbospark_text::Event::Answer(piece) = event {
                print!("{piece}");
            }
        }
        println!("\n");
    }
    Ok(())
}
