//! Any bytes as a trace of routing.
#![no_main]

use libfuzzer_sys::fuzz_target;
use turbospark_experts::trace::{Contender, Contest, Trace, TraceStatistics};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(trace) = Trace::from_bytes(bytes) {
        TraceStatistics::of(&trace);
        for contender in Contender::all() {
            Contest::new(&trace).hit_rate(contender, 3);
        }
    }
});
