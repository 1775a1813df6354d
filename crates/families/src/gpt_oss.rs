//! gpt-oss (20b, 120b): attention with sinks, every other layer in a window, experts behind a biased router.

use serde::Serialize;
use turbospark_program::{Activation, Attention, BuildError, Builder, Experts, Program, Reg, Route, Tap};

use crate::layer::{Layer, plain_attention};
use crate::rope::{Rope, RopeDefaults};
use crate::source::Source;
use crate::trunk::{Heads, Routed, Trunk};
use crate::windows::Windows;
use crate::{FamilyError, FamilyOptions, Model};

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Config {
    #[serde(flatten)]
    trunk: Trunk,
    #[serde(flatten)]
    heads: Heads,
    /// On q, k, v and o.
    attention_bias: bool,
    #[serde(flatten)]
    windows: Windows,
    rope: Rope,
    #[serde(flatten)]
    routed: Routed,
    /// Slope of the gate's sigmoid.
    swiglu_alpha: f32,
    /// Bound of gate and up.
    swiglu_limit: f32,
}

pub(crate) fn build(source: &Source, options: &FamilyOptions) -> Result<Model, FamilyError> {
    let config = Config::read(source, options)?;
    Model::new("gpt-oss", &config, config.program()?)
}

impl Config {
    fn read(source: &Source, options: &FamilyOptions) -> Result<Config, FamilyError> {
        source.only("hidden_act", &["silu"])?;
        let trunk = Trunk::read(source)?;
        let heads = Heads::read(source)?;
        let intermediate = source.size("intermediate_size", "expert_feed_forward_length")?;
        // The released weights were trained with unrounded ends, whatever reads them.
        let rope = RopeDefaults { base: None, truncate: false };
        Ok(Config {
            attention_bias: source.biased("self_attn.q_proj", "attention_bias", true)?,
            windows: Windows::read(source, trunk.layers, 2)?,
            rope: Rope::read(source, heads.head_width, rope, options.yarn)?,
            routed: Routed::read(source, intermediate)?,
            // Neither format has a key for alpha, and GGUF none for the limit: they are part of the architecture.
            swiglu_alpha: 1.702,
            swiglu_limit: source.find_single("swiglu_limit", "")?.unwrap_or(7.0),
            trunk,
            heads,
        })
    }

    fn program(&self) -> Result<Program, BuildError> {
        let mut b = self.trunk.builder();
        let rope = b.rope_table(self.rope.table(self.heads.head_width));
        self.trunk.program(b, |b, i, x| self.layer(b, i, rope, x))
    }

    fn layer(&self, b: &mut Builder, i: usize, rope: usize, x: Reg) -> Reg {
        let mut l = Layer::new(b, i, self.trunk.eps);
        let (hidden, heads, bias) = (self.trunk.hidden, self.heads, self.attention_bias);
        let (q_width, kv_width) = (heads.query(), heads.key_value());

        let a = l.norm(x, "input_layernorm", hidden);
        let q = l.linear(a, "self_attn.q_proj", [q_width, hidden], bias);
        let k = l.linear(a, "self_attn.k_proj", [kv_width, hidden], bias);
        let v = l.linear(a, "self_attn.v_proj", [kv_width, hidden], bias);
        let q = l.b.rope(q, rope, heads.head_width);
        let k = l.b.rope(k, rope, heads.head_width);
        let window = self.windows.at(i);
        let cache = l.cache(heads, window);
        let sinks = Some(l.weight("self_attn.sinks", &[heads.heads]));
        let attention = Attention { sinks, ..plain_attention(cache, heads, window) };
        let o = l.b.attention(q, Some((k, v)), attention);
        let o = l.linear(o, "self_attn.o_proj", [hidden, q_width], bias);
        let x = l.add_attention(x, o);

        let h = l.norm(x, "post_attention_layernorm", hidden);
        let y = self.experts(&mut l, h);
        let x = l.add_feed_forward(x, y);
        l.end(x)
    }

    fn experts(&self, l: &mut Layer, h: Reg) -> Reg {
        let (hidden, routed) = (self.trunk.hidden, self.routed);
        let layer = l.expert_layer("mlp.experts", hidden, routed);
        let logits = l.router(h, "mlp.router", [routed.experts, hidden], true);
        let route = l.b.route(logits, layer, Route::TopKThenSoftmax, None);
        let inner = [routed.experts, routed.expert_intermediate];
        let experts = Experts {
            layer,
            activation: Activation::ClampedSwiGlu { alpha: self.swiglu_alpha, limit: self.swiglu_limit },
            gate_bias: Some(l.weight("mlp.experts.gate_proj.bias", &inner)),
            up_bias: Some(l.weight("mlp.experts.up_proj.bias", &inner)),
            down_bias: Some(l.weight("mlp.experts.down_proj.bias", &[routed.experts, hidden])),
        };
        let y = l.b.experts(h, route, experts);
        l.b.tap(y, Tap::RoutedOutput(l.index))
    }
}
