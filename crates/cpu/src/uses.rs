//! How the executor keeps each tensor and what reads it, told without reading a weight.

use std::collections::BTreeMap;
use std::fmt;

use turbospark_formats::{Checkpoint, Format};
use turbospark_program::{Multiplier, Op, Precision, Program, Weight};

use crate::panels::PanelKind;

/// What an op reads a tensor as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightUse {
    /// Panels of a linear, and so the kernel of this kind.
    Panels(PanelKind),
    /// Panels of routed experts.
    Experts(PanelKind),
    /// Rows as they are in the file, one a token.
    Rows(Format),
    /// An f32 vector: factors of a norm, a bias, sinks.
    Vector,
}

impl fmt::Display for WeightUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightUse::Panels(kind) => write!(f, "panels {kind}"),
            WeightUse::Experts(kind) => write!(f, "expert panels {kind}"),
            WeightUse::Rows(format) => write!(f, "rows {format}"),
            WeightUse::Vector => f.write_str("vector F32"),
        }
    }
}

/// The vectors that an op reads besides a norm's factors.
pub(crate) fn vectors(op: &Op) -> impl Iterator<Item = Weight> {
    let (a, b, c) = match op {
        Op::Linear { bias, .. } => (*bias, None, None),
        Op::Mul { by: Multiplier::Weight(weight), .. } => (Some(*weight), None, None),
        Op::Attention { attention, .. } => (attention.sinks, None, None),
        Op::Route { routing, .. } => (routing.expert_scale, None, None),
        Op::Experts { experts: e, .. } => (e.gate_bias, e.up_bias, e.down_bias),
        _ => (None, None, None),
    };
    [a, b, c].into_iter().flatten()
}

/// The kind of panels that a linear reads of a matrix in `format`.
pub(crate) fn panels(format: Format, precision: Precision) -> PanelKind {
    match precision {
        Precision::Block => PanelKind::of(format),
        Precision::Full => PanelKind::of_full(format),
    }
}

/// What the ops of `program` read each tensor of `checkpoint` as, by name, each use once and in the order of the ops.
/// A tensor that is read in two ways (an embedding that is the head too) has two; one that is not there has none.
pub fn weight_uses(program: &Program, checkpoint: &Checkpoint) -> BTreeMap<String, Vec<WeightUse>> {
    let mut uses: BTreeMap<String, Vec<WeightUse>> = BTreeMap::new();
    let mut note = |name: &str, how: &dyn Fn(Format) -> WeightUse| {
        let Some(tensor) = checkpoint.get(name) else { return };
        let how = how(tensor.layout().format);
        let known = uses.entry(name.to_owned()).or_default();
        if !known.contains(&how) {
            known.push(how);
        }
    };
    let name = |weight: Weight| program.weights()[weight.index()].name.as_str();
    for op in program.ops() {
        match *op {
            Op::Embed { table, .. } => note(name(table), &WeightUse::Rows),
            Op::RmsNorm { weight: Some(weight), .. } => note(name(weight), &|_| WeightUse::Vector),
            Op::Linear { weight, precision, .. } => {
                note(name(weight), &|format| WeightUse::Panels(panels(format, precision)));
            }
            Op::Experts { experts, .. } => {
                let layer = &program.expert_layers()[experts.layer];
                for name in [&layer.gate, &layer.up, &layer.down] {
                    note(name, &|format| WeightUse::Experts(PanelKind::of(format)));
                }
            }
            _ => {}
        }
        for weight in vectors(op) {
            note(name(weight), &|_| WeightUse::Vector);
        }
    }
    uses
}
