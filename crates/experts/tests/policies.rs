//! The default policy against the others, as docs/experts-policies.md promises.

use std::path::Path;

use turbospark_experts::policy::PolicyKind;
use turbospark_experts::trace::{Routing, Synthetic, Trace, cycle, simulate_kind};

#[test]
fn the_default_is_within_a_point_of_the_best() {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/demo-routing.safetensors");
    let made = |routing| Synthetic::new(routing, 7).trace(1000);
    let traces = [
        Trace::load(&demo).unwrap(),
        made(Routing::Zipf { exponent: 1.0 }),
        made(Routing::Uniform),
        made(Routing::Drift { every: 200, hot: 8, share: 0.8 }),
    ];
    for (index, trace) in traces.iter().enumerate() {
        for half_cycles in [1, 2, 4, 8] {
            let slots = cycle(trace) * half_cycles / 2;
            let rate = |kind| simulate_kind(trace, slots, kind, trace.len() / 2).hit_rate();
            let default = rate(PolicyKind::default());
            assert!(default > 0.0);
            for kind in PolicyKind::ONLINE {
                let other = rate(kind);
                assert!(
                    default >= other - 0.01,
                    "trace {index}, {slots} slots: {default} and {other} of {kind}"
                );
            }
        }
    }
}
