//! Every format against values computed elsewhere, bit by bit (tools/fixtures/make_blocks.py).

use std::path::Path;

use turbospark_formats::{Float, Format, MatrixLayout, MatrixRef, RowMap, SafetensorsFile, Source};

struct Fixture(SafetensorsFile);

impl Fixture {
    fn open() -> Fixture {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/blocks.safetensors");
        Fixture(SafetensorsFile::read(&Source::open(&path).unwrap()).unwrap())
    }

    fn bytes(&self, name: &str) -> Option<&[u8]> {
        self.0.tensors.iter().find(|t| t.name == name).map(|t| &t.bytes[..])
    }

    /// The values of case `name`, and those that `format` reads from its bytes.
    fn check(&self, name: &str, format: Format) {
        let values = self.bytes(&format!("{name}.values")).unwrap_or_else(|| panic!("no case {name}"));
        let values: Vec<f32> =
            values.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        let parts: Vec<&[u8]> = (0..3).map_while(|i| self.bytes(&format!("{name}.part{i}"))).collect();
        // As one row, and as rows of one block.
        for rows in [1, values.len() / format.block()] {
            let layout = MatrixLayout::plain(format, rows, values.len() / rows);
            let ours = MatrixRef::new(&layout, &parts).expect("the fixture's sizes").to_f32();
            for (i, (ours, theirs)) in ours.iter().zip(&values).enumerate() {
                // Bits are equal but for NaNs and, in MXFP4, zeros: the gguf package has no minus zero.
                let equal = ours == theirs || ours.is_nan() && theirs.is_nan();
                assert!(equal, "{name}, element {i}: {ours:e}, expected {theirs:e}");
            }
        }
    }
}

#[test]
fn ggml_blocks() {
    let fixture = Fixture::open();
    for format in [
        Format::Q4_0,
        Format::Q4_1,
        Format::Q5_0,
        Format::Q5_1,
        Format::Q8_0,
        Format::IQ4_NL,
        Format::Q2_K,
        Format::Q3_K,
        Format::Q4_K,
        Format::Q5_K,
        Format::Q6_K,
        Format::IQ4_XS,
        Format::MXFP4,
    ] {
        fixture.check(&format.to_string(), format);
    }
}

#[test]
fn microscaling_and_mlx() {
    let fixture = Fixture::open();
    fixture.check("Mxfp4Split", Format::Mxfp4Split);
    for bits in [2, 3, 4, 5, 6, 8] {
        for (group, scales) in [(32, Float::F32), (64, Float::BF16), (128, Float::F16)] {
            let name = format!("Mlx.{bits}.{group}.{scales:?}");
            fixture.check(&name, Format::MlxAffine { bits, group, scales });
        }
    }
}

#[test]
fn ends_of_the_e8m0_range() {
    let mut block = [0x22; 17];
    let layout = MatrixLayout::plain(Format::MXFP4, 1, 32);
    for (scale, one) in [(0, f32::from_bits(1 << 22)), (1, f32::MIN_POSITIVE), (254, 2f32.powi(127))] {
        block[0] = scale;
        assert_eq!(MatrixRef::new(&layout, &[&block]).unwrap().to_f32(), [one; 32]);
    }
    block[0] = 255;
    assert!(MatrixRef::new(&layout, &[&block]).unwrap().to_f32().iter().all(|x| x.is_nan()));
}

#[test]
fn floats_transposed_and_mapped() {
    let values: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let f32s: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let f16s: Vec<u8> = values.iter().flat_map(|x| half::f16::from_f32(*x).to_le_bytes()).collect();
    let bf16s: Vec<u8> = values.iter().flat_map(|x| half::bf16::from_f32(*x).to_le_bytes()).collect();
    for (float, bytes) in [(Float::F32, &f32s), (Float::F16, &f16s), (Float::BF16, &bf16s)] {
        let plain = MatrixLayout::plain(Format::Float(float), 8, 3);
        assert_eq!(MatrixRef::new(&plain, &[bytes]).unwrap().to_f32(), values);

        let odd = MatrixLayout { rows: 4, row_map: RowMap::Strided { start: 1, step: 2 }, ..plain };
        let rows: Vec<f32> = [1, 3, 5, 7].iter().flat_map(|r| values[r * 3..][..3].to_vec()).collect();
        assert_eq!(MatrixRef::new(&odd, &[bytes]).unwrap().to_f32(), rows);

        let transposed = MatrixLayout { transposed: true, ..odd };
        let columns: Vec<f32> =
            [1, 3, 5, 7].iter().flat_map(|r| [*r, r + 8, r + 16].map(|i| i as f32)).collect();
        assert_eq!(MatrixRef::new(&transposed, &[bytes]).unwrap().to_f32(), columns);
    }
}

#[test]
fn paired_heads() {
    // Two heads of four rows: a file stores rows 0 2 1 3 of each.
    let map = RowMap::PairedHeads { head: 4 };
    assert_eq!((0..8).map(|r| map.stored(r)).collect::<Vec<_>>(), [0, 2, 1, 3, 4, 6, 5, 7]);
}
