//! Any bytes as a GGUF file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turbospark_formats::{Checkpoint, Source};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(checkpoint) = Checkpoint::from_gguf(Source::owned("fuzz.gguf", bytes.to_vec())) {
        for (_, tensor) in checkpoint.tensors() {
            tensor.to_f32();
        }
    }
});
