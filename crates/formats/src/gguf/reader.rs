//! Reading one GGUF file: everything is checked here, once.

use std::collections::HashSet;
use std::sync::Arc;

use super::cursor::Cursor;
use super::{GgufError, GgufFault, GgufMetadata, types, values};
use crate::{ByteSlice, Format, Source};

/// Alignment of files that do not state one.
const DEFAULT_ALIGNMENT: u64 = 32;

/// The shortest entry of a tensor: an empty name, no dimensions, a type, an offset.
const SHORTEST_TENSOR: u64 = 8 + 4 + 4 + 8;

/// A parsed GGUF file.
#[derive(Clone, Debug)]
pub struct GgufFile {
    /// Key-value pairs.
    pub metadata: GgufMetadata,
    /// Tensors in the order of the file.
    pub tensors: Vec<GgufTensor>,
    /// The key-value pairs as the file has them.
    pub(crate) pairs: GgufPairs,
}

/// Key-value pairs in the bytes of their file.
#[derive(Clone, Debug)]
pub(crate) struct GgufPairs {
    count: usize,
    bytes: ByteSlice,
}

impl GgufPairs {
    /// A GGUF file of the same metadata that has no tensors.
    pub fn without_tensors(&self) -> Vec<u8> {
        let (version, tensors, count) = (3u32.to_le_bytes(), 0u64.to_le_bytes(), self.count as u64);
        [b"GGUF", &version[..], &tensors, &count.to_le_bytes(), &self.bytes].concat()
    }
}

/// A tensor of a GGUF file.
#[derive(Clone, Debug)]
pub struct GgufTensor {
    /// Name in the file.
    pub name: String,
    /// Shape, slowest dimension first (the reverse of the file's order).
    pub shape: Vec<usize>,
    /// Storage format.
    pub format: Format,
    /// The bytes.
    pub bytes: ByteSlice,
}

struct Entry {
    name: String,
    dimensions: Vec<u64>,
    kind: u32,
    offset: u64,
}

impl GgufFile {
    /// Reads the header of `source`; weights stay where they are.
    pub fn read(source: &Arc<Source>) -> Result<GgufFile, GgufError> {
        read(source).map_err(|fault| GgufError { file: source.path().to_owned(), fault: Box::new(fault) })
    }
}

fn read(source: &Arc<Source>) -> Result<GgufFile, GgufFault> {
    let mut cursor = Cursor::new(source.bytes());
    if cursor.array(|| "the magic".into()).map_err(|_| GgufFault::Magic)? != *b"GGUF" {
        return Err(GgufFault::Magic);
    }
    match cursor.u32(|| "the version".into())? {
        2 | 3 => {}
        swapped if (1..=3).contains(&swapped.swap_bytes()) => return Err(GgufFault::BigEndian),
        other => return Err(GgufFault::Version(other)),
    }
    let tensors = cursor.count(SHORTEST_TENSOR, "the number of tensors")?;
    let pairs = cursor.count(values::SHORTEST_PAIR, "the number of metadata keys")?;
    let start = cursor.position();
    let metadata = values::read_pairs(&mut cursor, pairs)?;
    let bytes = ByteSlice::new(source, start..cursor.position());
    let bytes = bytes.ok_or(GgufFault::Magic)?;
    let pairs = GgufPairs { count: pairs, bytes };
    let entries = read_entries(&mut cursor, tensors)?;

    let alignment = alignment(&metadata)?;
    let data = (cursor.position() as u64).checked_next_multiple_of(alignment);
    let data = data.ok_or_else(|| GgufFault::Alignment(alignment.to_string()))?;
    let tensors = entries
        .into_iter()
        .map(|entry| place(source, entry, data, alignment))
        .collect::<Result<Vec<_>, _>>()?;
    check_overlap(&tensors)?;
    Ok(GgufFile { metadata, tensors, pairs })
}

fn alignment(metadata: &GgufMetadata) -> Result<u64, GgufFault> {
    let Some(value) = metadata.get("general.alignment") else { return Ok(DEFAULT_ALIGNMENT) };
    match value.as_integer() {
        Some(n) if n.is_power_of_two() => Ok(n),
        Some(n) => Err(GgufFault::Alignment(n.to_string())),
        None => Err(GgufFault::Alignment("not an integer".into())),
    }
}

fn read_entries(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<Entry>, GgufFault> {
    // The claim was checked against the bytes that were left before the metadata.
    cursor.check_count(count as u64, SHORTEST_TENSOR, || format!("the list of {count} tensors"))?;
    let mut entries = Vec::with_capacity(count);
    let mut names = HashSet::new();
    for i in 0..count {
        let what = || format!("the name of tensor {} of {count}", i + 1);
        let name = cursor.string(what)?;
        let name = String::from_utf8(name.to_vec()).map_err(|_| GgufFault::Utf8(what()))?;
        let what = || format!("tensor {name}");
        let found = cursor.u32(what)?;
        if found > 4 {
            return Err(GgufFault::Dimensions { tensor: name, found });
        }
        let dimensions = (0..found).map(|_| cursor.u64(what)).collect::<Result<Vec<_>, _>>()?;
        let (kind, offset) = (cursor.u32(what)?, cursor.u64(what)?);
        if !names.insert(name.clone()) {
            return Err(GgufFault::DuplicateTensor(name));
        }
        entries.push(Entry { name, dimensions, kind, offset });
    }
    Ok(entries)
}

/// Finds the bytes of a tensor.
fn place(source: &Arc<Source>, entry: Entry, data: u64, alignment: u64) -> Result<GgufTensor, GgufFault> {
    let Entry { name, dimensions, kind, offset } = entry;
    let format = match types::format(kind) {
        Ok(format) => format,
        Err(found) => return Err(GgufFault::TensorType { tensor: name, found }),
    };
    if dimensions.contains(&0) {
        return Err(GgufFault::NoElements { tensor: name, shape: dimensions });
    }
    let mut shape: Vec<usize> = Vec::with_capacity(dimensions.len().max(1));
    let mut elements = 1usize;
    for &n in dimensions.iter().rev() {
        let product = usize::try_from(n).ok().and_then(|n| Some((n, elements.checked_mul(n)?)));
        let Some((n, product)) = product.filter(|(_, product)| *product <= isize::MAX as usize / 8) else {
            return Err(GgufFault::TooLarge { tensor: name, shape: dimensions });
        };
        shape.push(n);
        elements = product;
    }
    if shape.is_empty() {
        shape.push(1);
    }
    let columns = shape[shape.len() - 1];
    let Some(row) = format.row_bytes(0, columns) else {
        return Err(GgufFault::Blocks { tensor: name, format, columns, block: format.block() });
    };
    if !offset.is_multiple_of(alignment) {
        return Err(GgufFault::Offset { tensor: name, offset, alignment });
    }
    // The element count is far below the limits of usize, and no format takes more than four bytes an element.
    let start = u128::from(data) + u128::from(offset);
    let end = start + (elements / columns * row) as u128;
    let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
    match range.and_then(|(start, end)| ByteSlice::new(source, start..end)) {
        Some(bytes) => Ok(GgufTensor { name, shape, format, bytes }),
        None => Err(GgufFault::PastEnd { tensor: name, start, end, length: source.bytes().len() }),
    }
}

fn check_overlap(tensors: &[GgufTensor]) -> Result<(), GgufFault> {
    let mut order: Vec<&GgufTensor> = tensors.iter().collect();
    order.sort_by_key(|t| t.bytes.offset());
    for pair in order.windows(2) {
        if pair[0].bytes.offset() + pair[0].bytes.len() > pair[1].bytes.offset() {
            return Err(GgufFault::Overlap { first: pair[0].name.clone(), second: pair[1].name.clone() });
        }
    }
    Ok(())
}
