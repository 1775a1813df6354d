use super::{Content, State};
use crate::policy::ExpertKey;

impl State {
    /// Panics if an invariant does not hold; `reading` are the slots whose memory is with a reader.
    pub fn check(&self, reading: &[usize]) {
        for (index, slot) in self.slots.iter().enumerate() {
            let key = self.residency.key(index);
            match &slot.content {
                Content::Idle(_) => assert!(key.is_none() && slot.leases == 0 && slot.claims.is_empty()),
                Content::Reading => assert!(key.is_some() && slot.leases == 0 && reading.contains(&index)),
                Content::Ready(_) => assert!(key.is_some()),
            }
            if let Some(key) = key {
                assert_eq!(self.residency.find(key), Some(index), "an expert is in one slot");
            }
            for claim in &slot.claims {
                let request = &self.requests[claim];
                let ready = request.ready.contains(&index);
                assert_eq!(ready, matches!(slot.content, Content::Ready(_)));
                assert_ne!(ready, request.reading.contains(&index));
            }
        }
        for (id, request) in &self.requests {
            for &slot in request.ready.iter().chain(&request.reading) {
                assert!(self.slots[slot].claims.contains(id));
                let key = self.residency.key(slot).unwrap();
                assert_eq!(key.layer as usize, request.layer);
                assert!(!request.pending.contains(&key.expert));
            }
        }
    }

    /// Whether the expert has a slot.
    pub fn holds(&self, layer: usize, expert: u32) -> bool {
        self.residency.find(ExpertKey::new(layer, expert)).is_some()
    }
}
