//! Writing a model as a packed store, whose experts are read from disk ready to compute.

mod quantize;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use turbospark_cpu::{Isa, PanelPacker};
use turbospark_experts::{ExpertTable, LayerPacker};
use turbospark_families::FamilyOptions;
use turbospark_formats::packed::{ExpertStacks, PackError, StorePlan, StoreWriter};
use turbospark_formats::{Checkpoint, Format, MatrixLayout};
use turbospark_program::{ExpertPacker, Program};

use crate::engine::EngineError;
use quantize::QuantizingPacker;

pub use turbospark_formats::packed::{Damage, DamageKind, Verification, verify};

/// How a store is written.
#[derive(Clone, Copy, Debug)]
pub struct PackOptions {
    /// Threads that read and pack experts, each with one at a time.
    pub threads: usize,
    /// Instruction set of the packing; the bytes are the same on any.
    pub isa: Isa,
    /// The format that experts of f16, bf16 or f32 are quantised to; none keeps what they are.
    pub quantize: Option<Format>,
}

impl Default for PackOptions {
    fn default() -> PackOptions {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        PackOptions { threads, isa: Isa::detect(), quantize: None }
    }
}

/// A store that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Bytes of its files, the manifest apart.
    pub bytes: u64,
    /// Of them those that an earlier run had written.
    pub kept: u64,
    /// Number of experts.
    pub experts: usize,
}

/// Writes `checkpoint` to `folder`, or goes on where an earlier run stopped. `progress` is told the bytes that are
/// there and all there will be, from any thread.
///
/// What is complete and not damaged is kept if the same model is packed again; a folder with anything else in it is
/// refused.
pub fn pack(
    checkpoint: &Checkpoint,
    folder: &Path,
    options: &PackOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Packed, EngineError> {
    if checkpoint.packed().is_some() {
        return Err(PackError::Packed(checkpoint.path.clone()).into());
    }
    let program = turbospark_families::build(checkpoint, &FamilyOptions::default())?.program;
    if program.expert_layers().is_empty() {
        return Err(PackError::Dense(checkpoint.path.clone()).into());
    }
    let table = ExpertTable::find(&program, checkpoint)?;
    let panels = PanelPacker::new(options.isa);
    let quantizer =
        options.quantize.map(|format| QuantizingPacker::new(panels, format, &table)).transpose()?;
    let packer: &dyn ExpertPacker = match &quantizer {
        Some(quantizer) => quantizer,
        None => &panels,
    };
    let stacks = stacks(&program, &table, packer, options.quantize);
    let plan = StorePlan::new(checkpoint, packer.id(), options.quantize, &stacks)?;
    let total = plan.bytes();
    let experts = stacks.iter().map(|layer| layer.experts).sum();

    let done = Mutex::new(0);
    let add = |bytes: u64| {
        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
        *done += bytes;
        progress(*done, total);
    };
    let mut kept = 0;
    let begun = StoreWriter::begin(folder, plan, &mut |bytes| {
        kept += bytes;
        add(bytes);
    })?;
    let Some(mut writer) = begun else { return Ok(Packed { bytes: total, kept: total, experts }) };
    writer.write_resident(&mut |bytes| add(bytes))?;
    let mut layers = LayerPacker::open(table, packer, options.threads)?;
    for (index, stacks) in stacks.iter().enumerate() {
        writer.write_experts(index, |sink| {
            layers.pack(index, packer, |expert, bytes| {
                if let Some(quantizer) = &quantizer {
                    quantizer.check(stacks.layer)?;
                }
                sink.put(expert, bytes)?;
                add(bytes.len() as u64);
                Ok::<_, EngineError>(())
            })
        })?;
    }
    writer.finish()?;
    Ok(Packed { bytes: total, kept, experts })
}

/// What the experts of each layer are packed from, and how large they are then.
fn stacks(
    program: &Program,
    table: &ExpertTable,
    packer: &dyn ExpertPacker,
    quantized: Option<Format>,
) -> Vec<ExpertStacks> {
    let layers = program.expert_layers().iter().zip(table.layers());
    let stacks = layers.map(|(layer, table)| {
        let layout = table.layout();
        ExpertStacks {
            layer: layer.layer,
            stacks: [&layer.gate, &layer.up, &layer.down].map(String::clone),
            matrices: [&layout.gate, &layout.up, &layout.down].map(|matrix| {
                let format = quantized.unwrap_or(matrix.layout.format);
                MatrixLayout::plain(format, matrix.layout.rows, matrix.layout.columns)
            }),
            experts: layer.experts,
            bytes: packer.bytes(layout),
        }
    });
    stacks.collect()
}
