"""Readers for the checks: safetensors, MLX, HF MXFP4 and GGUF, from the formats' descriptions with numpy alone.

Everything ends as float32 arrays under Hugging Face's names without a `model.` prefix.
"""

from __future__ import annotations

import json
import os
import struct

import ggml_quants
import numpy as np

f32 = np.float32
WRAPPERS = ("model.language_model.", "language_model.model.", "model.")
SAFETENSORS_TYPES = {"F32": "<f4", "F16": "<f2", "U8": "u1", "U32": "<u4", "I32": "<i4", "I64": "<i8"}


def read_safetensors(path: str) -> dict[str, np.ndarray]:
    """All tensors of a file; bf16 widened to float32."""
    with open(path, "rb") as f:
        data = f.read()
    length = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = np.frombuffer(data, np.uint8, end - begin, 8 + length + begin)
        if entry["dtype"] == "BF16":
            values = (raw.view("<u2").astype(np.uint32) << 16).view(f32)
        else:
            values = raw.view(SAFETENSORS_TYPES[entry["dtype"]])
        out[name] = values.reshape(entry["shape"])
    return out


# ------------------------------------------------------------------ MXFP4 and MLX


def hf_mxfp4(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """[E, O, G, 16] and [E, O, G] bytes to [E, O, 32 G]; the low nibble comes first."""
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:-1], 32)
    return (ggml_quants.FP4[codes] * ggml_quants.e8m0(scales)[..., None]).reshape(*blocks.shape[:2], -1)


def unpack_bits(words: np.ndarray, bits: int) -> np.ndarray:
    """u32 words [..., W] to codes [..., 32 W / bits]: a little-endian stream of bits."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    stream = np.unpackbits(octets, axis=-1, bitorder="little").reshape(*words.shape[:-1], -1, bits)
    return (stream.astype(np.uint32) << np.arange(bits, dtype=np.uint32)).sum(-1)


def mlx_affine(words: np.ndarray, scales: np.ndarray, biases: np.ndarray, bits: int) -> np.ndarray:
    """scale * code + bias, the group's width following from the shapes."""
    codes = unpack_bits(words, bits).astype(f32)
    grouped = codes.reshape(*scales.shape, codes.shape[-1] // scales.shape[-1])
    return (grouped * scales[..., None] + biases[..., None]).reshape(codes.shape)


def mlx_mxfp4(words: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Eight nibbles to a word, one scale byte to 32 values."""
    codes = unpack_bits(words, 4).reshape(*scales.shape, 32)
    return (ggml_quants.FP4[codes] * ggml_quants.e8m0(scales)[..., None]).reshape(*scales.shape[:-1], -1)


def expand_mlx(tensors: dict, config: dict) -> dict:
    """Quantised modules as plain weights. An override replaces the default as a whole; a missing mode is affine."""
    default, out = config["quantization"], {}
    for name, values in tensors.items():
        path, _, last = name.rpartition(".")
        quantised = path + ".scales" in tensors
        if last == "weight" and quantised:
            entry = default.get(path) or default
            if entry.get("mode") == "mxfp4":
                out[name] = mlx_mxfp4(values, tensors[path + ".scales"])
            else:
                out[name] = mlx_affine(values, tensors[path + ".scales"], tensors[path + ".biases"], entry["bits"])
        elif not (quantised and last in ("scales", "biases")):
            out[name] = values
    return out


def read_folder(folder: str) -> tuple[dict, dict]:
    """Config and weights of a Hugging Face or MLX checkpoint."""
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    tensors = read_safetensors(os.path.join(folder, "model.safetensors"))
    if "quantization" in config:
        tensors = expand_mlx(tensors, config)
    weights = {}
    for name, values in tensors.items():
        prefix = next((p for p in WRAPPERS if name.startswith(p)), "")
        weights[name.removeprefix(prefix)] = values
    return config, weights


# ------------------------------------------------------------------ GGUF

TYPE_NAMES = {entry[0]: name for name, entry in ggml_quants.TYPES.items()}
SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
STRING, ARRAY = 8, 9


class GgufCursor:
    """Reads the header's values one after the other."""

    def __init__(self, data: memoryview):
        self.data, self.offset = data, 0

    def scalar(self, code: str):
        value = struct.unpack_from(code, self.data, self.offset)[0]
        self.offset += struct.calcsize(code)
        return value

    def string(self) -> str:
        length = self.scalar("<Q")
        self.offset += length
        return bytes(self.data[self.offset - length : self.offset]).decode("utf-8", "replace")

    def value(self, kind: int):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            element, count = self.scalar("<I"), self.scalar("<Q")
            return [self.value(element) for _ in range(count)]
        return self.scalar(SCALARS[kind])


def read_gguf(path: str) -> tuple[dict, dict[str, np.ndarray]]:
    """Metadata and dequantised tensors of a GGUF file, tensors in row-major shape."""
    with open(path, "rb") as f:
        data = memoryview(f.read())
    cursor = GgufCursor(data)
    assert bytes(data[:4]) == b"GGUF", path
    cursor.offset = 4
    version, tensor_count, key_count = cursor.scalar("<I"), cursor.scalar("<Q"), cursor.scalar("<Q")
    assert version in (2, 3), version
    keys = {}
    for _ in range(key_count):
        name = cursor.string()
        keys[name] = cursor.value(cursor.scalar("<I"))
    infos = []
    for _ in range(tensor_count):
        name = cursor.string()
        dims = [cursor.scalar("<Q") for _ in range(cursor.scalar("<I"))]
        infos.append((name, dims, cursor.scalar("<I"), cursor.scalar("<Q")))
    alignment = keys.get("general.alignment", 32)
    base = -(-cursor.offset // alignment) * alignment
    tensors = {}
    for name, dims, kind, offset in infos:
        _, elements, octets = ggml_quants.TYPES[TYPE_NAMES[kind]]
        assert dims[0] % elements == 0 and offset % alignment == 0, name
        raw = np.frombuffer(data, np.uint8, int(np.prod(dims)) // elements * octets, base + offset)
        tensors[name] = ggml_quants.unpack(TYPE_NAMES[kind], raw).reshape(dims[::-1])
    return keys, tensors


GGUF_LAYER = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm", "post_attention_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection", "post_norm": "post_per_layer_input_norm",
    "post_ffw_norm": "post_feedforward_layernorm", "post_ffw_norm_1": "post_feedforward_layernorm_1",
    "post_ffw_norm_2": "post_feedforward_layernorm_2", "pre_ffw_norm_2": "pre_feedforward_layernorm_2",
}  # fmt: skip
GGUF_TOP = {
    "token_embd": "embed_tokens", "output_norm": "norm", "output": "lm_head",
    "per_layer_token_embd": "embed_tokens_per_layer", "per_layer_model_proj": "per_layer_model_projection",
    "per_layer_proj_norm": "per_layer_projection_norm",
}  # fmt: skip
ROUTERS = {"gpt-oss": "mlp.router", "qwen3moe": "mlp.gate", "gemma4": "router.proj", "llama": "block_sparse_moe.gate"}
EXPERTS = {"gpt-oss": "mlp.experts.", "qwen3moe": "mlp.switch_mlp.", "llama": "block_sparse_moe.switch_mlp."}


def _gguf_layer_name(arch: str, stem: str, suffix: str) -> str:
    if stem == "attn_sinks":
        return "self_attn.sinks"
    if stem == "layer_output_scale":
        return "layer_scalar"
    if stem == "ffn_gate_inp":
        return "router.scale" if suffix == "scale" else f"{ROUTERS[arch]}.{suffix}"
    if stem.endswith("_exps"):
        if suffix == "scale":
            return "router.per_expert_scale"
        if arch == "gemma4":
            return "experts.gate_up_proj" if "gate_up" in stem else "experts.down_proj"
        return f"{EXPERTS[arch]}{stem[4:-5]}_proj.{suffix}"
    if stem == "ffn_norm":
        sandwich = arch in ("gemma4", "gemma3")
        return ("pre_feedforward_layernorm." if sandwich else "post_attention_layernorm.") + suffix
    return f"{GGUF_LAYER[stem]}.{suffix}"


def read_gguf_weights(path: str, text: dict) -> dict[str, np.ndarray]:
    """Weights of a GGUF under Hugging Face's names; `text` is the model's config, checked against the file's keys."""
    keys, tensors = read_gguf(path)
    arch, weights = keys["general.architecture"], {}
    assert keys[arch + ".block_count"] == text["num_hidden_layers"]
    assert keys[arch + ".embedding_length"] == text["hidden_size"]
    for name, values in tensors.items():
        if name == "rope_freqs.weight":
            continue  # follows from the config
        if arch == "gemma3" and "norm" in name:
            values = values - f32(1)  # stored as 1 + w
        if not name.startswith("blk."):
            stem, suffix = name.rsplit(".", 1)
            weights[f"{GGUF_TOP[stem]}.{suffix}"] = values
            continue
        _, layer, stem, suffix = name.split(".")
        if arch == "llama" and stem in ("attn_q", "attn_k"):  # rows (head, j, 2) back to (head, 2, j)
            heads = text["num_attention_heads"] if stem == "attn_q" else text["num_key_value_heads"]
            pairs = values.reshape(heads, values.shape[0] // heads // 2, 2, -1)
            values = pairs.transpose(0, 2, 1, 3).reshape(values.shape)
        weights[f"layers.{layer}." + _gguf_layer_name(arch, stem, suffix)] = values
    return weights
