//! Reading the key-value pairs.

use std::collections::BTreeMap;

use super::cursor::Cursor;
use super::{GgufFault, GgufMetadata, GgufValue};

/// Arrays of arrays have no known use; a little nesting is read for the sake of the format.
const MAX_NESTING: usize = 4;

/// Elements of all arrays together. The largest vocabularies have under two million tokens, scores, types and
/// merges; the bound keeps the memory for one-byte elements within reason.
const MAX_ELEMENTS: usize = 1 << 24;

/// The shortest pair: an empty key, a type, a byte.
pub(super) const SHORTEST_PAIR: u64 = 8 + 4 + 1;

pub(super) fn read_pairs(cursor: &mut Cursor<'_>, count: usize) -> Result<GgufMetadata, GgufFault> {
    let mut pairs = BTreeMap::new();
    let mut elements = 0;
    for i in 0..count {
        let what = || format!("metadata key {} of {count}", i + 1);
        let key = String::from_utf8(cursor.string(what)?.to_vec()).map_err(|_| GgufFault::Utf8(what()))?;
        let kind = cursor.u32(|| named(&key))?;
        let value = Reader { key: &key, elements: &mut elements }.value(cursor, kind, 0)?;
        if pairs.contains_key(&key) {
            return Err(GgufFault::DuplicateKey(key));
        }
        pairs.insert(key, value);
    }
    Ok(GgufMetadata { pairs })
}

fn named(key: &str) -> String {
    format!("metadata key {key}")
}

struct Reader<'a> {
    key: &'a str,
    elements: &'a mut usize,
}

impl Reader<'_> {
    fn value(&mut self, cursor: &mut Cursor<'_>, kind: u32, depth: usize) -> Result<GgufValue, GgufFault> {
        let key = self.key;
        let what = || named(key);
        Ok(match kind {
            0 => GgufValue::Unsigned(cursor.array::<1>(what)?[0].into()),
            1 => GgufValue::Signed(i8::from_le_bytes(cursor.array(what)?).into()),
            2 => GgufValue::Unsigned(u16::from_le_bytes(cursor.array(what)?).into()),
            3 => GgufValue::Signed(i16::from_le_bytes(cursor.array(what)?).into()),
            4 => GgufValue::Unsigned(cursor.u32(what)?.into()),
            5 => GgufValue::Signed(i32::from_le_bytes(cursor.array(what)?).into()),
            6 => GgufValue::Float(f32::from_le_bytes(cursor.array(what)?).into()),
            7 => match cursor.array::<1>(what)?[0] {
                0 => GgufValue::Bool(false),
                1 => GgufValue::Bool(true),
                found => return Err(GgufFault::Bool { key: key.to_owned(), found }),
            },
            8 => GgufValue::String(self.string(cursor.string(what)?, depth)?),
            9 => self.array(cursor, depth)?,
            10 => GgufValue::Unsigned(cursor.u64(what)?),
            11 => GgufValue::Signed(i64::from_le_bytes(cursor.array(what)?)),
            12 => GgufValue::Float(f64::from_le_bytes(cursor.array(what)?)),
            found => return Err(GgufFault::ValueType { key: key.to_owned(), found }),
        })
    }

    /// Old converters wrote tokens that are parts of UTF-8 characters: elements of arrays are read with
    /// replacement characters, everything else must be UTF-8.
    fn string(&self, bytes: &[u8], depth: usize) -> Result<String, GgufFault> {
        if depth > 0 {
            return Ok(String::from_utf8_lossy(bytes).into_owned());
        }
        String::from_utf8(bytes.to_vec()).map_err(|_| GgufFault::Utf8(named(self.key)))
    }

    fn array(&mut self, cursor: &mut Cursor<'_>, depth: usize) -> Result<GgufValue, GgufFault> {
        let key = self.key;
        if depth == MAX_NESTING {
            return Err(GgufFault::Nesting { key: key.to_owned(), limit: MAX_NESTING });
        }
        let kind = cursor.u32(|| named(key))?;
        let claimed = cursor.u64(|| named(key))?;
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => 4 + 8,
            found => return Err(GgufFault::ValueType { key: key.to_owned(), found }),
        };
        let count =
            cursor.check_count(claimed, least, || format!("metadata key {key}, an array of {claimed}"))?;
        *self.elements += count;
        if *self.elements > MAX_ELEMENTS {
            return Err(GgufFault::TooManyElements { key: key.to_owned(), limit: MAX_ELEMENTS });
        }
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(self.value(cursor, kind, depth + 1)?);
        }
        Ok(GgufValue::Array(items))
    }
}
