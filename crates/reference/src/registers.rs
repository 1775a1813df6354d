//! The memory of a program's registers.

use turbospark_program::{Batch, Program, Reg, RowSet};

use crate::route::Routes;

/// The rows of a batch as registers hold them.
pub struct Rows {
    /// Rows of the batch.
    pub all: usize,
    /// Batch rows whose logits are wanted.
    pub wanted: Vec<usize>,
    /// Tokens of all rows.
    pub tokens: Vec<u32>,
    /// Positions of all rows.
    pub positions: Vec<u32>,
    sets: Vec<RowSet>,
}

impl Rows {
    pub fn new(batch: &Batch, program: &Program) -> Rows {
        let wanted = (0..batch.rows.len()).filter(|&i| batch.rows[i].logits).collect();
        Rows {
            all: batch.rows.len(),
            wanted,
            tokens: batch.rows.iter().map(|row| row.token).collect(),
            positions: batch.rows.iter().map(|row| row.position).collect(),
            sets: program.registers().iter().map(|register| register.rows).collect(),
        }
    }

    /// Rows that `reg` holds.
    pub fn count(&self, reg: Reg) -> usize {
        match self.sets[reg.index()] {
            RowSet::All => self.all,
            RowSet::Wanted => self.wanted.len(),
        }
    }
}

/// Values of registers, in the buffers that the program assigns.
pub struct Registers {
    buffers: Vec<Vec<f32>>,
    routes: Vec<Routes>,
    buffer_of: Vec<usize>,
    elements: Vec<usize>,
}

impl Registers {
    pub fn new(program: &Program) -> Registers {
        Registers {
            buffers: program.buffers().iter().map(|_| Vec::new()).collect(),
            routes: program.buffers().iter().map(|_| Routes::default()).collect(),
            buffer_of: program.registers().iter().map(|register| register.buffer).collect(),
            elements: vec![0; program.registers().len()],
        }
    }

    /// Sets the number of rows for a step.
    pub fn begin(&mut self, rows: &Rows, program: &Program) {
        for (i, register) in program.registers().iter().enumerate() {
            let count = if register.rows == RowSet::All { rows.all } else { rows.wanted.len() };
            self.elements[i] = count * register.width;
        }
    }

    /// The values of a register, row by row.
    pub fn read(&self, reg: Reg) -> &[f32] {
        &self.buffers[self.buffer_of[reg.index()]][..self.elements[reg.index()]]
    }

    /// The same, to change in place.
    pub fn write(&mut self, reg: Reg) -> &mut [f32] {
        &mut self.buffers[self.buffer_of[reg.index()]][..self.elements[reg.index()]]
    }

    /// The memory of a register that is about to be written, zeroed; [`Registers::put`] brings it back.
    pub fn take(&mut self, reg: Reg) -> Vec<f32> {
        let mut buffer = std::mem::take(&mut self.buffers[self.buffer_of[reg.index()]]);
        buffer.clear();
        buffer.resize(self.elements[reg.index()], 0.0);
        buffer
    }

    pub fn put(&mut self, reg: Reg, values: Vec<f32>) {
        self.buffers[self.buffer_of[reg.index()]] = values;
    }

    pub fn routes(&self, reg: Reg) -> &Routes {
        &self.routes[self.buffer_of[reg.index()]]
    }

    pub fn put_routes(&mut self, reg: Reg, routes: Routes) {
        self.routes[self.buffer_of[reg.index()]] = routes;
    }
}
