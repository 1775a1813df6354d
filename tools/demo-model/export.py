#!/usr/bin/env python3
"""Export the trained student as a Hugging Face checkpoint and as GGUF, and evaluate it.

    python export.py --run run/ --out .               # writes hf/ and gguf/
    python export.py --run run/ --out . --evaluate    # also heldout.txt, golden*.json, samples, perplexities

hf/ has the public gpt-oss layout: experts as MXFP4 blocks and scales, the rest bf16. gguf/ has the layout of
llama.cpp's converter (architecture "gpt-oss"): experts MXFP4, matrices Q8_0, the rest float32.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import corpus
import gguf
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file, save_file
from student import Config, mxfp4_codes
from tokenizers import Tokenizer

NAME = "tiny-storyteller"
LICENCE = "apache-2.0"
CHAT_TEMPLATE = """\
{#- Minimal harmony format: optional system/developer messages, user turns, assistant turns in the final channel. -#}
{%- for message in messages -%}
{%- if message.role == "assistant" -%}
{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" -}}
{%- else -%}
{{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- "<|start|>assistant" -}}
{%- endif -%}
"""


class LayerWeights:
    """The trained weights of one layer by their short names."""

    def __init__(self, weights: dict, layer: int):
        self.weights, self.prefix = weights, f"blocks.{layer}."

    def __getitem__(self, name: str) -> torch.Tensor:
        return self.weights[self.prefix + name]

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.weights


def to_bf16(t: torch.Tensor) -> torch.Tensor:
    """A contiguous bf16 copy."""
    return t.to(torch.bfloat16).contiguous()


def expert_codes(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """4-bit codes with sign [..., blocks, 32] and E8M0 scales [..., blocks], both uint8."""
    codes, exponent, value = mxfp4_codes(w)
    sign = (value.unflatten(-1, (-1, 32)) < 0).to(torch.uint8)
    return codes.to(torch.uint8) | (sign << 3), (exponent + 127).to(torch.uint8)


def split_qkv(cfg: Config, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The rows of q, k and v."""
    kv = cfg.num_key_value_heads * cfg.head_dim
    return t.split([cfg.num_attention_heads * cfg.head_dim, kv, kv])


# ------------------------------------------------------------------ Hugging Face


def write_tokenizer_files(tok: Tokenizer, out: Path, length: int) -> None:
    """tokenizer.json, its config, the chat template and the generation config."""
    ids = {token: tok.token_to_id(token) for token in corpus.SPECIALS}
    flags = dict(lstrip=False, normalized=False, rstrip=False, single_word=False, special=True)
    write_json(out / "tokenizer_config.json", {
        "added_tokens_decoder": {str(i): {"content": token, **flags} for token, i in ids.items()},
        "bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False, "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": length, "tokenizer_class": "PreTrainedTokenizerFast"})  # fmt: skip
    write_json(out / "generation_config.json", {
        "bos_token_id": ids["<|startoftext|>"], "do_sample": True, "temperature": 0.6, "top_p": 0.9,
        "eos_token_id": [ids["<|return|>"], ids["<|end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"], "max_new_tokens": 512})  # fmt: skip
    tok.save(str(out / "tokenizer.json"))
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def write_json(path: Path, value: dict) -> None:
    """Indented JSON."""
    path.write_text(json.dumps(value, indent=2) + "\n")


def special_ids(tok: Tokenizer) -> dict:
    """The special tokens of config.json."""
    names = dict(bos_token_id="<|startoftext|>", eos_token_id="<|return|>", pad_token_id="<|endoftext|>")
    return {key: tok.token_to_id(token) for key, token in names.items()}


def hf_layer(cfg: Config, w: LayerWeights, prefix: str) -> dict:
    """One layer's tensors under gpt-oss's names."""
    out = {}

    def blocks(name: str, t: torch.Tensor) -> None:
        # Byte j holds value 2j in its low half and 2j + 1 in its high half.
        codes, scales = expert_codes(t)
        out[name + "_blocks"] = (codes[..., 0::2] | (codes[..., 1::2] << 4)).contiguous()
        out[name + "_scales"] = scales.contiguous()

    def interleaved(name: str) -> torch.Tensor:
        gate, up = w["gate" + name], w["up" + name]
        return torch.stack([gate, up], 2).reshape(cfg.num_local_experts, 2 * cfg.intermediate_size, *gate.shape[2:])

    plain = {"input_layernorm.weight": "norm1", "post_attention_layernorm.weight": "norm2", "self_attn.sinks": "sinks",
             "self_attn.o_proj.weight": "o", "self_attn.o_proj.bias": "o_bias", "mlp.router.weight": "router",
             "mlp.router.bias": "router_bias", "mlp.experts.down_proj_bias": "down_bias"}  # fmt: skip
    for name, ours in plain.items():
        out[prefix + name] = to_bf16(w[ours])
    for name, weight, bias in zip("qkv", split_qkv(cfg, w["qkv"]), split_qkv(cfg, w["qkv_bias"])):
        out[prefix + f"self_attn.{name}_proj.weight"] = to_bf16(weight)
        out[prefix + f"self_attn.{name}_proj.bias"] = to_bf16(bias)
    blocks(prefix + "mlp.experts.gate_up_proj", interleaved(""))
    out[prefix + "mlp.experts.gate_up_proj_bias"] = to_bf16(interleaved("_bias"))
    blocks(prefix + "mlp.experts.down_proj", w["down"])
    return out


def write_hf(cfg: Config, weights: dict, tok: Tokenizer, out: Path) -> None:
    """The checkpoint as gpt-oss was published."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {"model.embed_tokens.weight": to_bf16(weights["embed"]), "model.norm.weight": to_bf16(weights["norm"]),
               "lm_head.weight": to_bf16(weights["head"])}  # fmt: skip
    for i in range(cfg.num_hidden_layers):
        tensors |= hf_layer(cfg, LayerWeights(weights, i), f"model.layers.{i}.")
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    length = int(cfg.yarn_original * cfg.yarn_factor)
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    same = ("head_dim", "hidden_size", "intermediate_size", "num_attention_heads", "num_experts_per_tok",
            "num_hidden_layers", "num_key_value_heads", "num_local_experts", "rms_norm_eps", "rope_theta",
            "sliding_window", "swiglu_limit", "vocab_size")  # fmt: skip
    write_json(out / "config.json", {
        "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", **{key: getattr(cfg, key) for key in same},
        **special_ids(tok), "attention_bias": True, "attention_dropout": 0.0, "hidden_act": "silu",
        "experts_per_token": cfg.num_experts_per_tok, "initial_context_length": cfg.yarn_original,
        "initializer_range": 0.02, "max_position_embeddings": length, "output_router_logits": False,
        "layer_types": ["full_attention" if i % 2 else "sliding_attention" for i in range(cfg.num_hidden_layers)],
        "quantization_config": {"modules_to_not_convert": kept, "quant_method": "mxfp4"},
        "rope_scaling": {"beta_fast": cfg.yarn_beta_fast, "beta_slow": cfg.yarn_beta_slow, "factor": cfg.yarn_factor,
                         "original_max_position_embeddings": cfg.yarn_original, "rope_type": "yarn", "truncate": False},
        "router_aux_loss_coef": 0.9, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "use_cache": True})  # fmt: skip
    write_tokenizer_files(tok, out, length)


# ------------------------------------------------------------------ GGUF


def add_metadata(g: gguf.GGUFWriter, cfg: Config, parameters: int) -> None:
    """Everything but the tokenizer."""
    g.add_type("model")
    g.add_name(NAME)
    g.add_license(LICENCE)
    g.add_description("A tiny gpt-oss model that writes short stories for children")
    g.add_size_label(f"{parameters / 1e6:.0f}M")
    g.add_languages(["en"])
    g.add_file_type(gguf.LlamaFileType.MOSTLY_MXFP4_MOE)
    g.add_quantization_version(gguf.GGML_QUANT_VERSION)
    g.add_block_count(cfg.num_hidden_layers)
    g.add_context_length(int(cfg.yarn_original * cfg.yarn_factor))
    g.add_embedding_length(cfg.hidden_size)
    g.add_feed_forward_length(cfg.intermediate_size)
    g.add_expert_feed_forward_length(cfg.intermediate_size)
    g.add_head_count(cfg.num_attention_heads)
    g.add_head_count_kv(cfg.num_key_value_heads)
    g.add_key_length(cfg.head_dim)
    g.add_value_length(cfg.head_dim)
    g.add_layer_norm_rms_eps(cfg.rms_norm_eps)
    g.add_expert_count(cfg.num_local_experts)
    g.add_expert_used_count(cfg.num_experts_per_tok)
    g.add_sliding_window(cfg.sliding_window)
    g.add_rope_freq_base(cfg.rope_theta)
    g.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    g.add_rope_scaling_factor(cfg.yarn_factor)
    g.add_rope_scaling_orig_ctx_len(cfg.yarn_original)


def add_tokenizer(g: gguf.GGUFWriter, tok: Tokenizer) -> None:
    """Vocabulary, merges, special tokens and the chat template."""
    data = json.loads(tok.to_str())
    tokens = {i: token for token, i in data["model"]["vocab"].items()}
    special = {t["id"]: t["content"] for t in data["added_tokens"]}
    tokens |= special
    order = range(len(tokens))
    kinds = [gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL for i in order]
    g.add_tokenizer_model("gpt2")
    g.add_tokenizer_pre("gpt-4o")
    g.add_token_list([tokens[i] for i in order])
    g.add_token_types(kinds)
    g.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]])
    g.add_bos_token_id(tok.token_to_id("<|startoftext|>"))
    g.add_eos_token_id(tok.token_to_id("<|return|>"))
    g.add_pad_token_id(tok.token_to_id("<|endoftext|>"))
    g.add_add_bos_token(False)
    g.add_chat_template(CHAT_TEMPLATE)


def add_q8_0(g: gguf.GGUFWriter, name: str, t: torch.Tensor) -> None:
    """A matrix in Q8_0, from the bf16 values of the Hugging Face checkpoint."""
    kind = GGMLQuantizationType.Q8_0
    g.add_tensor(name, gguf.quants.quantize(to_bf16(t).float().numpy(), kind), raw_dtype=kind)


def add_f32(g: gguf.GGUFWriter, name: str, t: torch.Tensor) -> None:
    """A float32 tensor with the bf16 values of the Hugging Face checkpoint."""
    g.add_tensor(name, to_bf16(t).float().numpy())


def add_mxfp4(g: gguf.GGUFWriter, name: str, t: torch.Tensor) -> None:
    """Experts: a block is the scale byte, then byte j holds value j in its low half and j + 16 in its high half."""
    codes, scales = expert_codes(t)
    packed = codes[..., :16] | (codes[..., 16:] << 4)
    blocks = torch.cat([scales[..., None], packed], -1).flatten(-2)
    g.add_tensor(name, blocks.numpy(), raw_dtype=GGMLQuantizationType.MXFP4)


def add_layer(g: gguf.GGUFWriter, cfg: Config, w: LayerWeights, prefix: str) -> None:
    """One layer's tensors."""
    add_f32(g, prefix + "attn_norm.weight", w["norm1"])
    add_f32(g, prefix + "post_attention_norm.weight", w["norm2"])
    for name, weight, bias in zip("qkv", split_qkv(cfg, w["qkv"]), split_qkv(cfg, w["qkv_bias"])):
        add_q8_0(g, prefix + f"attn_{name}.weight", weight)
        add_f32(g, prefix + f"attn_{name}.bias", bias)
    add_q8_0(g, prefix + "attn_output.weight", w["o"])
    add_f32(g, prefix + "attn_output.bias", w["o_bias"])
    add_f32(g, prefix + "attn_sinks.weight", w["sinks"])
    add_f32(g, prefix + "ffn_gate_inp.weight", w["router"])
    add_f32(g, prefix + "ffn_gate_inp.bias", w["router_bias"])
    for name in ("gate", "up", "down"):
        add_mxfp4(g, prefix + f"ffn_{name}_exps.weight", w[name])
        add_f32(g, prefix + f"ffn_{name}_exps.bias", w[name + "_bias"])


def write_gguf(cfg: Config, weights: dict, tok: Tokenizer, path: Path) -> None:
    """The file that ships with the project."""
    path.parent.mkdir(parents=True, exist_ok=True)
    g = gguf.GGUFWriter(str(path), "gpt-oss")
    add_metadata(g, cfg, sum(t.numel() for t in weights.values()))
    add_tokenizer(g, tok)
    add_q8_0(g, "token_embd.weight", weights["embed"])
    add_f32(g, "output_norm.weight", weights["norm"])
    add_q8_0(g, "output.weight", weights["head"])
    for i in range(cfg.num_hidden_layers):
        add_layer(g, cfg, LayerWeights(weights, i), f"blk.{i}.")
    g.write_header_to_file()
    g.write_kv_data_to_file()
    g.write_tensors_to_file()
    g.close()


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--run", type=Path, required=True, help="folder that train.py wrote")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--evaluate", action="store_true", help="needs transformers")
    args = parser.parse_args()
    info = json.loads((args.run / "student.json").read_text())
    cfg, weights = Config(**info["config"]), load_file(str(args.run / "student.safetensors"))
    tok = Tokenizer.from_file(str(args.run / "tokenizer.json"))
    write_hf(cfg, weights, tok, args.out / "hf")
    path = args.out / "gguf" / f"{NAME}-mxfp4.gguf"
    write_gguf(cfg, weights, tok, path)
    for written in (path, args.out / "hf" / "model.safetensors"):
        print(f"{written}: {written.stat().st_size} bytes")
    if args.evaluate:
        import evaluation

        evaluation.evaluate_student(cfg, weights, args.out, args.run, info["final"])


if __name__ == "__main__":
    main()
