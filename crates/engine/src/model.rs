//! A checkpoint with everything that is needed to talk to it.

use std::path::Path;

use turbospark_formats::{Checkpoint, Metadata};
use turbospark_sampling::SamplingOptions;
use turbospark_text::{Message, RenderOptions, TextError, TextModel};

use crate::demo::demo_source;
use crate::engine::{Engine, EngineError, OpenOptions};

/// An opened model: text on one side, the engine on the other.
pub struct Model {
    /// Runs the model on token ids.
    pub engine: Engine,
    /// Where the model was opened from, and its hyper-parameters.
    pub checkpoint: Checkpoint,
    /// How tokens are chosen where a caller does not say: the checkpoint's own recommendation, where it has one.
    pub sampling: SamplingOptions,
    /// A checkpoint without a usable tokenizer still runs on token ids.
    text: Result<TextModel, TextError>,
}

impl Model {
    /// Opens a GGUF file, or a folder with config.json and safetensors.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Model, EngineError> {
        Model::new(Checkpoint::open(path)?, options)
    }

    /// Opens the model that ships with the program.
    pub fn demo(options: OpenOptions) -> Result<Model, EngineError> {
        Model::new(Checkpoint::from_gguf(demo_source())?, options)
    }

    /// Gets a checkpoint ready to run.
    pub fn new(checkpoint: Checkpoint, options: OpenOptions) -> Result<Model, EngineError> {
        let engine = Engine::new(&checkpoint, options)?;
        let text = TextModel::open(&checkpoint);
        let sampling = recommended_sampling(&checkpoint)?;
        Ok(Model { engine, checkpoint, sampling, text })
    }

    /// Tokenizer, chat template, stop tokens and dialect.
    pub fn text(&self) -> Result<&TextModel, EngineError> {
        self.text.as_ref().map_err(|error| EngineError::NoText(error.to_string()))
    }

    /// Token ids of a conversation that the model is to answer.
    pub fn prompt(&self, messages: &[Message], options: &RenderOptions) -> Result<Vec<u32>, EngineError> {
        Ok(self.text()?.prompt_ids(messages, options)?)
    }

    /// What kind of model this is, in the words of its file.
    pub fn kind(&self) -> &str {
        model_kind(&self.checkpoint)
    }

    pub(crate) fn parts(&mut self) -> Result<(&mut Engine, &TextModel), EngineError> {
        let text = self.text.as_ref().map_err(|error| EngineError::NoText(error.to_string()))?;
        Ok((&mut self.engine, text))
    }
}

/// What kind of model a checkpoint is, in the words of its file: general.architecture or model_type.
pub fn model_kind(checkpoint: &Checkpoint) -> &str {
    match &checkpoint.metadata {
        Metadata::Gguf(metadata) => metadata.architecture().unwrap_or_default(),
        Metadata::Config { config, .. } => {
            let text = config.get("text_config").and_then(|text| text.get("model_type"));
            text.or(config.get("model_type")).and_then(|kind| kind.as_str()).unwrap_or_default()
        }
    }
}

/// What generation_config.json recommends, or the general.sampling keys of a GGUF; else the program's defaults.
fn recommended_sampling(checkpoint: &Checkpoint) -> Result<SamplingOptions, EngineError> {
    const GGUF_KEYS: [(&str, &str); 5] = [
        ("temperature", "temp"),
        ("top_k", "top_k"),
        ("top_p", "top_p"),
        ("min_p", "min_p"),
        ("repetition_penalty", "penalty_repeat"),
    ];
    let recommended = match &checkpoint.metadata {
        Metadata::Config { generation, .. } => generation.clone().unwrap_or_default(),
        Metadata::Gguf(metadata) => GGUF_KEYS
            .into_iter()
            .filter_map(|(name, key)| {
                let value = metadata.float(&format!("general.sampling.{key}")).ok()??;
                Some((name.to_owned(), serde_json::Value::from(value)))
            })
            .collect(),
    };
    Ok(SamplingOptions::from_generation_config(&recommended)?)
}
