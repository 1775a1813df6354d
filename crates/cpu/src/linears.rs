//! Several linears in one parallel region.

use std::ops::Range;

use crate::activations::Activations;
use crate::isa::Isa;
use crate::linear::{Outputs, linear};
use crate::panels::PanelRef;
use crate::pool::Pool;

/// One linear: out = panels x + bias.
pub(crate) struct Job<'a> {
    pub panels: PanelRef<'a>,
    pub x: &'a Activations,
    pub bias: Option<&'a [f32]>,
    pub out: Outputs<'a>,
}

/// Panels that a thread takes at a time: contiguous runs of 16 and more keep the memory streaming, fewer only
/// where threads would stand idle.
pub(crate) fn grain(panels: usize, threads: usize) -> usize {
    let least = panels.div_ceil(threads).clamp(1, 16);
    (panels / (4 * threads)).clamp(least, 64)
}

impl<'a> Job<'a> {
    /// A linear whose output rows lie one after the other.
    pub fn new(
        panels: PanelRef<'a>,
        x: &'a Activations,
        bias: Option<&'a [f32]>,
        out: &'a mut [f32],
    ) -> Job<'a> {
        let width = panels.layout().rows();
        Job { panels, x, bias, out: Outputs::new(out, x.rows(), width, width) }
    }

    fn len(&self) -> usize {
        self.panels.layout().panels()
    }

    /// Computes some panels.
    ///
    /// # Safety
    ///
    /// No other thread computes any of them meanwhile.
    pub unsafe fn run(&self, isa: Isa, panels: Range<usize>) {
        let columns = self.panels.layout().outputs(panels.clone());
        // SAFETY: panels have columns of their own, and by the contract nobody else has these panels.
        let mut out = unsafe { self.out.part(columns.clone()) };
        linear(isa, &self.panels, panels, self.x, &mut out);
        if let Some(bias) = self.bias {
            for row in 0..out.rows() {
                out.row_mut(row).iter_mut().zip(&bias[columns.clone()]).for_each(|(y, b)| *y += b);
            }
        }
    }
}

/// Runs all jobs, their panels divided among the threads as if they were one matrix.
pub(crate) fn run(pool: &mut Pool, isa: Isa, jobs: &[Option<Job<'_>>]) {
    let total: usize = jobs.iter().flatten().map(Job::len).sum();
    let grain = grain(total, pool.threads());
    pool.run(total, grain, &|_, range| {
        let mut start = 0;
        for job in jobs.iter().flatten() {
            let end = start + job.len();
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                // SAFETY: ranges of a region do not overlap.
                unsafe { job.run(isa, from - start..to - start) };
            }
            start = end;
        }
    });
}
