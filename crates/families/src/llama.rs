//! Llama 2 and 3, TinyLlama, SmolLM2, Mistral and Qwen2: the plain transformer.

use serde::Serialize;
use turbospark_program::{Activation, BuildError, Builder, Program, Reg};

use crate::layer::{Layer, plain_attention};
use crate::rope::{PLAIN, Rope, RopeDefaults};
use crate::source::Source;
use crate::trunk::{Heads, Trunk};
use crate::windows::Windows;
use crate::{FamilyError, FamilyOptions, Model};

/// The part that Mixtral shares: everything but the feed-forward part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Base {
    #[serde(flatten)]
    pub trunk: Trunk,
    #[serde(flatten)]
    pub heads: Heads,
    #[serde(flatten)]
    pub windows: Windows,
    pub rope: Rope,
    /// On q, k and v.
    pub qkv_bias: bool,
    /// On o.
    pub output_bias: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Config {
    #[serde(flatten)]
    base: Base,
    intermediate: usize,
    mlp_bias: bool,
}

pub(crate) fn llama(source: &Source, options: &FamilyOptions) -> Result<Model, FamilyError> {
    // GGUF has one architecture for Llama, Mistral and Mixtral.
    if source.find("", "expert_count")?.is_some_and(|count| count.integer(0, 0).is_err()) {
        return crate::mixtral::build(source, options);
    }
    let base = Base::read(source, options)?;
    Config::build(source, "llama", base)
}

pub(crate) fn qwen2(source: &Source, options: &FamilyOptions) -> Result<Model, FamilyError> {
    let base = Base::read(source, options)?;
    let windows = Windows::upper_layers(source, base.trunk.layers)?;
    let qkv_bias = source.biased("self_attn.q_proj", "", true)?;
    Config::build(source, "qwen2", Base { windows, qkv_bias, output_bias: false, ..base })
}

impl Config {
    fn build(source: &Source, family: &'static str, base: Base) -> Result<Model, FamilyError> {
        let config = Config {
            base,
            intermediate: source.size("intermediate_size", "feed_forward_length")?,
            mlp_bias: source.biased("mlp.gate_proj", "mlp_bias", false)?,
        };
        Model::new(family, &config, config.program()?)
    }

    fn program(&self) -> Result<Program, BuildError> {
        let (hidden, swiglu) = (self.base.trunk.hidden, Activation::SwiGlu);
        self.base.program(|l, h| l.mlp(h, [hidden, self.intermediate], swiglu, self.mlp_bias))
    }
}

impl Base {
    pub fn read(source: &Source, options: &FamilyOptions) -> Result<Base, FamilyError> {
        source.only("hidden_act", &["silu"])?;
        let trunk = Trunk::read(source)?;
        let heads = Heads::read_or_divide(source, trunk.hidden)?;
        // The first Llama checkpoints do not give the base.
        let rope = RopeDefaults { base: Some(10000.0), ..PLAIN };
        Ok(Base {
            windows: Windows::everywhere(source, trunk.layers)?,
            rope: Rope::read(source, heads.head_width, rope, options.yarn)?,
            qkv_bias: source.biased("self_attn.q_proj", "attention_bias", false)?,
            output_bias: source.biased("self_attn.o_proj", "attention_bias", false)?,
            trunk,
            heads,
        })
    }

    /// The program with `feed_forward` from the normed residual stream to what is added to it.
    pub fn program(&self, feed_forward: impl Fn(&mut Layer, Reg) -> Reg) -> Result<Program, BuildError> {
        let mut b = self.trunk.builder();
        let rope = b.rope_table(self.rope.table(self.heads.head_width));
        self.trunk.program(b, |b, i, x| self.layer(b, i, rope, x, &feed_forward))
    }

    fn layer(
        &self,
        b: &mut Builder,
        i: usize,
        rope: usize,
        x: Reg,
        feed_forward: impl Fn(&mut Layer, Reg) -> Reg,
    ) -> Reg {
        let mut l = Layer::new(b, i, self.trunk.eps);
        let (hidden, heads, bias) = (self.trunk.hidden, self.heads, self.qkv_bias);
        let (q_width, kv_width) = (heads.query(), heads.key_value());

        let a = l.norm(x, "input_layernorm", hidden);
        let q = l.linear(a, "self_attn.q_proj", [q_width, hidden], bias);
        let k = l.linear(a, "self_attn.k_proj", [kv_width, hidden], bias);
        let v = l.linear(a, "self_attn.v_proj", [kv_width, hidden], bias);
        let q = l.b.rope(q, rope, heads.head_width);
        let k = l.b.rope(k, rope, heads.head_width);
        let window = self.windows.at(i);
        let cache = l.cache(heads, window);
        let o = l.b.attention(q, Some((k, v)), plain_attention(cache, heads, window));
        let o = l.linear(o, "self_attn.o_proj", [hidden, q_width], self.output_bias);
        let x = l.add_attention(x, o);

        let h = l.norm(x, "post_attention_layernorm", hidden);
        let y = feed_forward(&mut l, h);
        let x = l.add_feed_forward(x, y);
        l.end(x)
    }
}
