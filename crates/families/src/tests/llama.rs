use serde_json::{Value, json};
use turbospark_formats::GgufValue;

use super::support::*;

fn config() -> Value {
    json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 16,
        "tie_word_embeddings": false, "torch_dtype": "bfloat16"
    })
}

fn metadata(more: &[(&'static str, GgufValue)]) -> Vec<(&'static str, GgufValue)> {
    let mut pairs = vec![
        ("general.architecture", text("llama")),
        ("llama.block_count", integer(2)),
        ("llama.context_length", integer(2048)),
        ("llama.embedding_length", integer(64)),
        ("llama.feed_forward_length", integer(32)),
        ("llama.attention.head_count", integer(4)),
        ("llama.attention.head_count_kv", GgufValue::Array(vec![integer(2), integer(2)])),
        ("llama.attention.layer_norm_rms_epsilon", float(1e-5)),
        ("llama.rope.dimension_count", integer(16)),
        ("llama.vocab_size", integer(99)),
    ];
    pairs.extend_from_slice(more);
    pairs
}

const UNTIED: [(&str, &[u64]); 2] = [("token_embd.weight", &[64, 16]), ("output.weight", &[64, 16])];

#[test]
fn config_and_metadata_are_one_program() {
    let program = from_config(&config()).program;
    assert_eq!(from_gguf(&gguf(&metadata(&[]), &UNTIED, 0.0)), program);
    let newer = with(
        &config(),
        &[
            ("rope_theta", Value::Null),
            ("rope_parameters", json!({"rope_type": "default", "rope_theta": 10000.0})),
        ],
    );
    assert_eq!(from_config(&newer).program, program);
    // The first Llama files: no base, no key-value heads of their own.
    let first = with(&config(), &[("rope_theta", Value::Null), ("num_key_value_heads", Value::Null)]);
    let each = with(&config(), &[("num_key_value_heads", json!(4))]);
    assert_eq!(from_config(&first).program, from_config(&each).program);
}

#[test]
fn a_tied_head_is_the_embedding() {
    let names = |config: &Value| {
        from_config(config).program.weights().iter().map(|spec| spec.name.clone()).collect::<Vec<_>>()
    };
    let has_head = |config: &Value| names(config).contains(&"lm_head.weight".to_owned());
    assert!(has_head(&config()));
    assert!(!has_head(&with(&config(), &[("tie_word_embeddings", json!(true))])));
    // Neither the key nor the tensor is there.
    assert!(!has_head(&with(&config(), &[("tie_word_embeddings", Value::Null)])));
}

#[test]
fn llama3_scaling_and_its_divisors() {
    let scaling = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192
    });
    let plain = from_config(&config()).program;
    let scaled = from_config(&with(&config(), &[("rope_scaling", scaling)])).program;
    assert_eq!(scaled.ropes()[0].frequencies[0], plain.ropes()[0].frequencies[0]);
    let tensors = [UNTIED[0], UNTIED[1], ("rope_freqs.weight", &[8])];
    let divided = from_gguf(&gguf(&metadata(&[]), &tensors, 2.0));
    for (j, frequency) in divided.ropes()[0].frequencies.iter().enumerate() {
        assert_eq!(*frequency, plain.ropes()[0].frequencies[j] / 2.0);
    }
}

#[test]
fn a_factor_without_a_type_is_linear() {
    let scaling = json!({"type": "linear", "factor": 4.0});
    let expected = from_config(&with(&config(), &[("rope_scaling", scaling)])).program;
    for key in ["llama.rope.scaling.factor", "llama.rope.scale_linear"] {
        assert_eq!(from_gguf(&gguf(&metadata(&[(key, float(4.0))]), &UNTIED, 0.0)), expected, "{key}");
    }
}

#[test]
fn mistral_has_a_window_unless_it_is_null() {
    let mistral = with(&config(), &[("model_type", json!("mistral"))]);
    let windows = |config: &Value| {
        from_config(config).program.kv_layers().iter().map(|kv| kv.window).collect::<Vec<_>>()
    };
    assert_eq!(windows(&with(&mistral, &[("sliding_window", json!(8))])), [Some(8), Some(8)]);
    let mut null = mistral.clone();
    null["sliding_window"] = Value::Null;
    assert_eq!(windows(&null), [None, None]);
    let types = json!(["sliding_attention", "full_attention"]);
    let mixed = with(&mistral, &[("sliding_window", json!(8)), ("layer_types", types.clone())]);
    assert_eq!(windows(&mixed), [Some(8), None]);
    assert!(refusal(&with(&mistral, &[("layer_types", types)])).contains("full_attention only"));
}

#[test]
fn qwen2_has_biases_on_q_k_and_v_only() {
    let qwen = with(
        &config(),
        &[
            ("model_type", json!("qwen2")),
            ("use_sliding_window", json!(false)),
            ("sliding_window", json!(32768)),
            ("max_window_layers", json!(1)),
        ],
    );
    let model = from_config(&qwen);
    let biases: Vec<&str> = (model.program.weights().iter())
        .filter_map(|spec| spec.name.strip_prefix("model.layers.1.")?.strip_suffix(".bias"))
        .collect();
    assert_eq!(biases, ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]);
    assert!(model.program.kv_layers().iter().all(|kv| kv.window.is_none()));
    let sliding = from_config(&with(&qwen, &[("use_sliding_window", json!(true))]));
    let windows: Vec<_> = sliding.program.kv_layers().iter().map(|kv| kv.window).collect();
    assert_eq!(windows, [None, Some(32768)]);
}

#[test]
fn biases_follow_the_config_or_the_tensors() {
    let config = with(&config(), &[("attention_bias", json!(true))]);
    let tensors = [UNTIED[0], UNTIED[1], ("blk.0.attn_q.bias", &[64]), ("blk.0.attn_output.bias", &[64])];
    assert_eq!(from_config(&config).program, from_gguf(&gguf(&metadata(&[]), &tensors, 0.0)));
}

#[test]
fn mixtral_is_the_llama_architecture_with_experts() {
    let config = with(
        &config(),
        &[
            ("model_type", json!("mixtral")),
            ("num_local_experts", json!(8)),
            ("num_experts_per_tok", json!(2)),
            ("sliding_window", Value::Null),
        ],
    );
    let more = [("llama.expert_count", integer(8)), ("llama.expert_used_count", integer(2))];
    let checkpoint = gguf(&metadata(&more), &UNTIED, 0.0);
    let model = from_config(&config);
    assert_eq!(from_gguf(&checkpoint), model.program);
    assert_eq!(model.family, "mixtral");
    let layer = &model.program.expert_layers()[1];
    assert_eq!(layer.down, "model.layers.1.block_sparse_moe.experts.down_proj.weight");
    assert_eq!((layer.experts, layer.k, layer.intermediate), (8, 2, 32));
}
