use serde_json::{Value, json};
use turbospark_program::{Op, Route};

use super::support::*;

pub fn config() -> Value {
    json!({
        "model_type": "qwen3_moe", "attention_bias": false, "hidden_act": "silu", "hidden_size": 64,
        "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "rope_scaling": null, "sliding_window": null, "use_sliding_window": false, "max_window_layers": 4,
        "tie_word_embeddings": false, "vocab_size": 16, "moe_intermediate_size": 32, "num_experts": 8,
        "num_experts_per_tok": 3, "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": []
    })
}

#[test]
fn config_and_metadata_are_one_program() {
    let pairs = [
        ("general.architecture", text("qwen3moe")),
        ("qwen3moe.block_count", integer(4)),
        ("qwen3moe.context_length", integer(40960)),
        ("qwen3moe.embedding_length", integer(64)),
        ("qwen3moe.feed_forward_length", integer(96)),
        ("qwen3moe.attention.head_count", integer(4)),
        ("qwen3moe.attention.head_count_kv", integer(2)),
        ("qwen3moe.attention.key_length", integer(32)),
        ("qwen3moe.attention.value_length", integer(32)),
        ("qwen3moe.attention.layer_norm_rms_epsilon", float(1e-6)),
        ("qwen3moe.rope.freq_base", float(1e6)),
        ("qwen3moe.expert_count", integer(8)),
        ("qwen3moe.expert_used_count", integer(3)),
        ("qwen3moe.expert_feed_forward_length", integer(32)),
    ];
    let tensors: [(&str, &[u64]); 2] = [("token_embd.weight", &[64, 16]), ("output.weight", &[64, 16])];
    assert_eq!(from_gguf(&gguf(&pairs, &tensors, 0.0)), from_config(&config()).program);
}

#[test]
fn queries_and_keys_are_normed_by_head_before_they_are_rotated() {
    let text = from_config(&config()).program.to_string();
    let lines: Vec<&str> = text.lines().skip(3).take(8).map(str::trim).collect();
    let w = "model.layers.0.self_attn";
    assert_eq!(
        lines,
        [
            format!("r2[128] = linear(r1, {w}.q_proj.weight[128, 64])"),
            format!("r3[64] = linear(r1, {w}.k_proj.weight[64, 64])"),
            format!("r4[64] = linear(r1, {w}.v_proj.weight[64, 64])"),
            format!("r5[128] = rms_norm(r2, {w}.q_norm.weight[32], eps 1e-6, heads of 32)"),
            format!("r6[64] = rms_norm(r3, {w}.k_norm.weight[32], eps 1e-6, heads of 32)"),
            "r7[128] = rope(r5, table 0, heads of 32)".to_owned(),
            "r8[64] = rope(r6, table 0, heads of 32)".to_owned(),
            "r9[128] = attention(r7, r8, r4, cache 0, 4 heads of 32 on 2, scale 0.17677669)".to_owned(),
        ]
    );
}

#[test]
fn some_layers_may_be_dense() {
    let routed = |changes: &[(&str, Value)]| {
        let program = from_config(&with(&config(), changes)).program;
        program.expert_layers().iter().map(|layer| layer.layer).collect::<Vec<_>>()
    };
    assert_eq!(routed(&[]), [0, 1, 2, 3]);
    assert_eq!(routed(&[("decoder_sparse_step", json!(2))]), [1, 3]);
    assert_eq!(routed(&[("mlp_only_layers", json!([0, 3]))]), [1, 2]);
    let dense = from_config(&with(&config(), &[("mlp_only_layers", json!([2]))]));
    let gate = dense.program.weights().iter().find(|spec| spec.name == "model.layers.2.mlp.gate_proj.weight");
    assert_eq!(gate.map(|spec| &*spec.shape), Some(&[96, 64][..]));
    assert!(
        refusal(&with(&config(), &[("mlp_only_layers", json!([4]))])).contains("mlp_only_layers[0] is 4")
    );
}

#[test]
fn renormalisation_must_be_given() {
    let route = |renormalize: bool| {
        let program = from_config(&with(&config(), &[("norm_topk_prob", json!(renormalize))])).program;
        program.ops().iter().find_map(|op| match op {
            Op::Route { routing, .. } => Some(routing.route),
            _ => None,
        })
    };
    for renormalize in [true, false] {
        assert_eq!(route(renormalize), Some(Route::SoftmaxThenTopK { renormalize }));
    }
    let message = refusal(&with(&config(), &[("norm_topk_prob", Value::Null)]));
    assert_eq!(message, "config.json: norm_topk_prob is missing");
}

#[test]
fn the_dense_models_need_their_head_width() {
    let dense = with(&config(), &[("model_type", json!("qwen3"))]);
    let model = from_config(&dense);
    assert_eq!((model.family, model.program.expert_layers().len()), ("qwen3", 0));
    assert_eq!(refusal(&with(&dense, &[("head_dim", Value::Null)])), "config.json: head_dim is missing");
}

#[test]
fn yarn_is_rounded_where_nothing_is_said() {
    let scaling = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768});
    let yarn = with(&config(), &[("rope_scaling", scaling)]);
    let rounded = with(&yarn, &[("rope_scaling.truncate", json!(true))]);
    let exact = with(&yarn, &[("rope_scaling.truncate", json!(false))]);
    assert_eq!(from_config(&yarn).program, from_config(&rounded).program);
    assert_ne!(from_config(&yarn).program, from_config(&exact).program);
}
