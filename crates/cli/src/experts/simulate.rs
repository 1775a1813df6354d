//! `turbospark experts simulate`: traces replayed through pools that read nothing.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use turbospark_engine::Trace;
use turbospark_engine::routes::HitCurve;
use turbospark_experts::trace::{Contender, cycle};

use crate::error::CliError;
use crate::terminal::Bar;

/// Replay traces through pools of any policy and size: the share of experts found in a slot
#[derive(Args)]
#[command(
    after_help = "The first half of each trace warms the pool and fits the static set; the second half counts. A cycle \
is the number\nof experts that one token uses: layers x experts a token. optimum is Belady's policy, which knows the \
future.\n\nExamples:\n  turbospark experts simulate book.routing\n  turbospark experts simulate book.routing \
--policy forecast,lru --slots 64,128,256 --json"
)]
pub struct SimulateArgs {
    /// Traces, as experts trace, run --router-trace and capture --router-trace write them
    #[arg(required = true)]
    trace: Vec<PathBuf>,
    /// Policies, or all: lru, per-layer-lru, lfu-ageing, least-stale, forecast, static-set; optimum stands beside
    #[arg(long, value_name = "NAME,..|all", value_delimiter = ',', default_value = "all")]
    policy: Vec<String>,
    /// Sizes of the pool in slots
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    slots: Vec<usize>,
    /// Sizes of the pool in cycles [default: 0.5,1,2,4, unless --slots is given]
    #[arg(long, value_name = "X,..", value_delimiter = ',')]
    cycles: Vec<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Reads a trace that has something in it.
pub fn load(path: &Path) -> Result<Trace, CliError> {
    let trace = Trace::load(path).map_err(|error| CliError::file(path, error))?;
    if cycle(&trace) == 0 || trace.is_empty() {
        return Err(CliError::file(path, "the trace is empty: record one with turbospark experts trace"));
    }
    Ok(trace)
}

/// Hit rates as a table that documents can take as it is.
pub fn write_table(out: &mut impl Write, curves: &[(String, HitCurve)], pad: bool) -> std::io::Result<()> {
    let Some((_, first)) = curves.first() else { return Ok(()) };
    let names: Vec<&str> = first.contenders.iter().map(|contender| contender.name()).collect();
    let width = |name: &str| if pad { name.len().max(5) } else { 0 };
    let trace = curves.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    let size = if pad { 14 } else { 0 };
    write!(out, "| {:trace$} | {:size$} |", "trace", "slots (cycles)")?;
    names.iter().try_for_each(|name| write!(out, " {name:>0$} |", width(name)))?;
    write!(out, "\n|{:-<1$}|{2:-<3$}|", "", trace + 2, "", size + 2)?;
    names.iter().try_for_each(|name| write!(out, "{:-<1$}:|", "", width(name) + 1))?;
    writeln!(out)?;
    for (name, curve) in curves {
        for (&slots, rates) in curve.slots.iter().zip(&curve.rates) {
            let cycles = (slots as f64 / curve.cycle as f64 * 100.0).round() / 100.0;
            write!(out, "| {name:trace$} | {:size$} |", format!("{slots} ({cycles})"))?;
            for (name, rate) in names.iter().zip(rates) {
                write!(out, " {:>1$.1} |", rate * 100.0, width(name))?;
            }
            writeln!(out)?;
        }
    }
    Ok(())
}

impl SimulateArgs {
    pub fn execute(&self) -> Result<(), CliError> {
        let contenders = self.contenders()?;
        let mut curves = Vec::new();
        for path in &self.trace {
            let trace = load(path)?;
            let slots = self.sizes(path, &trace)?;
            let bar = Bar::counting("replaying", slots.len() * contenders.len());
            let curve = HitCurve::of(&trace, contenders.clone(), slots, &|done| bar.set(done));
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            curves.push((name, curve));
        }
        let out = &mut std::io::stdout().lock();
        if self.json {
            let paths = self.trace.iter().map(|path| path.display().to_string());
            let traces: Vec<Value> = paths
                .zip(&curves)
                .map(|(trace, (_, curve))| json!({"trace": trace, "hits": curve}))
                .collect();
            serde_json::to_writer_pretty(&mut *out, &json!({"traces": traces}))
                .map_err(std::io::Error::from)?;
            writeln!(out)?;
            return Ok(());
        }
        Ok(write_table(out, &curves, true)?)
    }

    fn contenders(&self) -> Result<Vec<Contender>, CliError> {
        if self.policy.iter().any(|name| name == "all") {
            return Ok(Contender::all());
        }
        let usage = |error| CliError::Usage(format!("--policy: {error}, or all"));
        let given: Result<Vec<Contender>, CliError> =
            self.policy.iter().map(|name| name.parse().map_err(usage)).collect();
        // What could be had at all always stands beside.
        let mut given = given?;
        given.retain(|&contender| contender != Contender::Optimum);
        given.push(Contender::Optimum);
        Ok(given)
    }

    fn sizes(&self, path: &Path, trace: &Trace) -> Result<Vec<usize>, CliError> {
        let (cycle, all) = (cycle(trace), trace.shape().experts.iter().sum::<usize>());
        if let Some(slots) = self.slots.iter().find(|&&slots| slots == 0 || slots > all) {
            let reason = format!("--slots {slots}: the model of {} has 1 to {all} of them", path.display());
            return Err(CliError::Usage(reason));
        }
        if let Some(cycles) = self.cycles.iter().find(|cycles| !(cycles.is_finite() && **cycles > 0.0)) {
            return Err(CliError::Usage(format!("--cycles {cycles}: a pool has more than zero cycles")));
        }
        let given = self.slots.is_empty() && self.cycles.is_empty();
        let cycles: &[f64] = if given { &[0.5, 1.0, 2.0, 4.0] } else { &self.cycles };
        let of_cycles = cycles.iter().map(|cycles| ((cycle as f64 * cycles).round() as usize).clamp(1, all));
        Ok(self.slots.iter().copied().chain(of_cycles).collect())
    }
}
