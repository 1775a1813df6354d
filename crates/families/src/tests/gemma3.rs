use serde_json::{Value, json};
use turbospark_formats::GgufValue;
use turbospark_program::{Op, Program};

use super::support::*;
use crate::{EmbeddingScale, FamilyOptions};

pub fn config() -> Value {
    json!({
        "model_type": "gemma3_text", "attention_bias": false, "attn_logit_softcapping": null,
        "final_logit_softcapping": null, "head_dim": 32, "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 64, "intermediate_size": 96, "max_position_embeddings": 32768, "num_attention_heads": 4,
        "num_hidden_layers": 7, "num_key_value_heads": 1, "query_pre_attn_scalar": 32, "rms_norm_eps": 1e-6,
        "rope_local_base_freq": 10000, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6, "vocab_size": 16
    })
}

fn metadata(layers: u64, more: &[(&'static str, GgufValue)]) -> Program {
    let mut pairs = vec![
        ("general.architecture", text("gemma3")),
        ("gemma3.block_count", integer(layers)),
        ("gemma3.context_length", integer(32768)),
        ("gemma3.embedding_length", integer(64)),
        ("gemma3.feed_forward_length", integer(96)),
        ("gemma3.attention.head_count", integer(4)),
        ("gemma3.attention.head_count_kv", integer(1)),
        ("gemma3.attention.key_length", integer(32)),
        ("gemma3.attention.layer_norm_rms_epsilon", float(1e-6)),
        ("gemma3.attention.sliding_window", integer(512)),
        ("gemma3.rope.freq_base", float(1e6)),
        ("gemma3.rope.scaling.type", text("linear")),
        ("gemma3.rope.scaling.factor", float(8.0)),
    ];
    pairs.retain(|(key, _)| more.iter().all(|(other, _)| other != key));
    pairs.extend_from_slice(more);
    from_gguf(&gguf(&pairs, &[("token_embd.weight", &[64, 16])], 0.0))
}

fn offsets(program: &Program) -> Vec<f32> {
    let offset = |op: &Op| match op {
        Op::RmsNorm { offset, .. } => Some(*offset),
        _ => None,
    };
    program.ops().iter().filter_map(offset).collect()
}

fn scale(program: &Program) -> f32 {
    let scale = |op: &Op| match op {
        Op::Attention { attention, .. } => Some(attention.scale),
        _ => None,
    };
    program.ops().iter().find_map(scale).expect("attention")
}

#[test]
fn every_spelling_of_the_pattern_and_of_the_rotation_is_one_program() {
    let program = from_config(&config()).program;
    let windows: Vec<bool> = program.kv_layers().iter().map(|kv| kv.window == Some(512)).collect();
    assert_eq!(windows, [true, true, true, true, true, false, true]);
    let types: Vec<&str> =
        windows.iter().map(|slides| if *slides { "sliding_attention" } else { "full_attention" }).collect();
    let ropes = json!({
        "full_attention": {"rope_type": "linear", "factor": 8, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}
    });
    for changes in [
        vec![("sliding_window_pattern", json!(windows))],
        vec![("sliding_window_pattern", Value::Null)],
        vec![("sliding_window_pattern", Value::Null), ("_sliding_window_pattern", json!(6))],
        vec![("layer_types", json!(types))],
        vec![("rope_parameters", ropes), ("rope_theta", Value::Null), ("rope_local_base_freq", Value::Null)],
    ] {
        assert_eq!(from_config(&with(&config(), &changes)).program, program, "{changes:?}");
    }
    let outer = json!({"model_type": "gemma3", "text_config": config(), "vision_config": {"hidden_size": 1}});
    assert_eq!(from_config(&outer).program, program);
}

#[test]
fn hugging_face_stores_norms_less_one_and_gguf_does_not() {
    let (config, metadata) = (from_config(&config()).program, metadata(7, &[]));
    // Six norms a layer and the last one.
    assert_eq!(offsets(&config), [1.0; 43]);
    assert_eq!(offsets(&metadata), [0.0; 43]);
    assert_eq!(config.to_string().replace(", 1 + ", ", "), metadata.to_string());
    assert_eq!(config.ropes(), metadata.ropes());
}

#[test]
fn what_multi_modal_configs_leave_out_is_the_class_default() {
    let sparse = json!({
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024, "vocab_size": 262208
        }
    });
    let model = from_config(&sparse);
    let config = &model.config;
    assert_eq!(
        (&config["heads"], &config["kv_heads"], &config["head_width"]),
        (&json!(8), &json!(4), &json!(256))
    );
    assert_eq!(config["full_rope"], "base 1000000, all divided by 8");
    assert_eq!(config["sliding_rope"], "base 10000");
    assert_eq!(config["attention_scale"], 0.0625);
    let message = refusal(&with(&sparse, &[("text_config.hidden_size", Value::Null)]));
    assert_eq!(message, "config.json: text_config.hidden_size is missing");
}

#[test]
fn metadata_without_a_width_means_no_windows() {
    let some = metadata(7, &[("gemma3.attention.sliding_window_pattern", integer(6))]);
    assert!(some.kv_layers().iter().any(|kv| kv.window.is_some()));
    let none = metadata(7, &[("gemma3.attention.sliding_window", integer(0))]);
    assert!(none.kv_layers().iter().all(|kv| kv.window.is_none()));
}

#[test]
fn the_largest_scales_by_the_residual_stream() {
    assert_eq!(scale(&metadata(7, &[])), 1.0 / 32f32.sqrt());
    assert_eq!(scale(&metadata(62, &[])), 0.25);
    let given = with(&config(), &[("query_pre_attn_scalar", json!(64))]);
    assert_eq!(scale(&from_config(&given).program), 0.125);
}

#[test]
fn soft_caps_are_taken_if_set() {
    let capped =
        with(&config(), &[("attn_logit_softcapping", json!(50.0)), ("final_logit_softcapping", json!(30.0))]);
    let text = from_config(&capped).program.to_string();
    assert!(text.contains("window 512, softcap 50)") && text.contains("30 * tanh("));
}

#[test]
fn the_embedding_scale_may_be_rounded() {
    let rounded = FamilyOptions { embedding_scale: EmbeddingScale::Bf16Rounded, ..FamilyOptions::default() };
    let scale = |hidden: u32, options: &FamilyOptions| {
        let config = with(&config(), &[("hidden_size", json!(hidden))]);
        let program = try_config(&config, options).expect("a program").program;
        match program.ops()[0] {
            Op::Embed { scale, .. } => scale,
            _ => panic!("no embedding"),
        }
    };
    assert_eq!(scale(2816, &FamilyOptions::default()), 2816f32.sqrt());
    for (hidden, expected) in [(2816, 53.0), (5376, 73.5), (2560, 50.5), (1536, 39.25)] {
        assert_eq!(scale(hidden, &rounded), expected);
    }
}

#[test]
fn models_that_do_not_generate_are_refused() {
    let message = refusal(&with(&config(), &[("use_bidirectional_attention", json!(true))]));
    assert!(message.contains("use_bidirectional_attention is true"), "{message}");
}
