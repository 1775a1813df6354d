//! Names of Hugging Face and MLX checkpoints.

use super::{GateUpOrder, Role, UNKNOWN, numbered};

/// Tensors outside the layers.
const TOP: [&str; 7] = [
    "model.embed_tokens.weight",
    "model.norm.weight",
    "lm_head.weight",
    "lm_head.bias",
    "model.embed_tokens_per_layer.weight",
    "model.per_layer_model_projection.weight",
    "model.per_layer_projection_norm.weight",
];

/// Tensors of a layer that are the same whatever the file, experts apart.
const LAYER: [&str; 36] = [
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    "pre_feedforward_layernorm.weight",
    "pre_feedforward_layernorm_2.weight",
    "post_feedforward_layernorm.weight",
    "post_feedforward_layernorm_1.weight",
    "post_feedforward_layernorm_2.weight",
    "self_attn.q_proj.weight",
    "self_attn.q_proj.bias",
    "self_attn.k_proj.weight",
    "self_attn.k_proj.bias",
    "self_attn.v_proj.weight",
    "self_attn.v_proj.bias",
    "self_attn.o_proj.weight",
    "self_attn.o_proj.bias",
    "self_attn.q_norm.weight",
    "self_attn.k_norm.weight",
    "self_attn.sinks",
    "mlp.gate_proj.weight",
    "mlp.gate_proj.bias",
    "mlp.up_proj.weight",
    "mlp.up_proj.bias",
    "mlp.down_proj.weight",
    "mlp.down_proj.bias",
    "mlp.router.weight",
    "mlp.router.bias",
    "mlp.gate.weight",
    "mlp.gate.bias",
    "block_sparse_moe.gate.weight",
    "router.proj.weight",
    "router.scale",
    "router.per_expert_scale",
    "layer_scalar",
    "per_layer_input_gate.weight",
    "per_layer_projection.weight",
    "post_per_layer_input_norm.weight",
];

/// Where experts are kept, and their canonical place. The longer spellings come first.
const EXPERTS: [(&str, &str); 6] = [
    ("mlp.switch_mlp.", "mlp.experts"),
    ("mlp.experts.", "mlp.experts"),
    ("block_sparse_moe.switch_mlp.", "block_sparse_moe.experts"),
    ("block_sparse_moe.experts.", "block_sparse_moe.experts"),
    ("experts.switch_glu.", "experts"),
    ("experts.", "experts"),
];

/// Parts of a checkpoint that text generation does not use.
const OTHER_TOWERS: [(&str, &str); 15] = [
    ("vision_tower.", "vision tower"),
    ("vision_model.", "vision tower"),
    ("visual.", "vision tower"),
    ("embed_vision.", "vision tower"),
    ("vision_embedder.", "vision tower"),
    ("multi_modal_projector.", "vision tower"),
    ("mm_projector.", "vision tower"),
    ("audio_tower.", "audio tower"),
    ("embed_audio.", "audio tower"),
    ("mtp.", "multi-token prediction"),
    ("mtp_layers.", "multi-token prediction"),
    ("language_model.vision_tower.", "vision tower"),
    ("language_model.visual.", "vision tower"),
    ("language_model.audio_tower.", "audio tower"),
    ("language_model.mtp.", "multi-token prediction"),
];

/// What differs between families in how experts are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Experts {
    /// gpt-oss: gate and up interleaved, plain floats transposed.
    GptOss,
    /// Mixtral: everything under block_sparse_moe, whatever the version that saved it.
    Mixtral,
    /// All others.
    Plain,
}

impl Experts {
    /// The spelling of the family that config.json names.
    pub fn of(model_type: &str) -> Experts {
        match model_type {
            "gpt_oss" => Experts::GptOss,
            "mixtral" => Experts::Mixtral,
            _ => Experts::Plain,
        }
    }
}

/// The name with the wrapper of multi-modal checkpoints removed.
pub(crate) fn unwrapped(name: &str) -> String {
    for prefix in ["model.language_model.", "language_model.model."] {
        if let Some(rest) = name.strip_prefix(prefix) {
            return format!("model.{rest}");
        }
    }
    name.strip_prefix("language_model.")
        .filter(|rest| rest.starts_with("lm_head."))
        .unwrap_or(name)
        .to_owned()
}

/// What the tensor `name` is.
pub(crate) fn role(name: &str, family: Experts) -> Role {
    if let Some(reason) = unneeded(name) {
        return Role::Skip(reason);
    }
    let name = unwrapped(name);
    if TOP.contains(&name.as_str()) {
        return Role::Whole(name);
    }
    let Some((layer, rest)) = name.strip_prefix("model.layers.").and_then(numbered) else {
        return Role::Skip(UNKNOWN);
    };
    let layer = format!("model.layers.{layer}");
    if family == Experts::Mixtral && rest == "mlp.gate.weight" {
        return Role::Whole(format!("{layer}.block_sparse_moe.gate.weight"));
    }
    if LAYER.contains(&rest) {
        return Role::Whole(format!("{layer}.{rest}"));
    }
    for (prefix, place) in EXPERTS {
        if let Some(rest) = rest.strip_prefix(prefix) {
            let place = if family == Experts::Mixtral { "block_sparse_moe.experts" } else { place };
            return experts(&format!("{layer}.{place}"), rest, family).unwrap_or(Role::Skip(UNKNOWN));
        }
    }
    Role::Skip(UNKNOWN)
}

/// Why the language model does without the tensor `name`, or any part of a quantised one.
pub(crate) fn unneeded(name: &str) -> Option<&'static str> {
    if name.ends_with("rotary_emb.inv_freq") || name.ends_with("rotary_emb.original_inv_freq") {
        return Some("rotary table, computed from the configuration");
    }
    if [".input_min", ".input_max", ".output_min", ".output_max"].iter().any(|end| name.ends_with(end)) {
        return Some("activation range");
    }
    let name = name.strip_prefix("model.").unwrap_or(name);
    OTHER_TOWERS.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, reason)| *reason)
}

/// `rest` of a name below the place of the experts.
fn experts(experts: &str, rest: &str, family: Experts) -> Option<Role> {
    if let Some((expert, rest)) = numbered(rest) {
        let (matrix, leaf) = rest.split_once('.')?;
        let matrix = match matrix {
            "gate_proj" | "w1" => "gate_proj",
            "up_proj" | "w3" => "up_proj",
            "down_proj" | "w2" => "down_proj",
            _ => return None,
        };
        let leaf = leaf_name(leaf)?;
        return Some(Role::Member { stack: format!("{experts}.{matrix}.{leaf}"), expert });
    }
    let order = if family == Experts::GptOss { GateUpOrder::Interleaved } else { GateUpOrder::Halves };
    let fused = |leaf| Some(Role::GateUp { experts: experts.to_owned(), leaf, order });
    let stack = |matrix: &str, leaf: &str, transposed| {
        Some(Role::Stack { name: format!("{experts}.{matrix}.{leaf}"), transposed })
    };
    match rest {
        "gate_up_proj" | "gate_up_proj.weight" => fused("weight"),
        "gate_up_proj_bias" | "gate_up_proj.bias" => fused("bias"),
        "down_proj" => stack("down_proj", "weight", family == Experts::GptOss),
        "down_proj_bias" => stack("down_proj", "bias", false),
        _ => {
            let (matrix, leaf) = rest.split_once('.')?;
            let known = ["gate_proj", "up_proj", "down_proj"].contains(&matrix);
            if known { stack(matrix, leaf_name(leaf)?, false) } else { None }
        }
    }
}

fn leaf_name(leaf: &str) -> Option<&'static str> {
    match leaf {
        "weight" => Some("weight"),
        "bias" => Some("bias"),
        _ => None,
    }
}
