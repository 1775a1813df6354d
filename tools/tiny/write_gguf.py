"""GGUF renderings: metadata and tensors named, permuted and typed as llama.cpp's converter does it."""

from __future__ import annotations

import copy
import math

import ggml_quants
import gguf
import numpy as np
import torch
from configs import SLIDING, text_config

ARCHITECTURES = {"gpt_oss": "gpt-oss", "gemma4": "gemma4", "gemma3_text": "gemma3", "qwen3_moe": "qwen3moe",
                 "qwen3": "qwen3", "qwen2": "qwen2", "llama": "llama", "mixtral": "llama"}  # fmt: skip
FILE_TYPES = {"f32": 0, "bf16": 32, "q8_0": 7, "q4_k_m": 15, "mxfp4": 38, "zoo": 15}

COMMON = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
PRE_NORM = COMMON | {"post_attention_layernorm": "ffn_norm", "mlp.gate": "ffn_gate_inp"}
SANDWICH = COMMON | {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                     "post_feedforward_layernorm": "post_ffw_norm"}  # fmt: skip
LAYER_NAMES = {
    "llama": PRE_NORM, "qwen2": PRE_NORM, "qwen3": PRE_NORM, "qwen3moe": PRE_NORM, "gemma3": SANDWICH,
    "gpt-oss": COMMON | {"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"},
    "gemma4": SANDWICH | {
        "post_feedforward_layernorm_1": "post_ffw_norm_1", "post_feedforward_layernorm_2": "post_ffw_norm_2",
        "pre_feedforward_layernorm_2": "pre_ffw_norm_2", "router.proj": "ffn_gate_inp",
        "per_layer_input_gate": "inp_gate", "per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm"},
}  # fmt: skip
TOP_NAMES = {
    "embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output",
    "embed_tokens_per_layer": "per_layer_token_embd", "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}  # fmt: skip
LAYER_EXTRAS = {"self_attn.sinks": "attn_sinks.weight", "layer_scalar": "layer_output_scale.weight",
                "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}  # fmt: skip
ZOO = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
       "F16", "BF16"]  # fmt: skip


def core_name(name: str) -> str:
    """A parameter's name without its wrapper: layers.3.mlp.up_proj.weight, embed_tokens.weight, lm_head.weight."""
    for prefix in ("model.language_model.", "model."):
        if name.startswith(prefix):
            return name[len(prefix) :]
    return name


class TypeChooser:
    """The ggml type of each tensor of a rendering."""

    def __init__(self, variant: str):
        self.variant, self.next_of_zoo = variant, 0

    def choose(self, name: str, dims: int, row: int) -> str:
        """The type for tensor `name` with rows of `row` elements."""
        plain = name.endswith((".bias", ".scale", "sinks.weight")) or name.startswith("rope_freqs")
        if dims < 2 or "norm" in name or "ffn_gate_inp" in name or plain:
            return "F32"
        if self.variant == "mxfp4":  # as official gpt-oss files are: experts MXFP4, the rest Q8_0
            return "MXFP4" if "_exps" in name else "Q8_0"
        if self.variant == "q4_k_m":
            important = any(part in name for part in ("ffn_down", "attn_v", "token_embd", "output.weight"))
            if row % 256 == 0:
                return "Q6_K" if important else "Q4_K"
            return "Q8_0" if important else "Q5_0"
        if self.variant == "zoo":
            return self._next_fitting(row)
        return self.variant.upper()

    def _next_fitting(self, row: int) -> str:
        while True:
            kind = ZOO[self.next_of_zoo % len(ZOO)]
            self.next_of_zoo += 1
            if row % ggml_quants.TYPES[kind][1] == 0:
                return kind


class TensorSink:
    """Writes tensors and puts what a reader will get back into the model's parameters."""

    def __init__(self, writer: gguf.GGUFWriter, variant: str):
        self.writer, self.types = writer, TypeChooser(variant)

    def emit(self, name: str, view: torch.Tensor, shape: tuple | None = None, shift: float = 0.0) -> None:
        """Write `view`, a view into a parameter, plus `shift`."""
        values = np.ascontiguousarray(view.numpy(), dtype=np.float32) + np.float32(shift)
        values = values.reshape(shape or values.shape)
        kind = self.types.choose(name, values.ndim, values.shape[-1])
        if kind == "F32":
            self.writer.add_tensor(name, values)
            return
        raw = ggml_quants.pack(kind, values)
        if kind == "F16":
            self.writer.add_tensor(name, raw.view(np.float16).reshape(values.shape))
        else:
            blocks = raw.reshape(*values.shape[:-1], -1)
            self.writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
        view.copy_(torch.from_numpy(ggml_quants.unpack(kind, raw).reshape(view.shape)))


# ------------------------------------------------------------------ metadata


def _metadata(w: gguf.GGUFWriter, arch: str, config: dict, variant: str) -> None:
    text, key = text_config(config), arch + "."
    w.add_name("tiny-" + config["model_type"])
    w.add_file_type(FILE_TYPES[variant])
    w.add_quantization_version(2)
    w.add_uint32(key + "vocab_size", text["vocab_size"])
    w.add_uint32(key + "context_length", text["max_position_embeddings"])
    w.add_uint32(key + "embedding_length", text["hidden_size"])
    w.add_uint32(key + "block_count", text["num_hidden_layers"])
    w.add_uint32(key + "attention.head_count", text["num_attention_heads"])
    w.add_float32(key + "attention.layer_norm_rms_epsilon", text["rms_norm_eps"])
    w.add_tokenizer_model("none")  # ids only: the tiny models have no vocabulary
    if arch == "gemma4":
        _gemma4_metadata(w, key, text)
        return
    w.add_uint32(key + "feed_forward_length", text["intermediate_size"])
    w.add_uint32(key + "attention.head_count_kv", text["num_key_value_heads"])
    if arch != "qwen2":  # as published Qwen2 files: the width follows from hidden size and heads
        w.add_uint32(key + "attention.key_length", head_dim(text))
        w.add_uint32(key + "attention.value_length", head_dim(text))
    w.add_float32(key + "rope.freq_base", text["rope_theta"])
    if arch == "llama":
        w.add_uint32(key + "rope.dimension_count", head_dim(text))
    experts = text.get("num_local_experts") or text.get("num_experts")
    if experts:
        w.add_uint32(key + "expert_count", experts)
        w.add_uint32(key + "expert_used_count", text["num_experts_per_tok"])
    if arch in ("qwen3moe", "gpt-oss"):
        width = text.get("moe_intermediate_size") or text["intermediate_size"]
        w.add_uint32(key + "expert_feed_forward_length", width)
    if arch in ("gpt-oss", "gemma3"):
        w.add_uint32(key + "attention.sliding_window", text["sliding_window"])
    _rope_scaling_metadata(w, key, text)


def _rope_scaling_metadata(w: gguf.GGUFWriter, key: str, text: dict) -> None:
    """YaRN and linear scaling are keys; Llama 3's is the tensor rope_freqs."""
    scaling = text.get("rope_scaling") or {}
    kind = scaling.get("rope_type")
    if kind not in ("yarn", "linear"):
        return
    w.add_string(key + "rope.scaling.type", kind)
    w.add_float32(key + "rope.scaling.factor", scaling["factor"])
    if kind == "yarn":
        w.add_uint32(key + "rope.scaling.original_context_length", scaling["original_max_position_embeddings"])
        w.add_float32(key + "rope.scaling.yarn_beta_fast", scaling["beta_fast"])
        w.add_float32(key + "rope.scaling.yarn_beta_slow", scaling["beta_slow"])
    else:  # newer converters name the sliding layers' base as well
        w.add_float32(key + "rope.freq_base_swa", text["rope_local_base_freq"])


def _gemma4_metadata(w: gguf.GGUFWriter, key: str, text: dict) -> None:
    layers, shared, width = text["num_hidden_layers"], text["num_kv_shared_layers"], text["intermediate_size"]
    sliding = [kind == SLIDING for kind in text["layer_types"]]
    rope = text["rope_parameters"]
    if text["use_double_wide_mlp"]:
        w.add_array(key + "feed_forward_length", [width if i < layers - shared else 2 * width for i in range(layers)])
    else:
        w.add_uint32(key + "feed_forward_length", width)
    kv_heads, global_kv_heads = text["num_key_value_heads"], text["num_global_key_value_heads"]
    if global_kv_heads:
        w.add_array(key + "attention.head_count_kv", [kv_heads if s else global_kv_heads for s in sliding])
    else:
        w.add_uint32(key + "attention.head_count_kv", kv_heads)
    w.add_uint32(key + "attention.key_length", text["global_head_dim"])
    w.add_uint32(key + "attention.value_length", text["global_head_dim"])
    w.add_uint32(key + "attention.key_length_swa", text["head_dim"])
    w.add_uint32(key + "attention.value_length_swa", text["head_dim"])
    w.add_uint32(key + "attention.sliding_window", text["sliding_window"])
    w.add_array(key + "attention.sliding_window_pattern", sliding)
    w.add_uint32(key + "attention.shared_kv_layers", shared)
    w.add_uint32(key + "embedding_length_per_layer_input", text["hidden_size_per_layer_input"])
    w.add_float32(key + "final_logit_softcapping", text["final_logit_softcapping"])
    w.add_float32(key + "rope.freq_base", rope["full_attention"]["rope_theta"])
    w.add_float32(key + "rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
    w.add_uint32(key + "rope.dimension_count", text["global_head_dim"])
    w.add_uint32(key + "rope.dimension_count_swa", text["head_dim"])
    if text["enable_moe_block"]:
        w.add_uint32(key + "expert_count", text["num_experts"])
        w.add_uint32(key + "expert_used_count", text["top_k_experts"])
        w.add_uint32(key + "expert_feed_forward_length", text["moe_intermediate_size"])


def head_dim(text: dict) -> int:
    """The width of a head: its own key, else hidden size over heads."""
    return text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]


def rope_divisors(arch: str, text: dict) -> np.ndarray | None:
    """The tensor rope_freqs: what each pair's frequency is divided by."""
    if arch == "gemma4":  # pairs that do not turn are divided by a very large number
        half, turning = text["global_head_dim"] // 2, int(text["global_head_dim"] * 0.25 / 2)
        return np.array([1.0] * turning + [1e30] * (half - turning), np.float32)
    scaling = text.get("rope_scaling") or {}
    if scaling.get("rope_type") != "llama3":
        return None
    context, low, high = (scaling[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    divisors = []
    for i in range(0, head_dim(text), 2):
        wavelength = 2 * math.pi * text["rope_theta"] ** (i / head_dim(text))
        if wavelength < context / high:
            divisors.append(1.0)
        elif wavelength > context / low:
            divisors.append(scaling["factor"])
        else:
            smooth = (context / wavelength - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(divisors, np.float32)


# ------------------------------------------------------------------ tensors


def _emit_experts(sink: TensorSink, arch: str, block: str, part: str, p: torch.Tensor) -> None:
    if arch == "gpt-oss":  # [E, in, out] with gate and up interleaved -> [E, out, in], separate
        if part == "gate_up_proj":
            rows = p.transpose(1, 2)
            sink.emit(block + "ffn_gate_exps.weight", rows[:, 0::2])
            sink.emit(block + "ffn_up_exps.weight", rows[:, 1::2])
        elif part == "gate_up_proj_bias":
            sink.emit(block + "ffn_gate_exps.bias", p[:, 0::2])
            sink.emit(block + "ffn_up_exps.bias", p[:, 1::2])
        elif part == "down_proj":
            sink.emit(block + "ffn_down_exps.weight", p.transpose(1, 2))
        else:
            sink.emit(block + "ffn_down_exps.bias", p)
    elif part == "down_proj":
        sink.emit(block + "ffn_down_exps.weight", p)
    elif arch == "gemma4":  # stays fused: gate rows, then up rows
        sink.emit(block + "ffn_gate_up_exps.weight", p)
    else:
        half = p.shape[1] // 2
        sink.emit(block + "ffn_gate_exps.weight", p[:, :half])
        sink.emit(block + "ffn_up_exps.weight", p[:, half:])


def _emit_parameter(sink: TensorSink, arch: str, text: dict, name: str, p: torch.Tensor) -> None:
    shift = 1.0 if arch == "gemma3" and name.endswith("norm.weight") else 0.0  # the file holds 1 + w
    if not name.startswith("layers."):
        sink.emit(TOP_NAMES[name.rsplit(".", 1)[0]] + ".weight", p, shift=shift)
        return
    _, layer, rest = name.split(".", 2)
    block, (stem, _, suffix) = f"blk.{layer}.", rest.rpartition(".")
    if arch == "llama" and stem in ("self_attn.q_proj", "self_attn.k_proj"):
        # Rotary pairs: halves of a head in HF, neighbours in GGUF.
        heads = text["num_attention_heads"] if stem.endswith("q_proj") else text["num_key_value_heads"]
        pairs = p.view(heads, 2, head_dim(text) // 2, p.shape[-1]).transpose(1, 2)
        sink.emit(block + LAYER_NAMES[arch][stem] + ".weight", pairs, tuple(p.shape))
    elif rest in LAYER_EXTRAS:
        sink.emit(block + LAYER_EXTRAS[rest], p)
    elif "experts." in rest:
        _emit_experts(sink, arch, block, rest.rsplit(".", 1)[1], p)
    else:
        sink.emit(block + LAYER_NAMES[arch][stem] + "." + suffix, p, shift=shift)


def write_gguf(model: torch.nn.Module, config: dict, path: str, variant: str) -> torch.nn.Module:
    """Write one rendering. Returns the model with the values that a reader of the file gets."""
    stored = copy.deepcopy(model)
    text, arch = text_config(config), ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, arch)
    _metadata(writer, arch, config, variant)
    divisors = rope_divisors(arch, text)
    if divisors is not None:
        writer.add_tensor("rope_freqs.weight", divisors)
    sink = TensorSink(writer, variant)
    for full_name, parameter in stored.state_dict().items():
        name = core_name(full_name)
        if name != "lm_head.weight" or not config["tie_word_embeddings"]:
            _emit_parameter(sink, arch, text, name, parameter)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored
