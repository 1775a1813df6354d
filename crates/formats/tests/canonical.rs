//! Names and layouts of every source end as the same tensors.

mod support;

use std::collections::BTreeMap;
use std::fs;

use support::{Gguf, open_safetensors, refused, safetensors};
use turbospark_formats::{Checkpoint, Source};

/// Names, shapes and values.
fn contents(checkpoint: &Checkpoint) -> BTreeMap<String, (Vec<usize>, Vec<f32>)> {
    let tensors = checkpoint.tensors();
    tensors.map(|(name, tensor)| (name.to_owned(), (tensor.shape().to_vec(), tensor.to_f32()))).collect()
}

/// A model with the experts of one layer, E = 3, I = 2, H = 4, from tensors in the file's own spelling.
fn experts(model_type: &str, tensors: &[(String, Vec<usize>)]) -> Checkpoint {
    let tensors: Vec<(&str, &str, &[usize])> =
        tensors.iter().map(|(name, shape)| (name.as_str(), "F32", &shape[..])).collect();
    let config = format!(r#"{{"model_type": "{model_type}"}}"#);
    open_safetensors(&config, safetensors(&tensors)).unwrap_or_else(|e| panic!("{e}"))
}

fn names_and_shapes(checkpoint: &Checkpoint) -> Vec<String> {
    checkpoint.tensors().map(|(name, tensor)| format!("{name} {:?}", tensor.shape())).collect()
}

fn expected(place: &str) -> [String; 3] {
    ["down_proj.weight [3, 4, 2]", "gate_proj.weight [3, 2, 4]", "up_proj.weight [3, 2, 4]"]
        .map(|rest| format!("model.layers.5.{place}.{rest}"))
}

#[test]
fn expert_spellings() {
    let each = |prefix: &str, names: [&str; 3]| {
        let mut tensors = Vec::new();
        for e in 0..3 {
            for (name, shape) in names.iter().zip([[2, 4], [2, 4], [4, 2]]) {
                tensors.push((format!("model.layers.5.{prefix}.{e}.{name}.weight"), shape.to_vec()));
            }
        }
        tensors
    };
    let stacked = |prefix: &str, suffix: &str| {
        [("gate_proj", [3, 2, 4]), ("up_proj", [3, 2, 4]), ("down_proj", [3, 4, 2])]
            .map(|(name, shape)| (format!("{prefix}.{name}{suffix}"), shape.to_vec()))
            .to_vec()
    };
    let fused = |prefix: &str, suffix: &str| {
        [("gate_up_proj", [3, 4, 4]), ("down_proj", [3, 4, 2])]
            .map(|(name, shape)| (format!("model.layers.5.{prefix}.{name}{suffix}"), shape.to_vec()))
            .to_vec()
    };
    let projections = ["gate_proj", "up_proj", "down_proj"];
    let mixtral = "block_sparse_moe.experts";
    for (model_type, place, tensors) in [
        ("qwen3_moe", "mlp.experts", each("mlp.experts", projections)),
        ("qwen3_moe", "mlp.experts", fused("mlp.experts", "")),
        ("qwen3_moe", "mlp.experts", stacked("model.layers.5.mlp.switch_mlp", ".weight")),
        ("mixtral", mixtral, each("block_sparse_moe.experts", ["w1", "w3", "w2"])),
        ("mixtral", mixtral, fused("mlp.experts", "")),
        ("mixtral", mixtral, stacked("model.layers.5.block_sparse_moe.switch_mlp", ".weight")),
        ("gemma4", "experts", fused("experts", "")),
        ("gemma4", "experts", stacked("language_model.model.layers.5.experts.switch_glu", ".weight")),
        ("gpt_oss", "mlp.experts", stacked("model.layers.5.mlp.experts", ".weight")),
    ] {
        assert_eq!(names_and_shapes(&experts(model_type, &tensors)), expected(place), "{tensors:?}");
    }
}

#[test]
fn mixtral_tensors() {
    let gguf = Gguf::new("llama")
        .floats("blk.5.ffn_gate_inp.weight", &[4, 3])
        .floats("blk.5.ffn_gate.0.weight", &[4, 2])
        .floats("blk.5.ffn_up_exps.weight", &[4, 2, 3])
        .open()
        .unwrap();
    assert_eq!(
        names_and_shapes(&gguf),
        [
            "model.layers.5.block_sparse_moe.experts.gate_proj.weight [1, 2, 4]",
            "model.layers.5.block_sparse_moe.experts.up_proj.weight [3, 2, 4]",
            "model.layers.5.block_sparse_moe.gate.weight [3, 4]",
        ]
    );
    for router in ["mlp.gate.weight", "block_sparse_moe.gate.weight"] {
        let hf = experts("mixtral", &[(format!("model.layers.5.{router}"), vec![3, 4])]);
        assert_eq!(names_and_shapes(&hf), ["model.layers.5.block_sparse_moe.gate.weight [3, 4]"]);
    }
}

/// The rows of a matrix of F32 that count up from 0.
fn rows(columns: usize, rows: &[usize]) -> Vec<f32> {
    rows.iter().flat_map(|r| (r * columns..(r + 1) * columns).map(|i| i as f32)).collect()
}

#[test]
fn halves_of_fused_experts() {
    let gguf = Gguf::new("gemma4")
        .floats("blk.0.ffn_gate_up_exps.weight", &[2, 4, 2])
        .floats("blk.0.ffn_down_exps.scale", &[2])
        .floats("blk.0.ffn_gate_inp.scale", &[2])
        .floats("blk.0.layer_output_scale.weight", &[1])
        .floats("rope_freqs.weight", &[2])
        .open()
        .unwrap();
    let tensors = contents(&gguf);
    assert_eq!(tensors["model.layers.0.experts.gate_proj.weight"], (vec![2, 2, 2], rows(2, &[0, 1, 4, 5])));
    assert_eq!(tensors["model.layers.0.experts.up_proj.weight"], (vec![2, 2, 2], rows(2, &[2, 3, 6, 7])));
    for name in [
        "model.layers.0.router.per_expert_scale",
        "model.layers.0.router.scale",
        "model.layers.0.layer_scalar",
        "rope_freqs.weight",
    ] {
        assert!(tensors.contains_key(name), "{name}");
    }
    let up = gguf.get("model.layers.0.experts.up_proj.weight").unwrap();
    assert_eq!((up.count(), up.bytes()), (2, 2 * 2 * 2 * 4));
}

#[test]
fn gpt_oss_experts_are_interleaved() {
    let place = |leaf: &str| format!("model.layers.0.mlp.experts.{leaf}");
    let plain = experts(
        "gpt_oss",
        &[
            (place("gate_up_proj"), vec![1, 2, 4]),
            (place("gate_up_proj_bias"), vec![1, 4]),
            (place("down_proj"), vec![1, 2, 2]),
            (place("down_proj_bias"), vec![1, 2]),
        ],
    );
    // Plain floats are stored [experts, inputs, outputs].
    let element = |i: usize| f32::from_le_bytes([0, 1, 2, 3].map(|b| (4 * i + b) as u8));
    let tensors = contents(&plain);
    // In the order in which the tensors were given.
    let at = |start: usize, order: &[usize]| order.iter().map(|i| element(start + i)).collect::<Vec<_>>();
    assert_eq!(tensors[&place("gate_proj.weight")], (vec![1, 2, 2], at(0, &[0, 4, 2, 6])));
    assert_eq!(tensors[&place("up_proj.weight")], (vec![1, 2, 2], at(0, &[1, 5, 3, 7])));
    assert_eq!(tensors[&place("gate_proj.bias")], (vec![1, 2], at(8, &[0, 2])));
    assert_eq!(tensors[&place("up_proj.bias")], (vec![1, 2], at(8, &[1, 3])));
    assert_eq!(tensors[&place("down_proj.weight")], (vec![1, 2, 2], at(12, &[0, 2, 1, 3])));
    assert_eq!(tensors[&place("down_proj.bias")], (vec![1, 2], at(16, &[0, 1])));

    let config = r#"{"model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}"#;
    let (blocks, scales) = (place("gate_up_proj_blocks"), place("gate_up_proj_scales"));
    let tensors: [(&str, &str, &[usize]); 2] = [(&blocks, "U8", &[1, 4, 1, 16]), (&scales, "U8", &[1, 4, 1])];
    let blocks = open_safetensors(config, safetensors(&tensors)).unwrap();
    let up = blocks.get(&place("up_proj.weight")).unwrap();
    assert_eq!(up.shape(), [1, 2, 32]);
    // Row 1 of the file: bytes 16 to 31 and the scale 65.
    assert_eq!(up.matrix(0).row_bytes(0, 0), (16..32).collect::<Vec<u8>>());
    assert_eq!(up.matrix(0).row_bytes(1, 0), [65]);
}

#[test]
fn llama_heads() {
    // Stored row 2j + b of a head of 4 is logical row 2b + j.
    let gguf = Gguf::new("llama")
        .u32("llama.embedding_length", 8)
        .u32("llama.attention.head_count", 2)
        .floats("blk.0.attn_q.weight", &[2, 8])
        .floats("blk.0.attn_q.bias", &[8])
        .floats("blk.0.attn_v.bias", &[8])
        .open()
        .unwrap();
    let tensors = contents(&gguf);
    let order = [0, 2, 1, 3, 4, 6, 5, 7];
    assert_eq!(tensors["model.layers.0.self_attn.q_proj.weight"], (vec![8, 2], rows(2, &order)));
    assert_eq!(tensors["model.layers.0.self_attn.q_proj.bias"], (vec![8], rows(1, &order)));
    assert_eq!(tensors["model.layers.0.self_attn.v_proj.bias"].1, rows(1, &[0, 1, 2, 3, 4, 5, 6, 7]));
    // No other architecture stores heads so.
    let qwen = Gguf::new("qwen2").u32("qwen2.attention.key_length", 4).floats("blk.0.attn_q.bias", &[8]);
    assert_eq!(
        contents(&qwen.open().unwrap())["model.layers.0.self_attn.q_proj.bias"].1,
        rows(1, &[0, 1, 2, 3, 4, 5, 6, 7])
    );
}

#[test]
fn names_that_are_skipped() {
    let config = r#"{"model_type": "llama"}"#;
    let tensors: [(&str, &str, &[usize]); 5] = [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", &[4]),
        ("model.layers.01.input_layernorm.weight", "F32", &[4]),
        ("model.layers.0.mlp.experts.0.w9.weight", "F32", &[4, 4]),
        ("mtp.layers.0.weight", "F32", &[4]),
        ("lm_head.weight", "F32", &[4, 4]),
    ];
    let hf = open_safetensors(config, safetensors(&tensors)).unwrap();
    assert_eq!(names_and_shapes(&hf), ["lm_head.weight [4, 4]"]);
    let reasons: Vec<&str> = hf.skipped.iter().map(|(_, reason)| *reason).collect();
    assert_eq!(
        reasons,
        [
            "unknown name",
            "rotary table, computed from the configuration",
            "unknown name",
            "multi-token prediction"
        ]
    );
    let gguf = Gguf::new("llama").floats("v.patch_embd.weight", &[2]).floats("blk.0.odd.weight", &[2]);
    let skipped = gguf.open().unwrap().skipped;
    assert_eq!(
        skipped.iter().map(|(_, reason)| *reason).collect::<Vec<_>>(),
        ["unknown name", "vision tower"]
    );
}

#[test]
fn a_split_model_equals_the_whole() {
    let names = ["token_embd.weight", "output_norm.weight", "output.weight", "blk.0.ffn_up.weight"];
    let whole = names.iter().fold(Gguf::new("llama"), |file, name| file.floats(name, &[4, 2]));
    let folder = tempfile::tempdir().unwrap();
    let path = |n: usize| folder.path().join(format!("tiny-{n:05}-of-00003.gguf"));
    let part = |n: u16, count: u16, tensors: &[&str]| {
        let mut file = Gguf::new("llama");
        if n > 0 {
            file.pairs.clear();
        }
        let file = file.pair("split.no", 2, &n.to_le_bytes()).pair("split.count", 2, &count.to_le_bytes());
        let file = file.pair("split.tensors.count", 5, &4i32.to_le_bytes());
        tensors.iter().fold(file, |file, name| file.floats(name, &[4, 2])).bytes()
    };
    for n in 0..3 {
        let tensors = [&names[..1], &names[1..2], &names[2..]][n];
        fs::write(path(n + 1), part(n as u16, 3, tensors)).unwrap();
    }
    let expected = contents(&whole.open().unwrap());
    for place in [path(1), path(2), path(3), folder.path().to_owned()] {
        let split = Checkpoint::open(&place).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(contents(&split), expected);
        assert!(
            matches!(split.metadata, turbospark_formats::Metadata::Gguf(m) if m.architecture() == Ok("llama"))
        );
    }

    let open = || Checkpoint::open(&path(1));
    fs::write(path(3), part(2, 3, &names[2..3])).unwrap();
    refused(open(), "tiny-00001-of-00003.gguf: expected split.tensors.count 4, found 3");
    fs::write(path(3), part(1, 3, &names[2..])).unwrap();
    refused(open(), "tiny-00003-of-00003.gguf: expected split.no 2, found 1");
    fs::write(path(3), part(2, 4, &names[2..])).unwrap();
    refused(open(), "tiny-00003-of-00003.gguf: expected split.count 3, found 4");
    fs::write(path(3), part(2, 3, &names[1..3])).unwrap();
    refused(open(), "tiny-00003-of-00003.gguf: tensor output_norm.weight is in an earlier part too");
    fs::write(path(3), whole.bytes()).unwrap();
    refused(open(), "tiny-00003-of-00003.gguf: expected split.no 2, found none");
    fs::remove_file(path(3)).unwrap();
    refused(open(), "tiny-00003-of-00003.gguf: part 3 of 3 of the model cannot be opened");
    let renamed = folder.path().join("renamed.gguf");
    fs::rename(path(1), &renamed).unwrap();
    refused(
        Checkpoint::open(&renamed),
        "is part 1 of a model in 3 files; name them NAME-00001-of-00003.gguf",
    );
    refused(
        Checkpoint::open(&path(2)),
        "tiny-00001-of-00003.gguf: part 1 of 3 of the model cannot be opened",
    );
}

#[test]
fn a_folder_with_one_gguf() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = Gguf::new("llama").floats("output_norm.weight", &[4]).bytes();
    fs::write(folder.path().join("a.gguf"), &bytes).unwrap();
    fs::write(folder.path().join("mmproj-a.gguf"), &bytes).unwrap();
    assert!(Checkpoint::open(folder.path()).is_ok());
    fs::write(folder.path().join("b.gguf"), &bytes).unwrap();
    refused(Checkpoint::open(folder.path()), "the folder has several models (a.gguf, b.gguf); name one of");
}

#[test]
fn embedded_bytes() {
    let bytes: &'static [u8] = Gguf::new("gpt-oss").floats("blk.0.attn_sinks.weight", &[4]).bytes().leak();
    let checkpoint = Checkpoint::from_gguf(Source::embedded("demo.gguf", bytes)).unwrap();
    assert_eq!(names_and_shapes(&checkpoint), ["model.layers.0.self_attn.sinks [4]"]);
}
