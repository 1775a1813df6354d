//! Any bytes as the safetensors file of a model.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turbospark_formats::{Checkpoint, Source};

const CONFIG: &[u8] = br#"{"model_type": "gpt_oss", "quantization": {"group_size": 32, "bits": 3}}"#;

fuzz_target!(|bytes: &[u8]| {
    let shard = Source::owned("fuzz.safetensors", bytes.to_vec());
    if let Ok(checkpoint) = Checkpoint::from_safetensors("fuzz".as_ref(), CONFIG, &[shard]) {
        for (_, tensor) in checkpoint.tensors() {
            tensor.to_f32();
        }
    }
});
