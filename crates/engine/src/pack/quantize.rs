//! Experts quantised on their way into a store.

use std::sync::{Mutex, PoisonError};

use turbospark_cpu::PanelPacker;
use turbospark_experts::ExpertTable;
use turbospark_formats::packed::PackError;
use turbospark_formats::{Format, MatrixLayout, MatrixRef, QuantizeError, quantize_row};
use turbospark_program::{ExpertLayout, ExpertMatrix, ExpertPacker, ExpertRef};

/// Quantises the matrices of an expert row by row, then packs them.
pub(super) struct QuantizingPacker {
    panels: PanelPacker,
    format: Format,
    /// The first row that could not be quantised: packing has no error of its own.
    failed: Mutex<Option<QuantizeError>>,
}

impl QuantizingPacker {
    /// Fails for experts that are not floats, or whose rows are not whole blocks of `format`.
    pub fn new(
        panels: PanelPacker,
        format: Format,
        table: &ExpertTable,
    ) -> Result<QuantizingPacker, PackError> {
        for layer in table.layers() {
            let error = |reason| PackError::Quantize { layer: layer.layer(), format, reason };
            let layout = layer.layout();
            for matrix in [&layout.gate, &layout.up, &layout.down].map(|matrix| &matrix.layout) {
                if !matrix.format.is_float() {
                    let found = matrix.format;
                    return Err(error(format!("they are {found} already; leave --quantize out")));
                }
                if !matrix.columns.is_multiple_of(format.block()) {
                    let (columns, block) = (matrix.columns, format.block());
                    return Err(error(format!(
                        "rows of {columns} elements are not whole blocks of {block}; choose a format of smaller blocks"
                    )));
                }
            }
        }
        Ok(QuantizingPacker { panels, format, failed: Mutex::new(None) })
    }

    /// The error of an expert of model layer `layer` that was packed before.
    pub fn check(&self, layer: usize) -> Result<(), PackError> {
        match &*self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(PackError::Quantize { layer, format: self.format, reason: error.to_string() }),
            None => Ok(()),
        }
    }

    fn layout(&self, matrix: &MatrixLayout) -> MatrixLayout {
        MatrixLayout::plain(self.format, matrix.rows, matrix.columns)
    }

    fn quantize(&self, matrix: &MatrixRef<'_>) -> Result<Vec<u8>, QuantizeError> {
        let columns = matrix.columns();
        let bytes = self.format.row_bytes(0, columns).unwrap_or(0);
        let mut values = vec![0.0; columns];
        let mut out = vec![0; matrix.rows() * bytes];
        for (row, out) in out.chunks_exact_mut(bytes.max(1)).enumerate() {
            matrix.dequantize_row(row, &mut values);
            quantize_row(self.format, &values, out)?;
        }
        Ok(out)
    }
}

impl ExpertPacker for QuantizingPacker {
    fn id(&self) -> &'static str {
        self.panels.id()
    }

    fn bytes(&self, raw: &ExpertLayout) -> usize {
        let [gate, up, down] = [&raw.gate, &raw.up, &raw.down]
            .map(|matrix| ExpertMatrix { layout: self.layout(&matrix.layout), slices: Vec::new() });
        self.panels.bytes(&ExpertLayout { gate, up, down, slice_bytes: Vec::new() })
    }

    fn pack(&self, raw: &ExpertRef<'_>, out: &mut [u8]) {
        let mut pack = || {
            let matrices = [&raw.gate, &raw.up, &raw.down];
            let layouts = matrices.map(|matrix| self.layout(matrix.layout()));
            let [gate, up, down] = matrices.map(|matrix| self.quantize(matrix));
            let bytes = [gate?, up?, down?];
            let view = |i: usize| MatrixRef::new(&layouts[i], &[&bytes[i][..]]);
            if let (Some(gate), Some(up), Some(down)) = (view(0), view(1), view(2)) {
                self.panels.pack(&ExpertRef { gate, up, down }, out);
            }
            Ok(())
        };
        if let Err(error) = pack() {
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        }
    }
}
