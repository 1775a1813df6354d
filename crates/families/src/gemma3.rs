//! Gemma 3 (270M to 27B, text): norms on both sides of each part, five layers in a window for one that sees all.

use serde::Serialize;
use turbospark_program::{Activation, Attention, BuildError, Builder, Program, Reg, RopeScaling};

use crate::layer::{Layer, plain_attention};
use crate::rope::{PLAIN, Rope};
use crate::source::Source;
use crate::trunk::{Heads, Trunk};
use crate::windows::Windows;
use crate::{FamilyError, FamilyOptions, Model};

/// Multi-modal checkpoints leave out of their text_config what is as in the class of Hugging Face's transformers.
const DEFAULTS: &[(&str, f64)] = &[
    ("num_attention_heads", 8.0),
    ("num_key_value_heads", 4.0),
    ("head_dim", 256.0),
    ("query_pre_attn_scalar", 256.0),
    ("max_position_embeddings", 131072.0),
    ("rms_norm_eps", 1e-6),
    ("rope_theta", 1e6),
    ("rope_local_base_freq", 1e4),
];

/// The 27B, by its depth.
const LAYERS_27B: usize = 62;

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Config {
    #[serde(flatten)]
    trunk: Trunk,
    embedding_scale: f32,
    /// Norm weights are stored less this: Hugging Face has w for 1 + w, GGUF the sum.
    norm_offset: f32,
    #[serde(flatten)]
    heads: Heads,
    /// On q, k, v and o.
    attention_bias: bool,
    attention_scale: f32,
    attention_softcap: Option<f32>,
    #[serde(flatten)]
    windows: Windows,
    /// Of the layers that see all.
    full_rope: Rope,
    sliding_rope: Rope,
    intermediate: usize,
    logit_softcap: Option<f32>,
}

pub(crate) fn build(source: &Source, options: &FamilyOptions) -> Result<Model, FamilyError> {
    let config = Config::read(&source.with_defaults(DEFAULTS), options)?;
    Model::new("gemma3", &config, config.program()?)
}

impl Config {
    fn read(source: &Source, options: &FamilyOptions) -> Result<Config, FamilyError> {
        source.only("hidden_activation|hidden_act", &["gelu_pytorch_tanh"])?;
        if let Some(field) = source.find("use_bidirectional_attention", "")?
            && field.flag()?
        {
            return Err(field.unexpected("false: only causal models generate text"));
        }
        let trunk = Trunk::read(source)?;
        let heads = Heads::read(source)?;
        let softcap = |key| source.find_single(key, key);
        Ok(Config {
            embedding_scale: options.embedding_scale.of(trunk.hidden),
            norm_offset: if source.is_gguf() { 0.0 } else { 1.0 },
            attention_bias: source.biased("self_attn.q_proj", "attention_bias", false)?,
            attention_scale: attention_scale(source, &trunk, heads)?,
            attention_softcap: softcap("attn_logit_softcapping")?,
            windows: windows(source, trunk.layers)?,
            full_rope: match Rope::of_layer_type(source, "full_attention", "rope_theta", options.yarn)? {
                Some(rope) => rope,
                None => Rope::read(source, heads.head_width, PLAIN, options.yarn)?,
            },
            sliding_rope: sliding_rope(source, options)?,
            intermediate: source.size("intermediate_size", "feed_forward_length")?,
            logit_softcap: softcap("final_logit_softcapping")?,
            trunk,
            heads,
        })
    }

    fn program(&self) -> Result<Program, BuildError> {
        let mut b = self.trunk.builder();
        let head = self.heads.head_width;
        let full = b.rope_table(self.full_rope.table(head));
        let sliding = b.rope_table(self.sliding_rope.table(head));
        let mut x = self.trunk.embed(&mut b, self.embedding_scale);
        for i in 0..self.trunk.layers {
            let rope = if self.windows.at(i).is_some() { sliding } else { full };
            x = self.layer(&mut b, i, rope, x);
        }
        let mut logits = self.trunk.logits(&mut b, x, self.norm_offset);
        if let Some(cap) = self.logit_softcap {
            logits = b.softcap(logits, cap);
        }
        b.finish(logits, self.trunk.layers)
    }

    fn layer(&self, b: &mut Builder, i: usize, rope: usize, x: Reg) -> Reg {
        let mut l = Layer::new(b, i, self.trunk.eps).with_norm_offset(self.norm_offset);
        let (hidden, heads, bias) = (self.trunk.hidden, self.heads, self.attention_bias);
        let (q_width, kv_width, head) = (heads.query(), heads.key_value(), heads.head_width);

        let a = l.norm(x, "input_layernorm", hidden);
        let q = l.linear(a, "self_attn.q_proj", [q_width, hidden], bias);
        let k = l.linear(a, "self_attn.k_proj", [kv_width, hidden], bias);
        let v = l.linear(a, "self_attn.v_proj", [kv_width, hidden], bias);
        let q = l.norm(q, "self_attn.q_norm", head);
        let k = l.norm(k, "self_attn.k_norm", head);
        let (q, k) = (l.b.rope(q, rope, head), l.b.rope(k, rope, head));
        let window = self.windows.at(i);
        let cache = l.cache(heads, window);
        let attention = Attention {
            scale: self.attention_scale,
            softcap: self.attention_softcap,
            ..plain_attention(cache, heads, window)
        };
        let o = l.b.attention(q, Some((k, v)), attention);
        let o = l.linear(o, "self_attn.o_proj", [hidden, q_width], bias);
        let o = l.norm(o, "post_attention_layernorm", hidden);
        let x = l.add_attention(x, o);

        let h = l.norm(x, "pre_feedforward_layernorm", hidden);
        let y = l.mlp(h, [hidden, self.intermediate], Activation::GeGluTanh, false);
        let y = l.norm(y, "post_feedforward_layernorm", hidden);
        let x = l.add_feed_forward(x, y);
        l.end(x)
    }
}

/// A GGUF of a model without windows has no key for their width.
fn windows(source: &Source, layers: usize) -> Result<Windows, FamilyError> {
    if source.is_gguf() && Windows::width(source)?.is_none() {
        return Windows::none(source, layers);
    }
    Windows::read(source, layers, 6)
}

/// query_pre_attn_scalar^-1/2. GGUF does not store it: it is the width of a head, but in the 27B hidden / heads.
fn attention_scale(source: &Source, trunk: &Trunk, heads: Heads) -> Result<f32, FamilyError> {
    if let Some(scale) = source.find_single("", "attention.scale")? {
        return Ok(scale);
    }
    let scalar = match source.find_single("query_pre_attn_scalar", "")? {
        Some(scalar) => f64::from(scalar),
        None if trunk.layers == LAYERS_27B => trunk.hidden as f64 / heads.heads as f64,
        None => heads.head_width as f64,
    };
    Ok((1.0 / scalar.sqrt()) as f32)
}

/// Never stretched. GGUF files older than its key mean the base that all checkpoints have.
fn sliding_rope(source: &Source, options: &FamilyOptions) -> Result<Rope, FamilyError> {
    let key = "rope_local_base_freq";
    if let Some(rope) = Rope::of_layer_type(source, "sliding_attention", key, options.yarn)? {
        return Ok(rope);
    }
    let base = source.find_number(key, "rope.freq_base_swa")?.unwrap_or(1e4);
    Ok(Rope { base, scaling: RopeScaling::None })
}
