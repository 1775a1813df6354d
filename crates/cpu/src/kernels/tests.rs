//! The same tests for every kind of panel and every instruction set the machine has.

use turbospark_formats::{Float, Format, MatrixLayout};

use super::scalar;
use crate::activations::{Activations, Form};
use crate::isa::Isa;
use crate::linear::{Outputs, linear};
use crate::panels::{LANES, PackedMatrix, PanelKind, PanelLayout};
use crate::testing::{FLAVOURS, Flavour, OwnedMatrix, Random, formats};

fn packed(matrix: &OwnedMatrix, isa: Isa) -> PackedMatrix {
    PackedMatrix::pack(isa, PanelLayout::of(&matrix.layout).unwrap(), &matrix.view()).unwrap()
}

fn random_rows(rows: usize, columns: usize, flavour: Flavour, random: &mut Random) -> Vec<f32> {
    (0..rows * columns)
        .map(|i| match flavour {
            // Every value of the largest magnitude, of both signs or of one.
            Flavour::Highest => 3.0,
            Flavour::Lowest => -3.0,
            Flavour::Top if i % 3 == 0 => -2.0,
            Flavour::Top => 2.0,
            Flavour::Zero if i / 32 % 2 == 0 => 0.0,
            _ => random.float(),
        })
        .collect()
}

fn run(isa: Isa, weights: &PackedMatrix, x: &[f32]) -> Vec<f32> {
    let layout = *weights.layout();
    let rows = x.len() / layout.columns();
    let form = if layout.kind().is_dense() { Form::Floats } else { Form::Blocks };
    let mut input = Activations::new();
    input.fill(isa, form, rows, layout.columns(), |r| &x[r * layout.columns()..(r + 1) * layout.columns()]);
    let mut out = vec![f32::MAX; rows * layout.rows()];
    let mut outputs = Outputs::new(&mut out, rows, layout.rows(), layout.rows());
    linear(isa, &weights.panels(), 0..layout.panels(), &input, &mut outputs);
    out
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}

/// Columns for a format: a few blocks.
fn columns(format: Format, blocks: usize) -> usize {
    match format {
        Format::Float(_) => 7 * blocks + 3,
        _ => format.block() * blocks,
    }
}

#[test]
fn panels_stand_for_the_values_of_the_file() {
    let mut random = Random::new(1);
    for format in formats() {
        for flavour in FLAVOURS {
            for rows in [1, 16, 37] {
                let matrix = OwnedMatrix::random(
                    MatrixLayout::plain(format, rows, columns(format, 3)),
                    flavour,
                    &mut random,
                );
                for isa in Isa::all() {
                    check_panels(&matrix, PanelKind::of(format), isa);
                }
                check_panels(&matrix, PanelKind::of_full(format), Isa::SCALAR);
            }
        }
    }
}

fn check_panels(matrix: &OwnedMatrix, kind: PanelKind, isa: Isa) {
    let MatrixLayout { rows, columns, format, .. } = matrix.layout;
    let layout = PanelLayout::new(kind, rows, columns).unwrap();
    let packed = PackedMatrix::pack(isa, layout, &matrix.view()).unwrap();
    let mut expected = vec![0.0; columns];
    for panel in 0..layout.panels() {
        let decoded = scalar::decode(kind, packed.panels().panels(panel..panel + 1));
        for (lane, values) in decoded.iter().enumerate() {
            let row = panel * LANES + lane;
            expected.fill(0.0);
            if row < rows {
                matrix.view().dequantize_row(row, &mut expected);
            }
            for (k, ((value, _), expected)) in values.iter().zip(&expected).enumerate() {
                let equal = value == expected || value.is_nan() && expected.is_nan();
                assert!(
                    equal,
                    "{format} as {kind} on {isa}: row {row} column {k} is {value}, not {expected}"
                );
            }
        }
    }
}

#[test]
fn row_maps_and_transposed_floats_are_packed_in_logical_order() {
    use turbospark_formats::RowMap;
    let mut random = Random::new(2);
    for format in [Format::Q4_0, Format::Q6_K, Format::Float(Float::BF16)] {
        for row_map in [RowMap::Strided { start: 1, step: 2 }, RowMap::PairedHeads { head: 8 }] {
            let mut layout = MatrixLayout::plain(format, 24, 256);
            (layout.stored_rows, layout.row_map) = (49, row_map);
            let matrix = OwnedMatrix::random(layout, Flavour::Usual, &mut random);
            check_panels(&matrix, PanelKind::of(format), Isa::detect());
        }
    }
    let mut layout = MatrixLayout::plain(Format::Float(Float::F16), 24, 40);
    (layout.stored_rows, layout.row_map, layout.transposed) =
        (48, RowMap::Strided { start: 0, step: 2 }, true);
    let matrix = OwnedMatrix::random(layout, Flavour::Usual, &mut random);
    check_panels(&matrix, PanelKind::Dense(Float::F16), Isa::detect());
    check_panels(&matrix, PanelKind::Dense(Float::F32), Isa::detect());
}

#[test]
fn every_instruction_set_gives_the_bits_of_the_scalar_code() {
    let mut random = Random::new(3);
    for format in formats() {
        for (flavour, blocks) in FLAVOURS.into_iter().zip([5, 1, 2, 2, 1, 2]) {
            let layout = MatrixLayout::plain(format, 41, columns(format, blocks));
            let matrix = OwnedMatrix::random(layout, flavour, &mut random);
            let x = random_rows(17, layout.columns, flavour, &mut random);
            let expected = run(Isa::SCALAR, &packed(&matrix, Isa::SCALAR), &x);
            for isa in Isa::all().filter(|isa| *isa != Isa::SCALAR) {
                let weights = packed(&matrix, isa);
                for rows in 1..=17 {
                    let found = run(isa, &weights, &x[..rows * layout.columns]);
                    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                        assert!(
                            same(*found, *expected),
                            "{format}, {flavour:?}, {isa}, {rows} rows: row {} output {}: {found:e}, not {expected:e}",
                            i / layout.rows,
                            i % layout.rows,
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_how_the_work_is_cut() {
    let mut random = Random::new(4);
    let isa = Isa::detect();
    for format in formats() {
        let layout = MatrixLayout::plain(format, 100, columns(format, 2));
        let matrix = OwnedMatrix::random(layout, Flavour::Usual, &mut random);
        let weights = packed(&matrix, isa);
        let x = random_rows(33, layout.columns, Flavour::Usual, &mut random);
        let whole = run(isa, &weights, &x);
        // Row by row, on scalar code for good measure.
        for row in [0, 7, 8, 32] {
            let alone = run(Isa::SCALAR, &weights, &x[row * layout.columns..(row + 1) * layout.columns]);
            assert!(alone.iter().zip(&whole[row * 100..]).all(|(a, b)| same(*a, *b)), "{format}, row {row}");
        }
        // Two threads, each some of the panels.
        let mut input = Activations::new();
        let form = if weights.layout().kind().is_dense() { Form::Floats } else { Form::Blocks };
        input.fill(isa, form, 33, layout.columns, |r| &x[r * layout.columns..(r + 1) * layout.columns]);
        let mut out = vec![0.0; 33 * 128];
        let (left, right) = Outputs::new(&mut out, 33, 100, 128).split_at(3 * LANES);
        let (panels, input) = (weights.panels(), &input);
        std::thread::scope(|threads| {
            for (range, mut outputs) in [(0..3, left), (3..7, right)] {
                threads.spawn(move || linear(isa, &panels, range, input, &mut outputs));
            }
        });
        for (row, whole) in out.chunks_exact(128).zip(whole.chunks_exact(100)) {
            assert!(row.iter().zip(whole).all(|(a, b)| same(*a, *b)), "{format}");
            assert!(row[100..].iter().all(|v| *v == 0.0), "{format}: wrote beyond its columns");
        }
    }
}

#[test]
fn results_are_near_the_product_of_the_values_they_stand_for() {
    let mut random = Random::new(5);
    for format in formats() {
        let layout = MatrixLayout::plain(format, 19, columns(format, 4));
        let matrix = OwnedMatrix::random(layout, Flavour::Usual, &mut random);
        let weights = packed(&matrix, Isa::SCALAR);
        let x = random_rows(2, layout.columns, Flavour::Usual, &mut random);
        let found = run(Isa::SCALAR, &weights, &x);
        let values = input_values(&x, layout.columns, weights.layout().kind().is_dense());
        for (row, x) in values.chunks_exact(layout.columns).enumerate() {
            for output in 0..layout.rows {
                let decoded = &scalar::decode(
                    weights.layout().kind(),
                    weights.panels().panels(output / LANES..output / LANES + 1),
                );
                let weights = &decoded[output % LANES];
                let exact: f64 = weights.iter().zip(x).map(|((w, _), x)| f64::from(*w) * x).sum();
                let magnitude: f64 = weights.iter().zip(x).map(|((_, m), x)| f64::from(*m) * x.abs()).sum();
                // Each step rounds once (two for a scale or a scaled sum before it), each at most by half a unit of
                // a partial sum, none of which exceeds the sum of magnitudes; dequantised weights round too.
                let steps = layout.columns as f64 + 4.0;
                let bound = steps * magnitude * f64::from(f32::EPSILON);
                let found = f64::from(found[row * layout.rows + output]);
                assert!(
                    (found - exact).abs() <= bound,
                    "{format}: {found:e}, not {exact:e} within {bound:e}"
                );
            }
        }
    }
}

/// The rows that a linear sees.
fn input_values(x: &[f32], columns: usize, dense: bool) -> Vec<f64> {
    if dense {
        return x.iter().map(|v| f64::from(*v)).collect();
    }
    let quantized = |block: &[f32]| -> Vec<f64> {
        let scale = block.iter().fold(0.0f32, |m, v| m.max(v.abs())) / 127.0;
        block.iter().map(|v| f64::from((v / scale).round_ties_even()) * f64::from(scale)).collect()
    };
    x.chunks_exact(columns).flat_map(|row| row.chunks_exact(32).flat_map(quantized)).collect()
}

#[test]
fn a_non_finite_input_shows_in_every_output_of_its_row() {
    let mut random = Random::new(6);
    for isa in Isa::all() {
        let matrix =
            OwnedMatrix::random(MatrixLayout::plain(Format::Q4_0, 32, 64), Flavour::Usual, &mut random);
        let mut x = random_rows(3, 64, Flavour::Usual, &mut random);
        x[64 + 40] = f32::INFINITY;
        let out = run(isa, &packed(&matrix, isa), &x);
        assert!(out[32..64].iter().all(|v| v.is_nan()));
        assert!(out[..32].iter().chain(&out[64..]).all(|v| v.is_finite()));
    }
}

#[test]
fn a_nan_scale_shows_in_its_output() {
    for isa in Isa::all() {
        let layout = MatrixLayout::plain(Format::Mxfp4Split, 16, 32);
        let (codes, mut scales) = (vec![0x21; 256], vec![127; 16]);
        scales[5] = 255;
        let matrix = turbospark_formats::MatrixRef::new(&layout, &[&codes, &scales]).unwrap();
        let weights = PackedMatrix::pack(isa, PanelLayout::of(&layout).unwrap(), &matrix).unwrap();
        let out = run(isa, &weights, &[1.0; 32]);
        assert!(out.iter().enumerate().all(|(row, value)| value.is_nan() == (row == 5)), "{isa}");
    }
}
