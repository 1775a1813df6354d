//! The memory of a plan's registers, and rows that threads divide among them.

use std::marker::PhantomData;
use std::ptr::NonNull;

use turbospark_program::Reg;

/// A matrix that threads write in disjoint parts.
#[derive(Clone, Copy)]
pub(crate) struct Shared<'a, T = f32> {
    start: NonNull<T>,
    len: usize,
    memory: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for an exclusive borrow; `part` asks its callers to divide it.
unsafe impl<T: Send> Sync for Shared<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    pub fn new(memory: &'a mut [T]) -> Shared<'a, T> {
        Shared { len: memory.len(), start: NonNull::from(memory).cast(), memory: PhantomData }
    }

    /// Elements start .. start + len.
    ///
    /// # Safety
    ///
    /// Parts that live at the same time do not overlap.
    // A new exclusive borrow from a shared one is the point of this type; its contract is above.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: within the memory by the assertion, and exclusive by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start).as_ptr(), len) }
    }
}

/// One value for each thread of a pool.
pub(crate) struct PerThread<T>(Vec<T>);

impl<T: Default> PerThread<T> {
    pub fn new(threads: usize) -> PerThread<T> {
        PerThread((0..threads).map(|_| T::default()).collect())
    }

    /// For a region: each thread takes the value of its index.
    pub fn share(&mut self) -> Shared<'_, T> {
        Shared::new(&mut self.0)
    }
}

/// Where a register lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Buffer that holds it.
    pub buffer: usize,
    /// Elements a row.
    pub width: usize,
    /// Whether it has only the rows whose logits are wanted.
    pub wanted: bool,
}

/// Values of registers, in buffers that registers of disjoint lives share.
pub(crate) struct Registers {
    slots: Vec<Slot>,
    buffers: Vec<Vec<f32>>,
    /// Rows of the batch, and those wanted.
    rows: [usize; 2],
}

impl Registers {
    /// Registers as a plan has placed them.
    pub fn new(slots: Vec<Slot>) -> Registers {
        let buffers = slots.iter().map(|slot| slot.buffer + 1).max().unwrap_or(0);
        Registers { slots, buffers: vec![Vec::new(); buffers], rows: [0; 2] }
    }

    /// Elements of all buffers together: for a row, and for a row whose logits are wanted.
    pub fn widths(slots: &[Slot]) -> [usize; 2] {
        let buffers = slots.iter().map(|slot| slot.buffer + 1).max().unwrap_or(0);
        [false, true].map(|wanted| {
            let slots = slots.iter().filter(|slot| slot.wanted == wanted);
            let width =
                |buffer| slots.clone().filter(|slot| slot.buffer == buffer).map(|slot| slot.width).max();
            (0..buffers).filter_map(width).sum()
        })
    }

    /// Makes room for a step; it allocates only if there were never as many rows.
    pub fn begin(&mut self, all: usize, wanted: usize) {
        self.rows = [all, wanted];
        for slot in &self.slots {
            let elements = self.rows[usize::from(slot.wanted)] * slot.width;
            let buffer = &mut self.buffers[slot.buffer];
            if buffer.len() < elements {
                buffer.resize(elements, 0.0);
            }
        }
    }

    /// Elements a row.
    pub fn width(&self, reg: Reg) -> usize {
        self.slots[reg.index()].width
    }

    /// Rows in this step.
    pub fn rows(&self, reg: Reg) -> usize {
        self.rows[usize::from(self.slots[reg.index()].wanted)]
    }

    fn elements(&self, reg: Reg) -> usize {
        self.rows(reg) * self.width(reg)
    }

    /// All rows.
    pub fn read(&self, reg: Reg) -> &[f32] {
        &self.buffers[self.slots[reg.index()].buffer][..self.elements(reg)]
    }

    /// All rows, to write.
    pub fn write(&mut self, reg: Reg) -> &mut [f32] {
        let elements = self.elements(reg);
        &mut self.buffers[self.slots[reg.index()].buffer][..elements]
    }

    /// The memory of a register, to be written while others are read; [`Registers::put`] brings it back.
    pub fn take(&mut self, reg: Reg) -> Vec<f32> {
        std::mem::take(&mut self.buffers[self.slots[reg.index()].buffer])
    }

    /// See [`Registers::take`].
    pub fn put(&mut self, reg: Reg, memory: Vec<f32>) {
        self.buffers[self.slots[reg.index()].buffer] = memory;
    }

    /// All registers, row by row, for threads that divide the rows.
    pub fn by_row(&mut self) -> ByRow<'_> {
        let (buffers, count) = (self.buffers.as_mut_ptr(), self.buffers.len());
        ByRow { slots: &self.slots, buffers, count, rows: self.rows, memory: PhantomData }
    }
}

/// Registers as threads see them that each work on rows of their own.
pub(crate) struct ByRow<'a> {
    slots: &'a [Slot],
    buffers: *mut Vec<f32>,
    /// How many there are.
    count: usize,
    rows: [usize; 2],
    memory: PhantomData<&'a mut [Vec<f32>]>,
}

// SAFETY: it stands for an exclusive borrow of the buffers; its methods ask callers to divide the rows.
unsafe impl Sync for ByRow<'_> {}

impl ByRow<'_> {
    fn start(&self, reg: Reg, row: usize) -> (*mut f32, usize) {
        let slot = self.slots[reg.index()];
        assert!(row < self.rows[usize::from(slot.wanted)]);
        debug_assert!(slot.buffer < self.count);
        // SAFETY: slots name buffers that exist; only the vector's pointer and length are read, nobody changes the
        // vectors.
        let (start, len) = unsafe {
            let buffer = self.buffers.add(slot.buffer);
            ((*buffer).as_mut_ptr(), (*buffer).len())
        };
        debug_assert!((row + 1) * slot.width <= len);
        // SAFETY: `Registers::begin` made room for all rows.
        (unsafe { start.add(row * slot.width) }, slot.width)
    }

    /// A row.
    ///
    /// # Safety
    ///
    /// Nobody writes this row of this register's buffer meanwhile.
    pub unsafe fn row(&self, reg: Reg, row: usize) -> &[f32] {
        let (start, width) = self.start(reg, row);
        // SAFETY: initialised memory of that many elements, not written by the contract.
        unsafe { std::slice::from_raw_parts(start, width) }
    }

    /// A row, to write.
    ///
    /// # Safety
    ///
    /// Nobody else reads or writes this row of this register's buffer meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn row_mut(&self, reg: Reg, row: usize) -> &mut [f32] {
        let (start, width) = self.start(reg, row);
        // SAFETY: as in `row`; exclusive by the contract.
        unsafe { std::slice::from_raw_parts_mut(start, width) }
    }
}
