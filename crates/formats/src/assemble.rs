//! From the tensors of files to canonical ones: stacks of experts, halves of fused matrices, row maps.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use crate::names::{GateUpOrder, Role};
use crate::stored::Stored;
use crate::{ByteSlice, Format, MatrixLayout, RowMap, Tensor};

/// A tensor that does not fit its place in a model.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum LayoutError {
    /// A shape that its place cannot have.
    #[error("tensor {tensor} has shape {found:?}, expected {expected}")]
    Shape {
        /// The tensor's name in the file.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// What was wanted.
        expected: String,
    },
    /// A vector that is quantised.
    #[error("tensor {tensor} is a vector of type {format}, expected F32, F16 or BF16")]
    QuantisedVector {
        /// The tensor's name in the file.
        tensor: String,
        /// Its format.
        format: Format,
    },
    /// Bytes that do not fit the shape.
    #[error("tensor {tensor} of type {format} and shape {shape:?} cannot have {bytes} bytes")]
    Bytes {
        /// The tensor's name in the file.
        tensor: String,
        /// Its format.
        format: Format,
        /// Its shape.
        shape: Vec<usize>,
        /// Bytes in the file.
        bytes: usize,
    },
    /// Two tensors of the file are one of the model.
    #[error("tensors {first} and {second} are both {canonical}; the file must have one of them")]
    Duplicate {
        /// Name in the model.
        canonical: String,
        /// One name in the file.
        first: String,
        /// The other.
        second: String,
    },
    /// A gap in the experts of a layer.
    #[error("{stack}: expert {missing} is missing, though the files have one of number {last}")]
    MissingExpert {
        /// The stack's canonical name.
        stack: String,
        /// The first number that is not there.
        missing: usize,
        /// The highest that is.
        last: usize,
    },
    /// An expert unlike its siblings.
    #[error("tensor {tensor} is {found}, expected {expected} as {first}")]
    UnlikeExpert {
        /// The tensor's name in the file.
        tensor: String,
        /// Its format and shape.
        found: String,
        /// Those of the first expert.
        expected: String,
        /// The first expert's tensor.
        first: String,
    },
}

/// Collects tensors by canonical name.
#[derive(Default)]
pub(crate) struct Assembler {
    /// With the names in the file.
    tensors: BTreeMap<String, (Tensor, String)>,
    members: BTreeMap<String, BTreeMap<usize, Stored>>,
    skipped: Vec<(String, &'static str)>,
}

/// What [`Assembler::finish`] yields.
pub(crate) struct Assembled {
    pub tensors: BTreeMap<String, Tensor>,
    pub skipped: Vec<(String, &'static str)>,
}

impl Assembler {
    pub fn skip(&mut self, name: String, reason: &'static str) {
        self.skipped.push((name, reason));
    }

    pub fn add(&mut self, mut stored: Stored, role: Role) -> Result<(), LayoutError> {
        if stored.shape.is_empty() {
            stored.shape.push(1);
        }
        if stored.shape.contains(&0) {
            return Err(shape_error(&stored, "at least one element"));
        }
        match role {
            Role::Skip(reason) => self.skip(stored.name, reason),
            Role::Whole(name) => {
                let tensor = whole(&stored)?;
                self.insert(name, tensor, stored.name)?;
            }
            Role::PairedHeads { name, head } => {
                let mut tensor = whole(&stored)?;
                if head == 0 || head % 2 != 0 || !tensor.layout.rows.is_multiple_of(head) {
                    return Err(shape_error(&stored, &format!("heads of {head} rows, an even number")));
                }
                tensor.layout.row_map = RowMap::PairedHeads { head };
                self.insert(name, tensor, stored.name)?;
            }
            Role::Stack { name, transposed } => {
                let tensor = stack(&stored, transposed)?;
                self.insert(name, tensor, stored.name)?;
            }
            Role::GateUp { experts, leaf, order } => {
                let fused = stack(&stored, order == GateUpOrder::Interleaved && leaf == "weight")?;
                for (i, matrix) in ["gate_proj", "up_proj"].iter().enumerate() {
                    let part = part_of_two(&fused, order, i)
                        .ok_or_else(|| shape_error(&stored, "an even number of gate and up rows"))?;
                    self.insert(format!("{experts}.{matrix}.{leaf}"), part, stored.name.clone())?;
                }
            }
            Role::Member { stack, expert } => match self.members.entry(stack).or_default().entry(expert) {
                Entry::Vacant(entry) => {
                    entry.insert(stored);
                }
                Entry::Occupied(entry) => {
                    return Err(LayoutError::Duplicate {
                        canonical: format!("expert {expert} of a layer"),
                        first: entry.get().name.clone(),
                        second: stored.name,
                    });
                }
            },
        }
        Ok(())
    }

    pub fn finish(mut self) -> Result<Assembled, LayoutError> {
        for (name, members) in std::mem::take(&mut self.members) {
            let last = members.keys().next_back().copied().unwrap_or(0);
            if let Some(missing) = (0..members.len()).find(|i| !members.contains_key(i)) {
                return Err(LayoutError::MissingExpert { stack: name, missing, last });
            }
            let mut experts = members.into_values();
            let Some(first) = experts.next() else { continue };
            let mut tensor = whole(&first)?;
            for stored in experts {
                if (&stored.shape, stored.format) != (&first.shape, first.format) {
                    return Err(LayoutError::UnlikeExpert {
                        found: format!("{} {:?}", stored.format, stored.shape),
                        expected: format!("{} {:?}", first.format, first.shape),
                        first: first.name,
                        tensor: stored.name,
                    });
                }
                tensor.slices.extend(whole(&stored)?.slices);
            }
            tensor.shape.insert(0, tensor.count());
            self.insert(name, tensor, first.name)?;
        }
        self.skipped.sort();
        let tensors = self.tensors.into_iter().map(|(name, (tensor, _))| (name, tensor)).collect();
        Ok(Assembled { tensors, skipped: self.skipped })
    }

    fn insert(&mut self, name: String, tensor: Tensor, origin: String) -> Result<(), LayoutError> {
        match self.tensors.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert((tensor, origin));
                Ok(())
            }
            Entry::Occupied(entry) => Err(LayoutError::Duplicate {
                canonical: entry.key().clone(),
                first: entry.get().1.clone(),
                second: origin,
            }),
        }
    }
}

/// A vector or a matrix.
fn whole(stored: &Stored) -> Result<Tensor, LayoutError> {
    let layout = match stored.shape[..] {
        [rows] => vector(stored, rows)?,
        [rows, columns] => MatrixLayout::plain(stored.format, rows, columns),
        _ => return Err(shape_error(stored, "one or two dimensions")),
    };
    tensor(stored, layout, stored.shape.clone(), 1)
}

/// More experts than a layer of any model has; every one of a stack takes a little memory of its own.
pub(crate) const MAX_EXPERTS: usize = 1 << 16;

/// A stack of matrices or vectors.
fn stack(stored: &Stored, transposed: bool) -> Result<Tensor, LayoutError> {
    match stored.shape[..] {
        [count, ..] if count > MAX_EXPERTS => {
            Err(shape_error(stored, &format!("at most {MAX_EXPERTS} experts")))
        }
        [count, rows] => tensor(stored, vector(stored, rows)?, vec![count, rows], count),
        [count, columns, rows] if transposed && stored.format.is_float() => {
            let layout =
                MatrixLayout { transposed: true, ..MatrixLayout::plain(stored.format, rows, columns) };
            tensor(stored, layout, vec![count, rows, columns], count)
        }
        [count, rows, columns] => {
            let layout = MatrixLayout::plain(stored.format, rows, columns);
            tensor(stored, layout, vec![count, rows, columns], count)
        }
        _ => Err(shape_error(stored, "[experts, rows, columns] or [experts, rows]")),
    }
}

fn vector(stored: &Stored, rows: usize) -> Result<MatrixLayout, LayoutError> {
    if !stored.format.is_float() {
        return Err(LayoutError::QuantisedVector { tensor: stored.name.clone(), format: stored.format });
    }
    Ok(MatrixLayout::plain(stored.format, rows, 1))
}

/// Cuts the parts into `count` matrices of `layout`.
fn tensor(
    stored: &Stored,
    layout: MatrixLayout,
    shape: Vec<usize>,
    count: usize,
) -> Result<Tensor, LayoutError> {
    for (i, part) in stored.parts.iter().enumerate() {
        if layout.part_bytes(i).and_then(|bytes| bytes.checked_mul(count)) != Some(part.len()) {
            return Err(LayoutError::Bytes {
                tensor: stored.name.clone(),
                format: stored.format,
                shape: stored.shape.clone(),
                bytes: part.len(),
            });
        }
    }
    let slices: Vec<ByteSlice> =
        (0..count).flat_map(|i| stored.parts.iter().map(move |part| part.piece(i, count))).collect();
    Ok(Tensor { shape, layout, slices })
}

/// The gate (0) or up (1) rows of a fused stack, `None` if the rows are odd.
fn part_of_two(fused: &Tensor, order: GateUpOrder, which: usize) -> Option<Tensor> {
    let stored_rows = fused.layout.stored_rows;
    let rows = stored_rows.is_multiple_of(2).then_some(stored_rows / 2)?;
    let row_map = match order {
        GateUpOrder::Halves => RowMap::Strided { start: which * rows, step: 1 },
        GateUpOrder::Interleaved => RowMap::Strided { start: which, step: 2 },
    };
    let mut part = fused.clone();
    part.layout = MatrixLayout { rows, row_map, ..fused.layout };
    part.shape[1] = rows;
    Some(part)
}

fn shape_error(stored: &Stored, expected: &str) -> LayoutError {
    LayoutError::Shape {
        tensor: stored.name.clone(),
        found: stored.shape.clone(),
        expected: expected.to_owned(),
    }
}
