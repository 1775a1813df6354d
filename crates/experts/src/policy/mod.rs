//! Which expert leaves when another needs its slot.

mod forecast;
mod least_stale;
mod lfu_ageing;
mod lru;
mod per_layer_lru;
mod static_hot_set;

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

pub use forecast::Forecast;
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
#[derive(Clone, Copy, Debug)]
pub struct Worth(pub f64, pub f64);

impl Ord for Worth {
    fn cmp(&self, other: &Worth) -> Ordering {
        self.0.total_cmp(&other.0).then(self.1.total_cmp(&other.1))
    }
}

impl PartialOrd for Worth {
    fn partial_cmp(&self, other: &Worth) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Worth {
    fn eq(&self, other: &Worth) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Worth {}

/// Decides which expert leaves.
pub trait Policy: Send {
    /// An expert was asked for, in a slot or not.
    fn used(&mut self, key: ExpertKey, now: Moment);

    /// All that a layer uses in this pass, after [`Policy::used`] for each.
    fn chosen(&mut self, _layer: usize, _ids: &[u32]) {}

    /// An expert got a slot.
    fn entered(&mut self, _key: ExpertKey) {}

    /// An expert lost its slot.
    fn left(&mut self, _key: ExpertKey) {}

    /// The worth of an expert in a slot.
    ///
    /// Which of two experts of one layer is worth less may change only when that layer is used, by [`Policy::used`]
    /// or [`Policy::chosen`]: a layer is put in order then, and choosing looks at the first of each.
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

    pub fn layer(&self, layer: usize) -> &[T] {
        &self.0[layer]
    }

    pub fn layer_mut(&mut self, layer: usize) -> &mut [T] {
        &mut self.0[layer]
    }

    pub fn get_mut(&mut self, key: ExpertKey) -> &mut T {
        &mut self.0[key.layer as usize][key.expert as usize]
    }
}

/// How many layers run before `layer` does again.
fn layers_until(layer: u32, now: Moment, layers: u32) -> f64 {
    let wraps = if layer > now.layer { 0 } else { layers };
    f64::from((layer + wraps).saturating_sub(now.layer + 1))
}

/// The policies by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum PolicyKind {
    /// [`Lru`]
    Lru,
    /// [`PerLayerLru`]
    PerLayerLru,
    /// [`LfuAgeing`]
    LfuAgeing,
    /// [`LeastStale`]
    LeastStale,
    /// [`Forecast`]; docs/experts-policies.md has the measurements that made it the default.
    #[default]
    Forecast,
}

impl PolicyKind {
    /// Every policy that needs nothing but the run itself.
    pub const ONLINE: [PolicyKind; 5] = [
        PolicyKind::Lru,
        PolicyKind::PerLayerLru,
        PolicyKind::LfuAgeing,
        PolicyKind::LeastStale,
        PolicyKind::Forecast,
    ];

    /// A policy of this kind for a model of this shape.
    pub fn make(self, shape: &Shape) -> Box<dyn Policy> {
        match self {
            PolicyKind::Lru => Box::new(Lru::new(shape)),
            PolicyKind::PerLayerLru => Box::new(PerLayerLru::new(shape)),
            PolicyKind::LfuAgeing => Box::new(LfuAgeing::new(shape)),
            PolicyKind::LeastStale => Box::new(LeastStale::new(shape)),
            PolicyKind::Forecast => Box::new(Forecast::new(shape)),
        }
    }

    /// The name as an option spells it.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Lru => "lru",
            PolicyKind::PerLayerLru => "per-layer-lru",
            PolicyKind::LfuAgeing => "lfu-ageing",
            PolicyKind::LeastStale => "least-stale",
            PolicyKind::Forecast => "forecast",
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
#[error("no replacement policy is called {0}: lru, per-layer-lru, lfu-ageing, least-stale and forecast are")]
pub struct UnknownPolicy(String);

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<PolicyKind, UnknownPolicy> {
        let found = PolicyKind::ONLINE.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| UnknownPolicy(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in PolicyKind::ONLINE {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("mru".parse::<PolicyKind>().unwrap_err().to_string().contains("least-stale"));
    }

    /// The expert of `held` that leaves after a layer used `uses` again and again.
    fn leaver(kind: PolicyKind, passes: &[[u32; 2]], held: &[ExpertKey]) -> ExpertKey {
        let shape = Shape { experts: vec![8; 2] };
        let mut policy = kind.make(&shape);
        let mut now = Moment::default();
        held.iter().for_each(|&key| policy.entered(key));
        for (pass, ids) in passes.iter().enumerate() {
            for layer in 0..2 {
                now = Moment { pass: pass as u64, layer: layer as u32 };
                ids.iter().for_each(|&id| policy.used(ExpertKey::new(layer, id), now));
                policy.chosen(layer, ids);
            }
        }
        let worth = |key: &&ExpertKey| policy.worth(**key, now);
        *held.iter().min_by_key(worth).unwrap()
    }

    #[test]
    fn each_policy_lets_go_of_what_it_says() {
        let passes = [[1, 2], [1, 2], [1, 2], [3, 4]];
        let key = ExpertKey::new;
        let held = [key(0, 1), key(0, 3), key(1, 4), key(1, 2)];
        assert_eq!(leaver(PolicyKind::Lru, &passes, &held), key(0, 1));
        assert_eq!(
            leaver(PolicyKind::LfuAgeing, &passes, &held),
            key(1, 4),
            "used once, and its layer is last"
        );
        assert_eq!(leaver(PolicyKind::LeastStale, &passes, &held), key(1, 2), "stale, and its layer is last");
        let crowded = [key(0, 1), key(1, 1), key(1, 3), key(1, 4)];
        assert_eq!(leaver(PolicyKind::PerLayerLru, &passes, &crowded), key(1, 1));
        assert_eq!(leaver(PolicyKind::Forecast, &passes, &[key(0, 1), key(0, 5)]), key(0, 5), "never used");
    }
}
