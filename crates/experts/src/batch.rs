//! Planning the experts of a batch: each is read once, and computed for all its rows.

/// A row that uses an expert, and at which rank of its choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Use {
    /// Row of the batch.
    pub row: u32,
    /// Place among the row's experts.
    pub rank: u32,
}

/// Which experts the rows of a batch need, and for each expert the rows that need it.
///
/// Filled again for every layer, so that nothing is allocated once it has grown to the largest batch.
#[derive(Clone, Debug, Default)]
pub struct BatchPlan {
    /// Experts needed, rising: neighbours in the file are read one after the other.
    ids: Vec<u32>,
    /// For each expert of the layer, where its uses start.
    starts: Vec<u32>,
    uses: Vec<Use>,
}

/// A route to an expert that the layer does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("row {row} is routed to expert {expert}, but the layer has {experts}")]
pub struct RouteError {
    /// The row.
    pub row: usize,
    /// The id.
    pub expert: u32,
    /// Experts of the layer.
    pub experts: usize,
}

impl BatchPlan {
    /// Plans a layer of `experts` experts for rows of `k` choices: `routes` is [rows, k].
    pub fn fill(&mut self, experts: usize, k: usize, routes: &[u32]) -> Result<(), RouteError> {
        self.ids.clear();
        self.uses.clear();
        self.starts.clear();
        if let Some(at) = routes.iter().position(|&id| id as usize >= experts) {
            self.starts.resize(experts + 1, 0);
            return Err(RouteError { row: at / k.max(1), expert: routes[at], experts });
        }
        // Counted, then placed: the uses of an expert come in the order of rows.
        self.starts.resize(experts + 1, 0);
        for &id in routes {
            self.starts[id as usize] += 1;
        }
        let mut sum = 0;
        for (id, start) in self.starts.iter_mut().enumerate() {
            if *start > 0 && id < experts {
                self.ids.push(id as u32);
            }
            sum += std::mem::replace(start, sum);
        }
        self.uses.resize(routes.len(), Use { row: 0, rank: 0 });
        for (at, &id) in routes.iter().enumerate() {
            let place = &mut self.starts[id as usize];
            self.uses[*place as usize] = Use { row: (at / k.max(1)) as u32, rank: (at % k.max(1)) as u32 };
            *place += 1;
        }
        // Each start now stands where the next expert's should: move them up by one.
        self.starts.rotate_right(1);
        self.starts[0] = 0;
        Ok(())
    }

    /// The experts needed; a source asked for them gives those in memory first.
    pub fn ids(&self) -> &[u32] {
        &self.ids
    }

    /// The rows that use an expert, in order; none for one that is not needed.
    pub fn uses(&self, expert: u32) -> &[Use] {
        let at = expert as usize;
        match (self.starts.get(at), self.starts.get(at + 1)) {
            (Some(&start), Some(&end)) => self.uses.get(start as usize..end as usize).unwrap_or(&[]),
            _ => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn every_use_stands_with_its_expert() {
        let mut random = Random::new(3);
        let mut plan = BatchPlan::default();
        for _ in 0..200 {
            let (experts, k, rows) = (1 + random.below(20), 1 + random.below(4), random.below(30));
            let routes: Vec<u32> = (0..rows * k).map(|_| random.below(experts) as u32).collect();
            plan.fill(experts, k, &routes).unwrap();
            assert!(plan.ids().is_sorted_by(|a, b| a < b));
            let mut seen = 0;
            for &id in plan.ids() {
                assert!(!plan.uses(id).is_empty() && plan.uses(id).is_sorted());
                for at in plan.uses(id) {
                    assert_eq!(routes[at.row as usize * k + at.rank as usize], id);
                    seen += 1;
                }
            }
            assert_eq!(seen, routes.len());
            assert!((0..experts as u32 + 2).all(|id| plan.ids().contains(&id) != plan.uses(id).is_empty()));
        }
    }

    #[test]
    fn an_unknown_expert_is_named() {
        let mut plan = BatchPlan::default();
        plan.fill(4, 2, &[0, 1]).unwrap();
        assert_eq!(plan.fill(4, 2, &[0, 1, 2, 4]), Err(RouteError { row: 1, expert: 4, experts: 4 }));
        assert!(plan.ids().is_empty() && plan.uses(0).is_empty());
    }
}
