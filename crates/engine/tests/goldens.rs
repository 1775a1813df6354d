//! Every rendering of every tiny checkpoint against the logits, residuals and routes that Hugging Face
//! transformers computes in float32.
//!
//! `TURBOSPARK_TINY=DIR` names another folder of checkpoints, such as the full profile of tools/tiny.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use turbospark_engine::{Engine, Evaluation, ExecutorKind, Keep, OpenOptions};
use turbospark_formats::Checkpoint;
use turbospark_program::{Op, Tap};

const TOLERANCE: f32 = 1e-3;
/// Below this distance between the k-th and the next router logit the choice may differ.
const ROUTER_MARGIN: f32 = 1e-4;

fn reference() -> OpenOptions {
    OpenOptions { executor: ExecutorKind::Reference, ..OpenOptions::default() }
}

struct Golden(Vec<u8>);

impl Golden {
    fn tensor<T>(&self, name: &str, from: impl Fn(&[u8]) -> T, bytes: usize) -> Option<Vec<T>> {
        let tensors = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = tensors.tensor(name).ok()?;
        Some(tensor.data().chunks_exact(bytes).map(from).collect())
    }
    fn floats(&self, name: &str) -> Option<Vec<f32>> {
        self.tensor(name, |b| f32::from_le_bytes(b.try_into().unwrap()), 4)
    }
    fn ids(&self, name: &str) -> Vec<u32> {
        self.tensor(name, |b| i64::from_le_bytes(b.try_into().unwrap()) as u32, 8).unwrap()
    }
    fn choices(&self, name: &str) -> Option<Vec<u32>> {
        self.tensor(name, |b| i32::from_le_bytes(b.try_into().unwrap()) as u32, 4)
    }
}

fn largest_difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    found
        .iter()
        .zip(expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |m, d| if d > m || d.is_nan() { d } else { m })
}

/// Checkpoints below `root` that have a golden: folders and GGUF files.
fn renderings(root: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    let models = std::fs::read_dir(root).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
    for model in models.map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()) {
        for path in std::fs::read_dir(&model).unwrap().map(|entry| entry.unwrap().path()) {
            let golden = match path.is_dir() {
                true => path.join("golden.safetensors"),
                false if path.extension().is_some_and(|e| e == "gguf") => {
                    path.with_extension("golden.safetensors")
                }
                false => continue,
            };
            if golden.exists() {
                found.push((path, golden));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn every_rendering_gives_its_golden() {
    let fixtures = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let root = std::env::var_os("TURBOSPARK_TINY").map_or_else(fixtures, PathBuf::from);
    let renderings = renderings(&root);
    assert!(renderings.len() >= 20, "only {} checkpoints in {}", renderings.len(), root.display());
    let failures: Vec<String> =
        renderings.iter().filter_map(|(path, golden)| check(path, golden).err()).collect();
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), renderings.len(), failures.join("\n"));
}

fn check(path: &Path, golden: &Path) -> Result<(), String> {
    let name = path.display();
    let golden = Golden(std::fs::read(golden).unwrap());
    let checkpoint = Checkpoint::open(path).map_err(|error| format!("{name}: {error}"))?;
    let mut engine = Engine::new(&checkpoint, reference()).map_err(|error| format!("{name}: {error}"))?;
    let again = Checkpoint::open(path).map(|again| turbospark_families::build(&again, &Default::default()));
    if !again.is_ok_and(|model| model.is_ok_and(|model| model.program == *engine.program())) {
        return Err(format!("{name}: read twice, two programs"));
    }
    let ids = golden.ids("input_ids");
    let taps = stream_taps(&engine);
    let keep = Keep { logits: None, taps, routes: true };
    let short = engine.evaluate(&ids, &keep).map_err(|error| format!("{name}: {error}"))?;
    let near = |what: &str, found: &[f32], expected: &[f32]| {
        let difference = largest_difference(found, expected);
        if difference <= TOLERANCE { Ok(()) } else { Err(format!("{name}: {what} differ by {difference:e}")) }
    };
    near("logits", &short.logits, &golden.floats("logits").unwrap())?;
    if let (Some(embed), Some(hidden)) = (golden.floats("embed"), golden.floats("hidden")) {
        let stream: Vec<f32> = short.taps.iter().flat_map(|(_, rows)| rows).copied().collect();
        near("residuals", &stream, &[embed, hidden].concat())?;
    }
    check_routes(&short, &golden).map_err(|error| format!("{name}: {error}"))?;

    let long = golden.ids("long_ids");
    let expected = golden.floats("long_logits").unwrap();
    let rows = expected.len() / engine.program().vocabulary();
    let keep = Keep { logits: Some(long.len() - rows..long.len()), ..Keep::default() };
    let found = engine.evaluate(&long, &keep).map_err(|error| format!("{name}: {error}"))?;
    let margin =
        golden.floats("long_router_margin").map_or(f32::MAX, |m| m.into_iter().fold(f32::MAX, f32::min));
    if margin > ROUTER_MARGIN {
        near("long logits", &found.logits, &expected)?;
    }
    check_greedy(&mut engine, ids, &golden).map_err(|error| format!("{name}: {error}"))
}

/// The residual stream after the embedding and after every layer.
fn stream_taps(engine: &Engine) -> Vec<Tap> {
    let program = engine.program();
    let taps = program.ops().iter().filter_map(|op| match op {
        Op::Tap { tap: tap @ (Tap::Embedding | Tap::LayerOutput(_)), .. } => Some(*tap),
        _ => None,
    });
    let taps: Vec<Tap> = taps.collect();
    assert_eq!(taps.len(), program.layers() + 1, "taps of the residual stream");
    taps
}

fn check_routes(found: &Evaluation, golden: &Golden) -> Result<(), String> {
    let Some(ids) = golden.choices("router_idx") else {
        return if found.routes.is_empty() { Ok(()) } else { Err("routes without a golden".into()) };
    };
    let weights = golden.floats("router_w").unwrap();
    let margins = golden.floats("router_margin");
    let mut row = 0;
    for layer in &found.routes {
        for (chosen, mix) in layer.ids.chunks(layer.k).zip(layer.weights.chunks(layer.k)) {
            let range = row * layer.k..(row + 1) * layer.k;
            let clear = margins.as_ref().is_none_or(|margins| margins[row] > ROUTER_MARGIN);
            if clear && chosen != &ids[range.clone()] {
                // Within the chosen, near ties may change places.
                let (mut a, mut b) = (chosen.to_vec(), ids[range.clone()].to_vec());
                a.sort_unstable();
                b.sort_unstable();
                if a != b {
                    return Err(format!("layer {} row {row}: experts {a:?}, golden {b:?}", layer.layer));
                }
            } else if clear && largest_difference(mix, &weights[range]) > TOLERANCE {
                return Err(format!("layer {} row {row}: routing weights {mix:?}", layer.layer));
            }
            row += 1;
        }
    }
    if row * found.routes[0].k == ids.len() { Ok(()) } else { Err(format!("{row} routed rows")) }
}

fn check_greedy(engine: &mut Engine, mut tokens: Vec<u32>, golden: &Golden) -> Result<(), String> {
    let margins = golden.floats("greedy_margin").unwrap();
    for (step, (&expected, margin)) in golden.ids("greedy_ids").iter().zip(margins).enumerate() {
        let keep = Keep { logits: Some(tokens.len() - 1..tokens.len()), ..Keep::default() };
        let logits = engine.evaluate(&tokens, &keep).map_err(|error| error.to_string())?.logits;
        let best =
            (0..logits.len() as u32).max_by(|&a, &b| logits[a as usize].total_cmp(&logits[b as usize]));
        if margin > TOLERANCE && best != Some(expected) {
            return Err(format!("greedy token {step} is {best:?}, golden {expected}, margin {margin}"));
        }
        tokens.push(expected);
    }
    Ok(())
}
