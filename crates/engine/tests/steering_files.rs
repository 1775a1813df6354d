//! Steering files: what is written is read, what others write is read, what is broken is named.

use std::io::Write;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView};
use turbospark_engine::steering::{Steer, SteeringVectors};
use turbospark_engine::{Edits, Engine, OpenOptions};
use turbospark_formats::Checkpoint;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn refused(&self, name: &str, bytes: &[u8]) -> String {
        let path = self.write(name, bytes);
        let error = SteeringVectors::load(&path).unwrap_err().to_string();
        assert!(error.contains(name), "the file is not named: {error}");
        error
    }
}

fn vectors() -> SteeringVectors {
    let direction = |layer: usize| (layer, (0..5).map(|i| (layer * 10 + i) as f32 - 7.5).collect());
    let mut vectors = SteeringVectors::new([0, 1, 3].map(direction)).unwrap();
    vectors.model = Some("gpt-oss".to_owned());
    vectors.layers = Some(4);
    vectors.notes.insert("method".to_owned(), "pca".to_owned());
    vectors
}

#[test]
fn what_is_written_is_read() {
    let folder = Folder::new();
    let path = folder.0.path().join("v.safetensors");
    assert!(vectors().save(&path).unwrap().is_empty());
    assert_eq!(SteeringVectors::load(&path).unwrap(), vectors());
    let path = folder.0.path().join("v.gguf");
    assert_eq!(vectors().save(&path).unwrap(), [0]);
    let read = SteeringVectors::load(&path).unwrap();
    assert_eq!(read.layer_list(), "layers 1, 3");
    assert_eq!((&read.model, read.layers, &read.notes), (&vectors().model, Some(4), &vectors().notes));
    assert_eq!(read.direction(3), vectors().direction(3));
    let error = vectors().save(&folder.0.path().join("v.bin")).unwrap_err().to_string();
    assert!(error.contains(".gguf or .safetensors"), "{error}");
    let zero = SteeringVectors::new([(0, vec![1.0])]).unwrap();
    assert!(zero.save(&path).unwrap_err().to_string().contains("no directions"));
}

/// The bytes that cvector-generator writes: a hint, a count, directions from 1 on.
fn control_vector(name: &str, kind: u32, dimensions: &[u64], data: &[u8]) -> Vec<u8> {
    let string = |out: &mut Vec<u8>, text: &str| {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    };
    let mut out = b"GGUF\x03\0\0\0\x01\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0".to_vec();
    for (key, value) in [("general.architecture", "controlvector"), ("controlvector.model_hint", "llama")] {
        string(&mut out, key);
        out.extend(8u32.to_le_bytes());
        string(&mut out, value);
    }
    string(&mut out, "controlvector.layer_count");
    out.extend(5u32.to_le_bytes());
    out.extend(1i32.to_le_bytes());
    string(&mut out, name);
    out.extend((dimensions.len() as u32).to_le_bytes());
    dimensions.iter().for_each(|n| out.extend(n.to_le_bytes()));
    out.extend(kind.to_le_bytes());
    out.extend(0u64.to_le_bytes());
    out.resize(out.len().next_multiple_of(32), 0);
    out.extend(data);
    out
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn control_vectors_of_llama_cpp() {
    let folder = Folder::new();
    let data = bytes(&[1.0, -2.0, 3.0]);
    let good = control_vector("direction.2", 0, &[3], &data);
    let read = SteeringVectors::load(&folder.write("v.gguf", &good)).unwrap();
    assert_eq!(read.model.as_deref(), Some("llama"));
    assert_eq!(**read.direction(2).unwrap(), [1.0, -2.0, 3.0]);
    for (name, bytes, part) in [
        ("zero.gguf", control_vector("direction.0", 0, &[3], &data), "direction.0"),
        ("name.gguf", control_vector("direction.x", 0, &[3], &data), "direction.x"),
        ("type.gguf", control_vector("direction.1", 1, &[3], &data), "F16"),
        ("shape.gguf", control_vector("direction.1", 0, &[3, 1], &data), "[width]"),
        ("huge.gguf", control_vector("direction.1", 0, &[1 << 63], &data), "too large"),
        ("cut.gguf", good[..good.len() - 4].to_vec(), "truncated"),
        ("header.gguf", good[..60].to_vec(), "truncated"),
        ("nan.gguf", control_vector("direction.1", 0, &[3], &crate::bytes(&[1.0, f32::NAN, 0.0])), "NaN"),
        ("empty.gguf", Vec::new(), "GGUF"),
    ] {
        let error = folder.refused(name, &bytes);
        assert!(error.contains(part), "{error}");
    }
    let mut model = good.clone();
    let at = model.windows(13).position(|window| window == b"controlvector").unwrap();
    model[at..at + 13].copy_from_slice(b"llamallamalla");
    assert!(folder.refused("model.gguf", &model).contains("llamallamalla"));
}

fn tensors(name: &str, dtype: Dtype, shape: Vec<usize>, data: &[u8]) -> Vec<u8> {
    safetensors::serialize([(name, TensorView::new(dtype, shape, data).unwrap())], None).unwrap()
}

#[test]
fn safetensors_of_others() {
    let folder = Folder::new();
    let data = bytes(&[1.0, -2.0, 3.0, 4.0]);
    let matrix = tensors("directions", Dtype::F32, vec![2, 2], &data);
    let read = SteeringVectors::load(&folder.write("m.safetensors", &matrix)).unwrap();
    assert_eq!(read.layer_list(), "layers 0-1");
    assert_eq!(**read.direction(1).unwrap(), [3.0, 4.0]);
    let huge = br#"{"direction.1":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,4]}}"#;
    let huge = [&(huge.len() as u64).to_le_bytes()[..], huge, &data[..4]].concat();
    for (name, bytes, part) in [
        ("t.safetensors", tensors("directions", Dtype::F16, vec![2, 4], &data), "F16"),
        ("s.safetensors", tensors("directions", Dtype::F32, vec![4], &data), "[layers, width]"),
        ("n.safetensors", tensors("layer3", Dtype::F32, vec![4], &data), "layer3"),
        (
            "i.safetensors",
            tensors("direction.3", Dtype::F32, vec![1], &crate::bytes(&[f32::INFINITY])),
            "inf",
        ),
        ("c.safetensors", matrix[..matrix.len() - 1].to_vec(), "truncated"),
        ("h.safetensors", huge, "too large"),
        ("x.txt", b"once upon a time".to_vec(), "not a steering file"),
    ] {
        let error = folder.refused(name, &bytes);
        assert!(error.contains(part), "{error}");
    }
}

fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    header.extend(std::iter::repeat_n(' ', 63 - (header.len() + 10) % 64));
    header.push('\n');
    let length = (header.len() as u16).to_le_bytes();
    [b"\x93NUMPY\x01\0", &length[..], header.as_bytes(), data].concat()
}

fn npz(entries: &[(&str, Vec<u8>)], compressed: bool) -> Vec<u8> {
    let method = if compressed { zip::CompressionMethod::Deflated } else { zip::CompressionMethod::Stored };
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        let options = zip::write::SimpleFileOptions::default().compression_method(method);
        writer.start_file(*name, options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

#[test]
fn archives_of_numpy() {
    let folder = Folder::new();
    let data = bytes(&[1.0, -2.0]);
    let doubles: Vec<u8> = [0.5f64, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    for compressed in [false, true] {
        let entries = [
            ("direction.3.npy", npy("<f4", "(2,)", &data)),
            ("direction.4.npy", npy("<f8", "(2,)", &doubles)),
        ];
        let read = SteeringVectors::load(&folder.write("v.npz", &npz(&entries, compressed))).unwrap();
        assert_eq!(**read.direction(3).unwrap(), [1.0, -2.0]);
        assert_eq!(**read.direction(4).unwrap(), [0.5, 4.0]);
    }
    let matrix = npz(&[("directions.npy", npy("<f4", "(2, 1)", &data))], true);
    assert_eq!(SteeringVectors::load(&folder.write("m.npz", &matrix)).unwrap().layer_list(), "layers 0-1");
    let one = |name: &str, descr: &str, shape: &str| npz(&[(name, npy(descr, shape, &data))], true);
    for (name, bytes, part) in [
        ("t.npz", one("directions.npy", "<i4", "(1, 2)"), "<i4"),
        ("s.npz", one("directions.npy", "<f4", "(2,)"), "[layers, width]"),
        ("n.npz", one("weights.npy", "<f4", "(2,)"), "weights"),
        ("c.npz", one("direction.1.npy", "<f4", "(3,)"), "truncated"),
        ("h.npz", one("direction.1.npy", "<f4", "(9223372036854775808,)"), "too large"),
        ("hh.npz", one("directions.npy", "<f4", "(4294967296, 4294967296)"), "too large"),
        ("e.npz", one("direction.1.npy", "<f4", "(0,)"), "no directions"),
        ("z.npz", matrix[..matrix.len() / 2].to_vec(), "npz"),
        ("p.npz", npz(&[("direction.1.npy", b"pickle".to_vec())], false), "truncated"),
    ] {
        let error = folder.refused(name, &bytes);
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn vectors_of_another_model_are_refused() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gpt_oss/hf");
    let engine = Engine::new(&Checkpoint::open(&path).unwrap(), OpenOptions::default()).unwrap();
    let program = engine.program();
    let (layers, width) = (program.layers(), program.hidden());
    let steer = |text: &str| {
        let folder = Folder::new();
        let file = folder.write("v.gguf", b"");
        Steer::parse(&format!("{}{text}", file.display())).unwrap()
    };
    let refused = |text: &str, vectors: &SteeringVectors| {
        let mut edits = Edits::default();
        steer(text).add_vectors(vectors, &mut edits, "gpt_oss", program).unwrap_err().to_string()
    };
    let of = |layer: usize, width: usize| SteeringVectors::new([(layer, vec![1.0; width])]).unwrap();
    let mut other = of(1, width);
    other.model = Some("gpt-oss".to_owned());
    let mut edits = Edits::default();
    steer("").add_vectors(&other, &mut edits, "gpt_oss", program).unwrap();
    assert_eq!(edits.prompt.len(), 1);
    other.model = Some("gemma3".to_owned());
    assert!(refused("", &other).contains("made for a gemma3 model, this model is gpt_oss"));
    let mut deep = of(1, width);
    deep.layers = Some(layers + 1);
    assert!(refused("", &deep).contains(&format!("model of {} layers", layers + 1)));
    assert!(refused("", &of(1, width + 1)).contains(&format!("{} elements", width + 1)));
    assert!(refused("", &of(layers, width)).contains(&format!("layer {layers}")));
    assert!(refused(&format!(":1:0-{layers}"), &of(1, width)).contains(&format!("0-{layers} are asked for")));
    assert!(refused(":1:0-1", &of(1, width)).contains("no direction for layer 0"));
    let zero = SteeringVectors::new([(0, vec![0.0; width])]).unwrap();
    assert!(refused(":ablate", &zero).contains("zero"));
}
