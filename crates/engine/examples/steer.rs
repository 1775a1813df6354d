//! A direction from two lists of prompts, and an answer with and without it.
//!
//!     cargo run --release -p turbospark-engine --example steer

use std::ops::ControlFlow;

use turbospark_engine::steering::Steer;
use turbospark_engine::steering::train::{Method, Pooling, Sample, Sets, train};
use turbospark_engine::{AnswerOptions, Edits, EngineError, Model, OpenOptions};
use turbospark_sampling::SamplingOptions;
use turbospark_text::{Message, RenderOptions};

const HAPPY: [&str; 4] = ["laughed and danced.", "smiled.", "was very happy.", "sang with joy."];
const SAD: [&str; 4] = ["cried and cried.", "wept.", "was very sad.", "was all alone."];

fn samples(model: &mut Model, ends: &[&str]) -> Result<Vec<Sample>, EngineError> {
    let mut samples = Vec::new();
    for end in ends {
        let ids = model.text()?.raw_ids(&format!("The little fox {end}"))?;
        samples.push(model.engine.sample(&ids, Pooling::Mean)?);
    }
    Ok(samples)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut model = Model::demo(OpenOptions::default())?;
    let (happy, sad) = (samples(&mut model, &HAPPY)?, samples(&mut model, &SAD)?);
    let (positive, negative) = (happy.split_at(3), sad.split_at(3));
    let training = train(
        Method::MeanDifference,
        Sets { positive: positive.0, negative: negative.0 },
        Sets { positive: positive.1, negative: negative.1 },
    )?;
    let message = Message::new("user", "Tell me a story about a bear and a boat.");
    let prompt = model.prompt(&[message], &RenderOptions::prompt())?;
    for strength in [0.0, 0.5, -0.5] {
        let mut edits = Edits::default();
        let steer = Steer { strength, ..Steer::new("vectors made here") };
        steer.add_vectors(&training.vectors, &mut edits, model.kind(), model.engine.program())?;
        let options = AnswerOptions {
            sampling: SamplingOptions { temperature: 0.0, ..SamplingOptions::default() },
            max_tokens: Some(60),
            edits,
            ..AnswerOptions::default()
        };
        let session = model.engine.open_session();
        let answer = model.answer(session, prompt.clone(), &options, |_| ControlFlow::Continue(()))?;
        println!("strength {strength}: {}\n", answer.text);
    }
    Ok(())
}
