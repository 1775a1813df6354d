use serde_json::{Value, json};
use turbospark_program::Program;

use super::support::*;
use crate::{FamilyOptions, YarnRounding};

/// As published, of two layers.
pub fn config() -> Value {
    json!({
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": true,
        "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880, "initial_context_length": 4096,
        "intermediate_size": 2880, "layer_types": ["sliding_attention", "full_attention"],
        "max_position_embeddings": 131072, "num_attention_heads": 64, "num_hidden_layers": 2,
        "num_key_value_heads": 8, "num_local_experts": 32, "num_experts_per_tok": 4, "experts_per_token": 4,
        "rms_norm_eps": 1e-5, "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 4096, "truncate": false
        },
        "tie_word_embeddings": false, "vocab_size": 201088
    })
}

fn metadata() -> Program {
    let pairs = [
        ("general.architecture", text("gpt-oss")),
        ("gpt-oss.block_count", integer(2)),
        ("gpt-oss.context_length", integer(131072)),
        ("gpt-oss.embedding_length", integer(64)),
        ("gpt-oss.expert_feed_forward_length", integer(32)),
        ("gpt-oss.expert_count", integer(32)),
        ("gpt-oss.expert_used_count", integer(4)),
        ("gpt-oss.attention.head_count", integer(4)),
        ("gpt-oss.attention.head_count_kv", integer(2)),
        ("gpt-oss.attention.key_length", integer(64)),
        ("gpt-oss.attention.value_length", integer(64)),
        ("gpt-oss.attention.layer_norm_rms_epsilon", float(1e-5)),
        ("gpt-oss.attention.sliding_window", integer(128)),
        ("gpt-oss.rope.freq_base", float(150000.0)),
        ("gpt-oss.rope.scaling.type", text("yarn")),
        ("gpt-oss.rope.scaling.factor", float(32.0)),
        ("gpt-oss.rope.scaling.original_context_length", integer(4096)),
    ];
    let tensors: [(&str, &[u64]); 3] =
        [("token_embd.weight", &[64, 16]), ("output.weight", &[64, 16]), ("blk.0.attn_q.bias", &[256])];
    from_gguf(&gguf(&pairs, &tensors, 0.0))
}

#[test]
fn the_published_config_gives_the_published_frequencies() {
    let model = from_config(&config());
    assert_eq!(model.family, "gpt-oss");
    assert_eq!(model.program.vocabulary(), 201088);
    let [rope] = model.program.ropes() else { panic!("one table") };
    assert_eq!(rope.amplitude, 1.346_573_6);
    // Between the ends of the ramp, where rounding them would show.
    assert_eq!(rope.frequencies[9], 0.031705696);
    assert_eq!(rope.frequencies[16], 0.00045648392);
    let windows: Vec<_> = model.program.kv_layers().iter().map(|kv| kv.window).collect();
    assert_eq!(windows, [Some(128), None]);
    assert_eq!(model.config["rope"], "base 150000, yarn 32 over 4096");
    assert_eq!(model.config["eps"], 1e-5);
}

#[test]
fn older_and_newer_spellings_are_one_program() {
    let newer = with(
        &config(),
        &[
            ("rope_scaling", Value::Null),
            ("rope_theta", Value::Null),
            ("num_local_experts", Value::Null),
            ("num_experts_per_tok", Value::Null),
            ("num_experts", json!(32)),
            (
                "rope_parameters",
                json!({
                    "type": "yarn", "rope_theta": 150000.0, "factor": 32, "original_max_position_embeddings": 4096
                }),
            ),
            ("layer_types", Value::Null),
        ],
    );
    assert_eq!(from_config(&config()).program, from_config(&newer).program);
    let small = with(
        &config(),
        &[
            ("hidden_size", json!(64)),
            ("intermediate_size", json!(32)),
            ("num_attention_heads", json!(4)),
            ("num_key_value_heads", json!(2)),
            ("vocab_size", json!(16)),
        ],
    );
    assert_eq!(from_config(&small).program, metadata());
}

#[test]
fn the_ends_of_the_ramp_are_rounded_on_request_only() {
    let rounded = FamilyOptions { yarn: YarnRounding::Rounded, ..FamilyOptions::default() };
    let silent = with(&config(), &[("rope_scaling.truncate", Value::Null)]);
    let truncated = with(&config(), &[("rope_scaling.truncate", json!(true))]);
    let program =
        |config: &Value, options: &FamilyOptions| try_config(config, options).expect("a program").program;
    let exact = FamilyOptions::default();
    assert_eq!(program(&silent, &exact), program(&config(), &exact));
    assert_ne!(program(&truncated, &exact), program(&config(), &exact));
    assert_eq!(program(&config(), &rounded), program(&truncated, &exact));
}

#[test]
fn attention_factor_and_mscale_are_honoured() {
    let amplitude =
        |changes: &[(&str, Value)]| from_config(&with(&config(), changes)).program.ropes()[0].amplitude;
    assert_eq!(amplitude(&[("rope_scaling.attention_factor", json!(1.5))]), 1.5);
    let both = [("rope_scaling.mscale", json!(0.5)), ("rope_scaling.mscale_all_dim", json!(1.0))];
    assert!((amplitude(&both) - 1.173_286_8 / 1.346_573_6).abs() < 1e-6);
}

#[test]
fn a_layer_reads_like_the_specification() {
    let text = metadata().to_string();
    let layer: Vec<&str> = text.lines().skip(2).take(18).map(str::trim).collect();
    let w = "model.layers.0";
    assert_eq!(
        layer,
        [
            format!("r1[64] = rms_norm(r0, {w}.input_layernorm.weight[64], eps 1e-5)"),
            format!(
                "r2[256] = linear(r1, {w}.self_attn.q_proj.weight[256, 64]) + {w}.self_attn.q_proj.bias[256]"
            ),
            format!(
                "r3[128] = linear(r1, {w}.self_attn.k_proj.weight[128, 64]) + {w}.self_attn.k_proj.bias[128]"
            ),
            format!(
                "r4[128] = linear(r1, {w}.self_attn.v_proj.weight[128, 64]) + {w}.self_attn.v_proj.bias[128]"
            ),
            "r5[256] = rope(r2, table 0, heads of 64, amplitude 1.3465736)".to_owned(),
            "r6[128] = rope(r3, table 0, heads of 64, amplitude 1.3465736)".to_owned(),
            format!(
                "r7[256] = attention(r5, r6, r4, cache 0, 4 heads of 64 on 2, scale 0.125, window 128, \
                 sinks {w}.self_attn.sinks[4])"
            ),
            format!(
                "r8[64] = linear(r7, {w}.self_attn.o_proj.weight[64, 256]) + {w}.self_attn.o_proj.bias[64]"
            ),
            "tap attention_output.0 on r8".to_owned(),
            "r9[64] = r0 + r8".to_owned(),
            format!("r10[64] = rms_norm(r9, {w}.post_attention_layernorm.weight[64], eps 1e-5)"),
            format!("r11[32] = router_linear(r10, {w}.mlp.router.weight[32, 64]) + {w}.mlp.router.bias[32]"),
            "r12[4] = route(r11, top 4, softmax of the chosen logits)".to_owned(),
            format!(
                "r13[64] = experts(r10, r12, 4 of 32 with clamped_swiglu(alpha 1.702, limit 7), biases: \
                 {w}.mlp.experts.gate_proj.weight {w}.mlp.experts.up_proj.weight {w}.mlp.experts.down_proj.weight)"
            ),
            "tap routed_output.0 on r13".to_owned(),
            "tap feed_forward_output.0 on r13".to_owned(),
            "r14[64] = r9 + r13".to_owned(),
            "tap layer_output.0 on r14".to_owned(),
        ]
    );
}
