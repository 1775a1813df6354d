//! Running given tokens and keeping what the model computes: logits, taps, routes.

use turbospark_program::{Batch, Logits, Outputs, RoutedRows, Tap, TapRows};

use crate::engine::{Engine, EngineError};
use crate::statistics::Phase;

/// What to keep of an evaluation.
#[derive(Clone, Debug, Default)]
pub struct Keep {
    /// Positions whose logits are wanted, as a range; none for all.
    pub logits: Option<std::ops::Range<usize>>,
    /// Taps whose rows are kept.
    pub taps: Vec<Tap>,
    /// Whether router choices are kept.
    pub routes: bool,
}

/// Results of [`Engine::evaluate`], rows in the order of positions.
#[derive(Clone, Debug, Default)]
pub struct Evaluation {
    /// [positions wanted, vocabulary]
    pub logits: Vec<f32>,
    /// [positions, width] for each tap asked for.
    pub taps: Vec<(Tap, Vec<f32>)>,
    /// Choices of each layer with routed experts.
    pub routes: Vec<LayerRoutes>,
}

/// Router choices of one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerRoutes {
    /// Model layer.
    pub layer: usize,
    /// Experts a row uses.
    pub k: usize,
    /// [positions, k], in falling order of router logits.
    pub ids: Vec<u32>,
    /// [positions, k], final mixing weights.
    pub weights: Vec<f32>,
}

impl Engine {
    /// Runs `tokens` as one sequence from position 0.
    pub fn evaluate(&mut self, tokens: &[u32], keep: &Keep) -> Result<Evaluation, EngineError> {
        let sequence = self.states.create();
        let mut evaluation = Evaluation {
            taps: keep.taps.iter().map(|&tap| (tap, Vec::new())).collect(),
            routes: self.layer_routes(keep.routes),
            ..Evaluation::default()
        };
        let wanted = keep.logits.clone().unwrap_or(0..tokens.len());
        let mut result = Ok(());
        for (chunk, piece) in tokens.chunks(self.memory().chunk).enumerate() {
            let mut batch = Batch::append(&self.states, sequence, piece);
            self.edit(&mut batch);
            for (i, row) in batch.rows.iter_mut().enumerate() {
                row.logits = wanted.contains(&(chunk * self.memory().chunk + i));
                row.capture |= keep.routes || !keep.taps.is_empty();
            }
            result = self.evaluate_chunk(&batch, &mut evaluation);
            if result.is_err() {
                break;
            }
        }
        self.states.remove(sequence)?;
        result.map(|()| evaluation)
    }

    fn layer_routes(&self, wanted: bool) -> Vec<LayerRoutes> {
        let layers = self.executor.program().expert_layers();
        let empty = |l: &turbospark_program::ExpertLayer| LayerRoutes {
            layer: l.layer,
            k: l.k,
            ..Default::default()
        };
        layers.iter().filter(|_| wanted).map(empty).collect()
    }

    fn evaluate_chunk(&mut self, batch: &Batch, evaluation: &mut Evaluation) -> Result<(), EngineError> {
        let program = self.executor.program();
        let (rows, captured) = (batch.wanted(), batch.captured());
        let done = evaluation.logits.len();
        evaluation.logits.resize(done + rows * program.vocabulary(), 0.0);
        let mut taps = Vec::new();
        for (tap, values) in &mut evaluation.taps {
            let width = program.tap_width(*tap).unwrap_or(0);
            let start = values.len();
            values.resize(start + captured * width, 0.0);
            taps.push(TapRows { tap: *tap, rows: &mut values[start..] });
        }
        let ranks: usize = evaluation.routes.iter().map(|routes| routes.k).sum();
        let (mut ids, mut weights) = (vec![0; ranks * captured], vec![0.0; ranks * captured]);
        let routes = (ranks > 0).then(|| RoutedRows { ids: &mut ids, weights: &mut weights });
        let logits = Logits::All(&mut evaluation.logits[done..]);
        let outputs = Outputs { logits, taps, routes };
        self.step(Phase::Prefill, batch, outputs)?;
        let mut at = 0;
        for layer in &mut evaluation.routes {
            let range = at..at + layer.k * captured;
            layer.ids.extend_from_slice(&ids[range.clone()]);
            layer.weights.extend_from_slice(&weights[range.clone()]);
            at = range.end;
        }
        Ok(())
    }
}
