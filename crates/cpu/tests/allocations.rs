//! In a steady state a token costs no memory: buffers keep what they once took.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use support::Model;
use turbospark_cpu::CpuOptions;
use turbospark_program::{Batch, Executor, Outputs, States};

/// The system's allocator, counting.
struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of a step whose position begins no page.
fn allocations(name: &str) -> usize {
    let model = Model::open(name);
    let experts = model.packed();
    let mut executor = model.cpu(CpuOptions { threads: 2, ..CpuOptions::default() });
    let mut states = States::new(&model.program, None);
    let sequence = states.create();
    let mut logits = vec![0.0; model.program.vocabulary()];
    let mut most = 0;
    for (i, &token) in model.tokens(30, 1).iter().enumerate() {
        let batch = Batch::append(&states, sequence, &[token]);
        let before = COUNT.load(Ordering::Relaxed);
        executor.step(&batch, &mut states, &experts, &mut Outputs::logits(&mut logits)).unwrap();
        if i >= 10 {
            most = most.max(COUNT.load(Ordering::Relaxed) - before);
        }
    }
    most
}

#[test]
fn a_token_allocates_nothing() {
    // Checking a batch takes a list of its sequences.
    assert!(allocations("llama3/gguf-q8_0.gguf") <= 1);
    // A source hands out boxed requests and leases: per layer a list, a request, and for each of k experts a lease.
    let mixture = allocations("qwen3_moe/gguf-bf16.gguf");
    assert!(mixture <= 40, "{mixture} allocations");
}
