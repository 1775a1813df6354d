//! Shows an answer as it is made: the answer on standard output, all else on standard error.

use std::io::Write;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;
use turbospark_engine::memory_limit::format_bytes;
use turbospark_engine::{Answer, Finish, PhaseStatistics, RunStatistics, Timings, Update};
use turbospark_text::Event;

use crate::error::CliError;
use crate::terminal::{Bar, Dim};

/// What becomes of a model's reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Reasoning {
    /// Dimmed on standard error
    Show,
    Hide,
}

/// Set by Ctrl-C: the answer being made ends.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C ends an answer instead of the program; a second one ends the program.
pub fn catch_interrupts() {
    // Where a handler is set already, the first one does the same.
    let _ = ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    });
}

/// Shows one answer.
pub struct Printer {
    reasoning: Reasoning,
    quiet: bool,
    bar: Option<Bar>,
    dim: Dim,
    /// Whether the answer's last character ended a line.
    line_open: bool,
    failure: Option<std::io::Error>,
}

impl Printer {
    /// `quiet` shows nothing of the answer, only progress.
    pub fn new(reasoning: Reasoning, quiet: bool) -> Printer {
        INTERRUPTED.store(false, Ordering::Relaxed);
        Printer { reasoning, quiet, bar: None, dim: Dim::new(), line_open: false, failure: None }
    }

    /// Takes an update; breaks after Ctrl-C or when nobody reads the output any more.
    pub fn update(&mut self, update: Update) -> ControlFlow<()> {
        match update {
            Update::Prefill { done, total } if done < total => {
                self.bar.get_or_insert_with(|| Bar::counting("reading the prompt", total)).set(done);
            }
            Update::Prefill { .. } => self.bar = None,
            Update::Event(event) if !self.quiet => {
                if let Err(error) = self.event(&event) {
                    self.failure = Some(error);
                }
            }
            Update::Event(_) => {}
        }
        if self.failure.is_some() || INTERRUPTED.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    fn event(&mut self, event: &Event) -> std::io::Result<()> {
        match event {
            Event::Reasoning(text) if self.reasoning == Reasoning::Show => self.dim.write(text),
            Event::Reasoning(_) => Ok(()),
            Event::ToolCall { name, arguments } => {
                self.dim.end()?;
                self.dim.write(&format!("[calls {name} with {arguments}]"))?;
                self.dim.end()
            }
            Event::Answer(text) => {
                self.dim.end()?;
                let mut out = std::io::stdout().lock();
                out.write_all(text.as_bytes())?;
                self.line_open = !text.ends_with('\n');
                out.flush()
            }
        }
    }

    /// Ends the answer's line.
    pub fn finish(mut self) -> Result<(), CliError> {
        self.bar = None;
        self.dim.end()?;
        if let Some(error) = self.failure {
            return Err(error.into());
        }
        if self.line_open {
            writeln!(std::io::stdout())?;
        }
        Ok(())
    }
}

/// The closing line: tokens and rates.
pub fn closing_line(answer: &Answer, seed: u64) -> String {
    let Timings { prompt_tokens, reused_tokens, generated_tokens, .. } = answer.timings;
    let reused = if reused_tokens > 0 { format!(" ({reused_tokens} kept)") } else { String::new() };
    let why = match answer.finish_reason {
        Finish::Stop => "",
        Finish::Length => ", ended by length",
        Finish::Cancelled => ", cancelled",
    };
    format!(
        "[{prompt_tokens} prompt tokens{reused} at {:.1}/s, {generated_tokens} generated at {:.1}/s, seed {seed}{why}]",
        answer.timings.prefill_rate(),
        answer.timings.decode_rate(),
    )
}

/// Where the time went, a line for each phase.
pub fn statistics_table(statistics: &RunStatistics) -> String {
    let mut table = String::new();
    let phases = [("prompt", &statistics.prefill), ("answer", &statistics.decode)];
    for (name, phase) in phases.into_iter().filter(|(_, phase)| phase.steps > 0) {
        table += &phase_line(name, phase);
    }
    table
}

fn phase_line(name: &str, phase: &PhaseStatistics) -> String {
    let PhaseStatistics { steps, rows, compute_seconds, waiting_seconds, .. } = phase;
    let mut line = format!("{name}: {rows} tokens in {steps} steps, {compute_seconds:.2} s of computing");
    if let Some(rate) = phase.hit_rate() {
        let PhaseStatistics { hits, misses, bytes_read, hinted, hints_read, hints_used, .. } = phase;
        line += &format!(
            ", {waiting_seconds:.2} s of waiting for the disk; experts: {hits} hits, {misses} misses ({:.1} %), {} read \
in {:.2} s, packed in {:.2} s; hints: {hinted}, {hints_read} read, {hints_used} used",
            100.0 * rate,
            format_bytes(*bytes_read),
            phase.reading_seconds,
            phase.packing_seconds,
        );
    }
    line + "\n"
}
