use serde_json::{Value, json};
use turbospark_formats::GgufValue;

use super::support::*;
use super::{gemma3, gemma4, gpt_oss, qwen3};
use crate::{FamilyOptions, build};

fn config() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 16
    })
}

#[test]
fn models_of_no_family_are_named() {
    let message = refusal(&json!({"model_type": "mamba", "architectures": ["MambaForCausalLM"]}));
    assert_eq!(
        message,
        "models of type mamba are not supported; supported types are gpt_oss, llama, mistral, mixtral, qwen2, qwen3, \
         qwen3_moe, gemma3, gemma3_text, gemma4, gemma4_text"
    );
    assert!(refusal(&json!({})).contains("neither a model_type nor architectures"));
    assert!(refusal(&json!([1])).contains("config.json is [1], expected an object"));
    let checkpoint = gguf(&[("general.architecture", text("rwkv"))], &[("token_embd.weight", &[4, 4])], 0.0);
    let error = build(&checkpoint, &FamilyOptions::default()).expect_err("no such family").to_string();
    assert_eq!(
        error,
        "models of type rwkv are not supported; supported types are gpt-oss, llama, qwen2, qwen3, qwen3moe, gemma3, \
         gemma4"
    );
    // The class is enough.
    let class =
        with(&config(), &[("model_type", json!("mine")), ("architectures", json!(["LlamaForCausalLM"]))]);
    assert_eq!(from_config(&class).family, "llama");
}

#[test]
fn values_that_cannot_be_are_named() {
    for (key, value, message) in [
        (
            "num_hidden_layers",
            json!(0),
            "config.json: num_hidden_layers is 0, expected an integer from 1 to 1024",
        ),
        ("num_hidden_layers", json!(1u64 << 40), "is 1099511627776, expected an integer from 1 to 1024"),
        ("num_hidden_layers", json!(2.5), "num_hidden_layers is 2.5"),
        ("hidden_size", json!(-64), "hidden_size is -64"),
        ("hidden_size", json!("64"), "hidden_size is \"64\""),
        ("hidden_size", Value::Null, "hidden_size is missing"),
        ("hidden_size", json!(1u64 << 50), "expected an integer from 1 to 1048576"),
        ("intermediate_size", json!(1e300), "intermediate_size is 1e+300"),
        ("vocab_size", json!(1u64 << 32), "vocab_size is 4294967296"),
        ("max_position_embeddings", json!(1u64 << 33), "max_position_embeddings is"),
        ("head_dim", json!(1 << 20), "head_dim is 1048576"),
        ("head_dim", json!(15), "the width of an attention head is 15, expected an even number"),
        ("num_key_value_heads", json!(3), "num_key_value_heads is 3, expected a divisor of 4"),
        ("rms_norm_eps", json!(0), "rms_norm_eps is 0, expected a positive number"),
        ("rms_norm_eps", json!(1e-60), "expected a positive number within f32"),
        ("rope_theta", json!(-1.0), "rope_theta is -1"),
        ("hidden_act", json!("gelu"), "hidden_act is \"gelu\", expected silu"),
        ("partial_rotary_factor", json!(0.5), "partial_rotary_factor is 0.5, expected 1"),
        ("attention_bias", json!("yes"), "attention_bias is \"yes\", expected true or false"),
        ("rope_scaling", json!("linear"), "rope_scaling is \"linear\", expected an object"),
        (
            "rope_scaling",
            json!({"type": "dynamic", "factor": 2.0}),
            "rope_scaling.type is \"dynamic\", expected default, linear, llama3, yarn or proportional",
        ),
        ("rope_scaling", json!({"type": "linear"}), "rope_scaling.factor is missing"),
        ("rope_scaling", json!({"type": "linear", "factor": 1e-300}), "frequencies that are not finite"),
        ("rope_scaling", json!({"full_attention": {}}), "expected one set of parameters for all layers"),
        (
            "rope_scaling",
            json!({
                "type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                "original_max_position_embeddings": 64
            }),
            "expected a low_freq_factor below its high_freq_factor",
        ),
        ("sliding_window", json!(0), "sliding_window is 0"),
    ] {
        let found = refusal(&with(&config(), &[(key, value)]));
        assert!(found.contains(message), "{found} instead of {message}");
    }
    let uneven = with(&config(), &[("head_dim", Value::Null), ("num_attention_heads", json!(6))]);
    assert!(refusal(&uneven).contains("num_attention_heads is 6, expected a divisor of 64, the hidden size"));
    let typed = with(&config(), &[("sliding_window", json!(8)), ("layer_types", json!(["full_attention"]))]);
    assert!(refusal(&typed).contains("expected a list of 2, one for each layer"));
    let chunked = json!(["full_attention", "chunked_attention"]);
    let typed = with(&config(), &[("sliding_window", json!(8)), ("layer_types", chunked)]);
    let message =
        "config.json: layer_types[1] is \"chunked_attention\", expected sliding_attention or full_attention";
    assert_eq!(refusal(&typed), message);
}

#[test]
fn names_of_one_thing_must_agree() {
    let config = with(
        &config(),
        &[
            ("model_type", json!("mixtral")),
            ("num_local_experts", json!(8)),
            ("num_experts", json!(4)),
            ("num_experts_per_tok", json!(2)),
        ],
    );
    assert_eq!(
        refusal(&config),
        "config.json: num_local_experts is 8, but config.json: num_experts, another name of it, is 4"
    );
    let many = with(&config, &[("num_experts", Value::Null), ("num_experts_per_tok", json!(9))]);
    assert!(refusal(&many).contains("num_experts_per_tok is 9, expected an integer from 1 to 8"));
}

fn metadata(change: (&'static str, GgufValue)) -> Vec<(&'static str, GgufValue)> {
    let mut pairs = vec![
        ("general.architecture", text("llama")),
        ("llama.block_count", integer(2)),
        ("llama.context_length", integer(2048)),
        ("llama.embedding_length", integer(64)),
        ("llama.feed_forward_length", integer(32)),
        ("llama.attention.head_count", integer(4)),
        ("llama.attention.head_count_kv", integer(2)),
        ("llama.attention.layer_norm_rms_epsilon", float(1e-5)),
    ];
    pairs.retain(|(key, _)| *key != change.0);
    pairs.push(change);
    pairs
}

#[test]
fn metadata_is_checked_alike() {
    let embedding: (&str, &[u64]) = ("token_embd.weight", &[64, 16]);
    let array = |values: &[u64]| GgufValue::Array(values.iter().map(|x| integer(*x)).collect());
    for (key, value, message) in [
        (
            "llama.block_count",
            integer(1 << 40),
            "metadata key llama.block_count is 1099511627776, expected an",
        ),
        ("llama.block_count", GgufValue::Signed(-1), "llama.block_count is -1"),
        ("llama.feed_forward_length", text("64"), "llama.feed_forward_length is \"64\""),
        ("llama.attention.head_count_kv", array(&[2, 1]), "llama.attention.head_count_kv is [2,1]"),
        ("llama.attention.layer_norm_rms_epsilon", float(f64::NAN), "is null, expected a positive number"),
        (
            "llama.rope.dimension_count",
            integer(8),
            "rope.dimension_count is 8, expected 16, the width of a head",
        ),
        ("llama.rope.scaling.type", text("longrope"), "is \"longrope\", expected none, linear or yarn"),
        ("llama.rope.scaling.type", text("yarn"), "llama.rope.scaling.factor is missing"),
        ("llama.attention.value_length", integer(8), "value_length is 8, expected 16, the width of a key"),
    ] {
        let checkpoint = gguf(&metadata((key, value)), &[embedding], 0.0);
        let error = build(&checkpoint, &FamilyOptions::default()).expect_err(message).to_string();
        assert!(error.contains(message), "{error} instead of {message}");
    }
}

#[test]
fn tensors_without_a_place_are_named() {
    let embedding: (&str, &[u64]) = ("token_embd.weight", &[64, 16]);
    let pairs = metadata(("llama.vocab_size", integer(16)));
    for (name, ne, message) in [
        ("blk.2.attn_norm.weight", &[64][..], "model.layers.2.input_layernorm.weight is in the checkpoint"),
        ("blk.0.attn_q_norm.weight", &[16], "model.layers.0.self_attn.q_norm.weight is in the checkpoint"),
        ("blk.1.attn_q.bias", &[64], "model.layers.1.self_attn.q_proj.bias is in the checkpoint"),
        ("rope_freqs.weight", &[4], "rope_freqs.weight is missing or misshapen"),
    ] {
        let checkpoint = gguf(&pairs, &[embedding, (name, ne)], 1.0);
        let error = build(&checkpoint, &FamilyOptions::default()).expect_err(message).to_string();
        assert!(error.contains(message), "{error} instead of {message}");
    }
    let checkpoint = gguf(&pairs, &[("output_norm.weight", &[64])], 0.0);
    let error = build(&checkpoint, &FamilyOptions::default()).expect_err("no embedding").to_string();
    assert_eq!(
        error,
        "tensor model.embed_tokens.weight is missing or misshapen; its rows are the vocabulary"
    );
}

/// `config` with the value at each place replaced by `value`.
fn replaced(config: &Value, value: &Value) -> Vec<Value> {
    let Some(members) = config.as_object() else { return vec![value.clone()] };
    let mut all = vec![value.clone()];
    for (key, member) in members {
        for inner in replaced(member, value) {
            let mut changed = config.clone();
            changed[key] = inner;
            all.push(changed);
        }
    }
    all
}

#[test]
fn no_value_at_any_place_does_harm() {
    let values = [
        json!(null),
        json!(0),
        json!(-1),
        json!(1),
        json!(2),
        json!(1024),
        json!(1 << 20),
        json!(u64::MAX),
        json!(0.5),
        json!(1e-320),
        json!(1e308),
        json!("text"),
        json!(true),
        json!([]),
        json!([0, 1]),
        json!({}),
        json!({"0": {}}),
        json!([[[]]]),
    ];
    let configs =
        [config(), gpt_oss::config(), qwen3::config(), gemma3::config(), gemma4::mixture(), gemma4::shared()];
    let mut accepted = 0;
    for config in configs.iter().flat_map(|config| values.iter().flat_map(|value| replaced(config, value))) {
        accepted += usize::from(try_config(&config, &FamilyOptions::default()).is_ok());
    }
    assert!(accepted > 0);
}
