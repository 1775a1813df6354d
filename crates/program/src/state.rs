//! What is remembered of sequences: their length and the pages that hold their keys and values.

use std::collections::VecDeque;
use std::fmt;

use crate::batch::Batch;
use crate::pages::{PAGE_POSITIONS, PageCopy, PageId, PagePool};
use crate::program::{KvLayer, Program};

/// A sequence of a [`States`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SequenceId(u32);

impl fmt::Display for SequenceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A change of state that is not possible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// No such sequence.
    #[error("there is no sequence {0}")]
    Unknown(SequenceId),
    /// Truncation to more than there is.
    #[error("sequence {sequence} has {length} positions, it cannot be cut to {wanted}")]
    TooShort {
        /// The sequence.
        sequence: SequenceId,
        /// Its length.
        length: u32,
        /// The length asked for.
        wanted: u32,
    },
    /// Positions a sliding window has dropped would be needed again.
    #[error(
        "sequence {sequence} cannot go back to position {wanted}: layer {layer} keeps a sliding window and \
         has freed what lies before position {kept}; start a new sequence"
    )]
    WindowPassed {
        /// The sequence.
        sequence: SequenceId,
        /// The length asked for.
        wanted: u32,
        /// Layer whose window has moved on.
        layer: usize,
        /// First position still held.
        kept: u32,
    },
    /// The key-value memory is full.
    #[error(
        "no key-value page is left for layer {layer}: {pages} pages of {PAGE_POSITIONS} positions are in use"
    )]
    Full {
        /// The layer.
        layer: usize,
        /// Its pages.
        pages: usize,
    },
}

/// The pages of one cache that a sequence holds: pages `first ..` counted in whole pages from position 0.
#[derive(Clone, Debug, Default)]
struct PageTable {
    first: usize,
    pages: VecDeque<PageId>,
}

impl PageTable {
    fn end(&self) -> usize {
        self.first + self.pages.len()
    }
}

#[derive(Clone, Debug)]
struct SequenceState {
    length: u32,
    tables: Vec<PageTable>,
}

/// The state of all sequences: lengths and page tables. The executor keeps the pages' memory.
///
/// A sequence can be appended to (by a batch), cut, and forked; a fork shares pages until one of the two is
/// appended to, so a fork that is kept untouched is a snapshot at the cost of its page table.
#[derive(Clone, Debug)]
pub struct States {
    caches: Vec<KvLayer>,
    pools: Vec<PagePool>,
    sequences: Vec<Option<SequenceState>>,
    copies: Vec<PageCopy>,
}

impl States {
    /// No sequences yet; `pages` bounds the pages of each cache.
    pub fn new(program: &Program, pages: Option<usize>) -> States {
        let caches = program.kv_layers().to_vec();
        let pools = caches.iter().map(|_| PagePool::new(pages)).collect();
        States { caches, pools, sequences: Vec::new(), copies: Vec::new() }
    }

    /// An empty sequence.
    pub fn create(&mut self) -> SequenceId {
        let tables = self.caches.iter().map(|_| PageTable::default()).collect();
        self.insert(SequenceState { length: 0, tables })
    }

    fn insert(&mut self, state: SequenceState) -> SequenceId {
        let free = self.sequences.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.sequences.push(None);
            self.sequences.len() - 1
        });
        self.sequences[index] = Some(state);
        SequenceId(index as u32)
    }

    fn sequence(&self, id: SequenceId) -> Option<&SequenceState> {
        self.sequences.get(id.0 as usize)?.as_ref()
    }

    /// Positions in the sequence.
    pub fn length(&self, id: SequenceId) -> Option<u32> {
        self.sequence(id).map(|state| state.length)
    }

    /// The page of `cache` that holds `position`, none where a window has passed it or it was never appended.
    pub fn page(&self, id: SequenceId, cache: usize, position: u32) -> Option<PageId> {
        let table = self.sequence(id)?.tables.get(cache)?;
        let page = (position as usize / PAGE_POSITIONS).checked_sub(table.first)?;
        table.pages.get(page).copied()
    }

    /// Pages that the executor must have memory for in `cache`.
    pub fn pages(&self, cache: usize) -> usize {
        self.pools[cache].high_water()
    }

    /// Pages of `cache` that sequences hold now.
    pub fn pages_in_use(&self, cache: usize) -> usize {
        self.pools[cache].in_use()
    }

    /// Another sequence with the same past.
    pub fn fork(&mut self, id: SequenceId) -> Result<SequenceId, StateError> {
        let state = self.sequence(id).ok_or(StateError::Unknown(id))?.clone();
        for (table, pool) in state.tables.iter().zip(&mut self.pools) {
            table.pages.iter().for_each(|&page| pool.share(page));
        }
        Ok(self.insert(state))
    }

    /// Forgets a sequence.
    pub fn remove(&mut self, id: SequenceId) -> Result<(), StateError> {
        let slot = self.sequences.get_mut(id.0 as usize).ok_or(StateError::Unknown(id))?;
        let state = slot.take().ok_or(StateError::Unknown(id))?;
        for (table, pool) in state.tables.iter().zip(&mut self.pools) {
            table.pages.iter().for_each(|&page| pool.release(page));
        }
        Ok(())
    }

    /// Cuts a sequence to its first `length` positions.
    pub fn truncate(&mut self, id: SequenceId, length: u32) -> Result<(), StateError> {
        let state = self.sequence(id).ok_or(StateError::Unknown(id))?;
        if length > state.length {
            return Err(StateError::TooShort { sequence: id, length: state.length, wanted: length });
        }
        for (table, cache) in state.tables.iter().zip(&self.caches) {
            let kept = table.first * PAGE_POSITIONS;
            if first_visible(cache.window, length) < kept {
                let (layer, kept) = (cache.layer, kept as u32);
                return Err(StateError::WindowPassed { sequence: id, wanted: length, layer, kept });
            }
        }
        self.cut(id, length);
        Ok(())
    }

    /// Gives back pages past `length` positions.
    fn cut(&mut self, id: SequenceId, length: u32) {
        let Some(state) = self.sequences[id.0 as usize].as_mut() else { return };
        state.length = length;
        let pages = (length as usize).div_ceil(PAGE_POSITIONS);
        for (table, pool) in state.tables.iter_mut().zip(&mut self.pools) {
            while table.end() > pages {
                match table.pages.pop_back() {
                    Some(page) => pool.release(page),
                    None => break,
                }
            }
        }
    }

    /// Makes room for the rows of a checked batch. Executors call it at the start of a step, then do
    /// [`States::take_copies`], and [`States::commit`] or [`States::rollback`] at its end.
    pub fn prepare(&mut self, batch: &Batch) -> Result<(), StateError> {
        for row in &batch.rows {
            if let Err(error) = self.extend(row.sequence, row.position) {
                self.rollback(batch);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ensures a page of its own for `position` in every cache.
    fn extend(&mut self, id: SequenceId, position: u32) -> Result<(), StateError> {
        let state = self.sequences[id.0 as usize].as_mut().ok_or(StateError::Unknown(id))?;
        let wanted = position as usize / PAGE_POSITIONS;
        for (cache, (table, pool)) in state.tables.iter_mut().zip(&mut self.pools).enumerate() {
            let layer = self.caches[cache].layer;
            let full = |pool: &PagePool| StateError::Full { layer, pages: pool.high_water() };
            if wanted >= table.end() {
                let page = pool.take().ok_or_else(|| full(pool))?;
                table.pages.push_back(page);
            } else {
                let held = &mut table.pages[wanted - table.first];
                if pool.is_shared(*held) {
                    let own = pool.take().ok_or_else(|| full(pool))?;
                    pool.release(*held);
                    self.copies.push(PageCopy { cache, from: *held, to: own });
                    *held = own;
                }
            }
        }
        Ok(())
    }

    /// The pages to copy before the batch runs, in order.
    pub fn take_copies(&mut self) -> Vec<PageCopy> {
        std::mem::take(&mut self.copies)
    }

    /// Counts the rows of the batch as past and frees the pages that sliding windows have left behind.
    pub fn commit(&mut self, batch: &Batch) {
        for row in &batch.rows {
            let Some(state) = self.sequences[row.sequence.0 as usize].as_mut() else { continue };
            state.length = state.length.max(row.position + 1);
            let tables = state.tables.iter_mut().zip(&mut self.pools).zip(&self.caches);
            for ((table, pool), cache) in tables {
                let first = first_visible(cache.window, state.length) / PAGE_POSITIONS;
                while table.first < first {
                    match table.pages.pop_front() {
                        Some(page) => pool.release(page),
                        None => break,
                    }
                    table.first += 1;
                }
            }
        }
    }

    /// Undoes [`States::prepare`] after a step that failed.
    pub fn rollback(&mut self, batch: &Batch) {
        // A copied page stays with its sequence: if it was not copied yet, the batch's rows were the first to
        // need it, and the copy stays listed for the next step.
        for row in &batch.rows {
            if let Some(length) = self.length(row.sequence) {
                self.cut(row.sequence, length);
            }
        }
    }
}

/// The first position that the next one, `length`, can see.
fn first_visible(window: Option<usize>, length: u32) -> usize {
    window.map_or(0, |window| (length as usize + 1).saturating_sub(window))
}

#[cfg(test)]
mod tests;
