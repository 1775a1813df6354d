//! The order in which a program's ops are run: what stands side by side is run together.
//!
//! Ops that work row by row follow each other in one pass over the rows, and end with the quantisation of what the
//! next linears read; linears with the same input are one pass over it. Without fusion each op is a step.

use turbospark_program::{Op, Program, Reg};

use crate::activations::Form;
use crate::registers::Slot;

/// Linears that are run together at most.
pub(crate) const MOST_LINEARS: usize = 8;

/// Ops that are run together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Ops of rows, and the input of the next linears, made of the rows of a register.
    Rows { ops: Vec<usize>, wanted: bool, fill: Option<(Reg, Form)> },
    /// Linears of one input.
    Linears(Vec<usize>),
    /// An attention.
    Attention(usize),
    /// A choice of experts.
    Route(usize),
    /// Routed experts.
    Experts(usize),
}

/// Steps, and where registers lie.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub steps: Vec<Step>,
    /// By register. The slots of routes are numbered apart.
    pub slots: Vec<Slot>,
    /// Number of route slots.
    pub routes: usize,
}

impl Plan {
    /// `form` tells how a linear takes its input.
    pub fn new(program: &Program, fuse: bool, form: impl Fn(usize) -> Form) -> Plan {
        let steps = order(program, fuse, form);
        let (slots, routes) = place(program, &steps);
        Plan { steps, slots, routes }
    }
}

fn order(program: &Program, fuse: bool, form: impl Fn(usize) -> Form) -> Vec<Step> {
    let ops = program.ops();
    let mut done = vec![false; ops.len()];
    let mut steps: Vec<Step> = Vec::new();
    for index in 0..ops.len() {
        if done[index] {
            continue;
        }
        done[index] = true;
        match &ops[index] {
            Op::Linear { x, .. } => {
                let mut group = vec![index];
                if fuse {
                    let later = alike(ops, index, *x, &form);
                    group.extend(later.filter(|&i| !done[i]).take(MOST_LINEARS - 1));
                    group.iter().for_each(|&i| done[i] = true);
                }
                fill(&mut steps, fuse, wanted(program, *x), (*x, form(index)));
                steps.push(Step::Linears(group));
            }
            Op::Attention { .. } => steps.push(Step::Attention(index)),
            Op::Route { .. } => steps.push(Step::Route(index)),
            Op::Experts { .. } => steps.push(Step::Experts(index)),
            op => {
                let reg = op.out().or(op.inputs().next());
                let of_wanted = reg.is_some_and(|reg| wanted(program, reg));
                match steps.last_mut() {
                    Some(Step::Rows { ops, wanted, fill: None }) if fuse && *wanted == of_wanted => {
                        ops.push(index)
                    }
                    _ => steps.push(Step::Rows { ops: vec![index], wanted: of_wanted, fill: None }),
                }
            }
        }
    }
    steps
}

fn wanted(program: &Program, reg: Reg) -> bool {
    program.register(reg).rows == turbospark_program::RowSet::Wanted
}

/// Later linears that take the same input in the same form; a tap may change it, so they end there.
fn alike(ops: &[Op], index: usize, x: Reg, form: &impl Fn(usize) -> Form) -> impl Iterator<Item = usize> {
    let first = form(index);
    let later = ops.iter().enumerate().skip(index + 1);
    let unchanged = later.take_while(move |(_, op)| !matches!(op, Op::Tap { x: tapped, .. } if *tapped == x));
    unchanged
        .filter(move |(_, op)| matches!(op, Op::Linear { x: other, .. } if *other == x))
        .map(|(i, _)| i)
        .filter(move |&i| form(i) == first)
}

/// Ends the pass before with the input of linears, or makes a pass for it.
fn fill(steps: &mut Vec<Step>, fuse: bool, of_wanted: bool, input: (Reg, Form)) {
    match steps.last_mut() {
        Some(Step::Rows { wanted, fill, .. }) if fuse && fill.is_none() && *wanted == of_wanted => {
            *fill = Some(input)
        }
        _ => steps.push(Step::Rows { ops: Vec::new(), wanted: of_wanted, fill: Some(input) }),
    }
}

/// Lets registers of disjoint lives share buffers. Threads are at different ops of a step at a time, so lives
/// are counted in whole steps, and only registers of one width share.
fn place(program: &Program, steps: &[Step]) -> (Vec<Slot>, usize) {
    let ops = program.ops();
    let registers = program.registers();
    let of_step = |step: &Step| -> Vec<usize> {
        match step {
            Step::Rows { ops, .. } | Step::Linears(ops) => ops.clone(),
            Step::Attention(op) | Step::Route(op) | Step::Experts(op) => vec![*op],
        }
    };
    let mut last = vec![0; registers.len()];
    for (at, step) in steps.iter().enumerate() {
        for reg in of_step(step).iter().flat_map(|&op| ops[op].inputs().chain(ops[op].out())) {
            last[reg.index()] = at;
        }
        if let Step::Rows { fill: Some((reg, _)), .. } = step {
            last[reg.index()] = at;
        }
    }
    last[program.logits().index()] = steps.len();
    let mut slots: Vec<Slot> = registers
        .iter()
        .map(|register| Slot {
            buffer: 0,
            width: register.width,
            wanted: register.rows == turbospark_program::RowSet::Wanted,
        })
        .collect();
    // Free buffers as (width, routes, buffer), and how many there are of values and of routes.
    let mut free: Vec<(usize, bool, usize)> = Vec::new();
    let mut counts = [0; 2];
    for (at, step) in steps.iter().enumerate() {
        let regs: Vec<Reg> =
            of_step(step).iter().flat_map(|&op| ops[op].inputs().chain(ops[op].out())).collect();
        for out in of_step(step).iter().filter_map(|&op| ops[op].out()) {
            let (width, route) = (registers[out.index()].width, registers[out.index()].route);
            let fit = free.iter().position(|&(w, r, _)| (w, r) == (width, route));
            slots[out.index()].buffer = match fit {
                Some(fit) => free.swap_remove(fit).2,
                None => {
                    counts[usize::from(route)] += 1;
                    counts[usize::from(route)] - 1
                }
            };
        }
        for reg in regs {
            let entry =
                (registers[reg.index()].width, registers[reg.index()].route, slots[reg.index()].buffer);
            if last[reg.index()] == at && !free.contains(&entry) {
                free.push(entry);
            }
        }
    }
    // Routes have no buffer among the values: they keep their number, and no width to make room for.
    for (slot, register) in slots.iter_mut().zip(registers) {
        if register.route {
            slot.width = 0;
        }
    }
    (slots, counts[1])
}
