//! A file with the experts of gpt-oss 20b, of random bytes and unaligned as in a GGUF.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use turbospark_experts::{ExpertTable, LayerTable};
use turbospark_formats::{ByteSlice, Format, MatrixLayout, Source};
use turbospark_program::{ExpertLayout, ExpertMatrix};

/// Experts of a layer.
pub const EXPERTS: usize = 32;
const WIDTH: usize = 2880;
const LEAD: usize = 32 * 1001;

/// The experts of `layers` layers, 424 MB each; makes the file if it is not there.
pub fn experts(path: &str, layers: usize) -> Result<ExpertTable, Box<dyn std::error::Error>> {
    let path = Path::new(path);
    let layout = MatrixLayout::plain(Format::MXFP4, WIDTH, WIDTH);
    let bytes = layout.part_bytes(0).ok_or("a matrix of whole blocks")?;
    if !path.exists() {
        make(path, LEAD + layers * EXPERTS * 3 * bytes)?;
    }
    let source = Source::open(path)?;
    let matrix = |slice: usize| ExpertMatrix { layout, slices: vec![slice] };
    let layout =
        ExpertLayout { gate: matrix(0), up: matrix(1), down: matrix(2), slice_bytes: vec![bytes; 3] };
    let layer = |index: usize| {
        let slice = |expert: usize, stack: usize| {
            let start = LEAD + ((index * 3 + stack) * EXPERTS + expert) * bytes;
            ByteSlice::new(&source, start..start + bytes)
        };
        let slices = (0..EXPERTS).flat_map(|expert| (0..3).map(move |stack| slice(expert, stack)));
        LayerTable::new(index, layout.clone(), slices.collect::<Option<Vec<_>>>()?)
    };
    let layers = (0..layers).map(layer).collect::<Option<Vec<_>>>();
    Ok(ExpertTable::new(layers.ok_or("the file is shorter than the layers asked for: delete it")?))
}

fn make(path: &Path, bytes: usize) -> std::io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut word = 1u64;
    for _ in 0..bytes.div_ceil(8) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        file.write_all(&word.to_le_bytes())?;
    }
    file.into_inner()?.sync_all()
}
