//! Run mixture-of-experts language models larger than memory.
fn main() {}
