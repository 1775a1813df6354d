//! `turbospark eval logits`: logits, residuals and routes of given tokens, as a safetensors file.

use std::path::{Path, PathBuf};

use clap::Args;
use safetensors::tensor::{Dtype, TensorView};
use turbospark_engine::{Evaluation, Keep};
use turbospark_program::{Op, Tap};

use crate::error::CliError;
use crate::options::RunArgs;
use crate::steer_args::SteerArgs;

/// Write the logits of a list of token ids to a safetensors file
#[derive(Args)]
#[command(
    after_help = "The file has `logits` f32 [T, vocabulary]; with --taps also `hidden.0` .. `hidden.L` f32 [T, \
hidden]\n(the embedding, then the residual after each layer) and, for layer N with routed experts, `router_idx.N`\n\
i32 and `router_w.N` f32 [T, k].\n\nExample:\n  echo '[411, 433, 258]' > ids.json\n  turbospark eval logits \
model.gguf --tokens ids.json --out logits.safetensors --taps"
)]
pub struct LogitsArgs {
    /// A GGUF file, a folder with config.json and safetensors, or a packed store
    model: PathBuf,
    /// A JSON list of token ids
    #[arg(long, value_name = "FILE.json")]
    tokens: PathBuf,
    /// The file to write
    #[arg(long, value_name = "FILE.safetensors")]
    out: PathBuf,
    /// Also write the residual stream and the routers' choices
    #[arg(long)]
    taps: bool,
    #[command(flatten)]
    run: RunArgs,
    #[command(flatten)]
    steer: SteerArgs,
}

impl LogitsArgs {
    pub fn execute(&self) -> Result<(), CliError> {
        let tokens = read_tokens(&self.tokens)?;
        let mut model = self.run.open_to_evaluate(Some(&self.model))?;
        self.steer.apply(&mut model.engine, &model.checkpoint)?;
        let context = model.engine.context();
        if tokens.len() > context {
            let reason =
                format!("{} tokens, the context is {context}; shorten it or raise --context", tokens.len());
            return Err(CliError::file(&self.tokens, reason));
        }
        let program = model.engine.program();
        let (vocabulary, hidden) = (program.vocabulary(), program.hidden());
        let stream = |op: &Op| match op {
            Op::Tap { tap: tap @ (Tap::Embedding | Tap::LayerOutput(_)), .. } => Some(*tap),
            _ => None,
        };
        let taps = program.ops().iter().filter_map(stream).filter(|_| self.taps).collect();
        let evaluation = model.engine.evaluate(&tokens, &Keep { logits: None, taps, routes: self.taps })?;
        let file = Tensors::new(&evaluation, tokens.len(), vocabulary, hidden);
        file.write(&self.out).map_err(|error| CliError::file(&self.out, error))
    }
}

/// Reads a JSON list of token ids.
pub fn read_tokens(path: &Path) -> Result<Vec<u32>, CliError> {
    let text = std::fs::read(path).map_err(|error| CliError::file(path, error))?;
    let tokens: Vec<u32> = serde_json::from_slice(&text)
        .map_err(|error| CliError::file(path, format!("expected a JSON list of token ids: {error}")))?;
    if tokens.is_empty() {
        return Err(CliError::file(path, "the list of token ids is empty"));
    }
    Ok(tokens)
}

/// Named arrays on their way into a safetensors file.
struct Tensors(Vec<(String, Dtype, Vec<usize>, Vec<u8>)>);

impl Tensors {
    fn new(evaluation: &Evaluation, rows: usize, vocabulary: usize, hidden: usize) -> Tensors {
        let floats = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let mut list =
            vec![("logits".to_owned(), Dtype::F32, vec![rows, vocabulary], floats(&evaluation.logits))];
        for (index, (_, values)) in evaluation.taps.iter().enumerate() {
            list.push((format!("hidden.{index}"), Dtype::F32, vec![rows, hidden], floats(values)));
        }
        for layer in &evaluation.routes {
            let (n, shape) = (layer.layer, vec![rows, layer.k]);
            let ids = layer.ids.iter().flat_map(|&id| (id as i32).to_le_bytes()).collect();
            list.push((format!("router_idx.{n}"), Dtype::I32, shape.clone(), ids));
            list.push((format!("router_w.{n}"), Dtype::F32, shape, floats(&layer.weights)));
        }
        Tensors(list)
    }

    fn write(&self, path: &Path) -> Result<(), safetensors::SafeTensorError> {
        let views = self.0.iter().map(|(name, dtype, shape, bytes)| {
            TensorView::new(*dtype, shape.clone(), bytes).map(|view| (name.as_str(), view))
        });
        let views: Vec<_> = views.collect::<Result<_, _>>()?;
        safetensors::serialize_to_file(views, None, path)
    }
}
