//! Putting a program together, with every shape checked.

use std::collections::HashMap;

use crate::op::{Activation, Attention, Experts, Multiplier, Op, Precision, Route, Routing};
use crate::program::{
    Buffer, ExpertLayer, KvLayer, Program, Reg, Register, RowSet, Segment, Weight, WeightSpec,
};
use crate::rope::RopeTable;
use crate::tap::Tap;

/// A program that cannot be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("op {op} ({kind}): {reason}")]
pub struct BuildError {
    /// Index the op would have had.
    pub op: usize,
    /// Its kind.
    pub kind: &'static str,
    /// What does not fit.
    pub reason: String,
}

/// Makes a [`Program`]. The first mistake is kept and reported by [`Builder::finish`], so that a family reads
/// without error handling.
#[derive(Debug)]
pub struct Builder {
    program: Program,
    names: HashMap<String, Weight>,
    error: Option<BuildError>,
}

impl Builder {
    /// A program of residual width `hidden` made for `max_positions`.
    pub fn new(hidden: usize, max_positions: usize) -> Builder {
        let program = Program {
            ops: Vec::new(),
            registers: Vec::new(),
            buffers: Vec::new(),
            segments: Vec::new(),
            weights: Vec::new(),
            expert_layers: Vec::new(),
            kv_layers: Vec::new(),
            ropes: Vec::new(),
            logits: Reg(0),
            hidden,
            layers: 0,
            max_positions,
        };
        Builder { program, names: HashMap::new(), error: None }
    }

    /// A resident weight; a name used twice (a tied head) is one weight.
    pub fn weight(&mut self, name: impl Into<String>, shape: &[usize]) -> Weight {
        let name = name.into();
        if let Some(&weight) = self.names.get(&name) {
            let known = &self.program.weights[weight.index()].shape;
            let fits = known == shape;
            let reason = || format!("{name} was named with shape {known:?} and now with {shape:?}");
            let reason = (!fits).then(reason);
            self.require("weight", fits, || reason.unwrap_or_default());
            return weight;
        }
        let weight = Weight(self.program.weights.len() as u32);
        self.program.weights.push(WeightSpec { name: name.clone(), shape: shape.to_vec() });
        self.names.insert(name, weight);
        weight
    }

    /// A rotary table; equal tables are kept once.
    pub fn rope_table(&mut self, table: RopeTable) -> usize {
        let ropes = &mut self.program.ropes;
        ropes.iter().position(|t| *t == table).unwrap_or_else(|| {
            ropes.push(table);
            ropes.len() - 1
        })
    }

    /// A key-value cache for a layer that computes keys and values.
    pub fn kv_layer(&mut self, layer: KvLayer) -> usize {
        self.program.kv_layers.push(layer);
        self.program.kv_layers.len() - 1
    }

    /// The routed experts of a layer.
    pub fn expert_layer(&mut self, layer: ExpertLayer) -> usize {
        let (k, n) = (layer.k, layer.experts);
        self.require("experts", k >= 1 && k <= n, || format!("{k} experts a token of {n}"));
        self.program.expert_layers.push(layer);
        self.program.expert_layers.len() - 1
    }

    /// Rows of `table` for the batch's tokens, times `scale`.
    pub fn embed(&mut self, table: Weight, scale: f32) -> Reg {
        let width = self.shape(table, "embed", 2)[1];
        let out = self.register(width, RowSet::All, false);
        self.push(Op::Embed { out, table, scale });
        out
    }

    /// Root-mean-square norm over the whole width.
    pub fn rms_norm(&mut self, x: Reg, weight: Option<Weight>, eps: f32) -> Reg {
        self.rms_norm_groups(x, weight, eps, self.width(x), 0.0)
    }

    /// Root-mean-square norm over each group (a head); the weight is `offset` more than stored.
    pub fn rms_norm_groups(
        &mut self,
        x: Reg,
        weight: Option<Weight>,
        eps: f32,
        group: usize,
        offset: f32,
    ) -> Reg {
        let width = self.width(x);
        self.require("rms_norm", group > 0 && width.is_multiple_of(group), || {
            format!("groups of {group} in {width}")
        });
        if let Some(weight) = weight {
            self.expect("rms_norm", weight, &[group]);
        }
        let out = self.like(x);
        self.push(Op::RmsNorm { x, out, weight, offset, eps, group });
        out
    }

    /// x weight^T + bias.
    pub fn linear(&mut self, x: Reg, weight: Weight, bias: Option<Weight>) -> Reg {
        self.linear_with(x, weight, bias, Precision::Block)
    }

    /// The linear of a router: its input stays f32 on every executor.
    pub fn router_linear(&mut self, x: Reg, weight: Weight, bias: Option<Weight>) -> Reg {
        self.linear_with(x, weight, bias, Precision::Full)
    }

    fn linear_with(&mut self, x: Reg, weight: Weight, bias: Option<Weight>, precision: Precision) -> Reg {
        let shape = self.shape(weight, "linear", 2);
        let (outputs, inputs) = (shape[0], shape[1]);
        let width = self.width(x);
        let name = self.name(weight);
        self.require("linear", inputs == width, || {
            format!("{name} takes {inputs} inputs, its register has {width}")
        });
        if let Some(bias) = bias {
            self.expect("linear", bias, &[outputs]);
        }
        let out = self.register(outputs, self.rows(x), false);
        self.push(Op::Linear { x, out, weight, bias, precision });
        out
    }

    /// Rotates each head of `x`.
    pub fn rope(&mut self, x: Reg, table: usize, head: usize) -> Reg {
        let (width, pairs) = (self.width(x), self.program.ropes.get(table).map(|t| t.frequencies.len()));
        self.require("rope", head > 0 && width.is_multiple_of(head) && pairs == Some(head / 2), || {
            format!("heads of {head} in {width} with a table of {pairs:?} pairs")
        });
        let out = self.like(x);
        self.push(Op::Rope { x, out, table, head });
        out
    }

    /// Causal attention; without `kv` the cache of an earlier layer is read as it is.
    pub fn attention(&mut self, q: Reg, kv: Option<(Reg, Reg)>, attention: Attention) -> Reg {
        let Attention { cache, heads, kv_heads, head, window, .. } = attention;
        let Some(&layer) = self.program.kv_layers.get(cache) else {
            self.require("attention", false, || format!("there is no cache {cache}"));
            return q;
        };
        let value_head = layer.value_width / kv_heads.max(1);
        let q_width = self.width(q);
        self.require("attention", kv_heads > 0 && heads.is_multiple_of(kv_heads), || {
            format!("{heads} query heads on {kv_heads} key-value heads")
        });
        self.require("attention", q_width == heads * head && layer.key_width == kv_heads * head, || {
            format!(
                "{heads} heads of {head} with queries of {q_width} and a cache of {} wide keys",
                layer.key_width
            )
        });
        self.require("attention", window == layer.window, || {
            format!("window {window:?} on a cache that keeps {:?}", layer.window)
        });
        if let Some((k, v)) = kv {
            let widths = (self.width(k), self.width(v));
            self.require("attention", widths == (layer.key_width, layer.value_width), || {
                format!("keys and values of {widths:?} for a cache of {layer:?}")
            });
        }
        if let Some(sinks) = attention.sinks {
            self.expect("attention", sinks, &[heads]);
        }
        let out = self.register(heads * value_head, RowSet::All, false);
        self.push(Op::Attention { q, kv, out, attention });
        out
    }

    /// a + b.
    pub fn add(&mut self, a: Reg, b: Reg) -> Reg {
        self.same("add", a, b);
        let out = self.like(a);
        self.push(Op::Add { a, b, out });
        out
    }

    /// x times a constant or a learned vector or scalar.
    pub fn mul(&mut self, x: Reg, by: Multiplier) -> Reg {
        if let Multiplier::Weight(weight) = by
            && self.program.weights[weight.index()].shape != [1]
        {
            self.expect("mul", weight, &[self.width(x)]);
        }
        let out = self.like(x);
        self.push(Op::Mul { x, by, out });
        out
    }

    /// activation(gate) * up.
    pub fn gate(&mut self, gate: Reg, up: Reg, activation: Activation) -> Reg {
        self.same("gate", gate, up);
        let out = self.like(gate);
        self.push(Op::Gate { gate, up, out, activation });
        out
    }

    /// Chooses experts of `layer`.
    pub fn route(&mut self, logits: Reg, layer: usize, route: Route, expert_scale: Option<Weight>) -> Reg {
        let Some((experts, k)) = self.program.expert_layers.get(layer).map(|l| (l.experts, l.k)) else {
            self.require("route", false, || format!("there is no expert layer {layer}"));
            return logits;
        };
        let width = self.width(logits);
        self.require("route", width == experts, || format!("{width} logits for {experts} experts"));
        if let Some(scale) = expert_scale {
            self.expect("route", scale, &[experts]);
        }
        let out = self.register(k, self.rows(logits), true);
        self.push(Op::Route { logits, out, routing: Routing { k, route, expert_scale }, layer });
        out
    }

    /// The routed experts' weighted sum.
    pub fn experts(&mut self, x: Reg, route: Reg, experts: Experts) -> Reg {
        let Some(layer) = self.program.expert_layers.get(experts.layer).cloned() else {
            self.require("experts", false, || format!("there is no expert layer {}", experts.layer));
            return x;
        };
        let width = self.width(x);
        self.require("experts", width == layer.hidden, || {
            format!("experts of width {} on a register of {width}", layer.hidden)
        });
        let routes = self.program.register(route).route;
        self.require("experts", routes, || "the second input is not a route".to_owned());
        for bias in [experts.gate_bias, experts.up_bias].into_iter().flatten() {
            self.expect("experts", bias, &[layer.experts, layer.intermediate]);
        }
        if let Some(bias) = experts.down_bias {
            self.expect("experts", bias, &[layer.experts, layer.hidden]);
        }
        let out = self.like(x);
        self.push(Op::Experts { x, route, out, experts });
        out
    }

    /// cap * tanh(x / cap).
    pub fn softcap(&mut self, x: Reg, cap: f32) -> Reg {
        let out = self.like(x);
        self.push(Op::Softcap { x, out, cap });
        out
    }

    /// Columns start .. start + width.
    pub fn slice(&mut self, x: Reg, start: usize, width: usize) -> Reg {
        let whole = self.width(x);
        self.require("slice", start.checked_add(width).is_some_and(|end| end <= whole), || {
            format!("columns {start} and {width} more of {whole}")
        });
        let out = self.register(width, self.rows(x), false);
        self.push(Op::Slice { x, out, start });
        out
    }

    /// Only the rows whose logits are wanted.
    pub fn select_rows(&mut self, x: Reg) -> Reg {
        let out = self.register(self.width(x), RowSet::Wanted, false);
        self.push(Op::SelectRows { x, out });
        out
    }

    /// A place where rows of `x` may be edited and captured.
    pub fn tap(&mut self, x: Reg, tap: Tap) -> Reg {
        let fresh = self.program.tap_width(tap).is_none();
        self.require("tap", fresh, || format!("{tap} is there already"));
        self.require("tap", self.rows(x) == RowSet::All, || {
            format!("{tap} stands after the rows were selected")
        });
        self.push(Op::Tap { x, tap });
        x
    }

    /// Ends the program with the register that holds the logits.
    pub fn finish(mut self, logits: Reg, layers: usize) -> Result<Program, BuildError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        self.program.logits = logits;
        self.program.layers = layers;
        self.place_registers();
        self.cut_segments();
        Ok(self.program)
    }

    /// Finds each register's last use and lets registers of disjoint lives share buffers.
    fn place_registers(&mut self) {
        let Program { ops, registers, buffers, logits, .. } = &mut self.program;
        for (i, op) in ops.iter().enumerate() {
            for reg in op.inputs().chain(op.out()) {
                registers[reg.index()].last_use = i;
            }
        }
        registers[logits.index()].last_use = ops.len();
        let mut free: Vec<usize> = Vec::new();
        for (i, op) in ops.iter().enumerate() {
            if let Some(out) = op.out() {
                let Register { width, route, .. } = registers[out.index()];
                let fit = free.iter().position(|&b| buffers[b] == Buffer { width, route });
                registers[out.index()].buffer = match fit {
                    Some(at) => free.swap_remove(at),
                    None => {
                        buffers.push(Buffer { width, route });
                        buffers.len() - 1
                    }
                };
            }
            // The result of an op never shares with its inputs: they are freed after it.
            let ended = op.inputs().chain(op.out()).filter(|reg| registers[reg.index()].last_use == i);
            for reg in ended {
                let buffer = registers[reg.index()].buffer;
                if !free.contains(&buffer) {
                    free.push(buffer);
                }
            }
        }
    }

    fn cut_segments(&mut self) {
        let mut rows = RowSet::All;
        let mut start = 0;
        for (i, op) in self.program.ops.iter().enumerate() {
            let next = op.out().map_or(rows, |out| self.program.registers[out.index()].rows);
            if i > start && (next != rows || matches!(op, Op::Experts { .. })) {
                self.program.segments.push(Segment { ops: start..i, rows });
                start = i;
            }
            rows = next;
        }
        self.program.segments.push(Segment { ops: start..self.program.ops.len(), rows });
    }

    fn push(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    fn register(&mut self, width: usize, rows: RowSet, route: bool) -> Reg {
        let reg = Reg(self.program.registers.len() as u32);
        self.program.registers.push(Register { width, rows, route, buffer: 0, last_use: 0 });
        reg
    }

    fn like(&mut self, x: Reg) -> Reg {
        self.register(self.width(x), self.rows(x), false)
    }

    fn width(&self, x: Reg) -> usize {
        self.program.register(x).width
    }

    fn rows(&self, x: Reg) -> RowSet {
        self.program.register(x).rows
    }

    fn name(&self, weight: Weight) -> String {
        self.program.weights[weight.index()].name.clone()
    }

    /// The shape of a weight that must have `dimensions`; padded with ones after a mistake.
    fn shape(&mut self, weight: Weight, kind: &'static str, dimensions: usize) -> Vec<usize> {
        let WeightSpec { name, mut shape } = self.program.weights[weight.index()].clone();
        self.require(kind, shape.len() == dimensions, || {
            format!("{name} has shape {shape:?}, {dimensions} dimensions are needed")
        });
        shape.resize(dimensions, 1);
        shape
    }

    fn expect(&mut self, kind: &'static str, weight: Weight, shape: &[usize]) {
        let spec = self.program.weights[weight.index()].clone();
        self.require(kind, spec.shape == shape, || {
            format!("{} has shape {:?}, {shape:?} is needed", spec.name, spec.shape)
        });
    }

    fn same(&mut self, kind: &'static str, a: Reg, b: Reg) {
        let (x, y) = (*self.program.register(a), *self.program.register(b));
        self.require(kind, x.width == y.width && x.rows == y.rows && !x.route && !y.route, || {
            format!("registers of {} and {} elements ({:?}, {:?} rows)", x.width, y.width, x.rows, y.rows)
        });
    }

    fn require(&mut self, kind: &'static str, holds: bool, reason: impl FnOnce() -> String) {
        if !holds && self.error.is_none() {
            self.error = Some(BuildError { op: self.program.ops.len(), kind, reason: reason() });
        }
    }
}
