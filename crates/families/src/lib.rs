//! One file a model family: a checkpoint's config in, a program out.
//!
//! [`build`] finds the family by what the checkpoint calls itself. A family reads its hyper-parameters, under the
//! names of config.json or those of GGUF, into one struct, checks them, and writes its layer with a
//! [`turbospark_program::Builder`].

mod error;
mod field;
mod gemma3;
mod gemma4;
mod gpt_oss;
mod layer;
mod llama;
mod mixtral;
mod qwen3;
mod rope;
mod source;
#[cfg(test)]
mod tests;
mod trunk;
mod windows;

use std::collections::HashSet;

use serde::Serialize;
use serde_json::Value;
use turbospark_formats::Checkpoint;
use turbospark_program::{Program, RopeTable};

pub use error::FamilyError;
use source::Source;

/// Choices that the checkpoint leaves open, or that reproduce another engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FamilyOptions {
    /// The ends of YaRN's ramp.
    pub yarn: YarnRounding,
    /// The factor on Gemma's embedding.
    pub embedding_scale: EmbeddingScale,
}

/// Whether the ends of YaRN's ramp are rounded to whole pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum YarnRounding {
    /// As the checkpoint was trained: its `truncate`, or what its family means by leaving that out.
    #[default]
    Checkpoint,
    /// Always, as llama.cpp and mlx-lm do.
    Rounded,
}

/// Precision of Gemma's embedding scale, the root of the hidden size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EmbeddingScale {
    /// In float32.
    #[default]
    Float32,
    /// Rounded to bfloat16, as a reference that runs in that type does.
    Bf16Rounded,
}

impl EmbeddingScale {
    fn of(self, hidden: usize) -> f32 {
        let root = (hidden as f64).sqrt() as f32;
        match self {
            EmbeddingScale::Float32 => root,
            EmbeddingScale::Bf16Rounded => {
                let bits = root.to_bits();
                f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
            }
        }
    }
}

/// A checkpoint as a program.
#[derive(Clone, Debug)]
pub struct Model {
    /// Name of the family.
    pub family: &'static str,
    /// The program.
    pub program: Program,
    /// The hyper-parameters that it was made of: an object of names and values, in a fit order to print.
    pub config: Value,
    /// Tensors that the program does not use; names that the formats do not know are not among them.
    pub unused: Vec<String>,
}

impl Model {
    fn new(family: &'static str, config: &impl Serialize, program: Program) -> Result<Model, FamilyError> {
        let finite = |table: &RopeTable| {
            table.amplitude.is_finite() && table.frequencies.iter().all(|frequency| frequency.is_finite())
        };
        if !program.ropes().iter().all(finite) {
            return Err(FamilyError::Rope);
        }
        let config = shortest(serde_json::to_value(config).unwrap_or(Value::Null));
        Ok(Model { family, program, config, unused: Vec::new() })
    }
}

/// A way to make a program, and the names of the models it is for.
struct Family {
    /// model_type in config.json, and class in its architectures.
    config: &'static [&'static str],
    /// general.architecture in GGUF.
    gguf: &'static [&'static str],
    build: fn(&Source, &FamilyOptions) -> Result<Model, FamilyError>,
}

const FAMILIES: [Family; 8] = [
    Family { config: &["gpt_oss", "GptOssForCausalLM"], gguf: &["gpt-oss"], build: gpt_oss::build },
    Family {
        config: &["llama", "LlamaForCausalLM", "mistral", "MistralForCausalLM"],
        gguf: &["llama"],
        build: llama::llama,
    },
    Family { config: &["mixtral", "MixtralForCausalLM"], gguf: &[], build: mixtral::build },
    Family { config: &["qwen2", "Qwen2ForCausalLM"], gguf: &["qwen2"], build: llama::qwen2 },
    Family { config: &["qwen3", "Qwen3ForCausalLM"], gguf: &["qwen3"], build: qwen3::dense },
    Family { config: &["qwen3_moe", "Qwen3MoeForCausalLM"], gguf: &["qwen3moe"], build: qwen3::mixture },
    Family {
        config: &["gemma3", "gemma3_text", "Gemma3ForConditionalGeneration", "Gemma3ForCausalLM"],
        gguf: &["gemma3"],
        build: gemma3::build,
    },
    Family {
        config: &["gemma4", "gemma4_text", "Gemma4ForConditionalGeneration", "Gemma4ForCausalLM"],
        gguf: &["gemma4"],
        build: gemma4::build,
    },
];

/// The program of a checkpoint.
///
/// Fails if its architecture is not among the families, or a hyper-parameter is missing or cannot be. That the
/// weights are there and have the shapes that the program asks for is checked by [`turbospark_program::Weights`].
pub fn build(checkpoint: &Checkpoint, options: &FamilyOptions) -> Result<Model, FamilyError> {
    let source = Source::new(&checkpoint.metadata, checkpoint)?;
    let mut model = build_from(&source, options)?;
    model.unused = unused(&model.program, checkpoint)?;
    Ok(model)
}

fn build_from(source: &Source, options: &FamilyOptions) -> Result<Model, FamilyError> {
    let types = source.model_types();
    let names = |family: &Family| if source.is_gguf() { family.gguf } else { family.config };
    let found = types.iter().find_map(|kind| FAMILIES.iter().find(|f| names(f).contains(kind)));
    let Some(family) = found else {
        let classes = |name: &&str| name.contains("For");
        let supported: Vec<_> =
            FAMILIES.iter().flat_map(names).copied().filter(|name| !classes(name)).collect();
        let found = types.first().ok_or(FamilyError::NoModelType)?;
        return Err(FamilyError::Unsupported { found: short(found), supported: supported.join(", ") });
    };
    (family.build)(source, options)
}

/// Tensors without a place in the program. Keys of layers that read another's cache and the copy of a tied head are
/// known to be superfluous; leaving out any other would change the result.
fn unused(program: &Program, checkpoint: &Checkpoint) -> Result<Vec<String>, FamilyError> {
    let experts = program.expert_layers().iter().flat_map(|layer| [&layer.gate, &layer.up, &layer.down]);
    let used: HashSet<&str> =
        program.weights().iter().map(|spec| &spec.name).chain(experts).map(String::as_str).collect();
    let superfluous = |name: &str| {
        let keys = ["self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.k_norm.weight"];
        let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
        let layer = layer.and_then(|(layer, rest)| Some((layer.parse().ok()?, rest)));
        let shares = |layer: usize| program.kv_layers().iter().all(|kv| kv.layer != layer);
        name == "lm_head.weight"
            || layer.is_some_and(|(i, rest)| i < program.layers() && keys.contains(&rest) && shares(i))
    };
    let names = checkpoint.tensors().map(|(name, _)| name);
    let unused: Vec<&str> = names.filter(|name| !used.contains(name) && *name != rope::DIVISORS).collect();
    match unused.iter().find(|name| !superfluous(name)) {
        Some(name) => Err(FamilyError::Unplaced { name: (*name).to_owned() }),
        None => Ok(unused.into_iter().map(str::to_owned).collect()),
    }
}

/// Numbers that were f32 in the fewest digits that give them back.
fn shortest(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            let wide = number.as_f64().unwrap_or(f64::NAN);
            let narrow = wide as f32;
            let short = if f64::from(narrow) == wide { narrow.to_string().parse().ok() } else { None };
            Value::from(short.unwrap_or(wide))
        }
        Value::Array(items) => items.into_iter().map(shortest).collect(),
        Value::Object(map) => map.into_iter().map(|(key, value)| (key, shortest(value))).collect(),
        other => other,
    }
}

/// A stranger's word, of bounded length.
fn short(text: &str) -> String {
    text.chars().take(60).collect()
}
