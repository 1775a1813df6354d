//! Gemma 4's hyper-parameters in their three spellings: the first files', those that transformers saves with a
//! per_layer_config, and GGUF's.

use serde::{Serialize, Serializer};

use crate::field::Field;
use crate::rope::{self, Rope};
use crate::source::Source;
use crate::trunk::{Heads, MAX_HEAD_WIDTH, Routed, Trunk, vocabulary};
use crate::windows::Windows;
use crate::{FamilyError, FamilyOptions};
use turbospark_program::RopeScaling;

const SOFTCAP: &str = "final_logit_softcapping";
pub(super) const PER_LAYER_TABLE: &str = "model.embed_tokens_per_layer.weight";

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Config {
    #[serde(flatten)]
    pub trunk: Trunk,
    pub embedding_scale: f32,
    #[serde(flatten)]
    pub windows: Windows,
    /// Of each layer; full ones have other heads than sliding ones.
    #[serde(serialize_with = "distinct")]
    pub attention: Vec<Heads>,
    pub full_rope: Rope,
    pub sliding_rope: Rope,
    /// Whether the values of full layers are what their k_proj yields.
    pub keys_are_values: bool,
    /// The last layers, which read the caches of earlier ones.
    pub kv_shared_layers: usize,
    /// Of each layer's dense branch.
    #[serde(serialize_with = "distinct")]
    pub intermediate: Vec<usize>,
    #[serde(flatten)]
    pub routed: Option<Routed>,
    pub per_layer_embedding: Option<PerLayerEmbedding>,
    pub logit_softcap: Option<f32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct PerLayerEmbedding {
    pub vocabulary: usize,
    pub width: usize,
}

impl Config {
    pub fn read(source: &Source, options: &FamilyOptions) -> Result<Config, FamilyError> {
        source.only("hidden_activation|hidden_act", &["gelu_pytorch_tanh"])?;
        source.only("use_bidirectional_attention", &["vision"])?;
        refuse(source, "attention_bias")?;
        let trunk = Trunk::read(source)?;
        let layers = trunk.layers;
        let windows = windows(source, layers)?;
        let kv_shared_layers = kv_shared_layers(source, &windows)?;
        let (attention, full_rope, sliding_rope) = match source.is_gguf() {
            true => (heads_gguf(source, &windows)?, full_rope_gguf(source)?, sliding_rope_gguf(source)?),
            false => {
                let rope = |kind| {
                    let rope = Rope::of_layer_type(source, kind, "", options.yarn)?;
                    rope.ok_or_else(|| source.missing(&format!("rope_parameters.{kind}"), ""))
                };
                (heads(source, &windows)?, rope("full_attention")?, rope("sliding_attention")?)
            }
        };
        Ok(Config {
            embedding_scale: options.embedding_scale.of(trunk.hidden),
            keys_are_values: keys_are_values(source, &windows)?,
            intermediate: intermediate(source, layers, kv_shared_layers)?,
            routed: routed(source)?,
            per_layer_embedding: per_layer_embedding(source)?,
            logit_softcap: source.find_single(SOFTCAP, SOFTCAP)?,
            attention,
            full_rope,
            sliding_rope,
            kv_shared_layers,
            windows,
            trunk,
        })
    }

    /// Layers from this one on read the caches of earlier ones.
    pub fn first_shared(&self) -> usize {
        self.trunk.layers - self.kv_shared_layers
    }
}

fn refuse(source: &Source, flag: &str) -> Result<(), FamilyError> {
    match source.find(flag, "")? {
        Some(field) if field.flag()? => Err(field.unexpected("false")),
        _ => Ok(()),
    }
}

/// The last layer sees all, as transformers has it, whatever the period.
fn windows(source: &Source, layers: usize) -> Result<Windows, FamilyError> {
    let mut windows = Windows::read(source, layers, 6)?;
    let pattern = "attention.sliding_window_pattern";
    match source.find("layer_types", pattern)? {
        None if source.is_gguf() => return Err(source.missing("", pattern)),
        Some(types) if windows.sliding_layers[layers - 1] => {
            return Err(types.unexpected("full_attention in the last layer"));
        }
        _ => windows.sliding_layers[layers - 1] = false,
    }
    Ok(windows)
}

/// Each type of layer that shares must have one that computes.
fn kv_shared_layers(source: &Source, windows: &Windows) -> Result<usize, FamilyError> {
    let slides = &windows.sliding_layers;
    let Some(field) = source.find("num_kv_shared_layers", "attention.shared_kv_layers")? else {
        return Ok(0);
    };
    let shared = field.integer(0, slides.len() - 1)?;
    let (own, others) = slides.split_at(slides.len() - shared);
    match others.iter().all(|kind| own.contains(kind)) {
        true => Ok(shared),
        false => Err(field.unexpected("few enough that an earlier layer of each type has its own keys")),
    }
}

/// In config.json: per_layer_config, or the global_ keys for full layers.
fn heads(source: &Source, windows: &Windows) -> Result<Vec<Heads>, FamilyError> {
    let sliding = Heads::read(source)?;
    let layers = windows.sliding_layers.len();
    let mut all = vec![sliding; layers];
    if let Some(given) = source.find("per_layer_config", "")? {
        for name in given.members()?.keys() {
            let index = name.parse::<usize>().ok().filter(|i| *i < layers);
            let index = index.ok_or_else(|| given.unexpected(format!("layers from 0 to {}", layers - 1)))?;
            all[index] = overridden(&given.required(name)?, sliding)?;
        }
        return Ok(all);
    }
    // Hugging Face's default, as released files write it too.
    let head_width = source.find_size("global_head_dim", "")?.unwrap_or(512);
    let mut full = Heads { head_width, ..sliding };
    // Full layers have their own number only where keys are values.
    if let Some(field) = source.find("num_global_key_value_heads", "")?
        && source.find_flag("attention_k_eq_v", "")?.unwrap_or(false)
    {
        full.kv_heads = Heads::divisor(&field, full.heads)?;
    }
    let full = full.checked()?;
    for (heads, slides) in all.iter_mut().zip(&windows.sliding_layers) {
        *heads = if *slides { sliding } else { full };
    }
    Ok(all)
}

fn overridden(own: &Field, base: Heads) -> Result<Heads, FamilyError> {
    let mut heads = base;
    for name in own.members()?.keys() {
        let field = own.required(name)?;
        match name.as_str() {
            "head_dim" => heads.head_width = field.integer(1, MAX_HEAD_WIDTH)?,
            "num_key_value_heads" => heads.kv_heads = Heads::divisor(&field, heads.heads)?,
            _ => return Err(own.unexpected("head_dim and num_key_value_heads only")),
        }
    }
    heads.checked()
}

/// In GGUF: the keys' widths by type, the key-value heads by layer.
fn heads_gguf(source: &Source, windows: &Windows) -> Result<Vec<Heads>, FamilyError> {
    let heads = source.size("", "attention.head_count")?;
    let width = |key: &str, value: &str| {
        let width = source.size("", key)?;
        match source.find("", value)? {
            Some(field) if field.size()? != width => {
                Err(field.unexpected(format!("{width}, the width of a key")))
            }
            _ => Ok(width),
        }
    };
    let full = width("attention.key_length", "attention.value_length")?;
    let sliding = width("attention.key_length_swa", "attention.value_length_swa")?;
    let field = source.field("", "attention.head_count_kv")?;
    let slides = &windows.sliding_layers;
    let of_layer = |(kv_heads, slides): (usize, &bool)| {
        if !heads.is_multiple_of(kv_heads) {
            return Err(field.unexpected(format!("divisors of {heads}, the number of query heads")));
        }
        Heads { heads, kv_heads, head_width: if *slides { sliding } else { full } }.checked()
    };
    field.sizes(slides.len())?.into_iter().zip(slides).map(of_layer).collect()
}

/// GGUF writes the part of a head that is not rotated as divisors without bound.
fn full_rope_gguf(source: &Source) -> Result<Rope, FamilyError> {
    let head = source.field("", "attention.key_length")?.integer(1, MAX_HEAD_WIDTH)?;
    Ok(Rope { base: rope_base(source, "", head)?, scaling: rope::divisors(source, head)? })
}

fn sliding_rope_gguf(source: &Source) -> Result<Rope, FamilyError> {
    let head = source.size("", "attention.key_length_swa")?;
    Ok(Rope { base: rope_base(source, "_swa", head)?, scaling: RopeScaling::None })
}

fn rope_base(source: &Source, kind: &str, head: usize) -> Result<f64, FamilyError> {
    rope::whole_gguf(source, &format!("rope.dimension_count{kind}"), head)?;
    source.number("", &format!("rope.freq_base{kind}"))
}

/// GGUF has no key for it: full layers lack attn_v.
fn keys_are_values(source: &Source, windows: &Windows) -> Result<bool, FamilyError> {
    if !source.is_gguf() {
        return Ok(source.find_flag("attention_k_eq_v", "")?.unwrap_or(false));
    }
    let full = windows.sliding_layers.iter().position(|slides| !slides);
    Ok(full.is_some_and(|i| !source.has(&format!("model.layers.{i}.self_attn.v_proj.weight"))))
}

/// Of each layer; with use_double_wide_mlp, layers that share are twice as wide.
fn intermediate(source: &Source, layers: usize, shared: usize) -> Result<Vec<usize>, FamilyError> {
    let mut all = source.field("intermediate_size", "feed_forward_length")?.sizes(layers)?;
    if source.find_flag("use_double_wide_mlp", "")?.unwrap_or(false) {
        all[layers - shared..].iter_mut().for_each(|width| *width *= 2);
    }
    Ok(all)
}

fn routed(source: &Source) -> Result<Option<Routed>, FamilyError> {
    let has = match source.is_gguf() {
        true => source.find("", "expert_count")?.is_some_and(|count| count.integer(0, 0).is_err()),
        false => source.find_flag("enable_moe_block", "")?.unwrap_or(false),
    };
    let read = || Routed::read(source, source.size("moe_intermediate_size", "expert_feed_forward_length")?);
    has.then(read).transpose()
}

/// The key must be there, since its default is not what most checkpoints have; 0 or null is none.
fn per_layer_embedding(source: &Source) -> Result<Option<PerLayerEmbedding>, FamilyError> {
    let (config, gguf) = ("hidden_size_per_layer_input", "embedding_length_per_layer_input");
    let width = match source.find(config, gguf)? {
        Some(field) if field.integer(0, 0).is_ok() => return Ok(None),
        Some(field) => field.size()?,
        None if source.names(config) || source.is_gguf() => return Ok(None),
        None => return Err(source.missing(config, gguf)),
    };
    let vocabulary = vocabulary(source, "vocab_size_per_layer_input", PER_LAYER_TABLE)?;
    Ok(Some(PerLayerEmbedding { vocabulary, width }))
}

/// The values that there are, in the order of their first layer.
fn distinct<T: Serialize + PartialEq, S: Serializer>(all: &[T], serializer: S) -> Result<S::Ok, S::Error> {
    let first = all.iter().enumerate().filter(|(i, x)| !all[..*i].contains(x)).map(|(_, x)| x);
    serializer.collect_seq(first)
}
