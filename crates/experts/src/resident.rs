//! Experts that are in memory already: leases view the mapped file.

use std::sync::Arc;

use turbospark_formats::{Checkpoint, Source};
use turbospark_program::{
    ExpertError, ExpertLayout, ExpertRequest, ExpertSource, Lease, LeasedBytes, Program,
};

use crate::table::ExpertTable;

/// Every expert as the checkpoint has it, mapped or in memory; nothing is copied and no lease ever waits. Those of a
/// packed store are in its layout.
///
/// For models that fit: when memory is short, touching a mapping thrashes; use a streamed source then.
#[derive(Clone, Debug)]
pub struct ResidentExperts {
    table: Arc<ExpertTable>,
}

impl ResidentExperts {
    /// Finds the experts of `program` in `checkpoint`.
    pub fn open(program: &Program, checkpoint: &Checkpoint) -> Result<ResidentExperts, ExpertError> {
        Ok(ResidentExperts::new(ExpertTable::find(program, checkpoint)?))
    }

    /// The experts of a table.
    pub fn new(table: ExpertTable) -> ResidentExperts {
        ResidentExperts { table: Arc::new(table) }
    }

    /// Which bytes each expert is made of.
    pub fn table(&self) -> &ExpertTable {
        &self.table
    }

    /// Fails if a file of the layer was cut: reading past its end would end the process.
    fn check_whole(&self, layer: usize, ids: &[u32]) -> Result<(), ExpertError> {
        let layer = &self.table.layers()[layer];
        let mut last: Option<&Arc<Source>> = None;
        for &expert in ids {
            for slice in layer.slices(expert as usize) {
                // Mostly all are in one file.
                if last.is_some_and(|last| Arc::ptr_eq(last, slice.source())) {
                    continue;
                }
                last = Some(slice.source());
                slice.source().check_whole().map_err(|error| ExpertError::Read {
                    layer: layer.layer(),
                    expert,
                    path: slice.source().path().to_owned(),
                    error,
                })?;
            }
        }
        Ok(())
    }
}

impl ExpertSource for ResidentExperts {
    fn layout(&self, layer: usize) -> &ExpertLayout {
        self.table.layers()[layer].layout()
    }

    fn packing(&self) -> Option<&str> {
        self.table.packing()
    }

    fn begin<'a>(&'a self, layer: usize, ids: &[u32]) -> Result<Box<dyn ExpertRequest + 'a>, ExpertError> {
        self.table.check(layer, ids)?;
        self.check_whole(layer, ids)?;
        let lease = |&id: &u32| {
            Lease::new(id, Box::new(Mapped { table: self.table.clone(), layer, expert: id as usize }))
        };
        Ok(Box::new(Ready(ids.iter().map(lease).collect::<Vec<_>>().into_iter())))
    }

    fn leases(&self) -> usize {
        usize::MAX
    }
}

/// Leases that need no waiting.
pub(crate) struct Ready(pub(crate) std::vec::IntoIter<Lease>);

impl ExpertRequest for Ready {
    fn next(&mut self) -> Result<Option<Lease>, ExpertError> {
        Ok(self.0.next())
    }

    fn is_ready(&self) -> bool {
        true
    }
}

struct Mapped {
    table: Arc<ExpertTable>,
    layer: usize,
    expert: usize,
}

impl LeasedBytes for Mapped {
    fn slice(&self, index: usize) -> &[u8] {
        let layer = &self.table.layers()[self.layer];
        let slice = &layer.slices(self.expert)[index];
        &slice[..layer.packed_bytes().unwrap_or(slice.len()).min(slice.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::toy::{Toy, is_right};

    #[test]
    fn leases_view_the_source_without_copying() {
        for fused in [false, true] {
            let source = ResidentExperts::new(Toy { fused, ..Toy::new(2, 4) }.in_memory());
            for layer in 0..2 {
                let mut request = source.begin(layer, &[3, 0, 2]).unwrap();
                let mut seen = Vec::new();
                while let Some(lease) = request.next().unwrap() {
                    assert!(is_right(source.table(), layer, &lease));
                    let slice = &source.table().layers()[layer].slices(lease.expert as usize)[0];
                    assert_eq!(lease.slice(0).as_ptr(), slice.as_ptr());
                    let matrices = lease.matrices(source.layout(layer)).unwrap();
                    assert_eq!((matrices.gate.rows(), matrices.down.rows()), (12, 8));
                    seen.push(lease.expert);
                }
                assert_eq!(seen, [3, 0, 2]);
            }
        }
    }

    #[test]
    fn an_unknown_expert_or_layer_is_an_error() {
        let source = ResidentExperts::new(Toy::new(1, 4).in_memory());
        let message = |layer, id| source.begin(layer, &[0, id]).err().map(|error| error.to_string());
        assert_eq!(message(0, 4).as_deref(), Some("layer 0 has no expert 4: it has 4"));
        assert_eq!(message(1, 0).as_deref(), Some("layer 1 has no expert 0: it has 0"));
    }
}
