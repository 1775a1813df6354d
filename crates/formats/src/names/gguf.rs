//! Names of GGUF files.

use super::{GateUpOrder, Role, UNKNOWN, numbered};
use crate::GgufMetadata;
use crate::gguf::MetadataError;

/// Tensors outside the layers.
const TOP: [(&str, &str); 7] = [
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
    ("rope_freqs.weight", "rope_freqs.weight"),
    ("per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"),
    ("per_layer_model_proj.weight", "model.per_layer_model_projection.weight"),
    ("per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"),
];

/// Modules of a layer that every architecture spells alike.
const LAYER: [(&str, &str); 10] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// What an architecture spells in its own way.
struct Architecture {
    /// Further modules of a layer.
    layer: &'static [(&'static str, &'static str)],
    /// Tensors of a layer whose canonical name has no module with weight and bias.
    tensors: &'static [(&'static str, &'static str)],
    /// Where the experts are.
    experts: &'static str,
    /// Whether rows of q and k are stored in rotary pairs.
    paired_heads: bool,
}

const LLAMA: Architecture = Architecture {
    layer: &[("ffn_norm", "post_attention_layernorm"), ("ffn_gate_inp", "block_sparse_moe.gate")],
    tensors: &[],
    experts: "block_sparse_moe.experts",
    paired_heads: true,
};

const QWEN: Architecture = Architecture {
    layer: &[("ffn_norm", "post_attention_layernorm"), ("ffn_gate_inp", "mlp.gate")],
    tensors: &[],
    experts: "mlp.experts",
    paired_heads: false,
};

const GPT_OSS: Architecture = Architecture {
    layer: &[("post_attention_norm", "post_attention_layernorm"), ("ffn_gate_inp", "mlp.router")],
    tensors: &[("attn_sinks.weight", "self_attn.sinks")],
    experts: "mlp.experts",
    paired_heads: false,
};

const GEMMA: Architecture = Architecture {
    layer: &[
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("pre_ffw_norm_2", "pre_feedforward_layernorm_2"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
        ("post_ffw_norm_1", "post_feedforward_layernorm_1"),
        ("post_ffw_norm_2", "post_feedforward_layernorm_2"),
        ("ffn_gate_inp", "router.proj"),
        ("inp_gate", "per_layer_input_gate"),
        ("proj", "per_layer_projection"),
        ("post_norm", "post_per_layer_input_norm"),
    ],
    tensors: &[
        ("ffn_gate_inp.scale", "router.scale"),
        ("ffn_down_exps.scale", "router.per_expert_scale"),
        ("layer_output_scale.weight", "layer_scalar"),
    ],
    experts: "experts",
    paired_heads: false,
};

/// Names of one file.
pub(crate) struct Names {
    architecture: &'static Architecture,
    head: Option<usize>,
}

impl Names {
    /// The spelling of the file's architecture. One that is not known is read with the common names: families
    /// refuse it by its name.
    pub fn of(metadata: &GgufMetadata) -> Result<Names, MetadataError> {
        let name = metadata.architecture()?;
        let architecture = match name {
            "llama" => &LLAMA,
            "gpt-oss" => &GPT_OSS,
            "gemma3" | "gemma4" => &GEMMA,
            _ => &QWEN,
        };
        let head = if architecture.paired_heads { head_width(metadata, name)? } else { None };
        Ok(Names { architecture, head })
    }

    /// What the tensor `name` is.
    pub fn role(&self, name: &str) -> Role {
        if let Some((_, canonical)) = TOP.iter().find(|(own, _)| *own == name) {
            return Role::Whole((*canonical).to_owned());
        }
        if name.starts_with("v.") || name.starts_with("mm.") {
            return Role::Skip("vision tower");
        }
        let Some((layer, rest)) = name.strip_prefix("blk.").and_then(numbered) else {
            return Role::Skip(UNKNOWN);
        };
        self.in_layer(&format!("model.layers.{layer}"), rest).unwrap_or(Role::Skip(UNKNOWN))
    }

    fn in_layer(&self, layer: &str, rest: &str) -> Option<Role> {
        if rest.starts_with("nextn.") {
            return Some(Role::Skip("multi-token prediction"));
        }
        if rest.starts_with("attn_rot_embd") {
            return Some(Role::Skip("rotary table, computed from the configuration"));
        }
        if let Some((_, canonical)) = self.architecture.tensors.iter().find(|(own, _)| *own == rest) {
            return Some(Role::Whole(format!("{layer}.{canonical}")));
        }
        let (module, leaf) = rest.split_once('.')?;
        let experts = format!("{layer}.{}", self.architecture.experts);
        if let Some((expert, leaf)) = numbered(leaf) {
            let leaf = leaf_name(leaf)?;
            let stack = format!("{experts}.{}.{leaf}", projection(module)?);
            return Some(Role::Member { stack, expert });
        }
        let leaf = leaf_name(leaf)?;
        if module == "ffn_gate_up_exps" {
            return Some(Role::GateUp { experts, leaf, order: GateUpOrder::Halves });
        }
        if let Some(matrix) = module.strip_suffix("_exps").and_then(projection) {
            return Some(Role::Stack { name: format!("{experts}.{matrix}.{leaf}"), transposed: false });
        }
        let modules = LAYER.iter().chain(self.architecture.layer);
        let (_, canonical) = modules.into_iter().find(|(own, _)| *own == module)?;
        let name = format!("{layer}.{canonical}.{leaf}");
        match self.head {
            Some(head) if module == "attn_q" || module == "attn_k" => Some(Role::PairedHeads { name, head }),
            _ => Some(Role::Whole(name)),
        }
    }
}

fn projection(module: &str) -> Option<&'static str> {
    match module {
        "ffn_gate" => Some("gate_proj"),
        "ffn_up" => Some("up_proj"),
        "ffn_down" => Some("down_proj"),
        _ => None,
    }
}

fn leaf_name(leaf: &str) -> Option<&'static str> {
    match leaf {
        "weight" => Some("weight"),
        "bias" => Some("bias"),
        _ => None,
    }
}

/// Rows of an attention head. `None` in a file without the keys (a vocabulary has no attention).
fn head_width(metadata: &GgufMetadata, architecture: &str) -> Result<Option<usize>, MetadataError> {
    let key = |name: &str| format!("{architecture}.{name}");
    let whole = |n: u64| usize::try_from(n).ok();
    if let Some(width) = metadata.integer(&key("attention.key_length"))? {
        return Ok(whole(width));
    }
    let (width, heads) =
        (metadata.integer(&key("embedding_length"))?, metadata.integers(&key("attention.head_count"))?);
    let heads = heads.and_then(|heads| heads.at(0)).filter(|&heads| heads > 0);
    Ok(width.zip(heads).and_then(|(width, heads)| whole(width / heads)))
}
