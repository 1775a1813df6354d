//! Which expert leaves when another needs its slot.

mod least_stale;
mod lfu_ageing;
mod lru;
mod per_layer_lru;
mod static_hot_set;

use std::fmt;
use std::str::FromStr;

pub use least_stale::LeastStale;
pub use lfu_ageing::LfuAgeing;
pub use lru::Lru;
pub use per_layer_lru::PerLayerLru;
pub use static_hot_set::StaticHotSet;

/// An expert of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertKey {
    /// Index of the expert layer.
    pub layer: u32,
    /// The expert's id in it.
    pub expert: u32,
}

impl ExpertKey {
    /// Expert `expert` of expert layer `layer`.
    pub fn new(layer: usize, expert: u32) -> ExpertKey {
        ExpertKey { layer: layer as u32, expert }
    }
}

/// Sizes that policies reckon with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Experts of each layer.
    pub experts: Vec<usize>,
}

/// Where in the run of a model a request is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Passes over the layers so far: tokens, or chunks of a prompt.
    pub pass: u64,
    /// Index of the expert layer.
    pub layer: u32,
}

/// What keeping an expert is worth; of the experts that may leave, the least worth does.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Worth(pub f64, pub f64);

/// Decides which expert leaves.
pub trait Policy: Send {
    /// An expert was asked for, in a slot or not.
    fn used(&mut self, key: ExpertKey, now: Moment);

    /// An expert got a slot.
    fn entered(&mut self, _key: ExpertKey) {}

    /// An expert lost its slot.
    fn left(&mut self, _key: ExpertKey) {}

    /// The worth of an expert in a slot.
    fn worth(&self, key: ExpertKey, now: Moment) -> Worth;
}

/// A value for every expert of a model.
#[derive(Clone, Debug)]
pub(crate) struct PerExpert<T>(Vec<Vec<T>>);

impl<T: Clone> PerExpert<T> {
    pub fn new(shape: &Shape, value: T) -> PerExpert<T> {
        PerExpert(shape.experts.iter().map(|&n| vec![value.clone(); n]).collect())
    }

    pub fn get(&self, key: ExpertKey) -> &T {
        &self.0[key.layer as usize][key.expert as usize]
    }

    pub fn get_mut(&mut self, key: ExpertKey) -> &mut T {
        &mut self.0[key.layer as usize][key.expert as usize]
    }
}

/// The policies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PolicyKind {
    /// [`Lru`]
    Lru,
    /// [`PerLayerLru`]
    PerLayerLru,
    /// [`LfuAgeing`]
    #[default]
    LfuAgeing,
    /// [`LeastStale`]
    LeastStale,
}

impl PolicyKind {
    /// Every policy that needs nothing but the run itself.
    pub const ONLINE: [PolicyKind; 4] =
        [PolicyKind::Lru, PolicyKind::PerLayerLru, PolicyKind::LfuAgeing, PolicyKind::LeastStale];

    /// A policy of this kind for a model of this shape.
    pub fn make(self, shape: &Shape) -> Box<dyn Policy> {
        match self {
            PolicyKind::Lru => Box::new(Lru::new(shape)),
            PolicyKind::PerLayerLru => Box::new(PerLayerLru::new(shape)),
            PolicyKind::LfuAgeing => Box::new(LfuAgeing::new(shape)),
            PolicyKind::LeastStale => Box::new(LeastStale::new(shape)),
        }
    }

    /// The name as an option spells it.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Lru => "lru",
            PolicyKind::PerLayerLru => "per-layer-lru",
            PolicyKind::LfuAgeing => "lfu-ageing",
            PolicyKind::LeastStale => "least-stale",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no policy has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no replacement policy is called {0}: lru, per-layer-lru, lfu-ageing and least-stale are")]
pub struct UnknownPolicy(String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<PolicyKind, UnknownPolicy> {
        let found = PolicyKind::ONLINE.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}
