//! Routed experts: rows grouped by expert, experts taken as they arrive, sums in the order of ranks.
//!
//! The output of each (row, rank) is kept apart; a row's are then added with their weights, one fused multiply-add
//! each, in rank order.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use turbospark_program::{
    Activation, ExpertError, ExpertLayout, ExpertRequest, ExpertSource, Lease, Op, Program,
};

use crate::activations::{Activations, Form, QuantizedRows, quantize_alone};
use crate::isa::Isa;
use crate::linears::{self, Job};
use crate::ops;
use crate::panels::{ExpertPanels, PANELS_ID, PanelKind};
use crate::pool::Pool;
use crate::registers::Shared;
use crate::route::Routes;
use crate::timings::Watch;

/// Experts that are worked on together: fewer regions, and enough panels for all threads.
const GROUP: usize = 16;
/// (row, rank) pairs after which a group takes no more experts.
const GROUP_USES: usize = 512;

/// What one layer's experts have in common.
pub(crate) struct Layer<'a> {
    pub isa: Isa,
    pub activation: Activation,
    /// Of gate, up and down: [experts, width] each.
    pub biases: [Option<&'a [f32]>; 3],
    pub layout: &'a ExpertLayout,
    /// Most leases that may be kept.
    pub leases: usize,
    pub routes: &'a Routes,
    /// Width of input and output.
    pub hidden: usize,
}

/// Working memory of routed experts. It grows to what was needed most and stays.
#[derive(Default)]
pub(crate) struct ExpertRunner {
    /// (row, rank) pairs, flattened, sorted by expert.
    uses: Vec<u32>,
    /// Where each expert's uses start.
    starts: Vec<u32>,
    /// For each (row, rank) the row of `partials` that has its output.
    slots: Vec<u32>,
    /// All rows, quantised once for all experts that take them.
    quantized: QuantizedRows,
    /// Inputs of each expert of a group, in blocks and as floats.
    inputs: [Vec<Activations>; 2],
    /// What lies between, quantised.
    inner: Vec<Activations>,
    gate: Vec<f32>,
    up: Vec<f32>,
    /// Outputs in the order they were computed.
    partials: Vec<f32>,
    waited: Duration,
}

/// An expert of a group.
struct Member<'a> {
    expert: usize,
    panels: ExpertPanels<'a>,
    /// Its (row, rank) pairs.
    uses: &'a [u32],
    /// Its first row among the group's.
    first: usize,
}

fn form(kind: PanelKind) -> Form {
    if kind.is_dense() { Form::Floats } else { Form::Blocks }
}

fn room<T: Clone + Default>(memory: &mut Vec<T>, len: usize) -> &mut [T] {
    if memory.len() < len {
        memory.resize(len, T::default());
    }
    &mut memory[..len]
}

impl ExpertRunner {
    /// Whether the source gives what the kernels read.
    pub fn check(source: &dyn ExpertSource) -> Result<(), ExpertError> {
        match source.packing() {
            Some(PANELS_ID) => Ok(()),
            found => {
                let found = found.unwrap_or("raw tensors").to_owned();
                Err(ExpertError::Packing { wanted: PANELS_ID, found })
            }
        }
    }

    /// Working memory for batches of `rows`.
    pub fn bytes(program: &Program, rows: usize) -> usize {
        let layer = |op: &Op| match op {
            Op::Experts { experts, .. } => {
                let layer = &program.expert_layers()[experts.layer];
                let uses = rows * layer.k;
                let group = uses.min(GROUP_USES + rows);
                // Inputs and what lies between, as f32 and quantised, all rows quantised, and all outputs.
                group * (3 * layer.hidden + 3 * layer.intermediate) * 4
                    + rows * layer.hidden * 2
                    + uses * layer.hidden * 4
            }
            _ => 0,
        };
        program.ops().iter().map(layer).max().unwrap_or(0)
    }

    /// out[row] = sum over ranks of weight * expert(x[row]).
    pub fn run(
        &mut self,
        pool: &mut Pool,
        layer: &Layer<'_>,
        request: &mut dyn ExpertRequest,
        x: &[f32],
        out: &mut [f32],
    ) -> Result<(), ExpertError> {
        let (hidden, k) = (layer.hidden, layer.routes.k);
        self.sort(layer.routes);
        let inputs = [&layer.layout.gate, &layer.layout.up].map(|matrix| PanelKind::of(matrix.layout.format));
        if x.len() > hidden && inputs.iter().any(|kind| form(*kind) == Form::Blocks) {
            self.quantize(pool, layer.isa, x, hidden);
        }
        let count = layer.routes.ids.len();
        room(&mut self.partials, count * hidden);
        room(&mut self.slots, count);
        // At most half the slots, so that others can be read into the rest meanwhile.
        let most = (layer.leases / 2).clamp(1, GROUP);
        let mut done = 0;
        loop {
            let mut leases: [Option<Lease>; GROUP] = Default::default();
            let mut members = 0;
            let mut uses = 0;
            let mut watch = Watch::start();
            // Experts that have arrived are worked on together; none of them waits for one that has not.
            while members < most && uses < GROUP_USES && (members == 0 || request.is_ready()) {
                let Some(lease) = request.next()? else { break };
                uses += self.uses_of(lease.expert as usize).len();
                leases[members] = Some(lease);
                members += 1;
            }
            watch.add_to(&mut self.waited);
            if members == 0 {
                break;
            }
            self.group(pool, layer, &leases, x, done)?;
            done += uses;
        }
        let (partials, slots) = (&self.partials, &self.slots);
        let shared = Shared::new(out);
        let rows = layer.routes.ids.len() / k.max(1);
        let grain = if rows * hidden * k < 16 << 10 { rows } else { 8 };
        pool.run(rows, grain, &|_, range| {
            for row in range {
                // SAFETY: a row is given to one thread.
                let out = unsafe { shared.part(row * hidden, hidden) };
                out.fill(0.0);
                for rank in row * k..(row + 1) * k {
                    let partial = &partials[slots[rank] as usize * hidden..][..hidden];
                    ops::accumulate(layer.isa, partial, layer.routes.weights[rank], out);
                }
            }
        });
        Ok(())
    }

    /// Adds what experts were waited for since the last call to `total`, and gives it.
    pub fn take_waited(&mut self, total: &mut Duration) -> Duration {
        let waited = std::mem::take(&mut self.waited);
        *total += waited;
        waited
    }

    /// Sorts (row, rank) pairs by expert, in the order of rows.
    fn sort(&mut self, routes: &Routes) {
        let experts = routes.distinct.last().map_or(0, |&last| last as usize + 1);
        self.starts.clear();
        self.starts.resize(experts + 1, 0);
        for &id in &routes.ids {
            self.starts[id as usize + 1] += 1;
        }
        for e in 0..experts {
            self.starts[e + 1] += self.starts[e];
        }
        self.uses.resize(routes.ids.len(), 0);
        for (i, &id) in routes.ids.iter().enumerate() {
            let at = &mut self.starts[id as usize];
            self.uses[*at as usize] = i as u32;
            *at += 1;
        }
        // Each start has moved to the next one's place.
        for e in (1..=experts).rev() {
            self.starts[e] = self.starts[e - 1];
        }
        self.starts[0] = 0;
    }

    fn uses_of(&self, expert: usize) -> &[u32] {
        match (self.starts.get(expert), self.starts.get(expert + 1)) {
            (Some(&start), Some(&end)) => &self.uses[start as usize..end as usize],
            _ => &[],
        }
    }

    /// Computes some experts. Their outputs go to rows `done ..` of the partials.
    fn group(
        &mut self,
        pool: &mut Pool,
        layer: &Layer<'_>,
        leases: &[Option<Lease>; GROUP],
        x: &[f32],
        done: usize,
    ) -> Result<(), ExpertError> {
        let (isa, hidden) = (layer.isa, layer.hidden);
        let rows = x.len() / hidden;
        let uses = std::mem::take(&mut self.uses);
        let starts = std::mem::take(&mut self.starts);
        let mut members: [Option<Member<'_>>; GROUP] = Default::default();
        let mut count = 0;
        for (member, lease) in members.iter_mut().zip(leases.iter().flatten()) {
            let expert = lease.expert as usize;
            let panels = ExpertPanels::new(layer.layout, lease.slice(0))
                .ok_or(ExpertError::Layout { expert: lease.expert })?;
            let uses = match starts.get(expert..expert + 2) {
                Some(&[start, end]) => &uses[start as usize..end as usize],
                _ => &[],
            };
            *member = Some(Member { expert, panels, uses, first: count });
            for (i, &pair) in uses.iter().enumerate() {
                self.slots[pair as usize] = (done + count + i) as u32;
            }
            count += uses.len();
        }
        self.fill_inputs(pool, layer, &members, x);
        let inner = members.iter().flatten().map(|m| m.panels.gate.layout().rows()).next().unwrap_or(0);
        self.gate_and_up(pool, layer, &members, inner, rows == 1, count);
        self.fill_inner(pool, isa, &members, inner);
        let partials = &mut self.partials[done * hidden..(done + count) * hidden];
        let mut jobs: [Option<Job<'_>>; GROUP] = Default::default();
        let mut rest = partials;
        for ((job, member), x) in jobs.iter_mut().zip(members.iter().flatten()).zip(&self.inner) {
            let (own, others) = rest.split_at_mut(member.uses.len() * hidden);
            rest = others;
            let e = member.expert;
            let bias = layer.biases[2].map(|bias| &bias[e * hidden..(e + 1) * hidden]);
            *job = Some(Job::new(member.panels.down, x, bias, own));
        }
        linears::run(pool, isa, &jobs);
        (self.uses, self.starts) = (uses, starts);
        Ok(())
    }

    fn quantize(&mut self, pool: &mut Pool, isa: Isa, x: &[f32], hidden: usize) {
        let count = x.len() / hidden;
        self.quantized.prepare(count, hidden);
        let rows = Mutex::new(self.quantized.rows_mut().zip(x.chunks_exact(hidden)));
        pool.run(count, 4, &|_, range| {
            for _ in range {
                let next = rows.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((words, x)) = next else { continue };
                quantize_alone(isa, x, words);
            }
        });
    }

    /// Gathers the rows of each expert; with a single row all share one input.
    fn fill_inputs(
        &mut self,
        pool: &mut Pool,
        layer: &Layer<'_>,
        members: &[Option<Member<'_>>; GROUP],
        x: &[f32],
    ) {
        let (isa, hidden, k) = (layer.isa, layer.hidden, layer.routes.k);
        let single = x.len() == hidden;
        for (inputs, wanted) in self.inputs.iter_mut().zip([Form::Blocks, Form::Floats]) {
            let takes = |m: &&Member<'_>| {
                form(m.panels.gate.layout().kind()) == wanted || form(m.panels.up.layout().kind()) == wanted
            };
            inputs.resize_with(inputs.len().max(GROUP), Activations::new);
            if single {
                if members.iter().flatten().any(|m| takes(&m)) {
                    inputs[0].fill(isa, wanted, 1, hidden, |_| x);
                }
                continue;
            }
            let mut tiles = 0;
            for (input, member) in inputs.iter_mut().zip(members.iter().flatten()) {
                let rows = if takes(&member) { member.uses.len() } else { 0 };
                input.prepare(wanted, rows, hidden);
                tiles += rows.div_ceil(crate::activations::TILE);
            }
            if tiles == 0 {
                continue;
            }
            let quantized = &self.quantized;
            let all = inputs.iter_mut().zip(members.iter().flatten());
            let all =
                Mutex::new(all.flat_map(|(input, m)| input.tiles_mut().map(move |tile| (tile, m.uses))));
            pool.run(tiles, 1, &|_, range| {
                for _ in range {
                    let next = all.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((mut tile, uses)) = next else { continue };
                    let row = |i: usize| uses[i] as usize / k;
                    match wanted {
                        Form::Blocks => tile.gather(|i| quantized.row(row(i))),
                        Form::Floats => tile.fill(isa, |i| &x[row(i) * hidden..][..hidden]),
                    }
                }
            });
        }
    }

    /// gate = activation(gate x) * (up x): a thread takes the same panels of both.
    fn gate_and_up(
        &mut self,
        pool: &mut Pool,
        layer: &Layer<'_>,
        members: &[Option<Member<'_>>; GROUP],
        inner: usize,
        single: bool,
        count: usize,
    ) {
        let isa = layer.isa;
        let [blocks, floats] = &self.inputs;
        let input = |kind: PanelKind, index: usize| {
            let index = if single { 0 } else { index };
            if kind.is_dense() { &floats[index] } else { &blocks[index] }
        };
        let (mut gates, mut ups) = (room(&mut self.gate, count * inner), room(&mut self.up, count * inner));
        let mut jobs: [Option<[Job<'_>; 2]>; GROUP] = Default::default();
        for (index, (jobs, member)) in jobs.iter_mut().zip(members.iter().flatten()).enumerate() {
            let rows = member.uses.len();
            let (gate, up);
            (gate, gates) = gates.split_at_mut(rows * inner);
            (up, ups) = ups.split_at_mut(rows * inner);
            let bias = |which: usize| {
                layer.biases[which].map(|bias| &bias[member.expert * inner..(member.expert + 1) * inner])
            };
            *jobs = Some([
                Job::new(member.panels.gate, input(member.panels.gate.layout().kind(), index), bias(0), gate),
                Job::new(member.panels.up, input(member.panels.up.layout().kind(), index), bias(1), up),
            ]);
        }
        let each = inner.div_ceil(crate::panels::LANES);
        let total = each * members.iter().flatten().count();
        let grain = linears::grain(2 * total, pool.threads()).div_ceil(2);
        pool.run(total, grain, &|_, range| {
            for (index, [gate, up]) in jobs.iter().flatten().enumerate() {
                let (start, end) = (index * each, (index + 1) * each);
                let (from, to) = (range.start.max(start), range.end.min(end));
                if from >= to {
                    continue;
                }
                let panels = from - start..to - start;
                // SAFETY: ranges of a region do not overlap; gate and up have outputs of their own.
                unsafe {
                    gate.run(isa, panels.clone());
                    up.run(isa, panels.clone());
                }
                let columns = gate.panels.layout().outputs(panels);
                // SAFETY: as above: these columns were just computed by this thread.
                let (mut g, mut u) = unsafe { (gate.out.part(columns.clone()), up.out.part(columns)) };
                for row in 0..g.rows() {
                    ops::gate_in_place(isa, layer.activation, g.row_mut(row), u.row_mut(row));
                }
            }
        });
    }

    /// Quantises what lies between, as each expert's down takes it.
    fn fill_inner(&mut self, pool: &mut Pool, isa: Isa, members: &[Option<Member<'_>>; GROUP], inner: usize) {
        let gate = &self.gate;
        self.inner.resize_with(self.inner.len().max(GROUP), Activations::new);
        let mut tiles = 0;
        for (activations, member) in self.inner.iter_mut().zip(members.iter().flatten()) {
            activations.prepare(form(member.panels.down.layout().kind()), member.uses.len(), inner);
            tiles += member.uses.len().div_ceil(crate::activations::TILE);
        }
        let all = self.inner.iter_mut().zip(members.iter().flatten());
        let all = Mutex::new(all.flat_map(|(a, m)| a.tiles_mut().map(move |tile| (tile, m.first))));
        let uses: usize = members.iter().flatten().map(|m| m.uses.len()).sum();
        let grain = if uses * inner < 16 << 10 { tiles } else { 1 };
        pool.run(tiles, grain, &|_, range| {
            for _ in range {
                let next = all.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((mut tile, first)) = next else { continue };
                tile.fill(isa, |i| &gate[(first + i) * inner..][..inner]);
            }
        });
    }
}
