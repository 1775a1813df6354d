//! Mixtral: Mistral's layer with routed experts in place of its MLP.

use serde::Serialize;
use turbospark_program::{Activation, BuildError, Program, Reg, Route};

use crate::layer::Layer;
use crate::llama::Base;
use crate::source::Source;
use crate::trunk::Routed;
use crate::{FamilyError, FamilyOptions, Model};

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Config {
    #[serde(flatten)]
    base: Base,
    #[serde(flatten)]
    routed: Routed,
}

pub(crate) fn build(source: &Source, options: &FamilyOptions) -> Result<Model, FamilyError> {
    let intermediate = source.size("intermediate_size", "feed_forward_length")?;
    let config = Config { base: Base::read(source, options)?, routed: Routed::read(source, intermediate)? };
    Model::new("mixtral", &config, config.program()?)
}

impl Config {
    fn program(&self) -> Result<Program, BuildError> {
        self.base.program(|l, h| self.experts(l, h))
    }

    /// Softmax over all experts, the best k renormalised: the same as the softmax of the best k.
    fn experts(&self, l: &mut Layer, h: Reg) -> Reg {
        let hidden = self.base.trunk.hidden;
        let layer = l.expert_layer("block_sparse_moe.experts", hidden, self.routed);
        let logits = l.router(h, "block_sparse_moe.gate", [self.routed.experts, hidden], false);
        let route = l.b.route(logits, layer, Route::TopKThenSoftmax, None);
        l.experts(h, route, layer, Activation::SwiGlu)
    }
}
