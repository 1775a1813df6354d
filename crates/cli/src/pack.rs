//! `turbospark pack`: a model as a packed store.

use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use turbospark_engine::pack::{PackOptions, pack};
use turbospark_formats::{Checkpoint, Format};

use crate::error::CliError;
use crate::terminal::{Bar, bytes};

/// Write a model as a packed store: experts ready to compute, digests of everything
#[derive(Args)]
#[command(
    after_help = "Running the same command again goes on where it was interrupted, and writes anew what was damaged.\n\nExample:\n  turbospark \
pack gpt-oss-20b.gguf -o gpt-oss-20b.packed && turbospark run -m gpt-oss-20b.packed \"Hello\""
)]
pub struct PackArgs {
    /// A GGUF file, or a folder with config.json and safetensors
    model: PathBuf,
    /// The store's folder: new, empty, or one that was begun before
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Quantise routed experts of F16, BF16 or F32 on the way
    #[arg(long, value_enum, value_name = "FORMAT")]
    quantize: Option<Quantized>,
    /// Threads that pack, each with one expert at a time [default: the cores that the process may use]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(non_camel_case_types)]
enum Quantized {
    /// 4-bit floats in blocks of 32, as gpt-oss has them
    Mxfp4,
    /// 4 bits in blocks of 32
    #[value(name = "q4_0")]
    Q4_0,
    /// 8 bits in blocks of 32
    #[value(name = "q8_0")]
    Q8_0,
    /// 4 bits in blocks of 32 with scales and minima, 256 together
    #[value(name = "q4_k")]
    Q4_K,
}

impl Quantized {
    fn format(self) -> Format {
        match self {
            Quantized::Mxfp4 => Format::MXFP4,
            Quantized::Q4_0 => Format::Q4_0,
            Quantized::Q8_0 => Format::Q8_0,
            Quantized::Q4_K => Format::Q4_K,
        }
    }
}

impl PackArgs {
    pub fn execute(&self) -> Result<(), CliError> {
        let started = Instant::now();
        let checkpoint = Checkpoint::open(&self.model)?;
        let mut options = PackOptions::default();
        if let Some(threads) = self.threads {
            options.threads = threads.into();
        }
        options.quantize = self.quantize.map(Quantized::format);
        let bar = Bar::bytes("packing");
        let packed = pack(&checkpoint, &self.output, &options, &|done, total| bar.set_of(done, total))?;
        drop(bar);
        let folder = self.output.display();
        if packed.kept == packed.bytes {
            eprintln!("{folder} is complete already, and all of it is as written");
            return Ok(());
        }
        let kept = match packed.kept {
            0 => String::new(),
            kept => format!(", {} of it by an earlier run", bytes(kept as usize)),
        };
        eprintln!(
            "{folder}: {} in {:.1} s{kept}; {} experts ready to compute",
            bytes(packed.bytes as usize),
            started.elapsed().as_secs_f64(),
            packed.experts
        );
        Ok(())
    }
}
