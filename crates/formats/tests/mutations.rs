//! Files that are nearly right: opening them ends in a checkpoint or an error, and what is opened can be read.

mod support;

use proptest::prelude::*;
use support::{Gguf, array, open_gguf, open_safetensors, safetensors, string};
use turbospark_formats::Checkpoint;

fn gguf() -> Vec<u8> {
    let tokens = [string(b"a"), string(b"bc"), string("é".as_bytes())].concat();
    Gguf::new("llama")
        .u32("general.alignment", 32)
        .u32("llama.attention.key_length", 4)
        .pair("tokenizer.ggml.tokens", 9, &array(8, 3, &tokens))
        .pair("tokenizer.ggml.scores", 9, &array(6, 3, &[0; 12]))
        .pair("nested", 9, &array(9, 1, &array(0, 2, &[1, 2])))
        .floats("output_norm.weight", &[8])
        .floats("blk.0.attn_q.weight", &[4, 8])
        .tensor("token_embd.weight", &[32, 3], 2, &[7; 54])
        .tensor("output.weight", &[256, 1], 14, &[9; 210])
        .floats("blk.0.ffn_gate_exps.weight", &[4, 2, 3])
        .floats("blk.0.ffn_up.0.weight", &[4, 2])
        .floats("blk.0.ffn_up.1.weight", &[4, 2])
        .bytes()
}

fn hugging_face() -> Vec<u8> {
    safetensors(&[
        ("model.norm.weight", "BF16", &[4]),
        ("model.layers.0.mlp.up_proj.weight", "U32", &[4, 8]),
        ("model.layers.0.mlp.up_proj.scales", "F16", &[4, 1]),
        ("model.layers.0.mlp.up_proj.biases", "F16", &[4, 1]),
        ("model.layers.0.mlp.experts.0.up_proj.weight", "F16", &[2, 4]),
        ("model.layers.0.mlp.experts.1.up_proj.weight", "F16", &[2, 4]),
        ("model.layers.0.mlp.experts.gate_up_proj", "F16", &[2, 4, 4]),
        ("model.layers.1.mlp.experts.down_proj_blocks", "U8", &[2, 4, 1, 16]),
        ("model.layers.1.mlp.experts.down_proj_scales", "U8", &[2, 4, 1]),
    ])
}

const CONFIG: &str = r#"{"model_type": "gpt_oss", "quantization": {"group_size": 64, "bits": 4,
    "model.layers.0.mlp.up_proj": {"group_size": 64, "bits": 4, "mode": "affine"}}}"#;

/// Reads every tensor of what was opened.
fn read(checkpoint: Checkpoint) {
    for (_, tensor) in checkpoint.tensors() {
        assert_eq!(tensor.to_f32().len(), tensor.shape().iter().product::<usize>());
    }
}

#[test]
fn the_files_themselves_open() {
    let opened = open_gguf(gguf()).unwrap();
    assert_eq!(opened.tensors().count(), 6);
    read(opened);
    let broken = open_safetensors(CONFIG, hugging_face());
    // Both an expert at a time and fused: the two are told apart.
    support::refused(broken.map(|_| ()), "are both");
}

#[test]
fn every_truncation_is_refused() {
    for (bytes, open) in [
        (gguf(), (|bytes| open_gguf(bytes).map(read)) as fn(Vec<u8>) -> Result<(), _>),
        (hugging_face(), |bytes| open_safetensors(CONFIG, bytes).map(read)),
    ] {
        for length in 0..bytes.len() {
            // The last 31 bytes may be padding.
            let result = open(bytes[..length].to_vec());
            assert!(result.is_err() || length + 32 > bytes.len(), "{length} of {}", bytes.len());
        }
    }
}

/// Byte changes: a position, and a value that is anything or at an end of its range.
fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    let value = prop_oneof![any::<u8>(), Just(0), Just(1), Just(0x7f), Just(0x80), Just(0xff)];
    prop::collection::vec((any::<prop::sample::Index>(), value), 1..6)
}

fn changed(mut bytes: Vec<u8>, header: usize, changes: &[(prop::sample::Index, u8)]) -> Vec<u8> {
    for (index, value) in changes {
        bytes[index.index(header)] = *value;
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_gguf(changes in changes()) {
        // Changes of weights cannot matter: the header is where the file lies.
        let bytes = gguf();
        let header = bytes.len() - 900;
        if let Ok(checkpoint) = open_gguf(changed(bytes, header, &changes)) {
            read(checkpoint);
        }
    }

    #[test]
    fn changed_safetensors(changes in changes()) {
        let bytes = hugging_face();
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        if let Ok(checkpoint) = open_safetensors(CONFIG, changed(bytes, header, &changes)) {
            read(checkpoint);
        }
    }

    #[test]
    fn changed_config(changes in changes()) {
        let bytes = safetensors(&[
            ("model.layers.0.mlp.up_proj.weight", "U32", &[4, 8]),
            ("model.layers.0.mlp.up_proj.scales", "F16", &[4, 1]),
            ("model.layers.0.mlp.up_proj.biases", "F16", &[4, 1]),
        ]);
        let config = changed(CONFIG.into(), CONFIG.len(), &changes);
        if let Ok(checkpoint) = open_safetensors(&String::from_utf8_lossy(&config), bytes) {
            read(checkpoint);
        }
    }
}
