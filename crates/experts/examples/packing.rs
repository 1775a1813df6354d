//! Peak memory and speed of packing all experts: `cargo run --release --example packing FILE [LAYERS] [READER]`, with the
//! file of the example `reading`.

mod support;

use std::time::Instant;

use turbospark_experts::reader::ReaderKind;
use turbospark_experts::{LoadOptions, PackedExperts};
use turbospark_program::{ExpertLayout, ExpertPacker, ExpertRef};

struct Copy;

impl ExpertPacker for Copy {
    fn id(&self) -> &'static str {
        "copy"
    }
    fn bytes(&self, raw: &ExpertLayout) -> usize {
        raw.bytes()
    }
    fn pack(&self, raw: &ExpertRef<'_>, out: &mut [u8]) {
        let size = out.len() / 3;
        for (out, matrix) in out.chunks_exact_mut(size).zip([raw.gate, raw.up, raw.down]) {
            out.copy_from_slice(matrix.part(0));
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: packing FILE [LAYERS]")?;
    let layers: usize = arguments.next().map_or(Ok(8), |text| text.parse())?;
    let table = support::experts(&path, layers)?;
    let total = table.bytes();

    let reader = arguments.next().map_or(Ok(ReaderKind::Direct), |text| text.parse())?;
    let start = Instant::now();
    let packed = PackedExperts::new(table, &Copy, LoadOptions { reader, verify: false }, &|_| {})?;
    let seconds = start.elapsed().as_secs_f64();
    println!("{:.2} GB in {seconds:.1} s, {:.2} GB/s", total as f64 * 1e-9, total as f64 * 1e-9 / seconds);
    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        status
            .lines()
            .filter(|line| line.starts_with("VmHWM") || line.starts_with("Rss"))
            .for_each(|line| println!("{line}"));
    }
    println!("packed: {} kB", packed.bytes() / 1024);
    Ok(())
}
