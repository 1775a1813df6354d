"""Hugging Face renderings: bf16 safetensors under published names, gpt-oss with MXFP4 experts, multimodal Gemma 3."""

from __future__ import annotations

import copy
import json
import os
import shutil

import ggml_quants
import numpy as np
import torch
from configs import text_config
from safetensors.torch import load_file, save_file


def write_json(path: str, value: dict) -> None:
    """Indented JSON."""
    with open(path, "w") as f:
        json.dump(value, f, indent=2)


def write_configs(config: dict, folder: str) -> None:
    """config.json and generation_config.json."""
    os.makedirs(folder, exist_ok=True)
    write_json(os.path.join(folder, "config.json"), config)
    text = text_config(config)
    ends = config.get("eos_token_id", text.get("eos_token_id"))
    write_json(os.path.join(folder, "generation_config.json"),
               dict(bos_token_id=text.get("bos_token_id"), eos_token_id=ends))  # fmt: skip


def write_hf(model: torch.nn.Module, config: dict, folder: str) -> None:
    """The model in bf16, named as transformers saves it, which is as it was published."""
    temporary = folder + ".tmp"
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(temporary)
    write_configs(config, folder)
    target = os.path.join(folder, "model.safetensors")
    shutil.move(os.path.join(temporary, "model.safetensors"), target)
    shutil.rmtree(temporary)
    os.chmod(target, 0o644)


def write_gpt_oss_mxfp4(model: torch.nn.Module, config: dict, hf: str, folder: str) -> torch.nn.Module:
    """The checkpoint in `hf` with its experts as blocks and scales. Returns the model with the rounded experts."""
    os.makedirs(folder, exist_ok=True)
    rounded, out = copy.deepcopy(model), {}
    state = rounded.state_dict()
    for name, tensor in load_file(os.path.join(hf, "model.safetensors")).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            out[name] = tensor
            continue
        weight = tensor.float().transpose(1, 2).contiguous().numpy()  # blocks are [E, out, in/32, 16]
        experts, rows, columns = weight.shape
        scales, codes = ggml_quants.mxfp4_quant(weight.reshape(experts, rows, columns // 32, 32))
        packed = (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)  # even index in the low nibble
        out[name + "_blocks"], out[name + "_scales"] = torch.from_numpy(packed), torch.from_numpy(scales)
        values = (ggml_quants.FP4[codes] * ggml_quants.e8m0(scales)[..., None]).reshape(experts, rows, columns)
        state[name].copy_(torch.from_numpy(values).transpose(1, 2))
    save_file(out, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    quantised = dict(config, quantization_config=dict(quant_method="mxfp4", modules_to_not_convert=kept))
    write_configs(quantised, folder)
    return rounded


def write_gemma3_multimodal(model: torch.nn.Module, config: dict, hf: str, folder: str) -> torch.nn.Module:
    """The text model inside the names and config of Gemma3ForConditionalGeneration, beside a vision tensor to skip."""
    os.makedirs(folder, exist_ok=True)
    tensors = load_file(os.path.join(hf, "model.safetensors"))
    out = {"language_model." + name: tensor for name, tensor in tensors.items()}
    out["vision_tower.vision_model.embeddings.patch_embedding.weight"] = torch.zeros(8, 3, 2, 2, dtype=torch.bfloat16)
    out["multi_modal_projector.mm_input_projection_weight"] = torch.zeros(8, config["hidden_size"], dtype=torch.bfloat16)
    save_file(out, os.path.join(folder, "model.safetensors"), metadata={"format": "pt"})
    text = {k: v for k, v in config.items() if k not in ("architectures", "tie_word_embeddings", "torch_dtype")}
    vision = dict(model_type="siglip_vision_model", hidden_size=8, image_size=4, patch_size=2, num_hidden_layers=0)
    write_configs(dict(architectures=["Gemma3ForConditionalGeneration"], model_type="gemma3", eos_token_id=[1, 106],
                       mm_tokens_per_image=4, text_config=text, vision_config=vision, torch_dtype="bfloat16"), folder)  # fmt: skip
    return model
