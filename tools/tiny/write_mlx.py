"""MLX renderings: affine groups of 2 to 8 bits and MXFP4, named and configured as mlx-lm does it."""

from __future__ import annotations

import copy
import os

import ggml_quants
import numpy as np
import torch
from configs import text_config
from safetensors.torch import save_file
from write_gguf import core_name
from write_hf import write_json


def pack_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [n] to u32 words: one little-endian stream of bits (for 2, 4 and 8 bits no code crosses a word)."""
    stream = (codes[:, None] >> np.arange(bits, dtype=np.uint32)) & 1
    return np.packbits(stream.astype(np.uint8).reshape(-1), bitorder="little").view("<u4")


def as_u32(words: np.ndarray) -> torch.Tensor:
    """numpy u32 to torch u32."""
    return torch.from_numpy(words.view(np.int32)).view(torch.uint32)


def affine_quant(x: np.ndarray, group: int, bits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, np.ndarray]:
    """x [..., K] to (packed words, scales bf16, biases bf16, the values they stand for): value = scale * q + bias.

    The bias is the end of the group's range with the larger magnitude, so scales are negative as often as not.
    """
    rows, steps = x.reshape(-1, group), (1 << bits) - 1
    low, high = rows.min(1), rows.max(1)
    low_is_larger = np.abs(low) > np.abs(high)
    scale = np.maximum((high - low) / steps, 1e-7)
    scale = np.where(low_is_larger, scale, -scale)
    edge = np.where(low_is_larger, low, high)
    first = np.rint(edge / scale)
    scale = np.where(first != 0, edge / np.where(first != 0, first, 1), scale)
    bias = np.where(first != 0, edge, 0)
    codes = np.rint((rows - bias[:, None]) / scale[:, None]).clip(0, steps).astype(np.uint32)
    scales, biases = (torch.from_numpy(v.astype(np.float32)).to(torch.bfloat16) for v in (scale, bias))
    values = codes.astype(np.float32) * scales.float().numpy()[:, None] + biases.float().numpy()[:, None]
    lead = x.shape[:-1]
    packed = as_u32(pack_bits(codes.reshape(-1), bits).reshape(*lead, -1))
    return packed, scales.reshape(*lead, -1), biases.reshape(*lead, -1), values.reshape(x.shape)


def mxfp4_quant(x: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """x [..., K] to (packed words, scale bytes, values)."""
    scales, codes = ggml_quants.mxfp4_quant(x.reshape(*x.shape[:-1], -1, 32))
    words = pack_bits(codes.reshape(-1).astype(np.uint32), 4).reshape(*x.shape[:-1], -1)
    values = (ggml_quants.FP4[codes] * ggml_quants.e8m0(scales)[..., None]).reshape(x.shape)
    return as_u32(words), torch.from_numpy(scales), values


class MlxSink:
    """Collects the tensors of an MLX checkpoint and the overrides of its config."""

    def __init__(self, group: int, bits: int, mxfp4_experts: bool, dense_mlp_bits: int | None):
        self.group, self.bits = group, bits
        self.mxfp4_experts, self.dense_mlp_bits = mxfp4_experts, dense_mlp_bits
        self.tensors: dict[str, torch.Tensor] = {}
        self.overrides: dict[str, dict] = {}

    def quantise(self, path: str, view: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Add the linear or embedding at `path`; `view` receives the values that a reader gets."""
        x = np.ascontiguousarray(view.numpy(), dtype=np.float32)
        bits, group = self.bits, self.group
        dense_mlp = self.dense_mlp_bits is not None and ".mlp." in path
        # mlx-lm keeps the routers of its own families at 8 bits; Mixtral's is an ordinary linear to it.
        router = path.endswith(("mlp.router", "router.proj", "mlp.gate"))
        if router or dense_mlp:
            bits, group = 8, 64
            self.overrides[path] = {"group_size": group, "bits": bits}
        elif self.mxfp4_experts and ".experts." not in path:
            self.overrides[path] = {"group_size": group, "bits": bits, "mode": "affine"}
        if self.mxfp4_experts and ".experts." in path:
            self.tensors[path + ".weight"], self.tensors[path + ".scales"], values = mxfp4_quant(x)
        else:
            packed, scales, biases, values = affine_quant(x, group, bits)
            self.tensors |= {path + ".weight": packed, path + ".scales": scales, path + ".biases": biases}
        view.copy_(torch.from_numpy(values))
        if bias is not None:
            self.tensors[path + ".bias"] = bias.to(torch.bfloat16).contiguous()

    def config(self) -> dict:
        """The `quantization` entry of config.json."""
        # A checkpoint converted from MXFP4 keeps that as the default and lists its affine modules. An override
        # without a mode, like the routers', is affine: it does not inherit the default.
        if self.mxfp4_experts:
            return dict(group_size=32, bits=4, mode="mxfp4", **self.overrides)
        return dict(group_size=self.group, bits=self.bits, mode="affine", **self.overrides)


def expert_module(family: str, base: str) -> str:
    """Where mlx-lm keeps the stacked experts that transformers keeps at `base`."""
    if family == "gemma4":
        return base + ".switch_glu"
    if family == "mixtral":
        return base.replace("mlp.experts", "block_sparse_moe.switch_mlp")
    return base.replace(".experts", ".switch_mlp")


def _add_experts(sink: MlxSink, family: str, prefix: str, name: str, p: torch.Tensor, bias: torch.Tensor | None) -> None:
    base, part = name.rsplit(".", 1)
    if part.endswith("_bias"):
        return  # travels with its weight
    if family == "gpt_oss":
        rows = p.transpose(1, 2)
        if part == "gate_up_proj":
            sink.quantise(prefix + base + ".gate_proj", rows[:, 0::2], bias[:, 0::2])
            sink.quantise(prefix + base + ".up_proj", rows[:, 1::2], bias[:, 1::2])
        else:
            sink.quantise(prefix + base + ".down_proj", rows, bias)
        return
    module = prefix + expert_module(family, base)
    if part == "gate_up_proj":
        half = p.shape[1] // 2
        sink.quantise(module + ".gate_proj", p[:, :half])
        sink.quantise(module + ".up_proj", p[:, half:])
    else:
        sink.quantise(module + ".down_proj", p)


def write_mlx(model: torch.nn.Module, config: dict, folder: str, group: int, bits: int = 4,
              mxfp4_experts: bool = False, dense_mlp_bits: int | None = None) -> torch.nn.Module:  # fmt: skip
    """Write one rendering. Returns the model with the values that a reader of the files gets."""
    os.makedirs(folder, exist_ok=True)
    stored = copy.deepcopy(model)
    state, family = stored.state_dict(), config["model_type"]
    prefix = "language_model.model." if family == "gemma4" else "model."
    sink = MlxSink(group, bits, mxfp4_experts, dense_mlp_bits)
    for full_name, p in state.items():
        name = core_name(full_name)
        if name == "lm_head.weight":
            if not config["tie_word_embeddings"]:
                sink.quantise("lm_head", p)
        elif ".experts." in name:
            _add_experts(sink, family, prefix, name, p, state.get(full_name + "_bias"))
        elif name.endswith(".weight") and p.ndim == 2:
            path = name.removesuffix(".weight")
            if family == "mixtral":
                path = path.replace("mlp.gate", "block_sparse_moe.gate")
            sink.quantise(prefix + path, p, state.get(full_name.removesuffix("weight") + "bias"))
        elif not (name.endswith(".bias") and full_name.removesuffix("bias") + "weight" in state):
            sink.tensors[prefix + name] = p.to(torch.bfloat16).contiguous()
    save_file(sink.tensors, os.path.join(folder, "model.safetensors"), metadata={"format": "mlx"})
    quantization = sink.config()
    full_config = dict(config, quantization=quantization, quantization_config=quantization)
    if family == "gemma4":  # mlx-lm takes the value at the top level, whose default is 262144, over text_config's
        full_config["vocab_size"] = text_config(config)["vocab_size"]
    write_json(os.path.join(folder, "config.json"), full_config)
    return stored
