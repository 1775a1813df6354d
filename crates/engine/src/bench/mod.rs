//! Measuring speed: prompts and generation of random tokens, and what the machine gives beside them.

mod disk;
mod summary;
mod work;

use std::fmt;
use std::time::{Duration, Instant};

use turbospark_cpu::{Ceilings, Timings};
use turbospark_formats::Checkpoint;
use turbospark_program::{Batch, Outputs, Program, SequenceId, Tap, TapRows};

pub use summary::{Rate, Statistic, StreamedShare, Summary, median};
pub use work::{Amount, Work};

use self::disk::Disk;
use crate::capture::tap_widths;
use crate::engine::{Engine, EngineError, ExecutorKind};
use crate::statistics::{Phase, PhaseStatistics};

/// What is measured; displayed with the name that llama-bench gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// Reading a prompt.
    Prompt {
        /// Its tokens.
        tokens: usize,
        /// Positions before it.
        depth: usize,
    },
    /// Generating one token after the other.
    Generate {
        /// How many.
        tokens: usize,
        /// Positions before the first.
        depth: usize,
    },
}

impl Test {
    /// Tokens that are computed while the time is taken.
    pub fn tokens(&self) -> usize {
        match *self {
            Test::Prompt { tokens, .. } | Test::Generate { tokens, .. } => tokens,
        }
    }

    /// Positions before them.
    pub fn depth(&self) -> usize {
        match *self {
            Test::Prompt { depth, .. } | Test::Generate { depth, .. } => depth,
        }
    }

    /// Positions that it needs.
    pub fn positions(&self) -> usize {
        self.tokens().saturating_add(self.depth())
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Test::Prompt { tokens, .. } => write!(f, "pp{tokens}")?,
            Test::Generate { tokens, .. } => write!(f, "tg{tokens}")?,
        }
        match self.depth() {
            0 => Ok(()),
            depth => write!(f, " @ d{depth}"),
        }
    }
}

/// One run of a test.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Wall time of its steps.
    pub time: Duration,
    /// Where the time went, if the executor knows.
    pub timings: Option<Timings>,
    /// What became of streamed experts; none if all are in memory.
    pub streamed: Option<PhaseStatistics>,
    /// Bytes a second that memory gave before, between and after the steps.
    pub read: Vec<f64>,
    /// Multiply-adds a second that the cores gave, likewise.
    pub multiply_adds: Vec<f64>,
    /// Bytes of experts a second that the disk gave, likewise; empty if experts are not streamed past the page cache.
    pub disk: Vec<f64>,
}

/// Tokens that are generated between two readings of what memory gives: machines drift within seconds.
const SLICE: usize = 16;

/// Runs tests on an engine, with the machine's ceilings measured in between.
///
/// Tokens are random, the same in every run: what a model would choose itself soon repeats, and then always asks for
/// the same experts.
pub struct Bench<'e> {
    engine: &'e mut Engine,
    ceilings: Option<Ceilings>,
    disk: Option<Disk>,
    random: u32,
    logits: Vec<f32>,
    taps: Vec<Captured>,
}

/// A tap that is read at the last position of every step.
struct Captured {
    tap: Tap,
    row: Vec<f32>,
}

impl<'e> Bench<'e> {
    /// Ceilings are measured with the threads and the instruction set of the CPU executor, not for the reference.
    pub fn new(engine: &'e mut Engine) -> Result<Bench<'e>, EngineError> {
        let ceilings = match engine.options().executor {
            ExecutorKind::Cpu => Some(Ceilings::new(&engine.options().cpu).map_err(EngineError::Ceilings)?),
            ExecutorKind::Reference => None,
        };
        let disk = Disk::find(engine);
        Ok(Bench { engine, ceilings, disk, random: 1, logits: Vec::new(), taps: Vec::new() })
    }

    /// Bytes that measuring the machine takes beside the model.
    ///
    /// # Errors
    /// Experts that are not as the program needs them.
    pub fn bytes(
        program: &Program,
        checkpoint: &Checkpoint,
        kind: ExecutorKind,
    ) -> Result<usize, EngineError> {
        Ok(match kind {
            ExecutorKind::Cpu => Ceilings::BYTES + Disk::bytes(program, checkpoint)?,
            ExecutorKind::Reference => 0,
        })
    }

    /// From now on the rows of `taps` are captured at the last position of every step, which the time includes.
    ///
    /// # Errors
    /// A tap that the model does not have.
    pub fn capture(&mut self, taps: &[Tap]) -> Result<(), EngineError> {
        let widths = tap_widths(self.engine.program(), taps)?;
        let captured = |(&tap, width)| Captured { tap, row: vec![0.0; width] };
        self.taps = taps.iter().zip(widths).map(captured).collect();
        Ok(())
    }

    /// Warms up and runs `test` `repeat` times; `report` is called after each.
    pub fn run(
        &mut self,
        test: Test,
        repeat: usize,
        mut report: impl FnMut(usize),
    ) -> Result<Vec<Sample>, EngineError> {
        let start = self.engine.states.create();
        let result = self.repeat(start, test, repeat, &mut report);
        self.engine.states.remove(start)?;
        result
    }

    fn repeat(
        &mut self,
        start: SequenceId,
        test: Test,
        repeat: usize,
        report: &mut impl FnMut(usize),
    ) -> Result<Vec<Sample>, EngineError> {
        self.prompt(start, test.depth())?;
        let warm_up = match test {
            Test::Prompt { .. } => test,
            Test::Generate { tokens, depth } => Test::Generate { tokens: tokens.min(2), depth },
        };
        self.sample(start, warm_up)?;
        let mut samples = Vec::with_capacity(repeat);
        for done in 1..=repeat {
            samples.push(self.sample(start, test)?);
            report(done);
        }
        Ok(samples)
    }

    /// Runs a test on a copy of `start`, which is left as it is.
    fn sample(&mut self, start: SequenceId, test: Test) -> Result<Sample, EngineError> {
        let sequence = self.engine.states.fork(start)?;
        let mut sample = Sample::default();
        self.engine.executor.take_timings();
        self.engine.take_statistics();
        let result = self.timed(sequence, test, &mut sample);
        sample.timings = self.engine.executor.take_timings();
        let statistics = self.engine.take_statistics();
        sample.streamed = self.engine.streamed().map(|_| match test {
            Test::Prompt { tokens: 2.., .. } => statistics.prefill,
            _ => statistics.decode,
        });
        self.engine.states.remove(sequence)?;
        result.map(|()| sample)
    }

    fn timed(&mut self, sequence: SequenceId, test: Test, sample: &mut Sample) -> Result<(), EngineError> {
        self.measure_ceilings(sample);
        match test {
            Test::Prompt { tokens, .. } => {
                let time = Instant::now();
                self.prompt(sequence, tokens)?;
                sample.time += time.elapsed();
                self.measure_ceilings(sample);
            }
            Test::Generate { tokens, .. } => {
                for start in (0..tokens).step_by(SLICE) {
                    let time = Instant::now();
                    for _ in start..tokens.min(start + SLICE) {
                        self.prompt(sequence, 1)?;
                    }
                    sample.time += time.elapsed();
                    self.measure_ceilings(sample);
                }
            }
        }
        Ok(())
    }

    fn measure_ceilings(&mut self, sample: &mut Sample) {
        if let Some(ceilings) = &mut self.ceilings {
            sample.read.push(ceilings.read());
            sample.multiply_adds.push(ceilings.multiply_adds());
        }
        sample.disk.extend(self.disk.as_ref().and_then(Disk::rate));
    }

    /// Appends random tokens in chunks; logits are wanted of the last.
    fn prompt(&mut self, sequence: SequenceId, tokens: usize) -> Result<(), EngineError> {
        let vocabulary = self.engine.program().vocabulary();
        let chunk = self.engine.memory().chunk;
        let phase = if tokens > 1 { Phase::Prefill } else { Phase::Decode };
        self.logits.resize(vocabulary, 0.0);
        let mut left = tokens;
        while left > 0 {
            let count = left.min(chunk);
            left -= count;
            let tokens: Vec<u32> = (0..count).map(|_| random(&mut self.random, vocabulary)).collect();
            let mut batch = Batch::append(&self.engine.states, sequence, &tokens);
            self.engine.edit(&mut batch);
            batch.rows[count - 1].logits = left == 0;
            let logits = if left == 0 { &mut self.logits[..] } else { &mut [] };
            batch.rows[count - 1].capture |= !self.taps.is_empty();
            let taps =
                self.taps.iter_mut().map(|captured| TapRows { tap: captured.tap, rows: &mut captured.row });
            let outputs = Outputs { taps: taps.collect(), ..Outputs::logits(logits) };
            self.engine.step(phase, &batch, outputs)?;
        }
        Ok(())
    }
}

/// A token id: xorshift, whose upper bits do not repeat soon.
fn random(state: &mut u32, vocabulary: usize) -> u32 {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    ((u64::from(*state) * vocabulary as u64) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_named_as_llama_bench_names_them() {
        assert_eq!(Test::Prompt { tokens: 512, depth: 0 }.to_string(), "pp512");
        assert_eq!(Test::Generate { tokens: 128, depth: 4096 }.to_string(), "tg128 @ d4096");
    }

    #[test]
    fn random_tokens_are_of_the_vocabulary() {
        let mut state = 1;
        let mut seen = [0; 7];
        (0..7000).for_each(|_| seen[random(&mut state, 7) as usize] += 1);
        assert!(seen.iter().all(|&count| (800..1200).contains(&count)), "{seen:?}");
    }
}
