//! The residual stream of two prompts, row by row as it is computed, without keeping a prompt's rows.
//!
//!     cargo run --release -p turbospark-engine --example capture

use turbospark_engine::capture::{Positions, TapKind};
use turbospark_engine::{EngineError, Model, OpenOptions};

fn main() -> Result<(), EngineError> {
    let mut model = Model::demo(OpenOptions::default())?;
    let last = model.engine.program().layers() - 1;
    let taps = TapKind::LayerOutput.over(&(0..=last));
    let width = model.engine.program().hidden();
    for text in ["Once upon a time, a fox laughed.", "Once upon a time, a fox cried."] {
        let ids = model.text()?.raw_ids(text)?;
        println!("{text}");
        model.engine.capture(&ids, &taps, Positions::Last, |position, row| {
            for (layer, x) in row.chunks_exact(width).enumerate() {
                let length = x.iter().map(|x| x * x).sum::<f32>().sqrt();
                println!("  position {position}, layer {layer}: a row of length {length:.2}");
            }
            Ok::<(), EngineError>(())
        })?;
    }
    Ok(())
}
