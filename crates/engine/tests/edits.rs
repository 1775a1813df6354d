//! Edits against numpy forward passes with the same edits (tools/tiny/make_edits.py), and edits that must do nothing.

mod support;

use safetensors::SafeTensors;
use support::{MODELS, fixture, floats, streamed};
use turbospark_engine::steering::{Mode, Steer, SteeringVectors, TokenRange};
use turbospark_engine::{
    CpuOptions, Edits, Engine, ExecutorKind, Keep, KvFormat, OpenOptions, Progress, Request, SessionId,
};
use turbospark_sampling::{Sampler, SamplingOptions};

const TOLERANCE: f32 = 1e-3;
/// Rows whose logits the script keeps.
const ROWS: usize = 4;

struct Fixture {
    engine: Engine,
    ids: Vec<u32>,
    vectors: SteeringVectors,
    expected: Vec<(String, Vec<f32>)>,
}

fn open(model: &str, options: OpenOptions) -> Fixture {
    let (engine, ids) = support::open(model, options);
    let bytes = std::fs::read(fixture(&format!("edits/{model}.safetensors"))).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let layers = engine.program().layers();
    let directions = (0..layers).map(|layer| (layer, floats(&file, &format!("direction.{layer}"))));
    let vectors = SteeringVectors::new(directions).unwrap();
    let cases = file.names().into_iter().filter_map(|name| name.strip_prefix("logits.").map(str::to_owned));
    let expected = cases.map(|case| (case.clone(), floats(&file, &format!("logits.{case}")))).collect();
    Fixture { engine, ids, vectors, expected }
}

fn reference() -> OpenOptions {
    OpenOptions { executor: ExecutorKind::Reference, ..OpenOptions::default() }
}

fn cpu(threads: usize, prefill_chunk: usize) -> OpenOptions {
    let cpu = CpuOptions { threads, kv: KvFormat::F32, ..CpuOptions::default() };
    OpenOptions { prefill_chunk: Some(prefill_chunk), cpu, ..OpenOptions::default() }
}

/// The parameters in make_edits.py.
fn steer(case: &str) -> Steer {
    let steer = Steer::new("unused");
    match case {
        "add" => Steer { strength: 0.75, ..steer },
        "ablate" => Steer { mode: Mode::Ablate, strength: 0.5, ..steer },
        "clamp" => Steer { mode: Mode::Clamp { target: 1.25 }, ..steer },
        "renorm" => Steer { mode: Mode::Renorm, strength: 1.5, ..steer },
        "gated" => Steer { strength: -1.0, gate: Some(0.0), ..steer },
        "prompt" => Steer { tokens: TokenRange::Prompt, ..steer },
        "generated" => Steer { tokens: TokenRange::Generated, ..steer },
        other => panic!("no case {other}"),
    }
}

fn edits(steer: &Steer, fixture: &Fixture) -> Edits {
    let mut edits = Edits::default();
    steer.add_vectors(&fixture.vectors, &mut edits, "", fixture.engine.program()).unwrap();
    edits
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d > m || d.is_nan() { d } else { m })
}

#[test]
fn edits_are_those_of_numpy() {
    for model in MODELS {
        let mut fixture = open(model, reference());
        assert_eq!(fixture.expected.len(), 7);
        for (case, expected) in std::mem::take(&mut fixture.expected) {
            if ["prompt", "generated"].contains(&case.as_str()) {
                continue;
            }
            let edits = edits(&steer(&case), &fixture);
            fixture.engine.set_edits(edits.prompt);
            let keep = Keep { logits: Some(fixture.ids.len() - ROWS..fixture.ids.len()), ..Keep::default() };
            let found = fixture.engine.evaluate(&fixture.ids, &keep).unwrap().logits;
            let difference = largest_difference(&found, &expected);
            assert!(difference <= TOLERANCE, "{model}, {case}: logits differ by {difference:e}");
        }
    }
}

#[test]
fn rows_of_prompt_and_answer_have_their_own_edits() {
    for (model, case) in MODELS.iter().flat_map(|model| [(model, "prompt"), (model, "generated")]) {
        let mut fixture = open(model, reference());
        let vocabulary = fixture.engine.program().vocabulary();
        let expected = &fixture.expected.iter().find(|(name, _)| name == case).unwrap().1;
        let rows: Vec<&[f32]> = expected.chunks_exact(vocabulary).collect();
        let edits = edits(&steer(case), &fixture);
        assert_eq!(
            (edits.prompt.is_empty(), edits.generated.is_empty()),
            (case != "prompt", case == "prompt")
        );
        let session = fixture.engine.open_session();
        let found = greedy(&mut fixture.engine, session, &fixture.ids, rows.len(), &edits);
        for (step, ((id, logprob), row)) in found.iter().zip(rows).enumerate() {
            let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
            assert_eq!(*id as usize, best, "{model}, {case}, step {step}");
            let largest = f64::from(row[best]);
            let expected = -row.iter().map(|&x| (f64::from(x) - largest).exp()).sum::<f64>().ln();
            let difference = (f64::from(*logprob) - expected).abs();
            assert!(
                difference <= 2e-3,
                "{model}, {case}, step {step}: log-probability off by {difference:e}"
            );
        }
    }
}

/// Tokens that a greedy generation chooses, and their log-probabilities.
fn greedy(
    engine: &mut Engine,
    session: SessionId,
    prompt: &[u32],
    max_tokens: usize,
    edits: &Edits,
) -> Vec<(u32, f32)> {
    let sampler = Sampler::new(SamplingOptions { temperature: 0.0, ..SamplingOptions::default() }).unwrap();
    let (prompt, edits) = (prompt.to_vec(), edits.clone());
    let request = Request { session, prompt, sampler, stop: Vec::new(), max_tokens, edits };
    let mut generation = engine.generate(vec![request]).unwrap();
    let mut tokens = Vec::new();
    loop {
        let progress = generation.step().unwrap();
        if progress.is_empty() {
            return tokens;
        }
        for (_, progress) in progress {
            if let Progress::Token { id, logprob } = progress {
                tokens.push((id, logprob));
            }
        }
    }
}

#[test]
fn edited_rows_are_the_same_bits_whatever_chunk_threads_and_slots() {
    for model in MODELS {
        let cases = ["add", "ablate", "clamp", "renorm", "gated"];
        let run = |options: OpenOptions| -> Vec<Vec<f32>> {
            let mut fixture = open(model, options);
            let of = |case: &&str| {
                let edits = edits(&steer(case), &fixture);
                fixture.engine.set_edits(edits.prompt);
                fixture.engine.evaluate(&fixture.ids, &Keep::default()).unwrap().logits
            };
            cases.iter().map(of).collect()
        };
        let expected = run(cpu(1, 128));
        let mut ways = vec![cpu(2, 128), cpu(1, 1), cpu(2, 5)];
        ways.extend(streamed(&open(model, cpu(1, 128)).engine, &cpu(2, 16)));
        for options in ways {
            let what = format!("{model}: {:?} {:?}", options.prefill_chunk, options.memory);
            for ((case, found), expected) in cases.iter().zip(run(options)).zip(&expected) {
                assert!(found == *expected, "{what}, {case}");
            }
        }
    }
}

/// What is kept of a past must never change an answer.
#[test]
fn a_past_is_kept_only_under_the_same_edits() {
    let mut fixture = open("qwen3_moe", cpu(1, 7));
    let both = edits(&Steer::new("unused"), &fixture);
    let prompt = Edits { prompt: both.prompt.clone(), generated: Vec::new() };
    let generated = Edits { prompt: Vec::new(), generated: both.generated.clone() };
    let (engine, ids) = (&mut fixture.engine, &fixture.ids);
    let session = engine.open_session();
    let mut past = ids.clone();
    for edits in [&both, &both, &prompt, &generated, &generated, &Edits::default(), &prompt] {
        let fresh = engine.open_session();
        let expected = greedy(engine, fresh, &past, 3, edits);
        let found = greedy(engine, session, &past, 3, edits);
        assert_eq!(found, expected);
        past.extend(found.iter().map(|(id, _)| id));
        engine.close(fresh).unwrap();
    }
}

#[test]
fn edits_that_do_nothing_leave_every_bit() {
    for model in MODELS {
        let mut fixture = open(model, cpu(2, 128));
        let plain = fixture.engine.evaluate(&fixture.ids, &Keep::default()).unwrap().logits;
        let new = Steer::new("unused");
        #[allow(clippy::reversed_empty_ranges)]
        let nothing = [
            Steer { strength: 0.0, ..new.clone() },
            Steer { mode: Mode::Clamp { target: 3.0 }, strength: 0.0, ..new.clone() },
            Steer { layers: Some(1..=0), ..new.clone() },
            Steer { gate: Some(f32::INFINITY), ..new.clone() },
            Steer { mode: Mode::Renorm, gate: Some(1e30), ..new.clone() },
        ];
        for steer in nothing {
            let edits = edits(&steer, &fixture);
            fixture.engine.set_edits(edits.prompt);
            let found = fixture.engine.evaluate(&fixture.ids, &Keep::default()).unwrap().logits;
            assert!(found == plain, "{model}: {steer:?} changes logits");
        }
        let edits = edits(&new, &fixture);
        fixture.engine.set_edits(edits.prompt);
        assert!(fixture.engine.evaluate(&fixture.ids, &Keep::default()).unwrap().logits != plain);
    }
}

#[test]
fn two_sequences_of_a_batch_get_the_bits_they_get_alone() {
    for model in MODELS {
        let resident = open(model, cpu(2, 16));
        let ways = streamed(&resident.engine, &cpu(2, 16));
        let expected = two_sequences(model, resident);
        for options in ways {
            assert_eq!(two_sequences(model, open(model, options)), expected, "{model}");
        }
    }
}

/// What two sequences with different edits give alone, and have given together.
fn two_sequences(model: &str, mut fixture: Fixture) -> Vec<Vec<(u32, f32)>> {
    let one = edits(&steer("add"), &fixture);
    let other = edits(&steer("ablate"), &fixture);
    let (engine, ids) = (&mut fixture.engine, &fixture.ids);
    let mut alone = Vec::new();
    for edits in [&one, &other] {
        let session = engine.open_session();
        alone.push(greedy(engine, session, ids, 4, edits));
    }
    assert_ne!(alone[0], alone[1], "{model}");
    let mut requests = Vec::new();
    for edits in [&one, &other] {
        let sampler = Sampler::new(SamplingOptions { temperature: 0.0, ..SamplingOptions::default() });
        requests.push(Request {
            session: engine.open_session(),
            prompt: ids.clone(),
            sampler: sampler.unwrap(),
            stop: Vec::new(),
            max_tokens: 4,
            edits: edits.clone(),
        });
    }
    let mut together = vec![Vec::new(); 2];
    let mut generation = engine.generate(requests).unwrap();
    loop {
        let progress = generation.step().unwrap();
        if progress.is_empty() {
            break;
        }
        for (request, progress) in progress {
            if let Progress::Token { id, logprob } = progress {
                together[request].push((id, logprob));
            }
        }
    }
    assert_eq!(together, alone, "{model}");
    alone
}
