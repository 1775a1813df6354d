//! `turbospark show`: what a checkpoint is, without running it.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::{Value, json};
use turbospark_engine::{ExecutorKind, Isa, OpenOptions, WeightUse, weight_uses};
use turbospark_families::Model;
use turbospark_formats::{Checkpoint, Tensor};
use turbospark_program::Weights;

use crate::error::CliError;
use crate::options::RunArgs;
use crate::terminal::bytes;

/// Show what a model is: family, hyper-parameters, tensors, program
#[derive(Args)]
#[command(after_help = "Example:\n  turbospark show model.gguf --program | less")]
pub struct Show {
    /// A GGUF file, a folder with config.json and safetensors, or a packed store; without it the demo model
    model: Option<PathBuf>,
    /// List every tensor: name, shape, format, size, and the kernel or whatever else reads it
    #[arg(long)]
    tensors: bool,
    /// Print the program, one line an op
    #[arg(long)]
    program: bool,
    /// Everything as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    run: RunArgs,
}

/// What `show` tells.
#[derive(Serialize)]
struct Summary {
    model: String,
    family: &'static str,
    config: Value,
    parameters: usize,
    bytes: usize,
    expert_bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    packed: Option<Packed>,
    formats: BTreeMap<String, FormatShare>,
    kv_bytes_per_position: usize,
    max_positions: usize,
    unused: Vec<Skipped>,
}

/// Of a packed store.
#[derive(Serialize)]
struct Packed {
    layout: String,
    quantized: Option<String>,
    bytes: usize,
}

#[derive(Default, Serialize)]
struct FormatShare {
    tensors: usize,
    parameters: usize,
    bytes: usize,
}

#[derive(Serialize)]
struct Skipped {
    tensor: String,
    reason: String,
}

impl Show {
    pub fn execute(&self) -> Result<(), CliError> {
        let checkpoint = match &self.model {
            Some(path) => Checkpoint::open(path)?,
            None => Checkpoint::from_gguf(turbospark_engine::demo_source())?,
        };
        let options = self.run.open_options()?;
        let model = turbospark_families::build(&checkpoint, &options.family)
            .map_err(turbospark_engine::EngineError::from)?;
        Weights::bind(&model.program, &checkpoint).map_err(turbospark_engine::EngineError::from)?;
        let summary = Summary::new(&checkpoint, &model);
        let out = &mut std::io::stdout().lock();
        let readers = Readers::new(&checkpoint, &model, &options);
        if self.json {
            return self.write_json(out, &checkpoint, &model, &summary, &readers);
        }
        summary.write(out)?;
        if self.tensors {
            let line = |out: &mut dyn Write, [name, shape, format, size, reader]: [&str; 5]| {
                writeln!(out, "{name:60} {shape:24} {format:22} {size:>10}  {reader}")
            };
            writeln!(out)?;
            line(out, ["tensor", "shape", "format", "size", &readers.to_string()])?;
            for (name, tensor) in checkpoint.tensors() {
                let shape = format!("{:?}", tensor.shape());
                let (format, size) = (tensor.layout().format.to_string(), bytes(tensor.bytes()));
                line(out, [name, &shape, &format, &size, &readers.of(name).join(", ")])?;
            }
        }
        if self.program {
            write!(out, "\n{}", model.program)?;
        }
        Ok(())
    }

    fn write_json(
        &self,
        out: &mut impl Write,
        checkpoint: &Checkpoint,
        model: &Model,
        summary: &Summary,
        readers: &Readers,
    ) -> Result<(), CliError> {
        let mut value = serde_json::to_value(summary).map_err(std::io::Error::from)?;
        if self.tensors {
            let tensor = |(name, t): (&str, &Tensor)| {
                json!({
                    "name": name,
                    "shape": t.shape(),
                    "format": t.layout().format.to_string(),
                    "bytes": t.bytes(),
                    "read_as": readers.of(name),
                })
            };
            value["executor"] = readers.executor().into();
            value["isa"] = readers.isa.map(|isa| isa.to_string()).into();
            value["tensors"] = checkpoint.tensors().map(tensor).collect();
        }
        if self.program {
            let program = &model.program;
            value["program"] = program.ops().iter().map(|op| program.line(op).trim().to_owned()).collect();
        }
        serde_json::to_writer_pretty(&mut *out, &value).map_err(std::io::Error::from)?;
        writeln!(out)?;
        Ok(())
    }
}

/// How the chosen executor reads each tensor.
struct Readers {
    /// Of the CPU executor's kernels; none for the reference, which widens every weight where it uses it.
    isa: Option<Isa>,
    uses: BTreeMap<String, Vec<WeightUse>>,
}

impl Readers {
    fn new(checkpoint: &Checkpoint, model: &Model, options: &OpenOptions) -> Readers {
        let isa = match options.executor {
            ExecutorKind::Cpu => Some(options.cpu.isa),
            ExecutorKind::Reference => None,
        };
        Readers { isa, uses: weight_uses(&model.program, checkpoint) }
    }

    fn executor(&self) -> &'static str {
        if self.isa.is_some() { "cpu" } else { "reference" }
    }

    /// What the ops read the tensor as, empty if none does.
    fn of(&self, tensor: &str) -> Vec<String> {
        let uses = self.uses.get(tensor).map_or(&[][..], Vec::as_slice);
        match self.isa {
            Some(_) => uses.iter().map(WeightUse::to_string).collect(),
            None if uses.is_empty() => vec![],
            None => vec!["f32 loops".to_owned()],
        }
    }
}

impl fmt::Display for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.isa {
            Some(isa) => write!(f, "read as (kernels: {isa})"),
            None => f.write_str("read as (reference executor)"),
        }
    }
}

impl Summary {
    fn new(checkpoint: &Checkpoint, model: &Model) -> Summary {
        let mut formats: BTreeMap<String, FormatShare> = BTreeMap::new();
        let experts = model.program.expert_layers().iter().flat_map(|l| [&l.gate, &l.up, &l.down]);
        let expert_bytes = experts.filter_map(|name| checkpoint.get(name)).map(Tensor::bytes).sum();
        for (_, tensor) in checkpoint.tensors() {
            let share = formats.entry(tensor.layout().format.to_string()).or_default();
            share.tensors += 1;
            share.parameters += tensor.shape().iter().product::<usize>();
            share.bytes += tensor.bytes();
        }
        let packed = checkpoint.packed().map(|store| Packed {
            layout: store.packing().to_owned(),
            quantized: store.quantized().map(|format| format.to_string()),
            bytes: store.expert_bytes(),
        });
        let skipped = checkpoint.skipped.iter();
        let skipped =
            skipped.map(|(tensor, reason)| Skipped { tensor: tensor.clone(), reason: reason.to_string() });
        let unused = model.unused.iter().map(|tensor| Skipped {
            tensor: tensor.clone(),
            reason: "the program does not use it".to_owned(),
        });
        Summary {
            model: checkpoint.path.display().to_string(),
            family: model.family,
            config: model.config.clone(),
            parameters: formats.values().map(|share| share.parameters).sum(),
            bytes: formats.values().map(|share| share.bytes).sum(),
            expert_bytes,
            packed,
            formats,
            kv_bytes_per_position: model
                .program
                .kv_layers()
                .iter()
                .map(|layer| (layer.key_width + layer.value_width) * size_of::<f32>())
                .sum(),
            max_positions: model.program.max_positions(),
            unused: skipped.chain(unused).collect(),
        }
    }

    fn write(&self, out: &mut impl Write) -> Result<(), CliError> {
        let mut line = |name: &str, value: String| writeln!(out, "{name:22} {value}");
        line("model", self.model.clone())?;
        line("family", self.family.to_owned())?;
        line("parameters", format!("{:.2} M", self.parameters as f64 / 1e6))?;
        line(
            "weights",
            format!("{}, of them routed experts {}", bytes(self.bytes), bytes(self.expert_bytes)),
        )?;
        if let Some(Packed { layout, quantized, bytes: size }) = &self.packed {
            let quantized = quantized.iter().map(|format| format!(", quantised to {format}"));
            let quantized = quantized.collect::<String>();
            line("experts", format!("packed as {layout}{quantized}, {} on disk", bytes(*size)))?;
        }
        for (format, share) in &self.formats {
            let (n, size) = (share.tensors, bytes(share.bytes));
            line("", format!("{format:22} {n:5} tensors {size:>10}"))?;
        }
        line("keys and values", format!("{} a position in f32", bytes(self.kv_bytes_per_position)))?;
        line("positions", self.max_positions.to_string())?;
        if let Value::Object(config) = &self.config {
            for (name, value) in config {
                line(name, value.to_string())?;
            }
        }
        let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for skipped in &self.unused {
            reasons.entry(&skipped.reason).or_default().push(&skipped.tensor);
        }
        for (reason, tensors) in reasons {
            let first = tensors.iter().take(3).copied().collect::<Vec<_>>().join(", ");
            let more =
                if tensors.len() > 3 { format!(" and {} more", tensors.len() - 3) } else { String::new() };
            line("skipped", format!("{first}{more}: {reason}"))?;
        }
        Ok(())
    }
}
