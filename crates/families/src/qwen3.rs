//! Qwen3, dense and with routed experts: queries and keys normed head by head before they are rotated.

use serde::Serialize;
use turbospark_program::{Activation, BuildError, Builder, Program, Reg, Route};

use crate::layer::{Layer, plain_attention};
use crate::rope::{PLAIN, Rope};
use crate::source::Source;
use crate::trunk::{Heads, Routed, Trunk};
use crate::windows::{Windows, indices};
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
    /// Of the dense layers, where there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    intermediate: Option<usize>,
    #[serde(flatten)]
    mixture: Option<Mixture>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Mixture {
    #[serde(flatten)]
    routed: Routed,
    /// Whether the weights of the chosen experts are made to sum to 1.
    norm_topk_prob: bool,
    /// For each layer whether its feed-forward part is routed.
    #[serde(serialize_with = "indices")]
    routed_layers: Vec<bool>,
}

pub(crate) fn dense(source: &Source, options: &FamilyOptions) -> Result<Model, FamilyError> {
    let config = Config::read(source, options, None)?;
    Model::new("qwen3", &config, config.program()?)
}

pub(crate) fn mixture(source: &Source, options: &FamilyOptions) -> Result<Model, FamilyError> {
    let config = Config::read(source, options, Some(Mixture::read(source)?))?;
    Model::new("qwen3-moe", &config, config.program()?)
}

impl Config {
    fn read(
        source: &Source,
        options: &FamilyOptions,
        mixture: Option<Mixture>,
    ) -> Result<Config, FamilyError> {
        source.only("hidden_act", &["silu"])?;
        let trunk = Trunk::read(source)?;
        let heads = Heads::read(source)?;
        // The mixtures give it too, whether or not they have dense layers.
        let dense = mixture.as_ref().is_none_or(|mixture| mixture.routed_layers.contains(&false));
        let intermediate = || source.size("intermediate_size", "feed_forward_length");
        Ok(Config {
            attention_bias: source.biased("self_attn.q_proj", "attention_bias", false)?,
            windows: Windows::upper_layers(source, trunk.layers)?,
            rope: Rope::read(source, heads.head_width, PLAIN, options.yarn)?,
            intermediate: dense.then(intermediate).transpose()?,
            mixture,
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
        let o = l.b.attention(q, Some((k, v)), plain_attention(cache, heads, window));
        let o = l.linear(o, "self_attn.o_proj", [hidden, q_width], bias);
        let x = l.add_attention(x, o);

        let h = l.norm(x, "post_attention_layernorm", hidden);
        let y = match (&self.mixture, self.intermediate) {
            (Some(mixture), _) if mixture.routed_layers[i] => mixture.experts(&mut l, h, hidden),
            (_, intermediate) => {
                l.mlp(h, [hidden, intermediate.unwrap_or_default()], Activation::SwiGlu, false)
            }
        };
        let x = l.add_feed_forward(x, y);
        l.end(x)
    }
}

impl Mixture {
    fn read(source: &Source) -> Result<Mixture, FamilyError> {
        let intermediate = source.size("moe_intermediate_size", "expert_feed_forward_length")?;
        // GGUF readers renormalise unless a file says otherwise, as every released checkpoint does.
        let norm_topk_prob = match source.find_flag("norm_topk_prob", "expert_weights_norm")? {
            Some(norm) => norm,
            None if source.is_gguf() => true,
            None => return Err(source.missing("norm_topk_prob", "")),
        };
        Ok(Mixture {
            routed: Routed::read(source, intermediate)?,
            norm_topk_prob,
            routed_layers: routed_layers(source)?,
        })
    }

    fn experts(&self, l: &mut Layer, h: Reg, hidden: usize) -> Reg {
        let layer = l.expert_layer("mlp.experts", hidden, self.routed);
        let logits = l.router(h, "mlp.gate", [self.routed.experts, hidden], false);
        let choice = Route::SoftmaxThenTopK { renormalize: self.norm_topk_prob };
        let route = l.b.route(logits, layer, choice, None);
        l.experts(h, route, layer, Activation::SwiGlu)
    }
}

/// Every decoder_sparse_step-th layer but those of mlp_only_layers; in a GGUF every one.
fn routed_layers(source: &Source) -> Result<Vec<bool>, FamilyError> {
    let layers = source.layers()?;
    let step = source.find_size("decoder_sparse_step", "")?.unwrap_or(1);
    let mut routed: Vec<bool> = (1..=layers).map(|i| i % step == 0).collect();
    if let Some(dense) = source.find("mlp_only_layers", "")? {
        for layer in dense.items()? {
            routed[layer.integer(0, layers - 1)?] = false;
        }
    }
    Ok(routed)
}
