use serde_json::{Value, json};
use turbospark_program::{Op, Program};

use super::support::*;

/// A mixture of one sliding and one full layer.
pub fn mixture() -> Value {
    json!({
        "model_type": "gemma4_text", "attention_bias": false, "final_logit_softcapping": 30.0, "head_dim": 16,
        "global_head_dim": 32, "hidden_activation": "gelu_pytorch_tanh", "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6, "sliding_window": 8, "tie_word_embeddings": true, "vocab_size": 128,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}
        },
        "vocab_size_per_layer_input": 128, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
        "attention_k_eq_v": true, "enable_moe_block": true, "use_double_wide_mlp": false,
        "num_global_key_value_heads": 1, "num_experts": 6, "top_k_experts": 3, "moe_intermediate_size": 32,
        "use_bidirectional_attention": "vision", "hidden_size": 64, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"]
    })
}

/// Per-layer embeddings, and three of six layers without keys of their own.
pub fn shared() -> Value {
    let (s, f) = ("sliding_attention", "full_attention");
    with(
        &mixture(),
        &[
            ("attention_k_eq_v", json!(false)),
            ("enable_moe_block", json!(false)),
            ("num_global_key_value_heads", Value::Null),
            ("hidden_size_per_layer_input", json!(8)),
            ("num_hidden_layers", json!(6)),
            ("layer_types", json!([s, f, s, s, f, f])),
            ("num_kv_shared_layers", json!(3)),
            ("use_double_wide_mlp", json!(true)),
        ],
    )
}

const MIXTURE: &str = include_str!("gemma4_moe.txt");

#[test]
fn a_sliding_and_a_full_layer_read_like_the_specification() {
    let program = from_config(&mixture()).program;
    for (line, (found, expected)) in program.to_string().lines().zip(MIXTURE.lines()).enumerate() {
        assert_eq!(found, expected, "line {line}");
    }
    assert_eq!(program.to_string().lines().count(), MIXTURE.lines().count());
}

#[test]
fn per_layer_config_and_the_global_keys_are_one_program() {
    let resaved = with(
        &mixture(),
        &[
            ("global_head_dim", Value::Null),
            ("num_global_key_value_heads", Value::Null),
            ("per_layer_config", json!({"1": {"head_dim": 32, "num_key_value_heads": 1}})),
        ],
    );
    let program = from_config(&mixture()).program;
    assert_eq!(from_config(&resaved).program, program);
    let outer = json!({
        "model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"], "text_config": mixture(),
        "vision_config": null, "tie_word_embeddings": true, "eos_token_id": [1, 106]
    });
    assert_eq!(from_config(&outer).program, program);
    let strange = with(&resaved, &[("per_layer_config.1.intermediate_size", json!(1))]);
    assert!(refusal(&strange).contains("expected head_dim and num_key_value_heads only"));
    let beyond = with(&resaved, &[("per_layer_config.2", json!({"head_dim": 32}))]);
    assert!(refusal(&beyond).contains("expected layers from 0 to 1"));
}

#[test]
fn layers_share_the_last_cache_of_their_type() {
    let program = from_config(&shared()).program;
    let attention = |op: &Op| match op {
        Op::Attention { kv, attention, .. } => Some((attention.cache, kv.is_some())),
        _ => None,
    };
    let caches: Vec<_> = program.ops().iter().filter_map(attention).collect();
    assert_eq!(caches, [(0, true), (1, true), (2, true), (2, false), (1, false), (1, false)]);
    let owners: Vec<usize> = program.kv_layers().iter().map(|kv| kv.layer).collect();
    assert_eq!(owners, [0, 1, 2]);
    let too_many = with(&shared(), &[("num_kv_shared_layers", json!(5))]);
    assert!(refusal(&too_many).contains("num_kv_shared_layers is 5"));
    assert!(refusal(&with(&shared(), &[("num_kv_shared_layers", json!(6))])).contains("from 0 to 5"));
}

#[test]
fn sharing_layers_are_twice_as_wide() {
    let program = from_config(&shared()).program;
    let width = |layer: usize| {
        let name = format!("model.layers.{layer}.mlp.up_proj.weight");
        program.weights().iter().find(|spec| spec.name == name).map(|spec| spec.shape[0])
    };
    assert_eq!([0, 2, 3, 5].map(width), [Some(96), Some(96), Some(192), Some(192)]);
}

#[test]
fn per_layer_embeddings_read_like_the_specification() {
    let text = from_config(&shared()).program.to_string();
    let lines: Vec<&str> = text.lines().skip(2).take(6).map(str::trim).collect();
    assert_eq!(
        lines,
        [
            "r1[48] = embed(model.embed_tokens_per_layer.weight[128, 48]) * 2.828427",
            "r2[48] = linear(r0, model.per_layer_model_projection.weight[48, 64])",
            "r3[48] = r2 * 0.125",
            "r4[48] = rms_norm(r3, model.per_layer_projection_norm.weight[8], eps 1e-6, heads of 8)",
            "r5[48] = r4 + r1",
            "r6[48] = r5 * 0.70710677",
        ]
    );
    let layer: Vec<&str> = text
        .lines()
        .map(str::trim)
        .skip_while(|line| !line.starts_with("tap feed_forward_output.1"))
        .collect();
    let register = |line: &str| line.split('[').next().unwrap_or_default().to_owned();
    let (x, own, gate, product, out, normed) = (
        register(layer[1]),
        register(layer[2]),
        register(layer[3]),
        register(layer[4]),
        register(layer[5]),
        register(layer[6]),
    );
    let w = "model.layers.1";
    assert_eq!(layer[2], format!("{own}[8] = r6[8 .. 16]"));
    assert_eq!(layer[3], format!("{gate}[8] = linear({x}, {w}.per_layer_input_gate.weight[8, 64])"));
    assert_eq!(layer[4], format!("{product}[8] = geglu_tanh({gate}, {own})"));
    assert_eq!(layer[5], format!("{out}[64] = linear({product}, {w}.per_layer_projection.weight[64, 8])"));
    assert!(layer[6].contains(&format!("rms_norm({out}, {w}.post_per_layer_input_norm.weight[64]")));
    assert!(layer[7].ends_with(&format!("= {x} + {normed}")));
    assert!(layer[8].ends_with(&format!("* {w}.layer_scalar[1]")));
    assert!(layer[9].starts_with("tap layer_output.1"));
}

/// The public 26B-A4B and E2B.
#[test]
fn the_public_shapes() {
    let pattern = |period: usize, layers: usize| {
        let kind = |i| if i % period == 0 { "full_attention" } else { "sliding_attention" };
        json!((1..=layers).map(kind).collect::<Vec<_>>())
    };
    let moe = with(
        &mixture(),
        &[
            ("hidden_size", json!(2816)),
            ("num_hidden_layers", json!(30)),
            ("intermediate_size", json!(2112)),
            ("num_attention_heads", json!(16)),
            ("num_key_value_heads", json!(8)),
            ("num_global_key_value_heads", json!(2)),
            ("head_dim", json!(256)),
            ("global_head_dim", Value::Null),
            ("layer_types", pattern(6, 30)),
            ("sliding_window", json!(1024)),
            ("num_experts", json!(128)),
            ("top_k_experts", json!(8)),
            ("moe_intermediate_size", json!(704)),
            ("vocab_size", json!(262144)),
        ],
    );
    let program = from_config(&moe).program;
    let widths = |program: &Program, i: usize| program.kv_layers()[i].key_width;
    assert_eq!((widths(&program, 4), widths(&program, 5)), (2048, 1024));
    let full = program.ropes().iter().find(|rope| rope.frequencies.len() == 256).expect("full layers rotate");
    let close = |j: usize, f: f32| (full.frequencies[j] - f).abs() < 1e-8;
    assert!(close(1, 0.9474635) && close(63, 0.03337625) && full.frequencies[64..] == [0.0; 192]);
    // Every sixth layer is full where nothing is said.
    assert_eq!(from_config(&with(&moe, &[("layer_types", Value::Null)])).program, program);

    let e2b = with(
        &shared(),
        &[
            ("num_hidden_layers", json!(35)),
            ("layer_types", pattern(5, 35)),
            ("num_kv_shared_layers", json!(20)),
            ("hidden_size_per_layer_input", json!(256)),
        ],
    );
    let owners: Vec<usize> = from_config(&e2b).program.kv_layers().iter().map(|kv| kv.layer).collect();
    assert_eq!(owners[13..], [13, 14]);
}

#[test]
fn what_must_be_given_is_asked_for() {
    let cases = [
        ("hidden_size_per_layer_input", Value::Null, "config.json: hidden_size_per_layer_input is missing"),
        ("rope_parameters", Value::Null, "config.json: rope_parameters.full_attention is missing"),
        (
            "rope_parameters.full_attention.partial_rotary_factor",
            Value::Null,
            "partial_rotary_factor is missing",
        ),
        ("rope_parameters.full_attention.partial_rotary_factor", json!(1.5), "expected at most 1"),
        ("attention_bias", json!(true), "attention_bias is true, expected false"),
        ("use_bidirectional_attention", json!("all"), "is \"all\", expected vision"),
        ("hidden_activation", json!("silu"), "is \"silu\", expected gelu_pytorch_tanh"),
        ("num_global_key_value_heads", json!(3), "is 3, expected a divisor of 4"),
        (
            "layer_types",
            json!(["full_attention", "sliding_attention"]),
            "expected full_attention in the last layer",
        ),
    ];
    for (key, value, message) in cases {
        let found = refusal(&with(&mixture(), &[(key, value)]));
        assert!(found.contains(message), "{found}");
    }
    let mut null = mixture();
    null["hidden_size_per_layer_input"] = Value::Null;
    assert_eq!(from_config(&null).program, from_config(&mixture()).program);
}
