//! A layer being built: its weights by their short names, its cache, its experts, its taps.

use turbospark_program::{Activation, Attention, Builder, ExpertLayer, Experts, KvLayer, Reg, Tap, Weight};

use crate::trunk::{Heads, Routed};

/// Layer `index` of a program.
pub(crate) struct Layer<'b> {
    pub b: &'b mut Builder,
    pub index: usize,
    eps: f32,
    norm_offset: f32,
}

impl<'b> Layer<'b> {
    pub fn new(b: &'b mut Builder, index: usize, eps: f32) -> Layer<'b> {
        Layer { b, index, eps, norm_offset: 0.0 }
    }

    /// Norm weights are stored less `offset`.
    pub fn with_norm_offset(self, offset: f32) -> Layer<'b> {
        Layer { norm_offset: offset, ..self }
    }

    fn name(&self, name: &str) -> String {
        format!("model.layers.{}.{name}", self.index)
    }

    pub fn weight(&mut self, name: &str, shape: &[usize]) -> Weight {
        self.b.weight(self.name(name), shape)
    }

    /// RMS(x; module.weight), over each group of `width`.
    pub fn norm(&mut self, x: Reg, module: &str, width: usize) -> Reg {
        let weight = self.weight(&format!("{module}.weight"), &[width]);
        self.b.rms_norm_groups(x, Some(weight), self.eps, width, self.norm_offset)
    }

    /// x W^T, W of [out, in], plus the bias.
    pub fn linear(&mut self, x: Reg, module: &str, shape: [usize; 2], bias: bool) -> Reg {
        let (weight, bias) = self.weight_and_bias(module, shape, bias);
        self.b.linear(x, weight, bias)
    }

    /// A router's logits.
    pub fn router(&mut self, x: Reg, module: &str, shape: [usize; 2], bias: bool) -> Reg {
        let (weight, bias) = self.weight_and_bias(module, shape, bias);
        self.b.router_linear(x, weight, bias)
    }

    fn weight_and_bias(&mut self, module: &str, shape: [usize; 2], bias: bool) -> (Weight, Option<Weight>) {
        let weight = self.weight(&format!("{module}.weight"), &shape);
        (weight, bias.then(|| self.weight(&format!("{module}.bias"), &shape[..1])))
    }

    /// down(activation(gate(x)) * up(x))
    pub fn mlp(&mut self, x: Reg, [hidden, inner]: [usize; 2], activation: Activation, bias: bool) -> Reg {
        let gate = self.linear(x, "mlp.gate_proj", [inner, hidden], bias);
        let up = self.linear(x, "mlp.up_proj", [inner, hidden], bias);
        let product = self.b.gate(gate, up, activation);
        self.linear(product, "mlp.down_proj", [hidden, inner], bias)
    }

    /// The cache of this layer's keys and values.
    pub fn cache(&mut self, heads: Heads, window: Option<usize>) -> usize {
        let width = heads.key_value();
        self.b.kv_layer(KvLayer { layer: self.index, key_width: width, value_width: width, window })
    }

    /// The routed experts at `place`.
    pub fn expert_layer(&mut self, place: &str, hidden: usize, routed: Routed) -> usize {
        let name = |matrix| self.name(&format!("{place}.{matrix}_proj.weight"));
        let layer = ExpertLayer {
            layer: self.index,
            experts: routed.experts,
            k: routed.experts_per_token,
            hidden,
            intermediate: routed.expert_intermediate,
            gate: name("gate"),
            up: name("up"),
            down: name("down"),
        };
        self.b.expert_layer(layer)
    }

    /// The weighted sum of routed experts without biases.
    pub fn experts(&mut self, x: Reg, route: Reg, layer: usize, activation: Activation) -> Reg {
        let plain = Experts { layer, activation, gate_bias: None, up_bias: None, down_bias: None };
        let y = self.b.experts(x, route, plain);
        self.b.tap(y, Tap::RoutedOutput(self.index))
    }

    /// x + o, o being what attention adds to the residual stream.
    pub fn add_attention(&mut self, x: Reg, o: Reg) -> Reg {
        let o = self.b.tap(o, Tap::AttentionOutput(self.index));
        self.b.add(x, o)
    }

    /// x + y, y being what the feed-forward part adds.
    pub fn add_feed_forward(&mut self, x: Reg, y: Reg) -> Reg {
        let y = self.b.tap(y, Tap::FeedForwardOutput(self.index));
        self.b.add(x, y)
    }

    /// The residual stream after the layer.
    pub fn end(self, x: Reg) -> Reg {
        self.b.tap(x, Tap::LayerOutput(self.index))
    }
}

/// Attention with scores over the root of the head's width, and nothing out of the ordinary.
pub(crate) fn plain_attention(cache: usize, heads: Heads, window: Option<usize>) -> Attention {
    Attention {
        cache,
        heads: heads.heads,
        kv_heads: heads.kv_heads,
        head: heads.head_width,
        scale: (1.0 / (heads.head_width as f64).sqrt()) as f32,
        window,
        sinks: None,
        softcap: None,
    }
}
