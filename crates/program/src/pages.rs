//! Book-keeping of the pages of one key-value cache: which are free, and how many sequences hold each.

/// Positions of a page: an attention tile, aligned at absolute positions.
pub const PAGE_POSITIONS: usize = 64;

/// A page of one cache; the executor keeps its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(u32);

impl PageId {
    /// Index into the executor's pages of that cache.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A page that an executor copies before it runs a batch, since two sequences part here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// Index into [`crate::Program::kv_layers`].
    pub cache: usize,
    /// Shared page.
    pub from: PageId,
    /// Own page.
    pub to: PageId,
}

/// The pages of one cache.
#[derive(Clone, Debug, Default)]
pub(crate) struct PagePool {
    holders: Vec<u32>,
    free: Vec<PageId>,
    limit: Option<usize>,
}

impl PagePool {
    pub fn new(limit: Option<usize>) -> PagePool {
        PagePool { limit, ..PagePool::default() }
    }

    /// A page with one holder, `None` when the limit is reached.
    pub fn take(&mut self) -> Option<PageId> {
        if let Some(page) = self.free.pop() {
            self.holders[page.index()] = 1;
            return Some(page);
        }
        if self.limit.is_some_and(|limit| self.holders.len() >= limit) {
            return None;
        }
        self.holders.push(1);
        Some(PageId(self.holders.len() as u32 - 1))
    }

    pub fn share(&mut self, page: PageId) {
        self.holders[page.index()] += 1;
    }

    pub fn release(&mut self, page: PageId) {
        let holders = &mut self.holders[page.index()];
        *holders -= 1;
        if *holders == 0 {
            self.free.push(page);
        }
    }

    pub fn is_shared(&self, page: PageId) -> bool {
        self.holders[page.index()] > 1
    }

    /// Pages that have ever been in use: the executor keeps memory for as many.
    pub fn high_water(&self) -> usize {
        self.holders.len()
    }

    /// Pages held by sequences now.
    pub fn in_use(&self) -> usize {
        self.holders.len() - self.free.len()
    }
}
