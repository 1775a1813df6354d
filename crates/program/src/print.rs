//! A program as text: one line an op, in the notation of the model's mathematics.

use std::fmt;

use crate::op::{Activation, Multiplier, Op, Precision, Route};
use crate::program::{Program, Reg, Weight};

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for op in self.ops() {
            writeln!(f, "{}", self.line(op))?;
        }
        Ok(())
    }
}

impl Program {
    /// One op as a line of text.
    pub fn line(&self, op: &Op) -> String {
        let w = |weight: &Weight| {
            let spec = &self.weights()[weight.index()];
            format!("{}{:?}", spec.name, spec.shape)
        };
        let or = |weight: &Option<Weight>, none: &str| weight.as_ref().map_or(none.to_owned(), w);
        let r = |reg: &Reg| format!("r{}", reg.index());
        let text = match op {
            Op::Embed { table, scale, .. } => {
                let times = if *scale == 1.0 { String::new() } else { format!(" * {scale}") };
                format!("embed({}){times}", w(table))
            }
            Op::RmsNorm { x, weight, offset, eps, group, .. } => {
                let plus = if *offset == 0.0 { String::new() } else { format!("{offset} + ") };
                let per = if *group == self.register(*x).width {
                    String::new()
                } else {
                    format!(", heads of {group}")
                };
                format!("rms_norm({}, {plus}{}, eps {eps:e}{per})", r(x), or(weight, "no weight"))
            }
            Op::Linear { x, weight, bias, precision, .. } => {
                let name = if *precision == Precision::Full { "router_linear" } else { "linear" };
                let bias = bias.as_ref().map_or(String::new(), |b| format!(" + {}", w(b)));
                format!("{name}({}, {}){bias}", r(x), w(weight))
            }
            Op::Rope { x, table, head, .. } => {
                let t = &self.ropes()[*table];
                let still = t.frequencies.iter().filter(|&&f| f == 0.0).count();
                let still = if still == 0 { String::new() } else { format!(", {still} pairs still") };
                let amplitude =
                    if t.amplitude == 1.0 { String::new() } else { format!(", amplitude {}", t.amplitude) };
                format!("rope({}, table {table}, heads of {head}{still}{amplitude})", r(x))
            }
            Op::Attention { q, kv, attention: a, .. } => {
                let kv = kv.as_ref().map_or(String::new(), |(k, v)| format!("{}, {}, ", r(k), r(v)));
                let mut text = format!(
                    "attention({}, {kv}cache {}, {} heads of {} on {}, scale {}",
                    r(q),
                    a.cache,
                    a.heads,
                    a.head,
                    a.kv_heads,
                    a.scale
                );
                if let Some(window) = a.window {
                    text += &format!(", window {window}");
                }
                if let Some(sinks) = &a.sinks {
                    text += &format!(", sinks {}", w(sinks));
                }
                if let Some(cap) = a.softcap {
                    text += &format!(", softcap {cap}");
                }
                text + ")"
            }
            Op::Add { a, b, .. } => format!("{} + {}", r(a), r(b)),
            Op::Mul { x, by: Multiplier::Scalar(s), .. } => format!("{} * {s}", r(x)),
            Op::Mul { x, by: Multiplier::Weight(weight), .. } => format!("{} * {}", r(x), w(weight)),
            Op::Gate { gate, up, activation, .. } => {
                format!("{}({}, {})", activation_name(activation), r(gate), r(up))
            }
            Op::Route { logits, routing, .. } => {
                let how = match routing.route {
                    Route::TopKThenSoftmax => "softmax of the chosen logits",
                    Route::SoftmaxThenTopK { renormalize: true } => "softmax, renormalised",
                    Route::SoftmaxThenTopK { renormalize: false } => "softmax over all",
                };
                let scale = routing.expert_scale.as_ref().map_or(String::new(), |s| format!(" * {}", w(s)));
                format!("route({}, top {}, {how}{scale})", r(logits), routing.k)
            }
            Op::Experts { x, route, experts, .. } => {
                let layer = &self.expert_layers()[experts.layer];
                let biased = if experts.down_bias.is_some() { ", biases" } else { "" };
                format!(
                    "experts({}, {}, {} of {} with {}{biased}: {} {} {})",
                    r(x),
                    r(route),
                    layer.k,
                    layer.experts,
                    activation_name(&experts.activation),
                    layer.gate,
                    layer.up,
                    layer.down
                )
            }
            Op::Softcap { x, cap, .. } => format!("{cap} * tanh({} / {cap})", r(x)),
            Op::Slice { x, out, start } => {
                format!("{}[{start} .. {}]", r(x), start + self.register(*out).width)
            }
            Op::SelectRows { x, .. } => format!("wanted rows of {}", r(x)),
            Op::Tap { x, tap } => return format!("      tap {tap} on {}", r(x)),
        };
        let out = op.out().map_or(String::new(), |out| format!("{}[{}]", r(&out), self.register(out).width));
        format!("{out:>12} = {text}")
    }
}

fn activation_name(activation: &Activation) -> String {
    match activation {
        Activation::SwiGlu => "swiglu".to_owned(),
        Activation::GeGluTanh => "geglu_tanh".to_owned(),
        Activation::ClampedSwiGlu { alpha, limit } => format!("clamped_swiglu(alpha {alpha}, limit {limit})"),
    }
}
