"""The models that make_tiny.py builds: one config per architecture, spelled as published checkpoints spell it.

Two profiles: `full` (hidden size 128 to 256, vocabulary 512; for opt-in sweeps) and `small` (hidden size 64, vocabulary
128; the fixtures under tests/fixtures). Every config breaks something on purpose: widths differ from one another so
that a transposed matrix shows, windows are shorter than the prompts, expert widths do not divide into k-quant blocks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass
class Spec:
    """One model: its config and the renderings to write besides `hf`."""

    config: dict
    renderings: list[str] = field(default_factory=list)
    # Only the config is kept of `hf`; the weights appear in the renderings alone.
    weights_in_hf: bool = True
    # The dense model whose MLP every expert of this one is a copy of.
    upcycled_from: str | None = None


@dataclass
class Profile:
    """Sizes that differ between the two sets of models."""

    models: dict[str, Spec]
    mlx_group: int
    long_rows: int
    lean_goldens: bool


def text_config(config: dict) -> dict:
    """The part of a config that describes the language model."""
    return config.get("text_config", config)


# ------------------------------------------------------------------ families


def gpt_oss(**over) -> dict:
    """gpt-oss: sinks, biases, YaRN without truncation, alternating windows; hidden size no multiple of 128, as 2880."""
    return dict(
        architectures=["GptOssForCausalLM"], model_type="gpt_oss", attention_bias=True, attention_dropout=0.0,
        eos_token_id=2, pad_token_id=0, head_dim=64, hidden_act="silu", hidden_size=192, initial_context_length=4096,
        intermediate_size=128, layer_types=[SLIDING, FULL] * 2, max_position_embeddings=131072, num_attention_heads=4,
        num_key_value_heads=2, num_hidden_layers=4, num_local_experts=8, experts_per_token=4, num_experts_per_tok=4,
        rms_norm_eps=1e-5, rope_theta=150000.0, sliding_window=8, swiglu_limit=7.0,
        rope_scaling=dict(rope_type="yarn", factor=32.0, beta_fast=32.0, beta_slow=1.0, truncate=False,
                          original_max_position_embeddings=4096),
        tie_word_embeddings=False, vocab_size=512, torch_dtype="bfloat16") | over  # fmt: skip


def gemma4(**text) -> dict:
    """Gemma 4, the four public shapes by their switches; wrapped as the multimodal checkpoints are."""
    base = dict(
        model_type="gemma4_text", attention_bias=False, attention_dropout=0.0, bos_token_id=2, eos_token_id=1,
        pad_token_id=0, final_logit_softcapping=30.0, head_dim=64, global_head_dim=128,
        hidden_activation="gelu_pytorch_tanh", max_position_embeddings=4096, rms_norm_eps=1e-6,
        rope_parameters={
            FULL: {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
            SLIDING: {"rope_type": "default", "rope_theta": 10000.0}},
        sliding_window=8, tie_word_embeddings=True, vocab_size=512, vocab_size_per_layer_input=512,
        hidden_size_per_layer_input=0, num_kv_shared_layers=0, attention_k_eq_v=False, enable_moe_block=False,
        use_double_wide_mlp=False, num_global_key_value_heads=None, num_experts=None, top_k_experts=None,
        moe_intermediate_size=None, use_bidirectional_attention=None, use_cache=True, dtype="bfloat16")  # fmt: skip
    base.update(text)
    base["num_hidden_layers"] = len(base["layer_types"])
    base["vocab_size_per_layer_input"] = base["vocab_size"]
    return dict(architectures=["Gemma4ForConditionalGeneration"], model_type="gemma4", dtype="bfloat16", text_config=base,
                vision_config=None, audio_config=None, tie_word_embeddings=True, eos_token_id=[1, 106])  # fmt: skip


def gemma3(**over) -> dict:
    """Gemma 3 text: (1 + w) norms around both halves, q/k norms, five sliding layers to one full."""
    base = dict(
        architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", attention_bias=False, attention_dropout=0.0,
        attn_logit_softcapping=None, final_logit_softcapping=None, bos_token_id=2, eos_token_id=1, pad_token_id=0,
        head_dim=64, hidden_activation="gelu_pytorch_tanh", hidden_size=128, intermediate_size=256,
        max_position_embeddings=32768, num_attention_heads=4, num_hidden_layers=7, num_key_value_heads=1,
        query_pre_attn_scalar=64, rms_norm_eps=1e-6, rope_local_base_freq=10000.0, rope_scaling=None,
        rope_theta=1000000.0, sliding_window=8, layer_types=([SLIDING] * 5 + [FULL]) + [SLIDING],
        tie_word_embeddings=True, use_cache=True, vocab_size=512, torch_dtype="bfloat16")  # fmt: skip
    return base | over


def gemma3_linear(**over) -> dict:
    """Gemma 3 as the sizes from 4B up: linear rope scaling on full layers, the older spelling of the layer pattern."""
    config = gemma3(rope_scaling=dict(factor=8.0, rope_type="linear"), sliding_window_pattern=6, num_key_value_heads=2)
    del config["layer_types"]
    return config | over


def llama(**over) -> dict:
    """Llama, TinyLlama and what shares their layer."""
    return dict(
        architectures=["LlamaForCausalLM"], model_type="llama", attention_bias=False, mlp_bias=False, bos_token_id=1,
        eos_token_id=2, hidden_act="silu", hidden_size=256, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048, rms_norm_eps=1e-5,
        rope_theta=10000.0, rope_scaling=None, tie_word_embeddings=False, vocab_size=512,
        torch_dtype="bfloat16") | over  # fmt: skip


def llama3(**over) -> dict:
    """Llama 3.1 rope scaling, its original context so short that 40 tokens see it; tied as Llama-3.2-1B."""
    scaling = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64)  # fmt: skip
    return llama(rope_theta=500000.0, head_dim=64, tie_word_embeddings=True, rope_scaling=scaling) | over


def mistral(**over) -> dict:
    """Mistral 7B v0.1's window on every layer; head_dim apart from hidden / heads as in Mistral Nemo."""
    return llama(architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=8, head_dim=32) | over


def mixtral(**over) -> dict:
    """Mixtral: a Mistral layer without window, eight experts, softmax over the two that are chosen."""
    config = llama(architectures=["MixtralForCausalLM"], model_type="mixtral", attention_dropout=0.0, hidden_size=128,
                   intermediate_size=192, sliding_window=None, rope_theta=1000000.0, num_local_experts=8,
                   num_experts_per_tok=2, output_router_logits=False, router_aux_loss_coef=0.02)  # fmt: skip
    for key in ("attention_bias", "mlp_bias", "rope_scaling"):
        del config[key]
    return config | over


def qwen2(**over) -> dict:
    """Qwen2: biases on q, k and v that no config key announces, a window that is present and not in use."""
    return dict(
        architectures=["Qwen2ForCausalLM"], model_type="qwen2", attention_dropout=0.0, bos_token_id=1, eos_token_id=2,
        hidden_act="silu", hidden_size=256, intermediate_size=384, max_position_embeddings=32768, max_window_layers=2,
        num_attention_heads=8, num_hidden_layers=4, num_key_value_heads=2, rms_norm_eps=1e-6, rope_theta=1000000.0,
        sliding_window=8, use_sliding_window=False, tie_word_embeddings=True, use_cache=True, vocab_size=512,
        torch_dtype="bfloat16") | over  # fmt: skip


def qwen3(**over) -> dict:
    """Qwen3 dense: q/k norms, a query width apart from the hidden size."""
    return dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", attention_bias=False, hidden_act="silu",
        hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2,
        head_dim=64, max_position_embeddings=4096, rms_norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None,
        sliding_window=None, use_sliding_window=False, max_window_layers=4, tie_word_embeddings=False, vocab_size=512,
        torch_dtype="bfloat16", bos_token_id=1, eos_token_id=2) | over  # fmt: skip


def qwen3_moe(**over) -> dict:
    """Qwen3 MoE: softmax over all experts, the chosen ones renormalised."""
    return qwen3(architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", moe_intermediate_size=128,
                 num_experts=8, num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
                 output_router_logits=False, router_aux_loss_coef=0.001) | over  # fmt: skip


# ------------------------------------------------------------------ profiles

MLX_BITS = [f"mlx-{bits}bit-g{group}" for bits in (2, 3, 6) for group in (32, 64, 128)]


def full() -> Profile:
    """The models that the executors are measured against, opt-in."""
    gguf = ["gguf-f32", "gguf-bf16", "gguf-q4_k_m"]
    plain = ["mlx-4bit", *gguf]
    hybrid = [SLIDING, SLIDING, FULL] * 2
    gemma_heads = dict(num_attention_heads=4, num_key_value_heads=2, num_global_key_value_heads=1)
    models = {
        "gpt_oss": Spec(gpt_oss(), ["hf-mxfp4", "mlx-4bit", "mlx-mxfp4", *gguf, "gguf-mxfp4"]),
        "gemma4_moe": Spec(
            gemma4(hidden_size=256, intermediate_size=192, attention_k_eq_v=True, enable_moe_block=True, num_experts=8,
                   top_k_experts=3, moe_intermediate_size=64, layer_types=hybrid, **gemma_heads),
            ["mlx-4bit", "mlx-4bit-mlp8", *gguf, "gguf-zoo"]),
        "gemma4_dense": Spec(
            gemma4(hidden_size=256, intermediate_size=512, attention_k_eq_v=True, layer_types=hybrid, **gemma_heads), plain),
        # Layers 5 to 9 reuse the keys and values of 3 and 4 and have a doubled MLP.
        "gemma4_e2b": Spec(
            gemma4(hidden_size=128, intermediate_size=256, num_attention_heads=4, num_key_value_heads=1,
                   num_kv_shared_layers=5, use_double_wide_mlp=True, hidden_size_per_layer_input=64,
                   layer_types=[SLIDING, SLIDING, SLIDING, SLIDING, FULL] * 2), plain),
        "gemma4_e4b": Spec(
            gemma4(hidden_size=128, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2,
                   num_kv_shared_layers=3, hidden_size_per_layer_input=64, layer_types=[SLIDING, SLIDING, FULL] * 3), plain),
        "gemma3": Spec(gemma3(), plain),
        "gemma3_4b": Spec(gemma3_linear(), ["hf-multimodal", *plain]),
        # The scale comes from a key of its own, as in 27B; GGUF has no such key.
        "gemma3_27b": Spec(gemma3_linear(query_pre_attn_scalar=32), ["mlx-4bit"]),
        "qwen3_moe": Spec(qwen3_moe(), ["mlx-4bit", "mlx-8bit-g32", "mlx-4bit-g128", *gguf, "gguf-zoo"]),
        "qwen3": Spec(qwen3(tie_word_embeddings=True), plain),
        "qwen2": Spec(qwen2(), plain),
        "tinyllama": Spec(llama(hidden_size=128, intermediate_size=256), plain),
        "llama3": Spec(llama3(), ["mlx-4bit", "mlx-8bit-g32", "mlx-4bit-g128", *gguf, "gguf-q8_0", "gguf-zoo"]),
        # llama.cpp's "llama" architecture has no sliding window, so Mistral has no GGUF.
        "mistral": Spec(mistral(), ["mlx-4bit"]),
        "mixtral": Spec(mixtral(), [*plain, "gguf-mxfp4"]),
        "mlx_bits": Spec(llama(hidden_size=128, intermediate_size=256), MLX_BITS, weights_in_hf=False),
        "qwen3_upcycled": Spec(
            qwen3_moe(moe_intermediate_size=512, num_experts=4, num_experts_per_tok=2, tie_word_embeddings=True),
            ["gguf-f32"], upcycled_from="qwen3"),
        "mixtral_upcycled": Spec(
            mixtral(intermediate_size=256, num_local_experts=4, rope_theta=10000.0), ["gguf-f32"], upcycled_from="tinyllama"),
    }  # fmt: skip
    return Profile(models, mlx_group=64, long_rows=32, lean_goldens=False)


def small() -> Profile:
    """The fixtures of the repository: the same families at hidden size 64, two or three layers where that suffices."""
    tiny = dict(hidden_size=64, vocab_size=128)
    gemma_heads = dict(num_attention_heads=4, num_key_value_heads=2, num_global_key_value_heads=1)
    gemma_tiny = dict(head_dim=16, global_head_dim=32, **tiny)
    llama_tiny = dict(intermediate_size=32, num_hidden_layers=2, **tiny)
    qwen_tiny = dict(intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, head_dim=32, **tiny)
    gemma3_tiny = dict(intermediate_size=32, head_dim=32, query_pre_attn_scalar=32, num_attention_heads=2,
                       num_key_value_heads=1, num_hidden_layers=6, **tiny)
    # Rows of 256, so that k-quants apply.
    wide = dict(hidden_size=256, vocab_size=128, head_dim=64, tie_word_embeddings=True)
    models = {
        "gpt_oss": Spec(
            gpt_oss(intermediate_size=32, head_dim=32, num_hidden_layers=2, layer_types=[SLIDING, FULL], num_local_experts=6,
                    **tiny),
            ["hf-mxfp4", "mlx-4bit", "mlx-mxfp4", "gguf-f32", "gguf-q4_k_m", "gguf-mxfp4"]),
        "gemma4_moe": Spec(
            gemma4(intermediate_size=64, attention_k_eq_v=True, enable_moe_block=True, num_experts=6, top_k_experts=3,
                   moe_intermediate_size=32, layer_types=[SLIDING, FULL], **gemma_tiny, **gemma_heads),
            ["mlx-4bit", "mlx-4bit-mlp8", "gguf-bf16", "gguf-q4_k_m"]),
        "gemma4_dense": Spec(
            gemma4(intermediate_size=96, attention_k_eq_v=True, layer_types=[SLIDING, FULL], **gemma_tiny, **gemma_heads),
            ["mlx-4bit", "gguf-bf16"]),
        "gemma4_e2b": Spec(
            gemma4(intermediate_size=32, num_attention_heads=2, num_key_value_heads=1, num_kv_shared_layers=3,
                   use_double_wide_mlp=True, hidden_size_per_layer_input=32, layer_types=[SLIDING, SLIDING, FULL] * 2,
                   **gemma_tiny), ["mlx-4bit", "gguf-bf16"]),
        "gemma4_e4b": Spec(
            gemma4(intermediate_size=32, num_attention_heads=4, num_key_value_heads=2, num_kv_shared_layers=2,
                   hidden_size_per_layer_input=32, layer_types=[SLIDING, FULL] * 2, **gemma_tiny), ["mlx-4bit", "gguf-bf16"]),
        "gemma3": Spec(gemma3(**gemma3_tiny | dict(layer_types=[SLIDING] * 5 + [FULL])), ["mlx-4bit", "gguf-bf16"]),
        "gemma3_4b": Spec(gemma3_linear(**gemma3_tiny), ["hf-multimodal", "gguf-q8_0"]),
        "gemma3_27b": Spec(gemma3_linear(**gemma3_tiny | dict(query_pre_attn_scalar=16))),
        "qwen3_moe": Spec(qwen3_moe(moe_intermediate_size=32, num_experts=6, **qwen_tiny), ["mlx-4bit", "gguf-bf16", "gguf-mxfp4"]),
        "qwen3": Spec(qwen3(tie_word_embeddings=True, **qwen_tiny), ["mlx-4bit", "gguf-bf16"]),
        "qwen2": Spec(qwen2(intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, **tiny),
                      ["mlx-4bit", "gguf-f32", "gguf-q4_k_m"]),
        "tinyllama": Spec(llama(**llama_tiny), ["mlx-4bit", "gguf-bf16"]),
        "llama3": Spec(llama3(**llama_tiny | dict(head_dim=32)), ["mlx-4bit", "gguf-f32", "gguf-q8_0"]),
        "mistral": Spec(mistral(**llama_tiny), ["mlx-4bit"]),
        "mixtral": Spec(mixtral(**llama_tiny), ["mlx-4bit", "gguf-mxfp4"]),
        "llama_wide": Spec(llama(intermediate_size=256, num_hidden_layers=2, num_key_value_heads=1, **wide),
                           ["gguf-zoo"], weights_in_hf=False),
        "qwen3_moe_wide": Spec(
            qwen3_moe(moe_intermediate_size=32, num_attention_heads=4, num_hidden_layers=1, **wide),
            ["gguf-q4_k_m", "gguf-zoo"], weights_in_hf=False),
        "mlx_bits": Spec(
            llama(hidden_size=128, intermediate_size=128, num_hidden_layers=1, vocab_size=128, tie_word_embeddings=True),
            MLX_BITS, weights_in_hf=False),
        "qwen3_upcycled": Spec(
            qwen3_moe(moe_intermediate_size=32, num_experts=4, num_experts_per_tok=2, tie_word_embeddings=True, **qwen_tiny),
            upcycled_from="qwen3"),
        "mixtral_upcycled": Spec(
            mixtral(num_local_experts=4, rope_theta=10000.0, **llama_tiny), ["gguf-q8_0"], upcycled_from="tinyllama"),
    }  # fmt: skip
    return Profile(models, mlx_group=32, long_rows=8, lean_goldens=True)


PROFILES = {"full": full, "small": small}
