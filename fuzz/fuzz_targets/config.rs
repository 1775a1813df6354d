//! Any bytes as config.json, beside tensors whose meaning depends on it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turbospark_formats::{Checkpoint, Source};

const HEADER: &[u8] = br#"{
"model.layers.0.mlp.up_proj.weight":{"dtype":"U32","shape":[2,24],"data_offsets":[0,192]},
"model.layers.0.mlp.up_proj.scales":{"dtype":"F16","shape":[2,1],"data_offsets":[192,196]},
"model.layers.0.mlp.up_proj.biases":{"dtype":"F16","shape":[2,1],"data_offsets":[196,200]},
"model.layers.0.mlp.experts.gate_up_proj":{"dtype":"BF16","shape":[1,4,4],"data_offsets":[200,232]}}"#;

fuzz_target!(|config: &[u8]| {
    let shard = [&(HEADER.len() as u64).to_le_bytes()[..], HEADER, &[1; 232]].concat();
    let shard = Source::owned("fuzz.safetensors", shard);
    if let Ok(checkpoint) = Checkpoint::from_safetensors("fuzz".as_ref(), config, &[shard]) {
        for (_, tensor) in checkpoint.tensors() {
            tensor.to_f32();
        }
    }
});
