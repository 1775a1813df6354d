//! The demo model: its published log-probabilities, and generation from one and several sessions.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use turbospark_engine::{
    AnswerOptions, EngineError, ExecutorKind, Finish, Keep, Model, OpenOptions, Progress, Request, Update,
};
use turbospark_sampling::{Sampler, SamplingOptions};
use turbospark_text::{Event, Message, RenderOptions};

#[derive(serde::Deserialize)]
struct Golden {
    ids: Vec<u32>,
    /// For each position the likeliest next tokens and their natural log-probabilities.
    top5: Vec<Vec<(u32, f64)>>,
}

fn reference() -> OpenOptions {
    OpenOptions { executor: ExecutorKind::Reference, ..OpenOptions::default() }
}

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/demo").join(name)
}

fn check_golden(model: &mut Model, golden: &Path) {
    let golden: Golden = serde_json::from_slice(&std::fs::read(golden).unwrap()).unwrap();
    let logits = model.engine.evaluate(&golden.ids, &Keep::default()).unwrap().logits;
    let vocabulary = model.engine.program().vocabulary();
    assert!(golden.top5.len() >= 60);
    for (position, (row, top)) in logits.chunks(vocabulary).zip(&golden.top5).enumerate() {
        let largest = row.iter().copied().fold(f32::MIN, f32::max) as f64;
        let sum: f64 = row.iter().map(|&x| (x as f64 - largest).exp()).sum();
        for &(id, expected) in top {
            let found = row[id as usize] as f64 - largest - sum.ln();
            assert!(
                (found - expected).abs() <= 1e-3,
                "position {position}, token {id}: {found}, golden {expected}"
            );
        }
    }
}

#[test]
fn log_probabilities_equal_the_golden() {
    let mut model = Model::demo(reference()).unwrap();
    check_golden(&mut model, &fixture("golden-gguf.json"));
}

/// `TURBOSPARK_CHECKPOINT=DIR` and `TURBOSPARK_GOLDEN=FILE.json` check another checkpoint against a file of the same
/// form, such as the demo model's Hugging Face folder.
#[test]
fn log_probabilities_of_a_named_checkpoint_equal_its_golden() {
    let Some(checkpoint) = std::env::var_os("TURBOSPARK_CHECKPOINT") else { return };
    let golden = std::env::var_os("TURBOSPARK_GOLDEN").map_or(fixture("golden.json"), PathBuf::from);
    let mut model = Model::open(Path::new(&checkpoint), reference()).unwrap();
    check_golden(&mut model, &golden);
}

fn user(text: &str) -> Vec<Message> {
    vec![Message::new("user", text)]
}

fn greedy(max_tokens: usize) -> AnswerOptions {
    AnswerOptions {
        sampling: SamplingOptions::greedy(),
        max_tokens: Some(max_tokens),
        ..AnswerOptions::default()
    }
}

#[test]
fn a_story_is_told_and_ends_by_itself() {
    let mut model = Model::demo(OpenOptions::default()).unwrap();
    let messages = user("Tell me a story about a fox and a lantern.");
    let prompt = model.prompt(&messages, &RenderOptions::prompt()).unwrap();
    let session = model.engine.open_session();
    let mut streamed = String::new();
    let answer = model.answer(session, prompt, &greedy(400), |update| {
        if let Update::Event(Event::Answer(text)) = update {
            streamed += &text;
        }
        ControlFlow::Continue(())
    });
    let answer = answer.unwrap();
    assert_eq!(answer.finish_reason, Finish::Stop);
    assert!(answer.text.contains("fox") && answer.text.contains("lantern"), "{}", answer.text);
    assert!(!answer.text.contains("<|"), "{}", answer.text);
    assert_eq!(answer.text, streamed);
    assert_eq!(answer.timings.generated_tokens, answer.token_ids.len());
}

/// Tokens of requests generated together.
fn generate(executor: ExecutorKind, prompts: &[&str], prefill_chunk: usize) -> Vec<Vec<u32>> {
    let mut model =
        Model::demo(OpenOptions { prefill_chunk: Some(prefill_chunk), executor, ..OpenOptions::default() })
            .unwrap();
    let requests = prompts.iter().map(|prompt| Request {
        prompt: model.prompt(&user(prompt), &RenderOptions::prompt()).unwrap(),
        session: model.engine.open_session(),
        sampler: Sampler::new(SamplingOptions { seed: 7, ..SamplingOptions::default() }).unwrap(),
        stop: model.text().unwrap().stop_ids.clone(),
        max_tokens: 40,
        edits: Default::default(),
    });
    let requests: Vec<Request> = requests.collect();
    let mut tokens = vec![Vec::new(); prompts.len()];
    let mut generation = model.engine.generate(requests).unwrap();
    loop {
        let progress = generation.step().unwrap();
        if progress.is_empty() {
            return tokens;
        }
        for (request, progress) in progress {
            if let Progress::Token { id, .. } = progress {
                tokens[request].push(id);
            }
        }
    }
}

#[test]
fn several_sequences_get_what_each_gets_alone() {
    let prompts = ["Tell me a bedtime story.", "Tell me a story about a dragon on the moon.", "Hello!"];
    for executor in [ExecutorKind::Reference, ExecutorKind::Cpu] {
        for (prompt, together) in prompts.iter().zip(generate(executor, &prompts, 7)) {
            assert_eq!(generate(executor, &[prompt], 128), [together], "{executor:?}: {prompt}");
        }
    }
}

#[test]
fn a_second_turn_computes_only_what_is_new() {
    let mut model = Model::demo(OpenOptions::default()).unwrap();
    let mut messages = user("Tell me a story about a fox and a lantern.");
    let session = model.engine.open_session();
    let prompt = model.prompt(&messages, &RenderOptions::prompt()).unwrap();
    let first = model.answer(session, prompt.clone(), &greedy(30), |_| ControlFlow::Continue(())).unwrap();
    messages.push(Message::new("assistant", first.text));
    messages.push(Message::new("user", "What was the fox called?"));
    let second = model.prompt(&messages, &RenderOptions::prompt()).unwrap();
    let reused = model.answer(session, second.clone(), &greedy(20), |_| ControlFlow::Continue(())).unwrap();
    assert!(reused.timings.reused_tokens >= prompt.len(), "{:?}", reused.timings);
    let fresh = model.engine.open_session();
    let fresh = model.answer(fresh, second, &greedy(20), |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(fresh.timings.reused_tokens, 0);
    assert_eq!(reused.token_ids, fresh.token_ids);
}

#[test]
fn answers_end_where_they_are_told_to() {
    let options = OpenOptions { context: Some(64), ..OpenOptions::default() };
    let mut model = Model::demo(options).unwrap();
    let prompt = model.prompt(&user("Tell me a story about a fox."), &RenderOptions::prompt()).unwrap();
    let session = model.engine.open_session();
    let mut answer = |options: &AnswerOptions, limit: usize| {
        let mut seen = 0;
        let flow = |update| {
            seen += matches!(update, Update::Event(Event::Answer(_))) as usize;
            if seen >= limit { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        model.answer(session, prompt.clone(), options, flow).unwrap()
    };
    let whole = answer(&greedy(usize::MAX), usize::MAX);
    assert_eq!(whole.finish_reason, Finish::Length);
    assert_eq!(prompt.len() + whole.token_ids.len(), 64, "the context is filled");

    let word = whole.text.split_whitespace().nth(6).unwrap();
    let stopped = answer(&AnswerOptions { stop: vec![word.to_owned()], ..greedy(100) }, usize::MAX);
    assert_eq!(stopped.finish_reason, Finish::Stop);
    assert_eq!(stopped.text, whole.text.split(word).next().unwrap());

    let cancelled = answer(&greedy(100), 3);
    assert_eq!(cancelled.finish_reason, Finish::Cancelled);
    assert!(whole.text.starts_with(&cancelled.text) && cancelled.text.len() < whole.text.len());

    let three = answer(&greedy(3), usize::MAX);
    assert_eq!((three.finish_reason, three.token_ids.len()), (Finish::Length, 3));
}

#[test]
fn prompts_that_do_not_fit_are_refused() {
    let mut model = Model::demo(OpenOptions { context: Some(16), ..OpenOptions::default() }).unwrap();
    let session = model.engine.open_session();
    let error = model.answer(session, vec![5; 16], &greedy(1), |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, EngineError::PromptTooLong { tokens: 16, context: 16 }), "{error}");
    let error = model.answer(session, vec![], &greedy(1), |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, EngineError::EmptyPrompt), "{error}");
    let error = Model::demo(OpenOptions { context: Some(5000), ..OpenOptions::default() }).err().unwrap();
    assert_eq!(error.to_string(), "--context 5000 is more than the 2048 positions the model was made for");
    model.engine.close(session).unwrap();
    let error = model.answer(session, vec![5], &greedy(1), |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, EngineError::NoSession), "{error}");
}
