"""Shapes and tensors of the architectures that synthetic files can have."""

from __future__ import annotations

from dataclasses import dataclass, replace

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFWriter


@dataclass
class Shape:
    """The sizes of a model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    mlp: int = 0  # dense
    expert_mlp: int = 0
    experts: int = 0
    top_k: int = 0
    full_kv_heads: int = 0  # Gemma 4's full-attention layers
    full_head_dim: int = 0
    window: int = 0


@dataclass
class Types:
    """What is stored as what."""

    experts: T  # or the MLP of a dense model
    attention: T
    embedding: T


PRESETS = {
    "gpt-oss": {
        "20b": Shape(24, 2880, 64, 8, 64, 201088, expert_mlp=2880, experts=32, top_k=4, window=128),
        "120b": Shape(36, 2880, 64, 8, 64, 201088, expert_mlp=2880, experts=128, top_k=4, window=128),
        "tiny": Shape(4, 256, 8, 2, 64, 512, expert_mlp=256, experts=8, top_k=2, window=128),
    },
    "qwen3moe": {
        "30b-a3b": Shape(48, 2048, 32, 4, 128, 151936, mlp=6144, expert_mlp=768, experts=128, top_k=8),
        "tiny": Shape(4, 256, 4, 2, 128, 512, mlp=512, expert_mlp=256, experts=8, top_k=2),
    },
    "llama": {
        "1b": Shape(16, 2048, 32, 8, 64, 128256, mlp=8192),
        "8b": Shape(32, 4096, 32, 8, 128, 128256, mlp=14336),
        "8x7b": Shape(32, 4096, 32, 8, 128, 32000, mlp=14336, expert_mlp=14336, experts=8, top_k=2),
        "tiny": Shape(4, 256, 4, 2, 64, 512, mlp=512),
    },
    "gemma4": {
        "26b-a4b": Shape(30, 2816, 16, 8, 256, 262144, mlp=2112, expert_mlp=704, experts=128, top_k=8, full_kv_heads=2,
                         full_head_dim=512, window=1024),
        "tiny": Shape(6, 256, 4, 2, 64, 512, mlp=512, expert_mlp=256, experts=8, top_k=2, full_kv_heads=1,
                      full_head_dim=128, window=64),
    },
}  # fmt: skip


def shape(arch: str, preset: str | None) -> Shape:
    """A copy of a preset; without a name the architecture's first."""
    presets = PRESETS[arch]
    name = preset or next(iter(presets))
    if name not in presets:
        raise SystemExit(f"{arch} has no preset {name}: {', '.join(presets)}")
    return replace(presets[name])


def add(w: GGUFWriter, plan, arch: str, s: Shape, skew: float) -> None:
    """Metadata and tensors of a whole model."""
    gemma = arch == "gemma4"
    w.add_vocab_size(s.vocab)
    w.add_block_count(s.layers)
    w.add_embedding_length(s.hidden)
    w.add_head_count(s.heads)
    w.add_context_length(262144 if gemma else 131072)
    if s.experts:
        w.add_expert_count(s.experts)
        w.add_expert_used_count(s.top_k)
    plan.random("token_embd.weight", (s.hidden, s.vocab), plan.types.embedding, s.hidden**-0.5 if gemma else 1.0)
    plan.fixed("output_norm.weight", (s.hidden,), 1.0)
    if not gemma:
        plan.random("output.weight", (s.hidden, s.vocab), plan.types.embedding)
    METADATA[arch](w, plan, s)
    for i in range(s.layers):
        LAYERS[arch](plan, s, f"blk.{i}.", i, skew)


# ------------------------------------------------------------------ metadata


def _one_geometry(w: GGUFWriter, s: Shape, eps: float, theta: float) -> None:
    w.add_head_count_kv(s.kv_heads)
    w.add_key_length(s.head_dim)
    w.add_value_length(s.head_dim)
    w.add_layer_norm_rms_eps(eps)
    w.add_rope_freq_base(theta)
    w.add_feed_forward_length(s.mlp or s.expert_mlp)


def _gpt_oss_metadata(w: GGUFWriter, _plan, s: Shape) -> None:
    _one_geometry(w, s, 1e-5, 150000.0)
    w.add_expert_feed_forward_length(s.expert_mlp)
    w.add_sliding_window(s.window)
    w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    w.add_rope_scaling_factor(32.0)
    w.add_rope_scaling_orig_ctx_len(4096)


def _qwen3moe_metadata(w: GGUFWriter, _plan, s: Shape) -> None:
    _one_geometry(w, s, 1e-6, 1e6)
    w.add_rope_dimension_count(s.head_dim)
    w.add_expert_feed_forward_length(s.expert_mlp)


def _llama_metadata(w: GGUFWriter, _plan, s: Shape) -> None:
    _one_geometry(w, s, 1e-5, 5e5)
    w.add_rope_dimension_count(s.head_dim)


def _is_sliding(layer: int) -> bool:
    """Gemma 4: five sliding layers to one full."""
    return layer % 6 != 5


def _gemma4_metadata(w: GGUFWriter, plan, s: Shape) -> None:
    sliding = [_is_sliding(i) for i in range(s.layers)]
    w.add_head_count_kv([s.kv_heads if slides else s.full_kv_heads for slides in sliding])
    w.add_layer_norm_rms_eps(1e-6)
    w.add_feed_forward_length(s.mlp)
    w.add_expert_feed_forward_length(s.expert_mlp)
    w.add_key_length(s.full_head_dim)
    w.add_value_length(s.full_head_dim)
    w.add_key_length_swa(s.head_dim)
    w.add_value_length_swa(s.head_dim)
    w.add_rope_dimension_count(s.full_head_dim)
    w.add_rope_dimension_count_swa(s.head_dim)
    w.add_rope_freq_base(1e6)
    w.add_rope_freq_base_swa(1e4)
    w.add_sliding_window(s.window)
    w.add_sliding_window_pattern(sliding)
    w.add_shared_kv_layers(0)
    w.add_embedding_length_per_layer_input(0)
    w.add_final_logit_softcapping(30.0)
    half, turning = s.full_head_dim // 2, s.full_head_dim // 8
    plan.fixed("rope_freqs.weight", (half,), np.array([1.0] * turning + [1e30] * (half - turning)))


METADATA = {"gpt-oss": _gpt_oss_metadata, "qwen3moe": _qwen3moe_metadata, "llama": _llama_metadata,
            "gemma4": _gemma4_metadata}  # fmt: skip

# ------------------------------------------------------------------ layers


def _norms(plan, block: str, names: tuple[str, ...], width: int) -> None:
    for name in names:
        plan.fixed(f"{block}{name}.weight", (width,), 1.0)


def _router_rows(plan, s: Shape, skew: float) -> np.ndarray:
    """A router some of whose experts have larger rows."""
    preference = np.exp(plan.rng.standard_normal(s.experts) * skew)
    return plan.rng.standard_normal((s.experts, s.hidden)) * s.hidden**-0.5 * preference[:, None]


def _gpt_oss_layer(plan, s: Shape, b: str, _layer: int, skew: float) -> None:
    d, f, types = s.hidden, s.expert_mlp, plan.types
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    _norms(plan, b, ("attn_norm", "post_attention_norm"), d)
    for name, width in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
        plan.random(f"{b}{name}.weight", (d, width), types.attention)
        plan.random(f"{b}{name}.bias", (width,), std=0.02)
    plan.random(b + "attn_output.weight", (q, d), types.attention, 0.3 * q**-0.5)
    plan.random(b + "attn_output.bias", (d,), std=0.02)
    plan.random(b + "attn_sinks.weight", (s.heads,), std=1.0)
    plan.random(b + "ffn_gate_inp.weight", (d, s.experts))
    plan.fixed(b + "ffn_gate_inp.bias", (s.experts,), plan.rng.standard_normal(s.experts) * skew)
    for name in ("ffn_gate_exps", "ffn_up_exps"):
        plan.random(f"{b}{name}.weight", (d, f, s.experts), types.experts)
        plan.random(f"{b}{name}.bias", (f, s.experts), std=0.02)
    plan.random(b + "ffn_down_exps.weight", (f, d, s.experts), types.experts, 0.3 * f**-0.5)
    plan.random(b + "ffn_down_exps.bias", (d, s.experts), std=0.02)


def _pre_norm_layer(plan, s: Shape, b: str, skew: float, head_norms: bool) -> None:
    d, f, types = s.hidden, s.expert_mlp if s.experts else s.mlp, plan.types
    q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    attention = types.attention if s.experts else types.experts
    _norms(plan, b, ("attn_norm", "ffn_norm"), d)
    if head_norms:
        _norms(plan, b, ("attn_q_norm", "attn_k_norm"), s.head_dim)
    for name, width in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
        plan.random(f"{b}{name}.weight", (d, width), attention)
    plan.random(b + "attn_output.weight", (q, d), attention, 0.3 * q**-0.5)
    suffix, count = ("_exps", (s.experts,)) if s.experts else ("", ())
    if s.experts:
        plan.fixed(b + "ffn_gate_inp.weight", (d, s.experts), _router_rows(plan, s, skew))
    for name in ("ffn_gate", "ffn_up"):
        plan.random(f"{b}{name}{suffix}.weight", (d, f, *count), types.experts)
    plan.random(f"{b}ffn_down{suffix}.weight", (f, d, *count), types.experts, 0.3 * f**-0.5)


def _gemma4_layer(plan, s: Shape, b: str, layer: int, skew: float) -> None:
    d, f, types, sliding = s.hidden, s.expert_mlp, plan.types, _is_sliding(layer)
    width, kv_heads = (s.head_dim, s.kv_heads) if sliding else (s.full_head_dim, s.full_kv_heads)
    q, kv = s.heads * width, kv_heads * width
    _norms(plan, b, ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm", "pre_ffw_norm_2",
                     "post_ffw_norm_1", "post_ffw_norm_2"), d)  # fmt: skip
    _norms(plan, b, ("attn_q_norm", "attn_k_norm"), width)
    plan.random(b + "attn_q.weight", (d, q), types.attention)
    plan.random(b + "attn_k.weight", (d, kv), types.attention)
    if sliding:  # full layers use k as v
        plan.random(b + "attn_v.weight", (d, kv), types.attention)
    plan.random(b + "attn_output.weight", (q, d), types.attention)
    plan.fixed(b + "layer_output_scale.weight", (1,), 1.0)
    for name, shape_ in (("ffn_gate", (d, s.mlp)), ("ffn_up", (d, s.mlp)), ("ffn_down", (s.mlp, d))):
        plan.random(f"{b}{name}.weight", shape_, types.attention)
    plan.fixed(b + "ffn_gate_inp.weight", (d, s.experts), _router_rows(plan, s, skew))
    plan.fixed(b + "ffn_gate_inp.scale", (d,), d**0.5)
    plan.random(b + "ffn_gate_up_exps.weight", (d, 2 * f, s.experts), types.experts)
    plan.random(b + "ffn_down_exps.weight", (f, d, s.experts), types.experts)
    plan.fixed(b + "ffn_down_exps.scale", (s.experts,), 1.0)


LAYERS = {
    "gpt-oss": _gpt_oss_layer,
    "qwen3moe": lambda plan, s, b, _layer, skew: _pre_norm_layer(plan, s, b, skew, head_norms=True),
    "llama": lambda plan, s, b, _layer, skew: _pre_norm_layer(plan, s, b, skew, head_norms=False),
    "gemma4": _gemma4_layer,
}
