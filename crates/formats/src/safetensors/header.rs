//! Reading one safetensors file.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use ::safetensors::Dtype;
use ::safetensors::tensor::{Metadata, TensorInfo};
use serde::Deserialize;
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};

use super::{SafetensorsError, SafetensorsFault};
use crate::{ByteSlice, Source};

/// The longest header that the format allows.
const MAX_HEADER: u64 = 100_000_000;

/// A parsed safetensors file.
#[derive(Clone, Debug)]
pub struct SafetensorsFile {
    /// Tensors in the order of their bytes.
    pub tensors: Vec<SafetensorsTensor>,
}

/// A tensor of a safetensors file.
#[derive(Clone, Debug)]
pub struct SafetensorsTensor {
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Shape, slowest dimension first.
    pub shape: Vec<usize>,
    /// The bytes.
    pub bytes: ByteSlice,
}

impl SafetensorsFile {
    /// Reads the header of `source`; weights stay where they are.
    pub fn read(source: &Arc<Source>) -> Result<SafetensorsFile, SafetensorsError> {
        read(source)
            .map_err(|fault| SafetensorsError { file: source.path().to_owned(), fault: Box::new(fault) })
    }
}

#[derive(Deserialize)]
struct RawInfo {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (usize, usize),
}

fn read(source: &Arc<Source>) -> Result<SafetensorsFile, SafetensorsFault> {
    let bytes = source.bytes();
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return Err(SafetensorsFault::TooShort(bytes.len()));
    };
    let claimed = u64::from_le_bytes(*length);
    let header = usize::try_from(claimed).ok().and_then(|n| rest.get(..n));
    let Some(header) = header else {
        return Err(SafetensorsFault::HeaderLength { claimed, left: rest.len() });
    };
    if claimed > MAX_HEADER {
        return Err(SafetensorsFault::HeaderTooLarge(claimed));
    }
    let mut reader = serde_json::Deserializer::from_slice(header);
    let entries = Entries.deserialize(&mut reader).map_err(SafetensorsFault::Header)?;
    reader.end().map_err(SafetensorsFault::Header)?;

    let mut infos = checked(entries, bytes.len() - rest.len() + header.len(), bytes.len())?;
    infos.sort_by_key(|(_, info)| info.data_offsets);
    let mut end = 0;
    for (tensor, info) in &infos {
        let (start, next) = info.data_offsets;
        if start != end {
            return Err(SafetensorsFault::Offset { tensor: tensor.clone(), start, expected: end });
        }
        end = next;
    }
    let data = 8 + header.len();
    if bytes.len() - data != end {
        return Err(SafetensorsFault::Trailing(bytes.len() - data - end));
    }
    // What the checks above let through is checked once more by the format's own implementation.
    Metadata::new(None, infos.clone()).map_err(SafetensorsFault::Invalid)?;
    let tensors = infos.into_iter().map(|(name, info)| {
        let (start, end) = info.data_offsets;
        let past_end = || SafetensorsFault::PastEnd {
            tensor: name.clone(),
            start: start as u128 + data as u128,
            end: end as u128 + data as u128,
            length: bytes.len(),
        };
        let bytes = ByteSlice::new(source, data + start..data + end).ok_or_else(past_end)?;
        Ok(SafetensorsTensor { dtype: info.dtype, shape: info.shape, bytes, name })
    });
    Ok(SafetensorsFile { tensors: tensors.collect::<Result<_, _>>()? })
}

/// Checks each entry on its own: its name, type, size and that it ends within the file.
fn checked(
    entries: Vec<(String, RawInfo)>,
    data: usize,
    length: usize,
) -> Result<Vec<(String, TensorInfo)>, SafetensorsFault> {
    let mut names = HashSet::new();
    let mut infos = Vec::with_capacity(entries.len());
    for (tensor, raw) in entries {
        if !names.insert(tensor.clone()) {
            return Err(SafetensorsFault::DuplicateTensor(tensor));
        }
        let dtype = StrDeserializer::<serde::de::value::Error>::new(&raw.dtype);
        let Ok(dtype) = Dtype::deserialize(dtype) else {
            return Err(SafetensorsFault::UnknownType { tensor, found: raw.dtype });
        };
        let elements = raw.shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        let need = elements.and_then(|n| n.checked_mul(dtype.bitsize())).map(|bits| bits.div_ceil(8));
        let Some(need) = need else {
            return Err(SafetensorsFault::TooLarge { tensor, shape: raw.shape });
        };
        let (start, end) = raw.data_offsets;
        if end.checked_sub(start) != Some(need) {
            return Err(SafetensorsFault::Length {
                tensor,
                kind: raw.dtype,
                shape: raw.shape,
                need,
                start,
                end,
            });
        }
        if end > length - data {
            let (start, end) = (start as u128 + data as u128, end as u128 + data as u128);
            return Err(SafetensorsFault::PastEnd { tensor, start, end, length });
        }
        infos.push((tensor, TensorInfo { dtype, shape: raw.shape, data_offsets: raw.data_offsets }));
    }
    Ok(infos)
}

/// Reads the header as a list, so that a name that is there twice is seen.
struct Entries;

impl<'de> DeserializeSeed<'de> for Entries {
    type Value = Vec<(String, RawInfo)>;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Entries {
    type Value = Vec<(String, RawInfo)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
            } else {
                entries.push((name, map.next_value()?));
            }
        }
        Ok(entries)
    }
}
