//! GGUF files that are wrong on purpose: each is refused with a message that names what is wrong.

mod support;

use support::{Gguf, array, open_gguf, pair, read_gguf, refused, string};

fn gguf() -> Gguf {
    Gguf::new("llama")
}

#[test]
fn beginnings() {
    refused(open_gguf(Vec::new()), "not a GGUF file");
    refused(open_gguf(b"GGU".to_vec()), "not a GGUF file");
    refused(open_gguf(b"GGML0000".to_vec()), "model.gguf: not a GGUF file");
    refused(open_gguf(b"GGUF".to_vec()), "the version at byte 4 needs 4 bytes, 0 are left");
    for version in [0, 1, 4, 1 << 16] {
        let file = Gguf { version, ..gguf() };
        refused(file.open(), &format!("GGUF version {version} is not supported, expected 2 or 3"));
    }
    refused(Gguf { version: 3u32.swap_bytes(), ..gguf() }.open(), "a big-endian GGUF file");
    assert!(Gguf { version: 2, ..gguf() }.open().is_ok());
}

#[test]
fn counts_beyond_the_file() {
    // A 43-byte file that claims millions of entries.
    let mut small = Gguf { pairs: vec![pair("key", 7, &[1])], ..gguf() };
    small.claimed_pairs = Some(40_000_000);
    let mut bytes = small.bytes();
    bytes.truncate(43);
    refused(open_gguf(bytes), "file is truncated: the number of metadata keys (40000000)");
    for claimed in [1 << 40, u64::MAX] {
        refused(Gguf { claimed_tensors: Some(claimed), ..gguf() }.open(), "the number of tensors");
        refused(Gguf { claimed_pairs: Some(claimed), ..gguf() }.open(), "the number of metadata keys");
    }
    // One more than there are.
    let packed = Gguf { alignment: 1, ..gguf() };
    refused(Gguf { claimed_pairs: Some(2), ..packed.clone() }.open(), "metadata key 2 of 2");
    refused(Gguf { claimed_tensors: Some(1), ..packed }.open(), "tensor");
}

#[test]
fn strings_and_arrays_beyond_the_file() {
    for length in [u64::MAX, u64::MAX - 8, 1 << 62, 1 << 32, 100] {
        refused(gguf().pair("k", 8, &length.to_le_bytes()).open(), "metadata key k at byte");
        for kind in [0, 3, 6, 8, 9, 12] {
            let message = format!("metadata key k, an array of {length}");
            refused(gguf().pair("k", 9, &array(kind, length, &[])).open(), &message);
        }
        let mut key = Gguf { pairs: vec![length.to_le_bytes().to_vec()], ..gguf() };
        key.alignment = 1;
        key.pairs[0].extend([0; 16]);
        refused(key.open(), "metadata key 1 of 1");
        let mut name = gguf();
        name.entries.push([&length.to_le_bytes()[..], &[0; 32]].concat());
        refused(name.open(), "the name of tensor 1 of 1");
    }
    // A 160-byte file that asks for gigabytes.
    let mut bytes = gguf().pair("tokenizer.ggml.tokens", 9, &array(8, 1 << 32, &[])).bytes();
    bytes.resize(160, 0);
    refused(open_gguf(bytes), "an array of 4294967296");
}

#[test]
fn values() {
    refused(gguf().pair("k", 13, &[0; 8]).open(), "metadata key k has value type 13, expected 0 to 12");
    refused(gguf().pair("k", 9, &array(99, 0, &[])).open(), "metadata key k has value type 99");
    refused(gguf().pair("k", 7, &[2]).open(), "metadata key k has 2 as a boolean");
    refused(gguf().u32("k", 1).u32("k", 2).open(), "metadata key k is there twice");
    refused(gguf().pair("k", 8, &string(b"\xff")).open(), "metadata key k is not valid UTF-8");
    let bad_key = [&string(b"\xff")[..], &4u32.to_le_bytes(), &[0; 4]].concat();
    refused(Gguf { pairs: vec![bad_key], ..gguf() }.open(), "metadata key 1 of 1 is not valid UTF-8");
    refused(Gguf { pairs: Vec::new(), ..gguf() }.open(), "general.architecture is missing");
    let no_string = Gguf { pairs: vec![pair("general.architecture", 4, &[0; 4])], ..gguf() };
    refused(no_string.open(), "general.architecture is Unsigned(0), expected a string");
}

#[test]
fn nested_arrays() {
    let nested = |depth| (0..depth).fold(array(0, 1, &[7]), |inner, _| array(9, 1, &inner));
    assert!(gguf().pair("k", 9, &nested(3)).open().is_ok());
    for depth in [4, 5, 100, 10_000] {
        refused(gguf().pair("k", 9, &nested(depth)).open(), "metadata key k nests arrays deeper than 4");
    }
}

#[test]
fn tokens_that_are_not_utf8_are_read() {
    let file = gguf().pair("tokenizer.ggml.tokens", 9, &array(8, 1, &string(b"a\xff"))).open().unwrap();
    let turbospark_formats::Metadata::Gguf(metadata) = file.metadata else { panic!() };
    assert_eq!(metadata.strings("tokenizer.ggml.tokens"), Ok(Some(vec!["a\u{fffd}"])));
}

#[test]
fn alignment() {
    for bad in [0u32, 3, 33, u32::MAX] {
        let message = format!("general.alignment is {bad}, expected a power of two");
        refused(gguf().u32("general.alignment", bad).open(), &message);
    }
    refused(
        gguf().pair("general.alignment", 8, &string(b"32")).open(),
        "general.alignment is not an integer",
    );
    for huge in [1u64 << 40, 1 << 63] {
        let file =
            gguf().pair("general.alignment", 10, &huge.to_le_bytes()).floats("output_norm.weight", &[4]);
        refused(file.open(), "file is truncated: tensor output_norm.weight needs bytes");
    }
    let wide = Gguf { alignment: 256, ..gguf() }.u32("general.alignment", 256);
    assert!(wide.floats("output_norm.weight", &[4]).floats("output.weight", &[4, 2]).open().is_ok());
}

#[test]
fn shapes() {
    let t = "token_embd.weight";
    refused(gguf().entry(t, &[1 << 33, 1 << 33], 0, 0).open(), "tensor token_embd.weight is too large");
    refused(gguf().entry(t, &[u64::MAX, 2], 0, 0).open(), "tensor token_embd.weight is too large");
    refused(gguf().entry(t, &[1 << 62], 0, 0).open(), "tensor token_embd.weight is too large");
    refused(gguf().entry(t, &[1 << 40, 1 << 18], 2, 0).open(), "file is truncated: tensor token_embd.weight");
    refused(gguf().entry(t, &[4, 0], 0, 0).open(), "tensor token_embd.weight has no elements");
    refused(gguf().entry(t, &[1; 5], 0, 0).open(), "token_embd.weight has 5 dimensions, expected at most 4");
    let mut many = gguf().entry(t, &[], 0, 0);
    many.entries[0] = [&string(t.as_bytes())[..], &u32::MAX.to_le_bytes(), &[0; 40]].concat();
    refused(many.open(), "has 4294967295 dimensions");
    let q4_0 = gguf().entry(t, &[33, 2], 2, 0).open();
    refused(q4_0, "token_embd.weight of type Q4_0 has rows of 33 elements, expected a multiple of 32");
    let q4_k = gguf().entry(t, &[128, 2], 12, 0).open();
    refused(q4_k, "of type Q4_K has rows of 128 elements, expected a multiple of 256");
    assert!(read_gguf(gguf().tensor("scalar", &[], 0, &[0; 4]).bytes()).is_ok());
}

#[test]
fn types_are_refused_by_name() {
    for (kind, name) in [(16, "IQ2_XXS"), (34, "TQ1_0"), (40, "NVFP4"), (26, "I32"), (99, "number 99")] {
        let message = format!("tensor token_embd.weight has type {name}, which is not supported");
        refused(gguf().entry("token_embd.weight", &[256], kind, 0).open(), &message);
    }
}

#[test]
fn places() {
    let two = gguf().floats("a", &[8]).floats("b", &[8]);
    let mut cut = two.bytes();
    cut.truncate(cut.len() - 1);
    let length = cut.len();
    let (start, end) = (length + 1 - 32, length + 1);
    refused(
        open_gguf(cut),
        &format!("file is truncated: tensor b needs bytes {start}..{end}, the file has {length}"),
    );
    refused(gguf().entry("a", &[8], 0, u64::MAX - 31).open(), "file is truncated: tensor a needs bytes");
    refused(gguf().floats("a", &[8]).entry("b", &[1], 0, 4).open(), "tensor b is at offset 4, expected");
    refused(gguf().floats("a", &[16]).entry("b", &[8], 0, 32).open(), "tensors a and b overlap");
    refused(gguf().floats("a", &[8]).floats("a", &[8]).open(), "tensor a is there twice");
}

#[test]
fn experts() {
    let file = |names: &[&str]| names.iter().fold(gguf(), |file, name| file.floats(name, &[4, 2]));
    let experts = file(&["blk.0.ffn_gate.0.weight", "blk.0.ffn_gate.2.weight"]).open();
    refused(experts, "model.layers.0.block_sparse_moe.experts.gate_proj.weight: expert 1 is missing");
    let twice = file(&["blk.0.ffn_gate.0.weight"]).floats("blk.0.ffn_gate_exps.weight", &[4, 2, 1]);
    refused(twice.open(), "tensors blk.0.ffn_gate_exps.weight and blk.0.ffn_gate.0.weight are both");
    let unlike = file(&["blk.0.ffn_up.0.weight"]).floats("blk.0.ffn_up.1.weight", &[2, 4]);
    refused(unlike.open(), "tensor blk.0.ffn_up.1.weight is F32 [4, 2], expected F32 [2, 4]");
    refused(
        file(&["blk.0.ffn_up_exps.weight"]).floats("blk.1.ffn_up_exps.weight", &[4]).open(),
        "has shape [4]",
    );
    refused(
        gguf().floats("blk.0.ffn_gate_up_exps.weight", &[4, 3, 2]).open(),
        "an even number of gate and up",
    );
    refused(gguf().floats("blk.0.attn_norm.weight", &[4, 2, 2]).open(), "expected one or two dimensions");
    let many = gguf().tensor("blk.0.ffn_up_exps.bias", &[1, 65537], 0, &[0; 4 * 65537]).open();
    refused(many, "blk.0.ffn_up_exps.bias has shape [65537, 1], expected at most 65536 experts");
    let norm = gguf().tensor("output_norm.weight", &[32], 2, &[0; 18]).open();
    refused(norm, "tensor output_norm.weight is a vector of type Q4_0, expected F32, F16 or BF16");
}

#[test]
fn heads_must_divide_the_rows() {
    let file = |head| {
        let file = gguf().u32("llama.attention.key_length", head);
        file.floats("blk.0.attn_q.weight", &[4, 8]).open()
    };
    assert!(file(4).is_ok());
    for bad in [0, 3, 6] {
        refused(file(bad), &format!("blk.0.attn_q.weight has shape [8, 4], expected heads of {bad} rows"));
    }
}

#[test]
fn a_part_of_a_split_model_alone() {
    let part = gguf().pair("split.no", 2, &[0, 0]).pair("split.count", 2, &[3, 0]).open();
    refused(part, "the file is part 1 of a model in 3 files");
}
