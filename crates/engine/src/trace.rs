//! The one place where the engine steps, with routes recorded where a trace is wanted.

use std::sync::{Mutex, PoisonError};

use turbospark_experts::trace::Trace;
use turbospark_program::{
    Batch, ExpertError, ExpertLayout, ExpertRequest, ExpertSource, Outputs, RoutedRows,
};

use crate::engine::{Engine, EngineError};

impl Engine {
    /// Records the routes of every row computed from now on, until [`Engine::take_trace`]. Where the executor asks
    /// the next layer's router ahead ([`CpuOptions::predict`](crate::CpuOptions)) and a row is computed alone, what
    /// it foretold is recorded beside.
    ///
    /// # Errors
    /// A model without routed experts, or whose layers use different numbers of them.
    pub fn start_trace(&mut self) -> Result<(), EngineError> {
        let layers = self.executor.program().expert_layers();
        let Some(k) = layers.first().map(|layer| layer.k) else {
            return Err(EngineError::Trace(
                "this model has no routed experts, so there are no routes".to_owned(),
            ));
        };
        if let Some(other) = layers.iter().find(|layer| layer.k != k) {
            let reason = format!(
                "layer {} uses {} experts, the first {k}: a trace holds one number",
                other.layer, other.k
            );
            return Err(EngineError::Trace(reason));
        }
        let experts = layers.iter().map(|layer| layer.experts as u32).collect();
        self.trace = Some(Trace::new(layers.iter().map(|layer| layer.layer as u32).collect(), experts, k));
        Ok(())
    }

    /// Ends recording and returns what was recorded.
    pub fn take_trace(&mut self) -> Option<Trace> {
        self.trace.take()
    }

    /// Gives the rows of `batch` the edits of evaluations, and marks them if routes are recorded.
    pub(crate) fn edit(&self, batch: &mut Batch) {
        if !self.edits.is_empty() {
            batch.edits = vec![self.edits.clone()];
        }
        for row in &mut batch.rows {
            row.edits = (!self.edits.is_empty()).then_some(0);
            row.capture = self.trace.is_some();
        }
    }

    /// Runs one batch. With a trace, captured rows are recorded: callers capture all.
    pub(crate) fn traced_step(&mut self, batch: &Batch, mut outputs: Outputs<'_>) -> Result<(), EngineError> {
        let Engine { executor, states, experts, trace, .. } = self;
        let Some(trace) = trace else {
            return Ok(executor.step(batch, states, experts.source(), &mut outputs)?);
        };
        let tokens: Vec<u32> = batch.rows.iter().filter(|row| row.capture).map(|row| row.token).collect();
        let ranks = trace.layers().len() * trace.k() * tokens.len();
        let (mut ids, mut weights) = (vec![0; ranks], vec![0.0; ranks]);
        // The caller's slices are of another lifetime than ours.
        let Outputs { logits, taps, routes } = outputs;
        let ours = RoutedRows { ids: &mut ids, weights: &mut weights };
        let mut outputs = Outputs { logits, taps, routes: Some(routes.unwrap_or(ours)) };
        let source = Listener { source: experts.source(), hints: Mutex::default() };
        executor.step(batch, states, &source, &mut outputs)?;
        let hints = source.hints.into_inner().unwrap_or_else(PoisonError::into_inner);
        let record = || {
            outputs.routes.map_or(Ok(()), |routes| trace.push(&tokens, routes.ids))?;
            // The hints of several rows are not told apart.
            let alone = batch.rows.len() == 1 && tokens.len() == 1;
            hints.iter().filter(|_| alone).try_for_each(|(layer, ids)| trace.foretell(*layer, ids))
        };
        record().map_err(|error| EngineError::Trace(error.to_string()))
    }
}

/// A source whose hints are written down as they pass.
struct Listener<'a> {
    source: &'a dyn ExpertSource,
    hints: Mutex<Vec<(usize, Vec<u32>)>>,
}

impl ExpertSource for Listener<'_> {
    fn layout(&self, layer: usize) -> &ExpertLayout {
        self.source.layout(layer)
    }

    fn packing(&self) -> Option<&str> {
        self.source.packing()
    }

    fn begin<'a>(&'a self, layer: usize, ids: &[u32]) -> Result<Box<dyn ExpertRequest + 'a>, ExpertError> {
        self.source.begin(layer, ids)
    }

    fn hint(&self, layer: usize, ids: &[u32]) {
        self.hints.lock().unwrap_or_else(PoisonError::into_inner).push((layer, ids.to_vec()));
        self.source.hint(layer, ids);
    }

    fn leases(&self) -> usize {
        self.source.leases()
    }
}
