//! Routing that was recorded or made up, and what pools would make of it.

mod belady;
mod contender;
mod file;
mod simulate;
mod statistics;
mod synthetic;

pub use belady::Belady;
pub use contender::{Contender, Contest, UnknownContender};
pub use file::{MOST_EXPERTS, MOST_EXPERTS_OF_A_LAYER, TraceError};
pub use simulate::{Simulated, SimulatedPool, cycle, simulate, simulate_kind};
pub use statistics::{LayerStatistics, TraceStatistics};
pub use synthetic::{Routing, Synthetic};

use crate::policy::{ExpertKey, Shape};

/// Which experts each token used in each layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Model layer of each expert layer.
    layers: Vec<u32>,
    /// Experts of each layer.
    experts: Vec<u32>,
    k: usize,
    /// Token ids.
    tokens: Vec<u32>,
    /// For each token, the pass over the layers it was computed in; never falls.
    passes: Vec<u32>,
    /// [tokens, layers, k]
    ids: Vec<u16>,
    /// [tokens, layers, k], what was foretold of `ids`, `NONE` where nothing was; empty if nothing ever was.
    foretold: Vec<u16>,
}

/// Stands where no expert was foretold; no expert has this id.
const NONE: u16 = u16::MAX;

/// Routes that do not fit their trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteShapeError {
    /// Too many or too few ids.
    #[error("{found} expert ids for {rows} tokens: {expected} are needed")]
    Length {
        /// Tokens.
        rows: usize,
        /// Ids given.
        found: usize,
        /// Ids needed.
        expected: usize,
    },
    /// An expert that the layer does not have.
    #[error("expert {expert} in expert layer {layer}, which has {experts}")]
    Unknown {
        /// Index of the expert layer.
        layer: usize,
        /// The id.
        expert: u32,
        /// Experts of the layer.
        experts: u32,
    },
}

impl Trace {
    /// An empty trace of a model with expert layers at `layers` of so many `experts`, of which a token uses `k`.
    ///
    /// Traces know at most 65535 experts a layer.
    pub fn new(layers: Vec<u32>, experts: Vec<u32>, k: usize) -> Trace {
        debug_assert_eq!(layers.len(), experts.len());
        let empty = Vec::new();
        Trace {
            layers,
            experts,
            k,
            tokens: Vec::new(),
            passes: Vec::new(),
            ids: empty.clone(),
            foretold: empty,
        }
    }

    /// Adds the tokens of one pass over the layers; `routes` is [layers, tokens, k], as executors give it.
    pub fn push(&mut self, tokens: &[u32], routes: &[u32]) -> Result<(), RouteShapeError> {
        let (rows, layers) = (tokens.len(), self.layers.len());
        let expected = rows * layers * self.k;
        if routes.len() != expected {
            return Err(RouteShapeError::Length { rows, found: routes.len(), expected });
        }
        if expected > 0 {
            for (layer, (ids, &experts)) in routes.chunks_exact(rows * self.k).zip(&self.experts).enumerate()
            {
                let known = experts.min(u32::from(u16::MAX));
                if let Some(&expert) = ids.iter().find(|&&id| id >= known) {
                    return Err(RouteShapeError::Unknown { layer, expert, experts });
                }
            }
        }
        for row in 0..rows {
            for layer in 0..layers {
                let at = (layer * rows + row) * self.k;
                self.ids.extend(routes[at..at + self.k].iter().map(|&id| id as u16));
            }
        }
        let pass = self.passes.last().map_or(0, |last| last + 1);
        self.passes.extend(std::iter::repeat_n(pass, rows));
        self.tokens.extend(tokens);
        if !self.foretold.is_empty() {
            self.foretold.resize(self.ids.len(), NONE);
        }
        Ok(())
    }

    /// Adds what was foretold of the last token's experts in an expert layer, before its router chose; of more than
    /// `k` experts the first count.
    ///
    /// # Errors
    /// A layer or an expert that the model does not have; nothing is added then, nor to an empty trace.
    pub fn foretell(&mut self, layer: usize, ids: &[u32]) -> Result<(), RouteShapeError> {
        let experts = self.experts.get(layer).copied().unwrap_or(0);
        let known = experts.min(u32::from(NONE));
        if let Some(&expert) = ids.iter().find(|&&id| id >= known) {
            return Err(RouteShapeError::Unknown { layer, expert, experts });
        }
        let each = self.layers.len() * self.k;
        let Some(start) = self.ids.len().checked_sub(each).filter(|_| layer < self.layers.len()) else {
            return Ok(());
        };
        self.foretold.resize(self.ids.len(), NONE);
        let at = start + layer * self.k;
        for (slot, &id) in self.foretold[at..at + self.k].iter_mut().zip(ids) {
            *slot = id as u16;
        }
        Ok(())
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether no token was recorded.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Experts a token uses in a layer.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Model layer of each expert layer.
    pub fn layers(&self) -> &[u32] {
        &self.layers
    }

    /// The token ids.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The experts that a token used in an expert layer, in the order of its router's liking.
    pub fn routes(&self, token: usize, layer: usize) -> &[u16] {
        let at = (token * self.layers.len() + layer) * self.k;
        &self.ids[at..at + self.k]
    }

    /// What was foretold of them, in no order; none if nothing was.
    pub fn foretold(&self, token: usize, layer: usize) -> Option<&[u16]> {
        let at = (token * self.layers.len() + layer) * self.k;
        let ids = self.foretold.get(at..at + self.k)?;
        let count = ids.iter().take_while(|&&id| id != NONE).count();
        (count > 0).then(|| &ids[..count])
    }

    /// Sizes for policies.
    pub fn shape(&self) -> Shape {
        Shape { experts: self.experts.iter().map(|&n| n as usize).collect() }
    }

    /// The tokens before `at`, and the others.
    pub fn split(&self, at: usize) -> (Trace, Trace) {
        let at = at.min(self.len());
        let part = |range: std::ops::Range<usize>| {
            let each = self.layers.len() * self.k;
            Trace {
                layers: self.layers.clone(),
                experts: self.experts.clone(),
                k: self.k,
                tokens: self.tokens[range.clone()].to_vec(),
                passes: self.passes[range.clone()].to_vec(),
                ids: self.ids[range.start * each..range.end * each].to_vec(),
                foretold: match self.foretold.is_empty() {
                    true => Vec::new(),
                    false => self.foretold[range.start * each..range.end * each].to_vec(),
                },
            }
        };
        (part(0..at), part(at..self.len()))
    }

    /// The same with each token in a pass of its own, as generated tokens are.
    pub fn one_by_one(mut self) -> Trace {
        self.passes = (0..self.len() as u32).collect();
        self
    }

    /// Every use of an expert.
    pub fn uses(&self) -> impl Iterator<Item = ExpertKey> + '_ {
        let layers = self.layers.len().max(1);
        let key = move |(at, ids): (usize, &[u16])| {
            let layer = at % layers;
            ids.iter().map(move |&id| ExpertKey::new(layer, u32::from(id))).collect::<Vec<_>>()
        };
        self.ids.chunks(self.k.max(1)).enumerate().flat_map(key)
    }

    /// What the layers ask a source for, in order: layer, distinct experts, and the first token of the pass.
    pub fn requests(&self) -> impl Iterator<Item = (usize, Vec<u32>, usize)> + '_ {
        let mut start = 0;
        let passes = std::iter::from_fn(move || {
            let pass = *self.passes.get(start)?;
            let length = self.passes[start..].iter().take_while(|&&other| other == pass).count();
            start += length;
            Some(start - length..start)
        });
        passes.flat_map(move |rows| {
            (0..self.layers.len()).map(move |layer| {
                let routes = rows.clone().flat_map(|row| self.routes(row, layer)).map(|&id| u32::from(id));
                let mut ids = Vec::new();
                for id in routes {
                    if !ids.contains(&id) {
                        ids.push(id);
                    }
                }
                (layer, ids, rows.start)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_executors_give_comes_back_token_by_token() {
        let mut trace = Trace::new(vec![1, 3], vec![4, 4], 2);
        trace.push(&[7, 8], &[0, 1, 2, 3, 3, 2, 2, 0]).unwrap();
        trace.push(&[9], &[1, 2, 0, 3]).unwrap();
        assert_eq!(trace.routes(0, 0), [0, 1]);
        assert_eq!(trace.routes(1, 0), [2, 3]);
        assert_eq!(trace.routes(0, 1), [3, 2]);
        let requests: Vec<_> = trace.requests().collect();
        assert_eq!(requests[1], (1, vec![3, 2, 0], 0));
        assert_eq!(requests[2], (0, vec![1, 2], 2));
        assert_eq!(trace.clone().one_by_one().requests().count(), 6);
        let (first, second) = trace.split(2);
        assert_eq!((first.len(), second.tokens()), (2, &[9][..]));
        assert_eq!(trace.uses().filter(|&key| key == ExpertKey::new(1, 3)).count(), 2);
    }

    #[test]
    fn routes_that_do_not_fit_are_refused() {
        let mut trace = Trace::new(vec![0], vec![4], 2);
        assert!(matches!(trace.push(&[1], &[0]), Err(RouteShapeError::Length { expected: 2, .. })));
        assert!(matches!(trace.push(&[1], &[0, 4]), Err(RouteShapeError::Unknown { expert: 4, .. })));
        assert!(trace.is_empty());
    }
}
