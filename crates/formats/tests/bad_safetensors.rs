//! safetensors files, indexes and configurations that are wrong on purpose.

mod support;

use std::fs;
use std::path::Path;

use support::{open_safetensors, refused, safetensors, safetensors_with};
use turbospark_formats::{Checkpoint, SafetensorsFile, Source};

const LLAMA: &str = r#"{"model_type": "llama"}"#;
const NORM: &str = "model.norm.weight";

fn read(bytes: Vec<u8>) -> Result<SafetensorsFile, turbospark_formats::SafetensorsError> {
    SafetensorsFile::read(&Source::owned("model.safetensors", bytes))
}

fn tensor(dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
}

#[test]
fn headers() {
    refused(read(vec![0; 7]), "model.safetensors: not a safetensors file: it has 7 bytes");
    for claimed in [u64::MAX, 1 << 40, 100] {
        let bytes = [&claimed.to_le_bytes()[..], b"{}"].concat();
        refused(read(bytes), &format!("the header claims {claimed} bytes, the file has 2 after its length"));
    }
    for header in ["", "[]", "{", "{\"a\":1}", "{} x", "\u{0}"] {
        refused(read(safetensors_with(header, &[])), "the header is not valid");
    }
    refused(read(safetensors_with(&"[".repeat(100_000), &[])), "the header is not valid");
    assert!(read(safetensors_with("{\"__metadata__\":{\"format\":\"pt\"}}   ", &[])).is_ok());
    let mut bytes = safetensors_with("{\"é\":1}", &[]);
    bytes[11] = 0xff;
    refused(read(bytes), "the header is not valid");
}

#[test]
fn entries() {
    let one = |info: String, data: &[u8]| read(safetensors_with(&format!("{{\"a\":{info}}}"), data));
    let two = |first: String, second: String, data: &[u8]| {
        read(safetensors_with(&format!("{{\"a\":{first},\"b\":{second}}}"), data))
    };
    assert!(one(tensor("F32", "[2]", 0, 8), &[0; 8]).is_ok());
    refused(one(tensor("F33", "[2]", 0, 8), &[0; 8]), "tensor a has the unknown element type \"F33\"");
    refused(one(tensor("F32", "[3]", 0, 8), &[0; 8]), "[3] needs 12 bytes, its offsets are 0..8");
    refused(one(tensor("F32", "[2]", 8, 0), &[0; 8]), "its offsets are 8..0");
    let huge = one(tensor("F32", "[9223372036854775807, 3]", 0, 8), &[0; 8]);
    refused(huge, "tensor a is too large: its shape is [9223372036854775807, 3]");
    refused(one(tensor("F32", "[-1]", 0, 8), &[0; 8]), "the header is not valid");
    refused(one(tensor("F32", "[4]", 0, 16), &[0; 8]), "file is truncated: tensor a needs bytes");
    refused(one(tensor("F32", "[2]", 4, 12), &[0; 12]), "tensor a starts at offset 4, expected 0");
    refused(one(tensor("F32", "[2]", 0, 8), &[0; 9]), "1 bytes after the last tensor");
    let overlap = two(tensor("F32", "[2]", 0, 8), tensor("F32", "[2]", 4, 12), &[0; 12]);
    refused(overlap, "tensor b starts at offset 4, expected 8");
    let twice = format!("{{\"a\":{0},\"a\":{0}}}", tensor("F32", "[2]", 0, 8));
    refused(read(safetensors_with(&twice, &[0; 8])), "tensor a is there twice");
    refused(one(tensor("F4", "[3]", 0, 2), &[0; 2]), "byte boundary");
}

#[test]
fn tensors_of_a_model() {
    let open = |tensors: &[(&str, &str, &[usize])]| open_safetensors(LLAMA, safetensors(tensors));
    assert!(open(&[(NORM, "F16", &[4])]).is_ok());
    refused(open(&[(NORM, "I64", &[4])]), "tensor model.norm.weight has element type I64, expected F32");
    refused(open(&[(NORM, "F8_E4M3", &[4])]), "tensor model.norm.weight has element type F8_E4M3");
    refused(
        open(&[(NORM, "F32", &[4, 0])]),
        "tensor model.norm.weight has shape [4, 0], expected at least one",
    );
    refused(open(&[(NORM, "F32", &[1, 1, 4])]), "has shape [1, 1, 4], expected one or two dimensions");
    let both = open(&[(NORM, "F32", &[4]), ("model.language_model.norm.weight", "F32", &[4])]);
    refused(both, "model.language_model.norm.weight and model.norm.weight are both model.norm.weight");

    // What is not needed may have any type.
    let skipped =
        open(&[("model.vision_tower.position_ids", "I64", &[4]), ("new.thing", "I8", &[4])]).unwrap();
    assert_eq!(
        skipped.skipped,
        [
            ("model.vision_tower.position_ids".to_owned(), "vision tower"),
            ("new.thing".to_owned(), "unknown name")
        ]
    );
}

#[test]
fn experts() {
    let open = |tensors: &[(&str, &str, &[usize])]| open_safetensors(LLAMA, safetensors(tensors));
    let one = "model.layers.3.mlp.experts.0.up_proj.weight";
    let gap = open(&[(one, "F32", &[2, 4]), ("model.layers.3.mlp.experts.9.up_proj.weight", "F32", &[2, 4])]);
    refused(
        gap,
        "model.layers.3.mlp.experts.up_proj.weight: expert 1 is missing, though the files have one of",
    );
    let unlike =
        open(&[(one, "F32", &[2, 4]), ("model.layers.3.mlp.experts.1.up_proj.weight", "BF16", &[2, 4])]);
    refused(
        unlike,
        "tensor model.layers.3.mlp.experts.1.up_proj.weight is BF16 [2, 4], expected F32 [2, 4] as",
    );
    let blocks = "model.layers.0.mlp.experts.down_proj_blocks";
    let scales = "model.layers.0.mlp.experts.down_proj_scales";
    refused(
        open(&[(blocks, "U8", &[2, 4, 1, 16])]),
        "down_proj_blocks needs model.layers.0.mlp.experts.down",
    );
    let short = open(&[(blocks, "U8", &[2, 4, 1, 8]), (scales, "U8", &[2, 4, 1])]);
    refused(short, "down_proj_blocks is U8 [2, 4, 1, 8], expected U8 blocks of 16 bytes");
    let unlike = open(&[(blocks, "U8", &[2, 4, 1, 16]), (scales, "U8", &[2, 4, 2])]);
    refused(unlike, "down_proj_scales is U8 [2, 4, 2], expected U8 [2, 4, 1]");
}

#[test]
fn configurations() {
    let open = |config: &str| open_safetensors(config, safetensors(&[(NORM, "F32", &[4])]));
    refused(open("{"), "config.json: not valid JSON");
    refused(open("[]"), "config.json: expected a JSON object");
    refused(open(&"[".repeat(100_000)), "config.json: not valid JSON");
    for method in ["gptq", "awq", "fp8", "bitsandbytes"] {
        let config = format!(r#"{{"quantization_config": {{"quant_method": "{method}", "bits": 4}}}}"#);
        refused(open(&config), &format!("quantization method {method} is not supported; use"));
        refused(open(&format!(r#"{{"text_config": {config}}}"#)), method);
    }
    assert!(open(r#"{"quantization_config": {"quant_method": "mxfp4"}}"#).is_ok());
}

#[test]
fn mlx() {
    let path = "model.layers.0.mlp.up_proj";
    let [weight, scales, biases] = ["weight", "scales", "biases"].map(|leaf| format!("{path}.{leaf}"));
    let open = |quantization: &str, words: usize, groups: usize, scale_type: &str| {
        let config = format!(r#"{{"model_type": "llama", "quantization": {quantization}}}"#);
        let tensors: [(&str, &str, &[usize]); 3] = [
            (&weight, "U32", &[4, words]),
            (&scales, scale_type, &[4, groups]),
            (&biases, scale_type, &[4, groups]),
        ];
        open_safetensors(&config, safetensors(&tensors))
    };
    let format = |result: Result<Checkpoint, _>| {
        let checkpoint = result.unwrap_or_else(|e: turbospark_formats::OpenError| panic!("{e}"));
        let tensor = checkpoint.get(&weight).unwrap();
        (tensor.layout().format.to_string(), tensor.shape().to_vec())
    };
    let found = |format: &str, columns| (format.to_owned(), vec![4, columns]);
    assert_eq!(format(open(r#"{"group_size": 64, "bits": 4}"#, 16, 2, "BF16")), found("MLX 4-bit/64", 128));
    assert_eq!(format(open(r#"{"group_size": 32, "bits": 3}"#, 6, 2, "F16")), found("MLX 3-bit/32", 64));
    assert_eq!(format(open("{}", 16, 2, "F32")), found("MLX 4-bit/64", 128));
    // An entry replaces the default: its mode is affine, its bits and group are 4 and 64.
    let entry = format!(r#"{{"mode": "mxfp4", "group_size": 32, "bits": 4, "{path}": {{}}}}"#);
    assert_eq!(format(open(&entry, 16, 2, "F16")), found("MLX 4-bit/64", 128));

    refused(open(r#"{"bits": 8}"#, 15, 2, "F16"), "expected rows of whole groups of 64 elements of 8 bits");
    refused(
        open(r#"{"bits": 8}"#, 16, 2, "F16"),
        "up_proj.scales is F16 [4, 2], expected BF16 or F16 or F32 [4, 1]",
    );
    refused(open("{}", 16, 2, "U8"), "up_proj.scales is U8 [4, 2], expected");
    refused(
        open(r#"{"bits": 7}"#, 16, 2, "F16"),
        "quantization of the model has bits 7, expected 2, 3, 4, 5",
    );
    refused(open(r#"{"group_size": 48}"#, 16, 2, "F16"), "group_size 48, expected 32, 64 or 128");
    refused(
        open(r#"{"mode": "nvfp4"}"#, 16, 2, "F16"),
        "quantization mode nvfp4 of the model is not supported",
    );
    let entry = format!(r#"{{"{path}": {{"mode": "mxfp8"}}}}"#);
    refused(open(&entry, 16, 2, "F16"), &format!("mode mxfp8 of {path} is not supported"));
    refused(open(&format!(r#"{{"{path}": false}}"#), 16, 2, "F16"), "does not say how it is quantised");
    refused(open(&format!(r#"{{"{path}": 4}}"#), 16, 2, "F16"), "has entry 4, expected an object or false");
    refused(
        open("null", 16, 2, "F16"),
        "up_proj.scales belongs to a quantised module, but config.json does not",
    );

    // How a tower that is not needed is quantised does not matter.
    let tower =
        safetensors(&[("vision_tower.a.weight", "U8", &[2, 3]), ("vision_tower.a.scales", "U8", &[1])]);
    let tower = open_safetensors(LLAMA, tower).unwrap();
    assert_eq!((tower.tensors().count(), tower.skipped.len()), (0, 2));

    let mxfp4 = |scales_type| {
        let config = r#"{"quantization": {"mode": "mxfp4"}}"#;
        let tensors: [(&str, &str, &[usize]); 2] =
            [(&weight, "U32", &[4, 8]), (&scales, scales_type, &[4, 2])];
        open_safetensors(config, safetensors(&tensors))
    };
    assert_eq!(format(mxfp4("U8")), found("MXFP4 (blocks, scales)", 64));
    refused(mxfp4("F16"), "up_proj.scales is F16 [4, 2], expected U8 [4, 2]");
    let alone = safetensors(&[(&scales, "F16", &[4, 2])]);
    refused(open_safetensors(LLAMA, alone), "up_proj.scales needs model.layers.0.mlp.up_proj.weight");
    let two = safetensors(&[(&weight, "U32", &[4, 16]), (&scales, "F16", &[4, 2])]);
    refused(open_safetensors(r#"{"quantization": {}}"#, two), "needs model.layers.0.mlp.up_proj.biases");
}

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn open(path: &Path) -> Result<Checkpoint, turbospark_formats::OpenError> {
    Checkpoint::open(path)
}

#[test]
fn shards() {
    let one = safetensors(&[(NORM, "F32", &[4])]);
    let two = safetensors(&[("lm_head.weight", "F32", &[4, 2])]);
    let with = |index: &str, two: &[u8]| {
        folder(&[
            ("config.json", LLAMA.as_bytes()),
            ("model.safetensors.index.json", index.as_bytes()),
            ("one.safetensors", &one),
            ("two.safetensors", two),
        ])
    };
    let map = |a: &str, b: &str| {
        format!(r#"{{"weight_map": {{"model.norm.weight": "{a}", "lm_head.weight": "{b}"}}}}"#)
    };
    let good = with(&map("one.safetensors", "two.safetensors"), &two);
    for path in ["", "config.json", "model.safetensors.index.json", "two.safetensors"] {
        assert_eq!(open(&good.path().join(path)).unwrap().tensors().count(), 2, "{path}");
    }
    let index = |index: &str, second: &[u8]| open(with(index, second).path());
    refused(index("{}", &two), "model.safetensors.index.json: not an index of shards");
    let missing = index(&map("one.safetensors", "three.safetensors"), &two);
    refused(missing, "shard three.safetensors, which has tensor lm_head.weight, cannot be opened");
    for outside in ["../x.safetensors", "/etc/passwd", "a/../../x", "", "."] {
        let message = format!("tensor lm_head.weight is placed in {outside:?}, expected a file name within");
        refused(index(&map("one.safetensors", outside), &two), &message);
    }
    let swapped = index(&map("two.safetensors", "one.safetensors"), &two);
    refused(swapped, "tensor lm_head.weight is placed in one.safetensors, which does not have it");
    let twice = safetensors(&[("lm_head.weight", "F32", &[4, 2]), (NORM, "F32", &[4])]);
    let twice = index(&map("one.safetensors", "two.safetensors"), &twice);
    refused(twice, "tensor model.norm.weight is in both one.safetensors and two.safetensors");
}

#[test]
fn folders() {
    let one = safetensors(&[(NORM, "F32", &[4])]);
    let config: (&str, &[u8]) = ("config.json", LLAMA.as_bytes());
    let empty = folder(&[]);
    refused(open(empty.path()), "neither config.json nor a *.gguf");
    refused(open(&empty.path().join("nothing")), "nothing: ");
    refused(open(folder(&[config]).path()), "the folder has config.json but no *.safetensors");
    refused(open(folder(&[("model.safetensors", &one)]).path()), "*.safetensors but no config.json");
    let unindexed = folder(&[config, ("a.safetensors", &one), ("b.safetensors", &one)]);
    refused(open(unindexed.path()), "2 safetensors files but neither model.safetensors nor");
    assert!(open(&unindexed.path().join("b.safetensors")).is_ok());
    let odd = folder(&[config, ("model.safetensors", &one), ("notes.txt", b"hello"), ("bad.gguf", b"GGML")]);
    assert!(open(odd.path()).is_ok());
    refused(open(&odd.path().join("notes.txt")), "notes.txt: not a model: a file of another kind");
    refused(open(&odd.path().join("bad.gguf")), "bad.gguf: not a model: it does not start with \"GGUF\"");

    let bad = |name, bytes| open(folder(&[config, ("model.safetensors", &one), (name, bytes)]).path());
    refused(bad("generation_config.json", b"{"), "generation_config.json: not valid JSON");
    refused(bad("tokenizer_config.json", b"nope"), "tokenizer_config.json: not valid JSON");
    refused(bad("chat_template.jinja", b"\xff"), "chat_template.jinja: not valid UTF-8");
    let large = vec![b' '; (16 << 20) + 1];
    refused(bad("tokenizer_config.json", &large), "tokenizer_config.json: the file is larger than 16 MiB");
    let old = bad("chat_template.json", br#"{"chat_template": "{{ x }}"}"#).unwrap();
    assert_eq!(old.tokenizer.chat_template.as_deref(), Some("{{ x }}"));
}
