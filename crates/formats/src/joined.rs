//! Tensors of safetensors files with the parts of quantised ones joined.

use std::collections::BTreeMap;

use ::safetensors::Dtype;

use crate::quantization::{MlxQuantization, Mode, QuantizationError};
use crate::safetensors::SafetensorsTensor;
use crate::stored::Stored;
use crate::{Float, Format};

/// Tensors that cannot be joined into one of a known format.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum JoinError {
    /// A part of a quantised tensor is not there.
    #[error("tensor {tensor} needs {missing}, which is missing")]
    Missing {
        /// The tensor.
        tensor: String,
        /// Its other part.
        missing: String,
    },
    /// A part has another shape or type than the others ask for.
    #[error("tensor {tensor} is {found}, expected {expected}")]
    Part {
        /// The part.
        tensor: String,
        /// Its type and shape.
        found: String,
        /// What fits the other parts.
        expected: String,
    },
    /// Quantised tensors without a word of it in the configuration.
    #[error("tensor {0} belongs to a quantised module, but config.json does not say how it is quantised")]
    NotConfigured(String),
    /// An element type that weights do not have.
    #[error("tensor {tensor} has element type {dtype}, expected F32, F16 or BF16")]
    ElementType {
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: Dtype,
    },
    /// See [`QuantizationError`].
    #[error(transparent)]
    Quantization(#[from] QuantizationError),
}

/// Tensors by name, taken out as they are joined.
pub(crate) struct Joiner<'a> {
    tensors: BTreeMap<String, SafetensorsTensor>,
    mlx: Option<&'a MlxQuantization>,
}

/// A tensor that may still turn out not to be needed.
pub(crate) enum Joined {
    /// Blocks and scales, or a plain tensor.
    Tensor(Stored),
    /// A plain tensor of a type that weights do not have: an error, unless it is skipped.
    Other(JoinError),
}

impl<'a> Joiner<'a> {
    pub fn new(
        tensors: Vec<SafetensorsTensor>,
        mlx: Option<&'a MlxQuantization>,
    ) -> Result<Joiner<'a>, String> {
        let mut map = BTreeMap::new();
        for tensor in tensors {
            if let Some(twice) = map.insert(tensor.name.clone(), tensor) {
                return Err(twice.name);
            }
        }
        Ok(Joiner { tensors: map, mlx })
    }

    /// The next tensor with its name in the model.
    pub fn next(&mut self) -> Option<Result<(String, Joined), JoinError>> {
        let (name, tensor) = self.tensors.pop_first()?;
        Some(self.join(name, tensor))
    }

    fn join(&mut self, name: String, tensor: SafetensorsTensor) -> Result<(String, Joined), JoinError> {
        if let Some(stem) = name.strip_suffix("_blocks") {
            let stem = stem.to_owned();
            return Ok((stem.clone(), Joined::Tensor(self.blocks_and_scales(stem, tensor)?)));
        }
        // Names sort as .biases, .scales, .weight: whichever comes first brings the others.
        for part in [".biases", ".scales"] {
            let Some(path) = name.strip_suffix(part) else { continue };
            let weight = format!("{path}.weight");
            let Some(first) = self.tensors.remove(&weight) else {
                if part == ".scales" {
                    return Err(JoinError::Missing { tensor: name, missing: weight });
                }
                break;
            };
            let path = path.to_owned();
            self.tensors.insert(name, tensor);
            return Ok((weight, Joined::Tensor(self.quantised(path, first)?)));
        }
        let float = match tensor.dtype {
            Dtype::F32 => Float::F32,
            Dtype::F16 => Float::F16,
            Dtype::BF16 => Float::BF16,
            dtype => {
                return Ok((name.clone(), Joined::Other(JoinError::ElementType { tensor: name, dtype })));
            }
        };
        let stored = Stored {
            name: name.clone(),
            shape: tensor.shape,
            format: Format::Float(float),
            parts: vec![tensor.bytes],
        };
        Ok((name, Joined::Tensor(stored)))
    }

    /// NAME_blocks u8 [.., groups, 16] and NAME_scales u8 [.., groups].
    fn blocks_and_scales(&mut self, name: String, blocks: SafetensorsTensor) -> Result<Stored, JoinError> {
        let scales = self.take(&blocks.name, format!("{name}_scales"))?;
        let expected = "U8 blocks of 16 bytes, [.., rows, groups, 16]";
        let [lead @ .., groups, 16] = &blocks.shape[..] else { return Err(unlike(&blocks, expected.into())) };
        if blocks.dtype != Dtype::U8 {
            return Err(unlike(&blocks, expected.into()));
        }
        let mut shape = lead.to_vec();
        shape.push(*groups);
        if scales.dtype != Dtype::U8 || scales.shape != shape {
            return Err(unlike(&scales, format!("U8 {shape:?}")));
        }
        widen(&mut shape, 32).ok_or_else(|| unlike(&blocks, expected.into()))?;
        Ok(Stored { name, shape, format: Format::Mxfp4Split, parts: vec![blocks.bytes, scales.bytes] })
    }

    /// PATH.weight u32 with PATH.scales and, in affine mode, PATH.biases.
    fn quantised(&mut self, path: String, weight: SafetensorsTensor) -> Result<Stored, JoinError> {
        let scales = self.take(&weight.name, format!("{path}.scales"))?;
        let mode = self.mlx.map(|mlx| mlx.mode(&path)).transpose()?.flatten();
        let mode = mode.ok_or_else(|| JoinError::NotConfigured(scales.name.clone()))?;
        if weight.dtype != Dtype::U32 {
            return Err(unlike(&weight, "U32".into()));
        }
        let (bits, group) = match mode {
            Mode::Affine { bits, group } => (usize::from(bits), usize::from(group)),
            Mode::Mxfp4 => (4, 32),
        };
        // Words hold whole groups: 32 elements of b bits are b words.
        let words = weight.shape.last().copied().unwrap_or(0);
        let groups =
            (words != 0 && words.is_multiple_of(group / 32 * bits)).then(|| words / (group / 32 * bits));
        let Some(groups) = groups else {
            return Err(unlike(&weight, format!("rows of whole groups of {group} elements of {bits} bits")));
        };
        let mut shape = weight.shape.clone();
        shape.pop();
        shape.push(groups);
        let agrees = |part: &SafetensorsTensor, dtypes: &[Dtype]| {
            if part.shape == shape && dtypes.contains(&part.dtype) {
                return Ok(());
            }
            let names: Vec<String> = dtypes.iter().map(Dtype::to_string).collect();
            Err(unlike(part, format!("{} {shape:?} ({bits} bits, groups of {group})", names.join(" or "))))
        };
        let (format, parts) = if mode == Mode::Mxfp4 {
            agrees(&scales, &[Dtype::U8])?;
            (Format::Mxfp4Split, vec![weight.bytes.clone(), scales.bytes.clone()])
        } else {
            agrees(&scales, &[Dtype::BF16, Dtype::F16, Dtype::F32])?;
            let biases = self.take(&weight.name, format!("{path}.biases"))?;
            agrees(&biases, &[scales.dtype])?;
            let float = match scales.dtype {
                Dtype::F16 => Float::F16,
                Dtype::BF16 => Float::BF16,
                _ => Float::F32,
            };
            let format = Format::MlxAffine { bits: bits as u8, group: group as u16, scales: float };
            (format, vec![weight.bytes.clone(), scales.bytes.clone(), biases.bytes])
        };
        widen(&mut shape, group).ok_or_else(|| unlike(&weight, "fewer elements".into()))?;
        Ok(Stored { name: weight.name, shape, format, parts })
    }

    fn take(&mut self, tensor: &str, name: String) -> Result<SafetensorsTensor, JoinError> {
        self.tensors
            .remove(&name)
            .ok_or_else(|| JoinError::Missing { tensor: tensor.to_owned(), missing: name })
    }
}

/// Turns the last dimension from groups into elements.
fn widen(shape: &mut [usize], group: usize) -> Option<()> {
    let last = shape.last_mut()?;
    *last = last.checked_mul(group)?;
    Some(())
}

fn unlike(tensor: &SafetensorsTensor, expected: String) -> JoinError {
    JoinError::Part {
        tensor: tensor.name.clone(),
        found: format!("{} {:?}", tensor.dtype, tensor.shape),
        expected,
    }
}
