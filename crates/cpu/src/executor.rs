//! The executor: opening a program, and running a batch through its plan.

use turbospark_formats::Checkpoint;
use turbospark_program::{
    Batch, Executor, ExpertRequest, ExpertSource, Limits, MemoryNeed, Op, Outputs, PAGE_POSITIONS, Program,
    Reg, RowSet, StateError, States, StepError,
};

use crate::activations::{Activations, Form};
use crate::attention::{Attender, KvPages, Layer, MOST_GROUP, page_layouts};
use crate::error::OpenError;
use crate::experts::ExpertRunner;
use crate::linears::{self, Job};
use crate::load::{self, Loaded, Packing};
use crate::options::CpuOptions;
use crate::panels::PanelKind;
use crate::plan::{MOST_LINEARS, Plan, Step};
use crate::pool::Pool;
use crate::predict::Predictor;
use crate::probe::Probe;
use crate::registers::Registers;
use crate::route::Routes;
use crate::rows::{BatchRows, Pass};
use crate::timings::{Timings, Watch};

/// Runs a program on the CPU.
pub struct CpuExecutor {
    program: Program,
    options: CpuOptions,
    plan: Plan,
    loaded: Loaded,
    work: Work,
}

/// Rows of such tables after which that happens where memory is short; a row may bring two pages of 4 KiB or more.
const TABLE_ROWS: usize = 2048;

/// What changes during a step.
struct Work {
    pool: Pool,
    kv: KvPages,
    registers: Registers,
    rows: BatchRows,
    activations: Activations,
    attender: Attender,
    routes: Vec<Routes>,
    experts: ExpertRunner,
    predictor: Option<Predictor>,
    /// Rows read of tables that stay in their files, since their pages were last let go.
    table_rows: usize,
    timings: Timings,
}

impl CpuExecutor {
    /// Packs the program's weights from the checkpoint, with all threads; what has been packed of a mapped file is
    /// let go. Tables that are read by row stay mapped.
    pub fn open(
        program: Program,
        checkpoint: &Checkpoint,
        options: CpuOptions,
    ) -> Result<CpuExecutor, OpenError> {
        CpuExecutor::open_with_progress(program, checkpoint, options, &mut |_| {})
    }

    /// As [`CpuExecutor::open`]; `progress` is told the bytes of packed weights as they are done.
    pub fn open_with_progress(
        program: Program,
        checkpoint: &Checkpoint,
        options: CpuOptions,
        progress: &mut dyn FnMut(usize),
    ) -> Result<CpuExecutor, OpenError> {
        check_attention(&program)?;
        let (isa, threads) = (options.isa, options.threads);
        let mut pool =
            Pool::new(threads, options.pin).map_err(|error| OpenError::Threads { threads, error })?;
        let packing = Packing { isa, evict: options.evict };
        let loaded = Loaded::open(&program, checkpoint, packing, &mut pool, progress)?;
        let plan = Plan::new(&program, options.fuse, |op| form(&loaded, op));
        let work = Work {
            attender: Attender::new(isa, pool.threads()),
            kv: KvPages::new(page_layouts(&program, options.kv)),
            registers: Registers::new(plan.slots.clone()),
            rows: BatchRows::default(),
            activations: Activations::new(),
            routes: (0..plan.routes).map(|_| Routes::default()).collect(),
            experts: ExpertRunner::default(),
            predictor: options.predict.then(|| Predictor::new(&program, &loaded)),
            table_rows: 0,
            timings: Timings::default(),
            pool,
        };
        Ok(CpuExecutor { program, options, plan, loaded, work })
    }

    /// What [`CpuExecutor::open`] and steps within `limits` will take; nothing of the weights is read.
    pub fn memory_need(
        program: &Program,
        checkpoint: &Checkpoint,
        options: &CpuOptions,
        limits: &Limits,
    ) -> Result<MemoryNeed, OpenError> {
        check_attention(program)?;
        Ok(need(program, options, load::bytes(program, checkpoint)?, limits))
    }

    /// The options it was opened with.
    pub fn options(&self) -> &CpuOptions {
        &self.options
    }

    /// How the matrix of each linear is packed, by tensor name, in the order of the ops.
    pub fn kernels(&self) -> impl Iterator<Item = (&str, PanelKind)> {
        self.program.ops().iter().enumerate().filter_map(|(index, op)| match op {
            Op::Linear { weight, .. } => {
                let name = self.program.weights()[weight.index()].name.as_str();
                Some((name, self.loaded.kind(index)?))
            }
            _ => None,
        })
    }

    /// Where the time of the steps since the last call went.
    pub fn take_timings(&mut self) -> Timings {
        std::mem::take(&mut self.work.timings)
    }

    /// As [`Executor::step`], with a look at (and a hand in) the result of every op; only without fusion is every
    /// op's result there to be seen.
    pub fn step_with_probe(
        &mut self,
        batch: &Batch,
        states: &mut States,
        experts: &dyn ExpertSource,
        outputs: &mut Outputs<'_>,
        probe: &mut dyn Probe,
    ) -> Result<(), StepError> {
        self.checked_step(batch, states, experts, outputs, Some(probe))
    }

    fn checked_step(
        &mut self,
        batch: &Batch,
        states: &mut States,
        experts: &dyn ExpertSource,
        outputs: &mut Outputs<'_>,
        probe: Option<&mut dyn Probe>,
    ) -> Result<(), StepError> {
        batch.check(&self.program, states)?;
        outputs.check(batch, &self.program)?;
        self.loaded.check_tables()?;
        if !self.program.expert_layers().is_empty() {
            ExpertRunner::check(experts)?;
        }
        states.prepare(batch)?;
        let result = self.run(batch, states, experts, outputs, probe);
        match result {
            Ok(()) => states.commit(batch),
            Err(_) => states.rollback(batch),
        }
        result
    }

    fn run(
        &mut self,
        batch: &Batch,
        states: &mut States,
        experts: &dyn ExpertSource,
        outputs: &mut Outputs<'_>,
        mut probe: Option<&mut dyn Probe>,
    ) -> Result<(), StepError> {
        let CpuExecutor { program, options, plan, loaded, work } = self;
        let mut watch = Watch::start();
        work.pool.settle_caller();
        if work.kv.reserve(states).is_err() {
            // The system refuses what the engine has planned for.
            let layer = program.kv_layers().first().map_or(0, |layer| layer.layer);
            return Err(StateError::Full { layer, pages: work.kv.pages() }.into());
        }
        for copy in states.take_copies() {
            work.kv.copy(&copy);
        }
        let states: &States = states;
        work.rows.begin(&mut work.pool, program, batch);
        work.registers.begin(batch.rows.len(), work.rows.wanted.len());
        work.attender.begin(batch);
        let context = Context { program, options, loaded, batch, states, experts };
        // The request that `Route` has begun and `Experts` has not yet taken.
        let mut requests = Requests::default();
        watch.add_to(&mut work.timings.ends);
        for step in &plan.steps {
            let ops: &[usize] = match step {
                Step::Rows { ops, wanted, fill } => {
                    let (wanted, fill) = (*wanted, *fill);
                    let rows = &work.rows;
                    let pass = Pass { isa: options.isa, program, loaded, batch, rows, ops, wanted, fill };
                    pass.run(&mut work.pool, &mut work.registers, &mut work.activations, outputs);
                    ops
                }
                Step::Linears(ops) => {
                    context.linears(work, ops);
                    ops
                }
                Step::Attention(op) => {
                    context.attention(work, *op);
                    std::slice::from_ref(op)
                }
                Step::Route(op) => {
                    context.route(work, &plan.slots, *op, &mut requests, outputs)?;
                    std::slice::from_ref(op)
                }
                Step::Experts(op) => {
                    context.experts(work, &plan.slots, *op, &mut requests)?;
                    std::slice::from_ref(op)
                }
            };
            let timings = &mut work.timings;
            watch.add_to(match step {
                Step::Rows { .. } => &mut timings.rows,
                Step::Linears(_) => &mut timings.linears,
                Step::Attention(_) => &mut timings.attention,
                Step::Route(_) => &mut timings.routing,
                Step::Experts(_) => &mut timings.experts,
            });
            if let Some(probe) = &mut probe {
                for &op in ops {
                    let Some(out) = program.ops()[op].out() else { continue };
                    if program.register(out).route {
                        let routes = &mut work.routes[plan.slots[out.index()].buffer];
                        probe.routes(op, &mut routes.ids, &mut routes.weights);
                        routes.find_distinct();
                        // What was begun may not be what the probe has put in.
                        requests.0.clear();
                    } else {
                        probe.values(op, work.registers.write(out));
                    }
                }
            }
        }
        let logits = work.registers.read(program.logits());
        let vocabulary = program.vocabulary();
        let rows = work.rows.wanted.iter().zip(logits.chunks_exact(vocabulary));
        for (index, (&row, logits)) in rows.enumerate() {
            outputs.put_logits(index, row, logits)?;
        }
        work.table_rows += batch.rows.len();
        if options.evict && work.table_rows >= TABLE_ROWS {
            work.table_rows = 0;
            loaded.evict_tables();
        }
        watch.add_to(&mut work.timings.ends);
        // What experts were waited for was counted with their work.
        work.timings.experts =
            work.timings.experts.saturating_sub(work.experts.take_waited(&mut work.timings.waiting));
        work.timings.steps += 1;
        Ok(())
    }
}

/// How the linear that is op `op` takes its input.
pub(crate) fn form(loaded: &Loaded, op: usize) -> Form {
    match loaded.kind(op) {
        Some(kind) if !kind.is_dense() => Form::Blocks,
        _ => Form::Floats,
    }
}

fn check_attention(program: &Program) -> Result<(), OpenError> {
    let mut heads = vec![None; program.kv_layers().len()];
    for (op, kind) in program.ops().iter().enumerate() {
        let Op::Attention { attention, .. } = kind else { continue };
        let group = attention.heads / attention.kv_heads;
        if group > MOST_GROUP {
            let reason = format!("{group} query heads share a key; {MOST_GROUP} at most are supported");
            return Err(OpenError::Attention { op, reason });
        }
        let known = *heads[attention.cache].get_or_insert(attention.kv_heads);
        if known != attention.kv_heads {
            let reason = format!("{} heads in a cache of {known}", attention.kv_heads);
            return Err(OpenError::Attention { op, reason });
        }
    }
    Ok(())
}

fn need(program: &Program, options: &CpuOptions, resident: usize, limits: &Limits) -> MemoryNeed {
    // A sliding layer keeps its window, the page it begins in and the rows of a batch.
    let pages = |window: Option<usize>| {
        let positions = match window {
            Some(window) => limits.context.min(window + limits.rows + PAGE_POSITIONS),
            None => limits.context,
        };
        positions.div_ceil(PAGE_POSITIONS) * limits.sequences
    };
    let layouts = page_layouts(program, options.kv);
    let layers = program.kv_layers().iter().zip(&layouts);
    let kv = layers.map(|(layer, layout)| layout.bytes() * pages(layer.window)).sum();
    // Without the weights it is not known which inputs are quantised; floats take more.
    let plan = Plan::new(program, options.fuse, |_| Form::Floats);
    let of_all = program.registers().iter().filter(|register| register.rows == RowSet::All);
    let widest = of_all.map(|register| register.width).max().unwrap_or(0);
    let [all, wanted] = Registers::widths(&plan.slots);
    let values = (all + widest) * limits.rows + wanted * limits.wanted;
    let scratch = values * 4 + ExpertRunner::bytes(program, limits.rows);
    MemoryNeed { resident, kv, scratch }
}

impl Executor for CpuExecutor {
    fn program(&self) -> &Program {
        &self.program
    }

    fn memory(&self, limits: &Limits) -> MemoryNeed {
        need(&self.program, &self.options, self.loaded.bytes(), limits)
    }

    fn step(
        &mut self,
        batch: &Batch,
        states: &mut States,
        experts: &dyn ExpertSource,
        outputs: &mut Outputs<'_>,
    ) -> Result<(), StepError> {
        self.checked_step(batch, states, experts, outputs, None)
    }
}

/// Requests for the experts of a layer that have been begun.
#[derive(Default)]
struct Requests<'s>(Vec<(usize, Box<dyn ExpertRequest + 's>)>);

/// What a step does not change.
struct Context<'a> {
    program: &'a Program,
    options: &'a CpuOptions,
    loaded: &'a Loaded,
    batch: &'a Batch,
    states: &'a States,
    experts: &'a dyn ExpertSource,
}

impl<'a> Context<'a> {
    fn linears(&self, work: &mut Work, ops: &[usize]) {
        let rows = |reg: Reg| self.program.register(reg).rows;
        let first = ops.first().and_then(|&op| self.program.ops()[op].out());
        if first.map(rows) == Some(RowSet::Wanted) && work.rows.wanted.is_empty() {
            // No row's logits are wanted: the activations are those of another linear.
            return;
        }
        let mut memory: [Option<(Reg, Vec<f32>)>; MOST_LINEARS] = Default::default();
        for (memory, &op) in memory.iter_mut().zip(ops) {
            *memory = self.program.ops()[op].out().map(|out| (out, work.registers.take(out)));
        }
        {
            let rows = work.activations.rows();
            let mut jobs: [Option<Job<'_>>; MOST_LINEARS] = Default::default();
            for ((job, memory), &op) in jobs.iter_mut().zip(&mut memory).zip(ops) {
                let (Op::Linear { bias, .. }, Some((_, out)), Some(matrix)) =
                    (&self.program.ops()[op], memory, self.loaded.matrix(op))
                else {
                    continue;
                };
                let bias = bias.map(|bias| self.loaded.vector(bias));
                let elements = rows * matrix.layout().rows();
                *job = Some(Job::new(matrix.panels(), &work.activations, bias, &mut out[..elements]));
            }
            linears::run(&mut work.pool, self.options.isa, &jobs);
        }
        for (out, memory) in memory.into_iter().flatten() {
            work.registers.put(out, memory);
        }
    }

    fn attention(&self, work: &mut Work, op: usize) {
        let Op::Attention { q, kv, out, attention } = &self.program.ops()[op] else { return };
        let mut memory = work.registers.take(*out);
        let elements = work.registers.rows(*out) * work.registers.width(*out);
        let layer = Layer {
            attention,
            kv: &work.kv,
            batch: self.batch,
            states: self.states,
            sinks: attention.sinks.map(|weight| self.loaded.vector(weight)),
            q: work.registers.read(*q),
            out: &mut memory[..elements],
        };
        if let Some((k, v)) = kv {
            let (k, v) = (work.registers.read(*k), work.registers.read(*v));
            work.attender.append(&mut work.pool, &layer, k, v);
        }
        work.attender.run(&mut work.pool, layer);
        work.registers.put(*out, memory);
    }

    fn route(
        &self,
        work: &mut Work,
        slots: &[crate::registers::Slot],
        op: usize,
        requests: &mut Requests<'a>,
        outputs: &mut Outputs<'_>,
    ) -> Result<(), StepError> {
        let Op::Route { logits, out, routing, layer } = &self.program.ops()[op] else { return Ok(()) };
        let scale = routing.expert_scale.map(|weight| self.loaded.vector(weight));
        let rows = work.registers.rows(*logits);
        let routes = &mut work.routes[slots[out.index()].buffer];
        let logits = work.registers.read(*logits);
        routes.choose(&mut work.pool, self.options.isa, routing, scale, logits, rows);
        requests.0.push((*layer, self.experts.begin(*layer, &routes.distinct)?));
        if self.program.register(*out).rows == RowSet::All {
            routes.capture(*layer, self.program, self.batch, outputs);
        }
        if let Some(predictor) = &mut work.predictor
            && let Some(ids) =
                predictor.next(&mut work.pool, self.options.isa, self.loaded, &work.registers, *layer)
        {
            self.experts.hint(layer + 1, ids);
        }
        Ok(())
    }

    fn experts(
        &self,
        work: &mut Work,
        slots: &[crate::registers::Slot],
        op: usize,
        requests: &mut Requests<'a>,
    ) -> Result<(), StepError> {
        let Op::Experts { x, route, out, experts } = &self.program.ops()[op] else { return Ok(()) };
        let routes = &work.routes[slots[route.index()].buffer];
        let mut request = match requests.0.iter().position(|(layer, _)| *layer == experts.layer) {
            Some(at) => requests.0.swap_remove(at).1,
            None => self.experts.begin(experts.layer, &routes.distinct)?,
        };
        let bias = |weight: Option<_>| weight.map(|weight| self.loaded.vector(weight));
        let job = crate::experts::Layer {
            isa: self.options.isa,
            activation: experts.activation,
            biases: [bias(experts.gate_bias), bias(experts.up_bias), bias(experts.down_bias)],
            layout: self.experts.layout(experts.layer),
            leases: self.experts.leases(),
            routes,
            hidden: work.registers.width(*x),
        };
        let mut memory = work.registers.take(*out);
        let elements = work.registers.rows(*out) * work.registers.width(*out);
        let result = work.experts.run(
            &mut work.pool,
            &job,
            &mut *request,
            work.registers.read(*x),
            &mut memory[..elements],
        );
        work.registers.put(*out, memory);
        Ok(result?)
    }
}
