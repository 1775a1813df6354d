//! Places in a program where rows are edited and captured, and the edits.

use std::fmt;
use std::sync::Arc;

use crate::arithmetic::dot;

/// A named place in the stream of a model; layers count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tap {
    /// The residual stream before the first layer.
    Embedding,
    /// What attention adds to the residual stream.
    AttentionOutput(usize),
    /// What the feed-forward part adds to the residual stream.
    FeedForwardOutput(usize),
    /// The weighted sum of routed experts.
    RoutedOutput(usize),
    /// The dense branch beside routed experts.
    DenseOutput(usize),
    /// The residual stream after a layer.
    LayerOutput(usize),
}

impl fmt::Display for Tap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Tap::Embedding => f.write_str("embedding"),
            Tap::AttentionOutput(l) => write!(f, "attention_output.{l}"),
            Tap::FeedForwardOutput(l) => write!(f, "feed_forward_output.{l}"),
            Tap::RoutedOutput(l) => write!(f, "routed_output.{l}"),
            Tap::DenseOutput(l) => write!(f, "dense_output.{l}"),
            Tap::LayerOutput(l) => write!(f, "layer_output.{l}"),
        }
    }
}

/// What an edit does to a row x, with direction d and strength s.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EditKind {
    /// x + s d
    Add,
    /// x + s d, scaled back to the norm of x.
    AddKeepingNorm,
    /// x - s (d . x) d; d must have norm 1.
    Ablate,
    /// x + s (target - d . x) d: at s = 1 the projection becomes `target`; d must have norm 1.
    Clamp {
        /// The projection aimed at.
        target: f32,
    },
}

/// One change of a row at a tap.
#[derive(Clone, Debug, PartialEq)]
pub struct Edit {
    /// Where.
    pub tap: Tap,
    /// How.
    pub kind: EditKind,
    /// Direction, as wide as the tap's register.
    pub direction: Arc<[f32]>,
    /// How much; 0 leaves the row's bits as they are.
    pub strength: f32,
    /// Only rows whose projection on the direction exceeds this are changed.
    pub gate: Option<f32>,
}

/// The edits of a row, applied in order.
pub type EditSet = Vec<Edit>;

impl Edit {
    /// Changes `row` in place.
    pub fn apply(&self, row: &mut [f32]) {
        if self.strength == 0.0 || self.gate.is_some_and(|gate| dot(row, &self.direction) <= gate) {
            return;
        }
        let s = self.strength;
        let add = |row: &mut [f32], s: f32| {
            for (x, d) in row.iter_mut().zip(&*self.direction) {
                *x += s * d;
            }
        };
        match self.kind {
            EditKind::Add => add(row, s),
            EditKind::Ablate => {
                let projection = dot(row, &self.direction);
                add(row, -s * projection);
            }
            EditKind::Clamp { target } => {
                let projection = dot(row, &self.direction);
                add(row, s * (target - projection));
            }
            EditKind::AddKeepingNorm => {
                let before = dot(row, row).sqrt();
                add(row, s);
                let after = dot(row, row).sqrt();
                if after > 0.0 {
                    let factor = before / after;
                    row.iter_mut().for_each(|x| *x *= factor);
                }
            }
        }
    }
}
