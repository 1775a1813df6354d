//! The operations a program is made of.

use crate::program::{Reg, Weight};
use crate::tap::Tap;

/// One operation. Registers hold f32 rows of a fixed width; every op but [`Op::Tap`] writes a fresh register.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// out = table\[token\] * scale
    Embed {
        /// Result, as wide as the table.
        out: Reg,
        /// [vocabulary, width]
        table: Weight,
        /// Multiplies every element.
        scale: f32,
    },
    /// out = x / sqrt(mean(x^2) + eps) * (offset + weight), over each group of `group` elements.
    RmsNorm {
        /// Input.
        x: Reg,
        /// Result, as wide as `x`.
        out: Reg,
        /// `[group]`; none is a weight of ones.
        weight: Option<Weight>,
        /// 0, or 1 where a checkpoint stores weights less one.
        offset: f32,
        /// Added to the mean square.
        eps: f32,
        /// Elements normalised together: the whole width, or a head.
        group: usize,
    },
    /// out = x weight^T + bias
    Linear {
        /// Input.
        x: Reg,
        /// Result.
        out: Reg,
        /// [out, in]
        weight: Weight,
        /// `[out]`
        bias: Option<Weight>,
        /// How exactly the input must be taken.
        precision: Precision,
    },
    /// Rotates pairs (j, j + d/2) of each head of width d by position times the table's frequency j.
    Rope {
        /// Input.
        x: Reg,
        /// Result.
        out: Reg,
        /// Index into [`crate::Program::ropes`].
        table: usize,
        /// Width of a head.
        head: usize,
    },
    /// Causal attention over the cache of one layer.
    Attention {
        /// Queries, heads * head wide.
        q: Reg,
        /// Keys and values to append first; none where the cache of an earlier layer is read as it is.
        kv: Option<(Reg, Reg)>,
        /// Result, heads * value head wide.
        out: Reg,
        /// Everything else.
        attention: Attention,
    },
    /// out = a + b
    Add {
        /// First summand.
        a: Reg,
        /// Second summand.
        b: Reg,
        /// Sum.
        out: Reg,
    },
    /// out = x * by
    Mul {
        /// Input.
        x: Reg,
        /// The factor.
        by: Multiplier,
        /// Product.
        out: Reg,
    },
    /// out = activation(gate) * up, in the activation's sense.
    Gate {
        /// Goes through the non-linearity.
        gate: Reg,
        /// Linear half.
        up: Reg,
        /// Result.
        out: Reg,
        /// Which non-linearity.
        activation: Activation,
    },
    /// Chooses experts for each row; reads of the chosen may start here.
    Route {
        /// Router logits, one an expert.
        logits: Reg,
        /// A route register: k expert ids and weights a row.
        out: Reg,
        /// How weights come from logits.
        routing: Routing,
        /// Index into [`crate::Program::expert_layers`] of the experts chosen from.
        layer: usize,
    },
    /// out = sum over ranks of weight * expert(x), in rank order.
    Experts {
        /// Input.
        x: Reg,
        /// What [`Op::Route`] wrote.
        route: Reg,
        /// Result.
        out: Reg,
        /// Which experts.
        experts: Experts,
    },
    /// out = cap * tanh(x / cap)
    Softcap {
        /// Input.
        x: Reg,
        /// Result.
        out: Reg,
        /// Bound of the result's magnitude.
        cap: f32,
    },
    /// out = x[start .. start + width of out]
    Slice {
        /// Input.
        x: Reg,
        /// Result.
        out: Reg,
        /// First column.
        start: usize,
    },
    /// Keeps the rows whose logits are wanted.
    SelectRows {
        /// Input, all rows.
        x: Reg,
        /// Result, selected rows.
        out: Reg,
    },
    /// A place where rows of `x` are edited and captured; without either it does nothing.
    Tap {
        /// Read and, where a row has edits, changed in place.
        x: Reg,
        /// Which place.
        tap: Tap,
    },
}

/// How exactly a linear takes its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Precision {
    /// An executor may quantise the input in blocks of 32.
    Block,
    /// The input stays f32: routers, whose choice decides everything after them.
    Full,
}

/// The factor of [`Op::Mul`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Multiplier {
    /// A constant.
    Scalar(f32),
    /// A learned vector as wide as the input, or a learned scalar of shape `[1]`.
    Weight(Weight),
}

/// A gated non-linearity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// gate * sigmoid(gate) * up
    SwiGlu,
    /// gelu(gate) * up, gelu by its tanh approximation.
    GeGluTanh,
    /// gpt-oss: gate clamped above and up on both sides by limit; gate * sigmoid(alpha * gate) * (up + 1).
    ClampedSwiGlu {
        /// Slope of the sigmoid.
        alpha: f32,
        /// Bound of gate and up.
        limit: f32,
    },
}

/// Geometry of an attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Index into [`crate::Program::kv_layers`] of the cache read (and appended to).
    pub cache: usize,
    /// Query heads.
    pub heads: usize,
    /// Key-value heads; query head h uses key-value head h / (heads / kv_heads).
    pub kv_heads: usize,
    /// Width of a query and key head.
    pub head: usize,
    /// Multiplies the scores.
    pub scale: f32,
    /// Positions a query sees, itself included; none is all before it.
    pub window: Option<usize>,
    /// `[heads]` extra logits in the softmax's denominator, not scaled.
    pub sinks: Option<Weight>,
    /// Scores pass through cap * tanh(score / cap).
    pub softcap: Option<f32>,
}

/// How routing weights come from router logits. Ties go to the lower expert.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Routing {
    /// Experts a row uses.
    pub k: usize,
    /// Order of choice and softmax.
    pub route: Route,
    /// `[experts]` factors on the final weights.
    pub expert_scale: Option<Weight>,
}

/// Order of choice and softmax in a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// Softmax over the k largest logits only.
    TopKThenSoftmax,
    /// Softmax over all experts, then the k largest.
    SoftmaxThenTopK {
        /// Divide the k weights by their sum.
        renormalize: bool,
    },
}

/// The routed experts of a layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Index into [`crate::Program::expert_layers`].
    pub layer: usize,
    /// Between gate/up and down.
    pub activation: Activation,
    /// [experts, intermediate], resident.
    pub gate_bias: Option<Weight>,
    /// [experts, intermediate], resident.
    pub up_bias: Option<Weight>,
    /// [experts, hidden], resident; inside the routing weight.
    pub down_bias: Option<Weight>,
}

impl Op {
    /// The register written, none for a tap.
    pub fn out(&self) -> Option<Reg> {
        match *self {
            Op::Embed { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::Linear { out, .. }
            | Op::Rope { out, .. }
            | Op::Attention { out, .. }
            | Op::Add { out, .. }
            | Op::Mul { out, .. }
            | Op::Gate { out, .. }
            | Op::Route { out, .. }
            | Op::Experts { out, .. }
            | Op::Softcap { out, .. }
            | Op::Slice { out, .. }
            | Op::SelectRows { out, .. } => Some(out),
            Op::Tap { .. } => None,
        }
    }

    /// The registers read.
    pub fn inputs(&self) -> impl Iterator<Item = Reg> {
        let (first, second, third) = match *self {
            Op::Embed { .. } => (None, None, None),
            Op::RmsNorm { x, .. }
            | Op::Linear { x, .. }
            | Op::Rope { x, .. }
            | Op::Mul { x, .. }
            | Op::Softcap { x, .. }
            | Op::Slice { x, .. }
            | Op::SelectRows { x, .. }
            | Op::Tap { x, .. } => (Some(x), None, None),
            Op::Attention { q, kv, .. } => (Some(q), kv.map(|kv| kv.0), kv.map(|kv| kv.1)),
            Op::Add { a, b, .. } => (Some(a), Some(b), None),
            Op::Gate { gate, up, .. } => (Some(gate), Some(up), None),
            Op::Route { logits, .. } => (Some(logits), None, None),
            Op::Experts { x, route, .. } => (Some(x), Some(route), None),
        };
        [first, second, third].into_iter().flatten()
    }
}
