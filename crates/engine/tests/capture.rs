//! Captured rows against goldens, against each other and against plain runs; and the file they are written to.

mod support;

use safetensors::SafeTensors;
use support::{MODELS, floats, folder, open, streamed};
use turbospark_engine::capture::{
    CaptureError, CaptureFile, CaptureHeader, CapturedPrompt, Positions, TapKind,
};
use turbospark_engine::{CpuOptions, Engine, EngineError, ExecutorKind, Keep, OpenOptions};
use turbospark_program::Tap;

fn cpu(threads: usize, prefill_chunk: usize) -> OpenOptions {
    OpenOptions {
        prefill_chunk: Some(prefill_chunk),
        cpu: CpuOptions { threads, ..CpuOptions::default() },
        ..OpenOptions::default()
    }
}

fn layers(engine: &Engine) -> Vec<Tap> {
    TapKind::LayerOutput.over(&(0..=engine.program().layers() - 1))
}

/// Every tap that the model has.
fn every_tap(engine: &Engine) -> Vec<Tap> {
    let kinds = TapKind::ALL.iter();
    let taps = kinds.flat_map(|kind| kind.over(&(0..=engine.program().layers() - 1)));
    taps.filter(|tap| engine.program().tap_width(*tap).is_some()).collect()
}

fn rows(engine: &mut Engine, ids: &[u32], taps: &[Tap], positions: Positions) -> Vec<(usize, Vec<f32>)> {
    let mut rows = Vec::new();
    let sink = |position: usize, row: &[f32]| {
        rows.push((position, row.to_vec()));
        Ok::<(), EngineError>(())
    };
    engine.capture(ids, taps, positions, sink).unwrap();
    rows
}

#[test]
fn rows_are_those_of_the_golden() {
    for model in MODELS {
        let reference = OpenOptions { executor: ExecutorKind::Reference, ..OpenOptions::default() };
        let (mut engine, ids) = open(model, reference);
        let golden = std::fs::read(folder(model).join("golden.safetensors")).unwrap();
        let hidden = floats(&SafeTensors::deserialize(&golden).unwrap(), "hidden");
        let taps = layers(&engine);
        let width = engine.program().hidden();
        for (position, row) in rows(&mut engine, &ids, &taps, Positions::All) {
            for (layer, found) in row.chunks_exact(width).enumerate() {
                let at = (layer * ids.len() + position) * width;
                let difference =
                    found.iter().zip(&hidden[at..]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(difference <= 1e-3, "{model}: layer {layer}, position {position}: {difference:e}");
            }
        }
    }
}

#[test]
fn rows_are_the_same_bits_whatever_chunk_threads_slots_and_positions() {
    for model in MODELS {
        let (mut engine, ids) = open(model, cpu(1, 128));
        let taps = every_tap(&engine);
        let widths: Vec<usize> =
            taps.iter().map(|tap| engine.program().tap_width(*tap).expect("a tap of the model")).collect();
        let plain = engine.evaluate(&ids, &Keep::default()).unwrap().logits;
        let all = rows(&mut engine, &ids, &taps, Positions::All);
        assert_eq!(all.len(), ids.len());
        let kept = engine.evaluate(&ids, &Keep { taps: taps.clone(), ..Keep::default() }).unwrap();
        assert!(kept.logits == plain, "{model}: capturing changes logits");
        for (position, row) in &all {
            let kept = kept.taps.iter().zip(&widths);
            let expected =
                kept.flat_map(|((_, rows), width)| &rows[position * width..(position + 1) * width]);
            assert!(row.iter().eq(expected), "{model}: position {position} is not that of evaluate");
        }
        let mut ways = vec![cpu(2, 128), cpu(1, 1), cpu(2, 5)];
        ways.extend(streamed(&engine, &cpu(2, 16)));
        for options in ways {
            let (mut engine, _) = open(model, options.clone());
            let what = format!("{model}: {:?} {:?}", options.prefill_chunk, options.memory);
            assert_eq!(engine.streamed().is_some(), options.memory.slots.is_some(), "{what}");
            assert!(rows(&mut engine, &ids, &taps, Positions::All) == all, "{what}");
            let last = rows(&mut engine, &ids, &taps, Positions::Last);
            assert!(last == all[ids.len() - 1..], "{what}");
            assert!(rows(&mut engine, &ids, &taps, Positions::At(3)) == all[3..4], "{what}");
            assert_eq!(engine.evaluate(&ids, &Keep::default()).unwrap().logits, plain);
        }
    }
}

#[test]
fn taps_add_up_to_the_stream() {
    let (mut engine, ids) = open("llama3", cpu(1, 128));
    let taps = [Tap::Embedding, Tap::AttentionOutput(0), Tap::FeedForwardOutput(0), Tap::LayerOutput(0)];
    let width = engine.program().hidden();
    for (_, row) in rows(&mut engine, &ids, &taps, Positions::All) {
        let parts: Vec<&[f32]> = row.chunks_exact(width).collect();
        let sums = parts[0].iter().zip(parts[1]).zip(parts[2]).map(|((x, a), f)| x + a + f);
        assert!(sums.eq(parts[3].iter().copied()));
    }
    let missing = engine.capture::<EngineError>(&ids, &[Tap::RoutedOutput(0)], Positions::All, |_, _| Ok(()));
    assert!(missing.unwrap_err().to_string().contains("no tap routed_output.0"));
}

#[test]
fn routes_are_traced_beside_captures_and_answers() {
    let (mut engine, ids) = open("qwen3_moe", cpu(2, 5));
    let taps = layers(&engine);
    let plain = rows(&mut engine, &ids, &taps, Positions::Last);
    engine.start_trace().unwrap();
    assert!(rows(&mut engine, &ids, &taps, Positions::Last) == plain);
    let trace = engine.take_trace().unwrap();
    assert_eq!(trace.tokens(), ids);
    let routes = engine.evaluate(&ids, &Keep { routes: true, ..Keep::default() }).unwrap().routes;
    for token in 0..ids.len() {
        for (index, layer) in routes.iter().enumerate() {
            let expected = &layer.ids[token * layer.k..(token + 1) * layer.k];
            assert!(trace.routes(token, index).iter().map(|&id| u32::from(id)).eq(expected.iter().copied()));
        }
    }
    assert!(engine.take_trace().is_none());
    let (mut dense, _) = open("llama3", cpu(1, 8));
    assert!(dense.start_trace().unwrap_err().to_string().contains("no routed experts"));
}

#[test]
fn files_hold_every_row_and_where_it_is_from() {
    let (mut engine, ids) = open("gpt_oss", cpu(1, 4));
    let taps = [Tap::Embedding, Tap::LayerOutput(0), Tap::LayerOutput(1)];
    let width = engine.program().hidden();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rows.safetensors");
    let prompts = [&ids[..], &ids[..3]];
    let prompt =
        |ids: &&[u32]| CapturedPrompt { text: Some("a \"b\"".into()), ids: ids.to_vec(), rows: ids.len() };
    let header = CaptureHeader {
        model: "gpt_oss".to_owned(),
        taps: vec![TapKind::Embedding, TapKind::LayerOutput],
        layers: vec![0, 1],
        width,
        prompts: prompts.iter().map(prompt).collect(),
    };
    let mut file = CaptureFile::create(&path, &header).unwrap();
    let mut expected = Vec::new();
    for (index, ids) in prompts.iter().enumerate() {
        let sink = |position: usize, row: &[f32]| {
            expected.push(row.to_vec());
            file.push(index, position, row)
        };
        engine.capture::<CaptureError>(ids, &taps, Positions::All, sink).unwrap();
    }
    assert!(!path.exists(), "a file that is not complete has another name");
    assert!(file.push(0, 0, &expected[0]).is_err(), "more rows than announced");
    file.finish().unwrap();

    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let count = ids.len() + 3;
    assert_eq!(file.tensor("embedding").unwrap().shape(), [count, 1, width]);
    assert_eq!(file.tensor("layer_output").unwrap().shape(), [count, 2, width]);
    let (embedding, layers) = (floats(&file, "embedding"), floats(&file, "layer_output"));
    for (row, expected) in expected.iter().enumerate() {
        assert_eq!(embedding[row * width..(row + 1) * width], expected[..width]);
        assert_eq!(layers[row * 2 * width..(row + 1) * 2 * width], expected[width..]);
    }
    let integers = |name: &str| -> Vec<i32> {
        let data = file.tensor(name).unwrap().data();
        data.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
    };
    assert_eq!(integers("prompt")[ids.len() - 1..], [0, 1, 1, 1]);
    assert_eq!(integers("position")[ids.len()..], [0, 1, 2]);
    let (_, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = metadata.metadata().as_ref().unwrap();
    let stored: Vec<Vec<u32>> = serde_json::from_str(&metadata["token_ids"]).unwrap();
    assert_eq!(stored, prompts);
    assert_eq!(metadata["prompts"], r#"["a \"b\"","a \"b\""]"#);
    assert_eq!(metadata["layers"], "[0,1]");
}
