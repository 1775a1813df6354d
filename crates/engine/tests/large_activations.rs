//! Activations far beyond what f16 holds: the residual stream is f32, so nothing overflows.

use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use turbospark_engine::{Engine, ExecutorKind, Keep, OpenOptions};
use turbospark_formats::{Checkpoint, Source};
use turbospark_program::Tap;

/// The tiny Gemma 4 mixture with every norm that feeds the residual stream a thousandfold.
fn scaled() -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gemma4_moe/hf");
    let config = std::fs::read(folder.join("config.json")).unwrap();
    let file = std::fs::read(folder.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let scaled: Vec<_> = tensors
        .tensors()
        .into_iter()
        .map(|(name, tensor)| {
            let mut data = tensor.data().to_vec();
            if name.ends_with("post_attention_layernorm.weight")
                || name.ends_with("post_feedforward_layernorm.weight")
            {
                for value in data.chunks_exact_mut(2) {
                    let bits = u32::from(u16::from_le_bytes([value[0], value[1]])) << 16;
                    let large = f32::from_bits(bits) * 1000.0;
                    value.copy_from_slice(&((large.to_bits() >> 16) as u16).to_le_bytes());
                }
            }
            (name, tensor.dtype(), tensor.shape().to_vec(), data)
        })
        .collect();
    let views = scaled
        .iter()
        .map(|(name, dtype, shape, data)| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    let file = safetensors::serialize(views, None).unwrap();
    Checkpoint::from_safetensors(&folder, &config, &[Source::owned("scaled.safetensors", file)]).unwrap()
}

#[test]
fn a_thousandfold_stream_stays_finite() {
    let checkpoint = scaled();
    let tokens: Vec<u32> = (3..43).collect();
    let mut logits = Vec::new();
    for executor in [ExecutorKind::Reference, ExecutorKind::Cpu] {
        let options = OpenOptions { executor, ..OpenOptions::default() };
        let mut engine = Engine::new(&checkpoint, options).unwrap();
        let last = engine.program().layers() - 1;
        let keep = Keep { taps: vec![Tap::LayerOutput(last)], ..Keep::default() };
        let evaluation = engine.evaluate(&tokens, &keep).unwrap();
        let largest = evaluation.taps[0].1.iter().fold(0.0f32, |m, x| m.max(x.abs()));
        assert!(largest > 1000.0 && largest.is_finite(), "{executor:?}: {largest}");
        logits.push(evaluation.logits);
    }
    // The soft cap bounds logits by 30; 8-bit activations move them by a few percent of that.
    let mean =
        logits[0].iter().zip(&logits[1]).map(|(a, b)| (a - b).abs()).sum::<f32>() / logits[0].len() as f32;
    assert!(mean < 1.0, "executors differ by {mean} on average");
}
