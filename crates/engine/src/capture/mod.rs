//! Rows of the model's taps, prompt by prompt, without keeping more than a chunk of them.

mod file;

pub use file::{CaptureError, CaptureFile, CaptureHeader, CapturedPrompt};

use std::ops::RangeInclusive;

use turbospark_program::{Batch, Outputs, Program, Tap, TapRows};

use crate::engine::{Engine, EngineError};
use crate::statistics::Phase;

/// A place in the stream whose rows can be captured; all but the embedding are there in every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TapKind {
    /// The residual stream before the first layer.
    Embedding,
    /// What attention adds to the residual stream.
    AttentionOutput,
    /// What the feed-forward part adds to the residual stream.
    FeedForwardOutput,
    /// The weighted sum of routed experts.
    RoutedOutput,
    /// The dense branch beside routed experts.
    DenseOutput,
    /// The residual stream after a layer.
    LayerOutput,
}

impl TapKind {
    /// All of them.
    pub const ALL: [TapKind; 6] = [
        TapKind::Embedding,
        TapKind::AttentionOutput,
        TapKind::FeedForwardOutput,
        TapKind::RoutedOutput,
        TapKind::DenseOutput,
        TapKind::LayerOutput,
    ];

    /// As taps are printed, without the layer.
    pub fn name(self) -> &'static str {
        match self {
            TapKind::Embedding => "embedding",
            TapKind::AttentionOutput => "attention_output",
            TapKind::FeedForwardOutput => "feed_forward_output",
            TapKind::RoutedOutput => "routed_output",
            TapKind::DenseOutput => "dense_output",
            TapKind::LayerOutput => "layer_output",
        }
    }

    /// The tap of one layer.
    pub fn at(self, layer: usize) -> Tap {
        match self {
            TapKind::Embedding => Tap::Embedding,
            TapKind::AttentionOutput => Tap::AttentionOutput(layer),
            TapKind::FeedForwardOutput => Tap::FeedForwardOutput(layer),
            TapKind::RoutedOutput => Tap::RoutedOutput(layer),
            TapKind::DenseOutput => Tap::DenseOutput(layer),
            TapKind::LayerOutput => Tap::LayerOutput(layer),
        }
    }

    /// The taps of a range of layers; only the embedding is one.
    pub fn over(self, layers: &RangeInclusive<usize>) -> Vec<Tap> {
        match self {
            TapKind::Embedding => vec![Tap::Embedding],
            _ => layers.clone().map(|layer| self.at(layer)).collect(),
        }
    }
}

/// Positions of a prompt whose rows are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Positions {
    /// The last.
    Last,
    /// Every one.
    All,
    /// The one at this place, from 0.
    At(usize),
}

impl Positions {
    /// The positions kept of a prompt of `length` tokens; none if it is too short.
    pub fn of(self, length: usize) -> std::ops::Range<usize> {
        match self {
            Positions::Last => length.saturating_sub(1)..length,
            Positions::All => 0..length,
            Positions::At(position) if position < length => position..position + 1,
            Positions::At(_) => 0..0,
        }
    }
}

impl Engine {
    /// Runs `tokens` as one sequence from position 0 and hands on the rows of `taps` at the positions kept, each row
    /// as one slice, tap after tap. The rows are those of a run that captures nothing.
    ///
    /// # Errors
    /// A tap that the model does not have, and what `sink` returns.
    pub fn capture<E: From<EngineError>>(
        &mut self,
        tokens: &[u32],
        taps: &[Tap],
        positions: Positions,
        mut sink: impl FnMut(usize, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let widths = tap_widths(self.program(), taps)?;
        let sequence = self.states.create();
        let chunk = self.memory().chunk;
        let mut result = Ok(());
        for (index, piece) in tokens.chunks(chunk).enumerate() {
            let start = index * chunk;
            let kept = positions.of(tokens.len());
            let mut batch = Batch::append(&self.states, sequence, piece);
            self.edit(&mut batch);
            for (i, row) in batch.rows.iter_mut().enumerate() {
                row.logits = false;
                row.capture |= kept.contains(&(start + i));
            }
            result = self.capture_chunk(&batch, taps, &widths, |position, row| {
                if kept.contains(&position) { sink(position, row) } else { Ok(()) }
            });
            if result.is_err() {
                break;
            }
        }
        self.states.remove(sequence).map_err(EngineError::from)?;
        result
    }

    fn capture_chunk<E: From<EngineError>>(
        &mut self,
        batch: &Batch,
        taps: &[Tap],
        widths: &[usize],
        mut sink: impl FnMut(usize, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let captured = batch.captured();
        let mut values: Vec<Vec<f32>> = widths.iter().map(|width| vec![0.0; width * captured]).collect();
        let rows = taps.iter().zip(&mut values).map(|(&tap, rows)| TapRows { tap, rows });
        let taps = if captured > 0 { rows.collect() } else { Vec::new() };
        self.step(Phase::Prefill, batch, Outputs { taps, ..Outputs::default() })?;
        let mut row = Vec::new();
        let positions = batch.rows.iter().filter(|row| row.capture).map(|row| row.position as usize);
        for (index, position) in positions.enumerate() {
            row.clear();
            for (values, &width) in values.iter().zip(widths) {
                row.extend_from_slice(&values[index * width..(index + 1) * width]);
            }
            sink(position, &row)?;
        }
        Ok(())
    }
}

/// Widths of taps, or which of them the model does not have.
pub(crate) fn tap_widths(program: &Program, taps: &[Tap]) -> Result<Vec<usize>, EngineError> {
    let width = |&tap: &Tap| {
        let missing = turbospark_program::OutputError::Tap(tap);
        program.tap_width(tap).ok_or(EngineError::Step(missing.into()))
    };
    taps.iter().map(width).collect()
}
