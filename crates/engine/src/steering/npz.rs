//! Steering vectors in NumPy archives, `np.savez("v.npz", **{"direction.3": d})` or `np.savez("v.npz", directions=m)`.
//!
//! Arrays are named as in our safetensors files and hold little-endian f4 or f8 in C order; they may be compressed.

use std::io::{Cursor, Read};

use zip::ZipArchive;

use super::error::VectorFault;
use super::vectors::SteeringVectors;

/// The most elements that are read of one array: far beyond any model's layers times width.
const MAX_ELEMENTS: usize = 1 << 28;
const MAX_HEADER: usize = 1 << 16;

pub(super) fn read(bytes: &[u8]) -> Result<SteeringVectors, VectorFault> {
    let wrong =
        |what: &dyn std::fmt::Display| VectorFault::Npz(format!("not a readable .npz archive: {what}"));
    let mut archive = ZipArchive::new(Cursor::new(bytes)).map_err(|error| wrong(&error))?;
    let mut directions = Vec::new();
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|error| wrong(&error))?;
        let name = entry.name().map_err(|error| wrong(&error))?;
        let name = name.strip_suffix(".npy").unwrap_or(&name).to_owned();
        // The shape is judged before anything of its size is read.
        let array = Array::header(&mut entry, &name)?;
        super::rows_of(&name, &array.shape, Vec::new())?;
        let values = array.values(&mut entry, &name)?;
        directions.extend(super::rows_of(&name, &array.shape, values)?);
    }
    SteeringVectors::new(directions)
}

/// The header of a .npy file.
struct Array {
    shape: Vec<usize>,
    elements: usize,
    double: bool,
}

impl Array {
    fn header(reader: &mut impl Read, name: &str) -> Result<Array, VectorFault> {
        let wrong = |what: &str| VectorFault::Npz(format!("array {name}: {what}"));
        let mut start = [0; 8];
        reader.read_exact(&mut start).map_err(|_| wrong("it is truncated"))?;
        if !start.starts_with(b"\x93NUMPY") {
            return Err(wrong("it is not a .npy file"));
        }
        let mut length = [0; 4];
        let wide = start[6] >= 2;
        let part = if wide { &mut length[..] } else { &mut length[..2] };
        reader.read_exact(part).map_err(|_| wrong("it is truncated"))?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_HEADER {
            return Err(wrong(&format!("its header claims {length} bytes")));
        }
        let mut header = vec![0; length];
        reader.read_exact(&mut header).map_err(|_| wrong("it is truncated"))?;
        let header = String::from_utf8_lossy(&header).replace(char::is_whitespace, "").replace('"', "'");
        let double = match field(&header, "descr").map(|text| text.trim_matches('\'')) {
            Some("<f4") => false,
            Some("<f8") => true,
            other => {
                let (tensor, found) = (name.to_owned(), other.unwrap_or("unknown").to_owned());
                return Err(VectorFault::Type { tensor, found, expected: "<f4 or <f8" });
            }
        };
        if field(&header, "fortran_order") != Some("False") {
            return Err(wrong("it is in Fortran order; save np.ascontiguousarray of it"));
        }
        let shape = field(&header, "shape").and_then(|text| text.strip_prefix('(')?.strip_suffix(')'));
        let shape = shape.ok_or_else(|| wrong("its header has no shape"))?;
        let shape: Result<Vec<usize>, _> =
            shape.split(',').filter(|n| !n.is_empty()).map(str::parse).collect();
        let shape = shape.map_err(|_| wrong("its shape is not a list of sizes"))?;
        let elements = shape.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
        let elements = elements.filter(|&elements| elements <= MAX_ELEMENTS);
        let elements = elements.ok_or_else(|| wrong(&format!("its shape {shape:?} is too large")))?;
        Ok(Array { shape, elements, double })
    }

    fn values(&self, reader: &mut impl Read, name: &str) -> Result<Vec<f32>, VectorFault> {
        let size = if self.double { 8 } else { 4 };
        let expected = self.elements * size;
        // What is there bounds what is allocated, not what the header claims.
        let mut bytes = Vec::new();
        let read = reader.take(expected as u64).read_to_end(&mut bytes);
        if read.is_err() || bytes.len() != expected {
            let found = bytes.len();
            return Err(VectorFault::Npz(format!("array {name} is truncated: {found} of {expected} bytes")));
        }
        Ok(match self.double {
            false => super::floats(&bytes),
            true => bytes.as_chunks::<8>().0.iter().map(|&b| f64::from_le_bytes(b) as f32).collect(),
        })
    }
}

/// The text of a value in a header, which is a Python dictionary without spaces here.
fn field<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let rest = header.split_once(&format!("'{name}':"))?.1;
    let end = match rest.starts_with('(') {
        true => rest.find(')')? + 1,
        false => rest.find([',', '}'])?,
    };
    Some(&rest[..end])
}
