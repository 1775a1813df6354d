//! The input of linears: rows in quantised blocks, or as f32, in tiles of up to eight rows.
//!
//! A row is quantised in blocks of 32: scale = largest magnitude / 127, values = x / scale rounded half to even.
//! A block whose scale would not be a normal number counts as zero, with scale 1. A block with a NaN or an
//! infinity has scale NaN and values zero, so that every output it touches is NaN.

use std::ops::Range;

use crate::isa::Isa;
#[cfg(target_arch = "x86_64")]
use crate::isa::Level;
use crate::panels::{BLOCK, QUADS};

/// Rows of a tile; the last tile has what is left.
pub const TILE: usize = 8;

/// Words of a block a row: scale, correction and scaled sum, then eight quads of values.
pub(crate) const BLOCK_WORDS: usize = 3 + QUADS;
/// Words of a block a row, apart, for formats with two scales a block: corrections and scaled sums of the halves.
pub(crate) const HALVES_WORDS: usize = 4;

/// What the rows are kept as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Quantised in blocks of 32, for all kinds of panels but dense ones.
    Blocks,
    /// As they are, for dense panels.
    Floats,
}

/// Rows of input, tile by tile. The memory is kept for the next use.
///
/// A tile of R rows has, for each block: R scales (f32), R corrections (-128 * sum of values, i32), R scaled sums
/// (scale * sum, f32) and R times eight quads; after its last block it has, for each block: R corrections of
/// the first 16 values, R of the last, R scaled sums of the first, R of the last. A tile of floats has, for each
/// column, R of them.
#[derive(Clone, Debug)]
pub struct Activations {
    form: Form,
    rows: usize,
    columns: usize,
    words: Vec<u32>,
}

impl Default for Activations {
    fn default() -> Activations {
        Activations::new()
    }
}

fn row_words(form: Form, columns: usize) -> usize {
    match form {
        Form::Blocks => columns / BLOCK * (BLOCK_WORDS + HALVES_WORDS),
        Form::Floats => columns,
    }
}

impl Activations {
    /// No rows.
    pub fn new() -> Activations {
        Activations { form: Form::Floats, rows: 0, columns: 0, words: Vec::new() }
    }

    /// Words of memory that so many rows take.
    pub fn words(form: Form, rows: usize, columns: usize) -> usize {
        rows * row_words(form, columns)
    }

    /// Makes room for rows, whose values are then written tile by tile ([`Activations::tiles_mut`]). It allocates
    /// only if there were never as many. Blocks ask for columns that are a multiple of 32.
    pub fn prepare(&mut self, form: Form, rows: usize, columns: usize) {
        assert!(
            form == Form::Floats || columns.is_multiple_of(BLOCK),
            "blocks of 32 do not fit {columns} columns"
        );
        (self.form, self.rows, self.columns) = (form, rows, columns);
        let words = Activations::words(form, rows, columns);
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
    }

    /// The tiles, to be filled; several threads may each take some.
    pub fn tiles_mut(&mut self) -> impl ExactSizeIterator<Item = TileMut<'_>> {
        let Activations { form, rows, columns, .. } = *self;
        let words = Activations::words(form, rows, columns);
        let tile = (TILE * row_words(form, columns)).max(1);
        self.words[..words].chunks_mut(tile).enumerate().map(move |(index, words)| TileMut {
            form,
            rows: index * TILE..rows.min((index + 1) * TILE),
            columns,
            words,
        })
    }

    /// Prepares and fills in one thread; `row` gives the values of a row.
    pub fn fill<'x>(
        &mut self,
        isa: Isa,
        form: Form,
        rows: usize,
        columns: usize,
        row: impl Fn(usize) -> &'x [f32],
    ) {
        self.prepare(form, rows, columns);
        for mut tile in self.tiles_mut() {
            tile.fill(isa, &row);
        }
    }

    /// Quantises rows that lie one after the other.
    pub fn quantize(&mut self, isa: Isa, x: &[f32], columns: usize) {
        self.fill(isa, Form::Blocks, x.len() / columns, columns, |r| &x[r * columns..(r + 1) * columns]);
    }

    /// Takes rows that lie one after the other as they are.
    pub fn floats(&mut self, isa: Isa, x: &[f32], columns: usize) {
        self.fill(isa, Form::Floats, x.len() / columns, columns, |r| &x[r * columns..(r + 1) * columns]);
    }

    /// What the rows are kept as.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values of a row.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Number of tiles.
    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    /// Rows and words of a tile.
    pub(crate) fn tile(&self, index: usize) -> (usize, &[u32]) {
        let words = row_words(self.form, self.columns);
        let rows = (self.rows - index * TILE).min(TILE);
        (rows, &self.words[index * TILE * words..][..rows * words])
    }
}

/// A tile to be filled.
#[derive(Debug)]
pub struct TileMut<'a> {
    form: Form,
    rows: Range<usize>,
    columns: usize,
    words: &'a mut [u32],
}

impl TileMut<'_> {
    /// The rows that it holds.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Writes all rows; `row` gives the values of each of [`TileMut::rows`].
    pub fn fill<'x>(&mut self, isa: Isa, row: impl Fn(usize) -> &'x [f32]) {
        let rows = self.rows.len();
        for (r, index) in self.rows.clone().enumerate() {
            let values = row(index);
            assert_eq!(values.len(), self.columns);
            match self.form {
                Form::Blocks => quantize_row(isa, values, self.words, r, rows),
                Form::Floats => {
                    for (words, value) in self.words.chunks_exact_mut(rows).zip(values) {
                        words[r] = value.to_bits();
                    }
                }
            }
        }
    }

    /// As [`TileMut::fill`], of rows that are quantised already.
    pub(crate) fn gather<'x>(&mut self, row: impl Fn(usize) -> &'x [u32]) {
        let (rows, blocks) = (self.rows.len(), self.columns / BLOCK);
        for (r, index) in self.rows.clone().enumerate() {
            let (from, from_halves) = row(index).split_at(blocks * BLOCK_WORDS);
            let (main, halves) = self.words.split_at_mut(blocks * BLOCK_WORDS * rows);
            let main = main.chunks_exact_mut(BLOCK_WORDS * rows);
            for (from, main) in from.as_chunks::<BLOCK_WORDS>().0.iter().zip(main) {
                for (i, word) in from[..3].iter().enumerate() {
                    main[i * rows + r] = *word;
                }
                main[3 * rows + QUADS * r..][..QUADS].copy_from_slice(&from[3..]);
            }
            let halves = halves.chunks_exact_mut(HALVES_WORDS * rows);
            for (from, halves) in from_halves.as_chunks::<HALVES_WORDS>().0.iter().zip(halves) {
                for (i, word) in from.iter().enumerate() {
                    halves[i * rows + r] = *word;
                }
            }
        }
    }
}

/// Rows quantised once, from which tiles are gathered: of routed experts each takes some rows, and most rows go to
/// several.
#[derive(Debug, Default)]
pub(crate) struct QuantizedRows {
    columns: usize,
    words: Vec<u32>,
}

impl QuantizedRows {
    /// Makes room; the memory is kept for the next use.
    pub fn prepare(&mut self, rows: usize, columns: usize) {
        assert!(columns.is_multiple_of(BLOCK), "blocks of 32 do not fit {columns} columns");
        self.columns = columns;
        let words = rows * row_words(Form::Blocks, columns);
        if self.words.len() < words {
            self.words.resize(words, 0);
        }
    }

    /// The rows one by one, to be filled by [`quantize_alone`].
    pub fn rows_mut(&mut self) -> impl Iterator<Item = &mut [u32]> {
        let words = row_words(Form::Blocks, self.columns).max(1);
        self.words.chunks_exact_mut(words)
    }

    /// A row.
    pub fn row(&self, index: usize) -> &[u32] {
        let words = row_words(Form::Blocks, self.columns);
        &self.words[index * words..(index + 1) * words]
    }
}

/// Quantises a row as a tile of its own.
pub(crate) fn quantize_alone(isa: Isa, x: &[f32], words: &mut [u32]) {
    quantize_row(isa, x, words, 0, 1);
}

/// Quantisation is plain code without fused operations: wider vectors change its speed only.
fn quantize_row(isa: Isa, x: &[f32], words: &mut [u32], row: usize, rows: usize) {
    match isa.level() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => {
            #[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512dq")]
            fn wide(x: &[f32], words: &mut [u32], row: usize, rows: usize) {
                quantize(x, words, row, rows);
            }
            // SAFETY: the machine has AVX-512, or there would be no such `Isa`.
            unsafe { wide(x, words, row, rows) }
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => {
            #[target_feature(enable = "avx2")]
            fn wide(x: &[f32], words: &mut [u32], row: usize, rows: usize) {
                quantize(x, words, row, rows);
            }
            // SAFETY: the machine has AVX2, or there would be no such `Isa`.
            unsafe { wide(x, words, row, rows) }
        }
        _ => quantize(x, words, row, rows),
    }
}

#[inline(always)]
fn quantize(x: &[f32], words: &mut [u32], row: usize, rows: usize) {
    let blocks = x.len() / BLOCK;
    let (main, halves) = words.split_at_mut(blocks * BLOCK_WORDS * rows);
    let main = main.chunks_exact_mut(BLOCK_WORDS * rows);
    let halves = halves.chunks_exact_mut(HALVES_WORDS * rows);
    for ((x, main), halves) in x.as_chunks::<BLOCK>().0.iter().zip(main).zip(halves) {
        let (scale, values) = quantize_block(x);
        let (mut first, mut last) = (0, 0);
        for i in 0..BLOCK / 2 {
            first += values[i];
            last += values[BLOCK / 2 + i];
        }
        let sum = first + last;
        main[row] = scale.to_bits();
        main[rows + row] = (-128 * sum) as u32;
        main[2 * rows + row] = (scale * sum as f32).to_bits();
        let quads = &mut main[3 * rows + QUADS * row..][..QUADS];
        for (word, [a, b, c, d]) in quads.iter_mut().zip(values.as_chunks::<4>().0) {
            *word = u32::from_le_bytes([*a as u8, *b as u8, *c as u8, *d as u8]);
        }
        halves[row] = (-128 * first) as u32;
        halves[rows + row] = (-128 * last) as u32;
        halves[2 * rows + row] = (scale * first as f32).to_bits();
        halves[3 * rows + row] = (scale * last as f32).to_bits();
    }
}

#[inline(always)]
fn quantize_block(x: &[f32; BLOCK]) -> (f32, [i32; BLOCK]) {
    // As integers, magnitudes order like the floats, with infinity and NaN above all.
    let mut largest = 0;
    for v in x {
        largest = largest.max(v.to_bits() & 0x7fff_ffff);
    }
    if largest >= f32::INFINITY.to_bits() {
        return (f32::NAN, [0; BLOCK]);
    }
    let scale = f32::from_bits(largest) / 127.0;
    let scale = if scale < f32::MIN_POSITIVE { 1.0 } else { scale };
    // Added to 1.5 * 2^23, a number is rounded half to even and its integer fills the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    // Loops, not closures: a closure would be compiled without the caller's vector instructions.
    let mut values = [0; BLOCK];
    for i in 0..BLOCK {
        values[i] = ((x[i] / scale + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    }
    (scale, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_round_half_to_even() {
        let mut x = [0.0; BLOCK];
        x[..8].copy_from_slice(&[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.49]);
        let (scale, values) = quantize_block(&x);
        assert_eq!(scale, 1.0);
        assert_eq!(values[..8], [127, 0, 2, 2, 0, -2, -2, 126]);
    }

    #[test]
    fn values_stay_within_127() {
        for bits in (0x0080_0000..0x7f80_0000u32).step_by(99_991) {
            let x = f32::from_bits(bits);
            let (scale, values) = quantize_block(&[x; BLOCK]);
            assert!(values[0] == 127 || scale == 1.0 && values[0] == 0, "{x:e}: {scale:e} {}", values[0]);
        }
    }

    #[test]
    fn gathered_rows_are_as_if_quantised_in_place() {
        let (rows, columns) = (11, 96);
        let x: Vec<f32> = (0..rows * columns).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0).collect();
        let mut quantized = QuantizedRows::default();
        quantized.prepare(rows, columns);
        for (words, x) in quantized.rows_mut().zip(x.chunks_exact(columns)) {
            quantize_alone(Isa::detect(), x, words);
        }
        let order = [3, 0, 10, 7, 7, 1, 2, 9, 4, 5];
        let [mut gathered, mut filled] = [Activations::new(), Activations::new()];
        gathered.prepare(Form::Blocks, order.len(), columns);
        gathered.tiles_mut().for_each(|mut tile| tile.gather(|i| quantized.row(order[i])));
        filled.fill(Isa::SCALAR, Form::Blocks, order.len(), columns, |i| &x[order[i] * columns..][..columns]);
        assert_eq!(gathered.words, filled.words);
    }

    #[test]
    fn zero_tiny_and_non_finite_blocks() {
        assert_eq!(quantize_block(&[0.0; BLOCK]), (1.0, [0; BLOCK]));
        assert_eq!(quantize_block(&[f32::MIN_POSITIVE; BLOCK]), (1.0, [0; BLOCK]));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = [1.0; BLOCK];
            x[17] = bad;
            let (scale, values) = quantize_block(&x);
            assert!(scale.is_nan() && values == [0; BLOCK]);
        }
        let (scale, values) = quantize_block(&[f32::MAX; BLOCK]);
        assert!(scale.is_finite() && values == [127; BLOCK]);
    }
}
