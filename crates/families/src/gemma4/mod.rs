//! Gemma 4 (26B-A4B, 31B, E4B, E2B; text): two attention geometries, a dense branch beside the experts, per-layer
//! embeddings, and caches that later layers share.

mod config;

use turbospark_program::{Activation, Attention, BuildError, Builder, Multiplier, Program, Reg, Route, Tap};

use crate::layer::{Layer, plain_attention};
use crate::source::Source;
use crate::trunk::Routed;
use crate::{FamilyError, FamilyOptions, Model};
use config::{Config, PER_LAYER_TABLE, PerLayerEmbedding};

pub(crate) fn build(source: &Source, options: &FamilyOptions) -> Result<Model, FamilyError> {
    let config = Config::read(source, options)?;
    Model::new("gemma4", &config, config.program()?)
}

impl Config {
    fn program(&self) -> Result<Program, BuildError> {
        let layers = self.trunk.layers;
        let mut b = self.trunk.builder();
        let mut x = self.trunk.embed(&mut b, self.embedding_scale);
        let per_layer = self.per_layer_embedding.map(|embedding| self.per_layer(&mut b, x, embedding));
        let mut caches = Caches::default();
        for i in 0..layers {
            x = self.layer(&mut b, i, &mut caches, per_layer, x);
        }
        let mut logits = self.trunk.logits(&mut b, x, 0.0);
        if let Some(cap) = self.logit_softcap {
            logits = b.softcap(logits, cap);
        }
        b.finish(logits, layers)
    }

    /// (RMS(x W^T hidden^-1/2) + table[token] width^1/2) 2^-1/2, for all layers at once.
    fn per_layer(&self, b: &mut Builder, x: Reg, embedding: PerLayerEmbedding) -> Reg {
        let PerLayerEmbedding { vocabulary, width } = embedding;
        let (hidden, all) = (self.trunk.hidden, self.trunk.layers * width);
        let table = b.weight(PER_LAYER_TABLE, &[vocabulary, all]);
        let token = b.embed(table, (width as f64).sqrt() as f32);
        let weight = b.weight("model.per_layer_model_projection.weight", &[all, hidden]);
        let context = b.linear(x, weight, None);
        let context = b.mul(context, Multiplier::Scalar(inverse_root(hidden)));
        let weight = b.weight("model.per_layer_projection_norm.weight", &[width]);
        let context = b.rms_norm_groups(context, Some(weight), self.trunk.eps, width, 0.0);
        let sum = b.add(context, token);
        b.mul(sum, Multiplier::Scalar(inverse_root(2)))
    }

    fn layer(&self, b: &mut Builder, i: usize, caches: &mut Caches, per_layer: Option<Reg>, x: Reg) -> Reg {
        let mut l = Layer::new(b, i, self.trunk.eps);
        let hidden = self.trunk.hidden;

        let a = l.norm(x, "input_layernorm", hidden);
        let o = self.attention(&mut l, a, caches);
        let o = l.norm(o, "post_attention_layernorm", hidden);
        let x = l.add_attention(x, o);

        let y = match self.routed {
            None => self.dense(&mut l, x),
            Some(routed) => self.mixture(&mut l, x, routed),
        };
        let y = l.norm(y, "post_feedforward_layernorm", hidden);
        let mut x = l.add_feed_forward(x, y);

        if let (Some(all), Some(embedding)) = (per_layer, self.per_layer_embedding) {
            let width = embedding.width;
            let own = l.b.slice(all, i * width, width);
            let gate = l.linear(x, "per_layer_input_gate", [width, hidden], false);
            let z = l.b.gate(gate, own, Activation::GeGluTanh);
            let z = l.linear(z, "per_layer_projection", [hidden, width], false);
            let z = l.norm(z, "post_per_layer_input_norm", hidden);
            x = l.b.add(x, z);
        }
        let scalar = l.weight("layer_scalar", &[1]);
        let x = l.b.mul(x, Multiplier::Weight(scalar));
        l.end(x)
    }

    /// The norms of q and k carry the scale; v is normed without a weight and never rotated.
    fn attention(&self, l: &mut Layer, a: Reg, caches: &mut Caches) -> Reg {
        let (i, hidden, heads) = (l.index, self.trunk.hidden, self.attention[l.index]);
        let window = self.windows.at(i);
        let (q_width, kv_width, head) = (heads.query(), heads.key_value(), heads.head_width);
        let (rope, cache) = match window {
            None => (&self.full_rope, &mut caches.full),
            Some(_) => (&self.sliding_rope, &mut caches.sliding),
        };
        let rope = l.b.rope_table(rope.table(head));

        let q = l.linear(a, "self_attn.q_proj", [q_width, hidden], false);
        let q = l.norm(q, "self_attn.q_norm", head);
        let q = l.b.rope(q, rope, head);
        let mut kv = None;
        if i < self.first_shared() {
            let k_raw = l.linear(a, "self_attn.k_proj", [kv_width, hidden], false);
            let v_raw = match self.keys_are_values && window.is_none() {
                true => k_raw,
                false => l.linear(a, "self_attn.v_proj", [kv_width, hidden], false),
            };
            let k = l.norm(k_raw, "self_attn.k_norm", head);
            let k = l.b.rope(k, rope, head);
            let v = l.b.rms_norm_groups(v_raw, None, self.trunk.eps, head, 0.0);
            *cache = l.cache(heads, window);
            kv = Some((k, v));
        }
        let attention = Attention { scale: 1.0, ..plain_attention(*cache, heads, window) };
        let o = l.b.attention(q, kv, attention);
        l.linear(o, "self_attn.o_proj", [hidden, q_width], false)
    }

    fn dense(&self, l: &mut Layer, x: Reg) -> Reg {
        let hidden = self.trunk.hidden;
        let h = l.norm(x, "pre_feedforward_layernorm", hidden);
        l.mlp(h, [hidden, self.intermediate[l.index]], Activation::GeGluTanh, false)
    }

    /// The dense branch, and the experts that a router picks from the residual stream itself. The experts are chosen
    /// first, so that they may be read while the dense branch is computed.
    fn mixture(&self, l: &mut Layer, x: Reg, routed: Routed) -> Reg {
        let hidden = self.trunk.hidden;
        let layer = l.expert_layer("experts", hidden, routed);
        let scale = l.weight("router.scale", &[hidden]);
        let r = l.b.rms_norm(x, Some(scale), self.trunk.eps);
        let r = l.b.mul(r, Multiplier::Scalar(inverse_root(hidden)));
        let logits = l.router(r, "router.proj", [routed.experts, hidden], false);
        let expert_scale = l.weight("router.per_expert_scale", &[routed.experts]);
        let renormalized = Route::SoftmaxThenTopK { renormalize: true };
        let route = l.b.route(logits, layer, renormalized, Some(expert_scale));

        let y = self.dense(l, x);
        let y = l.b.tap(y, Tap::DenseOutput(l.index));
        let dense = l.norm(y, "post_feedforward_layernorm_1", hidden);

        let h = l.norm(x, "pre_feedforward_layernorm_2", hidden);
        let y = l.experts(h, route, layer, Activation::GeGluTanh);
        let routed = l.norm(y, "post_feedforward_layernorm_2", hidden);
        l.b.add(dense, routed)
    }
}

/// The last cache of each type of layer; the config has seen to it that there is one before it is shared.
#[derive(Default)]
struct Caches {
    full: usize,
    sliding: usize,
}

fn inverse_root(n: usize) -> f32 {
    (1.0 / (n as f64).sqrt()) as f32
}
