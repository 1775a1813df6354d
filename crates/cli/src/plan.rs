//! `turbospark plan`: what a model takes and about how fast it will be, before it is opened.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use turbospark_engine::memory_limit::format_bytes;
use turbospark_engine::planning::{Estimate, HitSource, Planning, Rates};
use turbospark_engine::{
    CpuOptions, ExecutorKind, ExpertPlacement, MemoryPlan, Trace, demo_source, model_kind,
};
use turbospark_formats::Checkpoint;

use crate::error::CliError;
use crate::options::RunArgs;

/// Tell what a model will take and about how fast it will be, and what other budgets would give
#[derive(Args)]
#[command(
    after_help = "Nothing of the weights is read but a few experts, to measure the disk; memory is measured as well, \
a second in all.\nThe time of a token is that of reading what it needs: weights that every token needs from memory, \
then the longer of\nits experts from memory and those it misses from disk. Attention and waiting for single reads come on top.\n\n\
Examples:\n  turbospark plan model.gguf --memory 8GiB\n  turbospark experts trace model.gguf --text book.txt --out \
book.routing\n  turbospark plan model.gguf --memory 8GiB --trace book.routing"
)]
pub struct Plan {
    /// A GGUF file, a folder with config.json and safetensors, or a packed store; without it the demo model
    model: Option<PathBuf>,
    /// Tell the hit rate from this trace of the model's routing (experts trace); without it all experts are taken to
    /// be liked alike
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print one JSON object with everything
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    run: RunArgs,
}

/// Everything that is told.
struct Told<'a> {
    model: String,
    kind: String,
    planning: Planning<'a>,
    plan: MemoryPlan,
    rates: Rates,
    estimate: Estimate,
    budgets: Vec<(MemoryPlan, Estimate)>,
    policy: &'static str,
    cpu: CpuOptions,
    /// Slots that were asked for, however large the budget.
    slots: Option<usize>,
}

impl Plan {
    pub fn execute(&self) -> Result<(), CliError> {
        let options = self.run.open_options()?;
        if options.executor == ExecutorKind::Reference {
            let reason =
                "plan reckons for the CPU executor; the reference executor takes what the system gives";
            return Err(CliError::Usage(format!("{reason}: leave --executor out")));
        }
        let policy = options.memory.policy.unwrap_or_default().name();
        let cpu = options.cpu;
        let checkpoint = match &self.model {
            Some(path) => Checkpoint::open(path)?,
            None => Checkpoint::from_gguf(demo_source())?,
        };
        let mut planning = Planning::new(&checkpoint, options)?;
        if let Some(path) = &self.trace {
            if planning.token().experts == 0 {
                let reason = "the model has no routed experts; leave it out".to_owned();
                return Err(CliError::Usage(format!("--trace does nothing here: {reason}")));
            }
            let trace = Trace::load(path).map_err(|error| CliError::file(path, error))?;
            planning.set_trace(trace).map_err(|error| CliError::file(path, error))?;
        }
        let plan = planning.plan()?;
        let rates = planning.measure(&plan)?;
        let told = Told {
            model: checkpoint.path.display().to_string(),
            kind: model_kind(&checkpoint).to_owned(),
            estimate: planning.estimate(&plan, &rates),
            budgets: planning.budgets(&plan, &rates)?,
            planning,
            plan,
            rates,
            policy,
            cpu,
            slots: self.run.slots,
        };
        let out = &mut std::io::stdout().lock();
        match self.json {
            true => {
                serde_json::to_writer_pretty(&mut *out, &told.json()).map_err(std::io::Error::from)?;
                writeln!(out)?;
            }
            false => told.write(out)?,
        }
        Ok(())
    }
}

fn size(bytes: usize) -> String {
    format_bytes(bytes as u64)
}

/// Where a plan has the experts.
fn placement(plan: &MemoryPlan) -> &'static str {
    match plan.placement {
        ExpertPlacement::None => "none",
        ExpertPlacement::Mapped => "mapped",
        ExpertPlacement::Resident => "resident",
        ExpertPlacement::Streamed { .. } => "streamed",
    }
}

fn hit_rate(estimate: &Estimate) -> String {
    estimate.hit_rate.map(|rate| format!("{:.1} %", rate * 100.0)).unwrap_or_default()
}

impl Told<'_> {
    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let layers = self.planning.program().expert_layers();
        write!(out, "{}: {}", self.model, self.kind)?;
        if let Some(first) = layers.first() {
            write!(out, ", {} layers of {} experts, {} a token", layers.len(), first.experts, first.k)?;
        }
        let CpuOptions { threads, isa, .. } = self.cpu;
        writeln!(out, "\nexecutor cpu, threads {threads}, isa {isa}, kv {}", self.kv())?;
        self.write_memory(out)?;
        self.write_token(out)?;
        self.write_speed(out)?;
        if self.budgets.len() > 1 {
            self.write_budgets(out)?;
        }
        Ok(())
    }

    fn kv(&self) -> String {
        format!("{:?}", self.cpu.kv).to_lowercase()
    }

    fn write_memory(&self, out: &mut impl Write) -> std::io::Result<()> {
        let plan = &self.plan;
        match plan.budget {
            Some(budget) => writeln!(out, "\nmemory, of {}", format_bytes(budget))?,
            None => writeln!(out, "\nmemory, not bounded")?,
        }
        let need = plan.need;
        let mut line = |bytes: usize, what: &str| writeln!(out, "  {:>10}  {what}", size(bytes));
        line(need.resident, "weights that every token needs")?;
        line(need.kv, &format!("keys and values of {} positions", plan.context))?;
        line(need.scratch + plan.logits, &format!("working memory, chunks of {} rows", plan.chunk))?;
        line(plan.process, "program and tokenizer")?;
        let (all, count) = (size(plan.all_experts), plan.expert_count);
        match (&plan.placement, plan.slots()) {
            (ExpertPlacement::Resident, _) if count > 0 => {
                line(plan.experts, &format!("all {count} experts"))?
            }
            (ExpertPlacement::Streamed { .. }, Some(slots)) => {
                let what = format!("experts: {slots} slots for {count} of together {all}");
                line(plan.experts, &what)?;
            }
            _ => {}
        }
        line(plan.total(), "in all")
    }

    fn write_token(&self, out: &mut impl Write) -> std::io::Result<()> {
        let (token, bytes) = (self.planning.token(), |bytes: u64| format_bytes(bytes));
        writeln!(out, "\na generated token reads")?;
        writeln!(out, "  {:>10}  of weights that every token needs", bytes(token.shared_bytes))?;
        if token.experts == 0 {
            return Ok(());
        }
        let each = |all: u64| format_bytes(all / token.experts as u64);
        writeln!(
            out,
            "  {:>10}  of experts: {} of {} (in the file {})",
            bytes(token.expert_bytes),
            token.experts,
            each(token.expert_bytes),
            each(token.expert_file_bytes)
        )?;
        if self.estimate.hit_rate.is_none() {
            return Ok(());
        }
        let missed = bytes(self.estimate.missed_bytes as u64);
        writeln!(out, "  {missed:>10}  of them from disk: {} are in a slot", hit_rate(&self.estimate))?;
        self.write_hit_source(out)
    }

    /// Where hit rates come from.
    fn write_hit_source(&self, out: &mut impl Write) -> std::io::Result<()> {
        let policy = self.policy;
        match self.planning.hit_source() {
            HitSource::Trace { tokens } => {
                writeln!(out, "  (hits: policy {policy}, simulated on {tokens} tokens of the trace)")
            }
            HitSource::Uniform => writeln!(
                out,
                "  (hits: policy {policy}, simulated with all experts liked alike; real text hits more often: give a \
--trace)"
            ),
        }
    }

    fn write_speed(&self, out: &mut impl Write) -> std::io::Result<()> {
        let (estimate, rates) = (&self.estimate, &self.rates);
        let gigabytes = |rate: f64| rate / 1e9;
        writeln!(out, "\nmeasured now: memory {:.1} GB/s", gigabytes(rates.memory))?;
        if let (Some(disk), Some(packed)) = (rates.disk, rates.packed) {
            let how = match disk.direct {
                true => "past the page cache",
                false => "through the page cache: this may be memory's rate",
            };
            let rates = [disk, packed].map(|rate| gigabytes(rate.bytes_per_second()));
            // Those of a packed store were measured once.
            let then = match disk == packed {
                true => "ready to compute".to_owned(),
                false => format!("{:.2} GB/s with packing them", rates[1]),
            };
            writeln!(
                out,
                "              experts from disk {:.2} GB/s ({}, {how}), {then}",
                rates[0], disk.reader
            )?;
        }
        let ms = |seconds: f64| seconds * 1e3;
        write!(out, "estimated: {:.2} tokens/s: {:.2} ms", estimate.tokens_per_second, ms(estimate.seconds))?;
        write!(out, " a token = {:.2} ms for weights", ms(estimate.shared_seconds))?;
        if self.planning.token().experts > 0 {
            let experts = ms(estimate.expert_seconds);
            match estimate.hit_rate {
                None => write!(out, " + {experts:.2} ms for experts")?,
                Some(_) => {
                    let disk = ms(estimate.disk_seconds);
                    write!(
                        out,
                        " + the longer of {experts:.2} ms for experts and {disk:.2} ms for the disk"
                    )?;
                }
            }
        }
        writeln!(out)
    }

    fn write_budgets(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(out, "\n      memory     slots  of a cycle      hits  tokens/s")?;
        let cycle = self.planning.token().experts.max(1) as f64;
        for (plan, estimate) in &self.budgets {
            let mark = if *plan == self.plan { "  this plan" } else { "" };
            let (slots, cycles) = match plan.slots() {
                Some(slots) => (slots.to_string(), format!("{:.2}", slots as f64 / cycle)),
                None => ("all".to_owned(), String::new()),
            };
            // What is not needed of a budget is not what it takes.
            let bytes = match plan.slots() {
                Some(slots) if Some(slots) != self.slots => plan.budget.unwrap_or(plan.total() as u64),
                _ => plan.total() as u64,
            };
            writeln!(
                out,
                "{:>12}  {slots:>8}  {cycles:>10}  {:>8}  {:>8.2}{mark}",
                format_bytes(bytes),
                hit_rate(estimate),
                estimate.tokens_per_second
            )?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        let memory = |plan: &MemoryPlan| {
            json!({
                "budget_bytes": plan.budget,
                "resident_bytes": plan.need.resident,
                "kv_bytes": plan.need.kv,
                "scratch_bytes": plan.need.scratch + plan.logits,
                "process_bytes": plan.process,
                "expert_bytes": plan.experts,
                "total_bytes": plan.total(),
                "context": plan.context,
                "prefill_chunk": plan.chunk,
                "placement": placement(plan),
                "slots": plan.slots(),
                "experts": plan.expert_count,
                "all_expert_bytes": plan.all_experts,
            })
        };
        let disk = self.rates.disk.map(|disk| {
            json!({
                "bytes_per_second": disk.bytes_per_second(),
                "bytes_per_second_with_packing": self.rates.packed.map(|packed| packed.bytes_per_second()),
                "reader": disk.reader.name(),
                "direct": disk.direct,
                "bytes": disk.bytes,
                "seconds": disk.time.as_secs_f64(),
            })
        });
        let hits = self.estimate.hit_rate.map(|_| self.planning.hit_source());
        let budgets = self.budgets.iter().map(|(plan, estimate)| {
            json!({"memory": memory(plan), "estimate": estimate, "this_plan": *plan == self.plan})
        });
        json!({
            "model": self.model,
            "kind": self.kind,
            "threads": self.cpu.threads,
            "isa": self.cpu.isa.to_string(),
            "kv": self.kv(),
            "memory": memory(&self.plan),
            "token": self.planning.token(),
            "policy": self.estimate.hit_rate.map(|_| self.policy),
            "hits_from": hits,
            "rates": {"memory_bytes_per_second": self.rates.memory, "disk": disk},
            "estimate": self.estimate,
            "budgets": budgets.collect::<Value>(),
        })
    }
}
