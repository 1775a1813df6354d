//! Looking into a step, op by op.

/// Sees the result of each op as a step computes it, and may change it: what follows is then computed from that.
///
/// It serves comparisons in which each op is given the inputs that another executor has.
pub trait Probe {
    /// Rows that op `op` (an index into [`turbospark_program::Program::ops`]) has written.
    fn values(&mut self, op: usize, values: &mut [f32]);

    /// Experts and their weights that op `op` has chosen, k a row.
    fn routes(&mut self, op: usize, ids: &mut [u32], weights: &mut [f32]);
}
