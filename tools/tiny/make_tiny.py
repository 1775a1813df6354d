#!/usr/bin/env python3
"""Build tiny random checkpoints of every supported family, each with what it must compute (goldens.py).

    python make_tiny.py --out tiny                                       # the full profile, everything
    python make_tiny.py --profile small --out ../../tests/fixtures       # the repository's fixtures
    python make_tiny.py --out tiny --only gpt_oss gemma4_moe

Layout: OUT/MODEL/hf/            config, generation config, model.safetensors, golden.safetensors
        OUT/MODEL/hf-VARIANT/    the same, other storage
        OUT/MODEL/mlx-VARIANT/   the same, MLX
        OUT/MODEL/gguf-VARIANT.gguf and gguf-VARIANT.golden.safetensors
        OUT/manifest.json        versions, sizes, margins
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time

import models
import numpy as np
import safetensors
import torch
import transformers
from configs import PROFILES, Profile, Spec
from goldens import golden
from safetensors.torch import save_file
from write_gguf import write_gguf
from write_hf import write_configs, write_gemma3_multimodal, write_gpt_oss_mxfp4, write_hf, write_json
from write_mlx import write_mlx

LEFT_OUT_WHEN_LEAN = ("embed", "hidden", "final_norm")


def write_rendering(model, config: dict, base: str, rendering: str, mlx_group: int) -> torch.nn.Module:
    """Write OUT/MODEL/`rendering`. Returns the model with the values as stored."""
    hf, path = os.path.join(base, "hf"), os.path.join(base, rendering)
    kind, _, variant = rendering.partition("-")
    if kind == "gguf":
        return write_gguf(model, config, path + ".gguf", variant)
    if rendering == "hf-mxfp4":
        return write_gpt_oss_mxfp4(model, config, hf, path)
    if rendering == "hf-multimodal":
        return write_gemma3_multimodal(model, config, hf, path)
    if rendering == "mlx-mxfp4":
        return write_mlx(model, config, path, mlx_group, mxfp4_experts=True)
    parts = re.fullmatch(r"mlx-(\d)bit(?:-g(\d+))?(?:-mlp(\d))?", rendering)
    if not parts:
        raise ValueError(f"unknown rendering {rendering}")
    bits, group, mlp = parts.groups()
    return write_mlx(model, config, path, int(group or mlx_group), int(bits), dense_mlp_bits=int(mlp) if mlp else None)


def choose_model(spec: Spec, made: dict, seeds: int, long_rows: int) -> tuple[int, torch.nn.Module]:
    """The seed, among the first `seeds`, with the clearest routing and the clearest greedy picks, and its model."""
    best = None
    for seed in range(seeds):
        if spec.upcycled_from:
            model = models.upcycle(made[spec.upcycled_from], spec.config, seed)
        else:
            model = models.randomise(models.build(spec.config), spec.config, seed)
        _, margins = golden(model, spec.config, long_rows)
        router = margins["router_margin"]
        score = min(margins["greedy_margin"], router if router is not None else 9)
        if best is None or score > best[0]:
            best = (score, seed, model)
    return best[1], best[2]


def save_golden(tensors: dict, path: str, lean: bool) -> None:
    """A golden file beside or inside its rendering."""
    target = os.path.join(path, "golden.safetensors") if os.path.isdir(path) else path + ".golden.safetensors"
    save_file({k: v for k, v in tensors.items() if not (lean and k in LEFT_OUT_WHEN_LEAN)}, target)
    os.chmod(target, 0o644)


def make_model(name: str, spec: Spec, profile: Profile, out: str, made: dict, seeds: int) -> dict:
    """Write one model in all its renderings. Returns its entry of the manifest."""
    started, base, config = time.time(), os.path.join(out, name), spec.config
    hf, lean, rows = os.path.join(base, "hf"), profile.lean_goldens, profile.long_rows
    shutil.rmtree(base, ignore_errors=True)
    seed, model = choose_model(spec, made, seeds, rows)
    made[name] = model
    tensors, margins = golden(model, config, rows, bf16=not lean)
    info = dict(seed=seed, params=sum(p.numel() for p in model.parameters()), **margins,
                logits=list(tensors["logits"].shape), logits_std=float(tensors["logits"].std()), variants={})  # fmt: skip
    if spec.weights_in_hf:
        write_hf(model, config, hf)
        save_golden(tensors, hf, lean=False)
        again, _ = models.run(models.load(hf, config), tensors["input_ids"])
        info["reload_max_abs_diff"] = float((again - tensors["logits"]).abs().max())
    else:
        write_configs(config, hf)
    if "logits_bf16" in tensors:
        info["bf16_max_abs_diff"] = float((tensors["logits"] - tensors["logits_bf16"]).abs().max())
    for rendering in spec.renderings:
        stored = write_rendering(model, config, base, rendering, profile.mlx_group)
        rounded, stored_margins = golden(stored, config, rows)
        save_golden(rounded, os.path.join(base, rendering), lean)
        difference = float((rounded["logits"] - tensors["logits"]).abs().max())
        info["variants"][rendering] = dict(**stored_margins, max_abs_diff_vs_bf16_weights=difference)
    files = [os.path.join(folder, f) for folder, _, names in os.walk(base) for f in sorted(names)]
    info["bytes"] = {os.path.relpath(f, base): os.path.getsize(f) for f in sorted(files)}
    print(f"{name:17s} seed {seed:2d} params {info['params']:8d} std {info['logits_std']:.2f} "
          f"router-margin {margins['router_margin']} greedy-margin {margins['greedy_margin']:.3f} "
          f"reload-diff {info.get('reload_max_abs_diff')} {sum(info['bytes'].values()) / 1e6:.2f} MB "
          f"{time.time() - started:.1f} s", flush=True)  # fmt: skip
    return info


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", default="tiny", help="folder to write to; MODEL folders in it are replaced")
    parser.add_argument("--profile", choices=PROFILES, default="full")
    parser.add_argument("--only", nargs="*", metavar="MODEL", help="these models only, and no manifest")
    parser.add_argument("--seeds", type=int, default=12, help="how many seeds to choose from")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)  # fastest at this size, and reproducible

    profile = PROFILES[args.profile]()
    wanted = set(args.only or profile.models)
    wanted |= {profile.models[name].upcycled_from for name in wanted} - {None}
    made: dict[str, torch.nn.Module] = {}
    entries = {name: make_model(name, spec, profile, args.out, made, args.seeds)
               for name, spec in profile.models.items() if name in wanted}  # fmt: skip
    if not args.only:
        versions = dict(python=sys.version.split()[0], torch=torch.__version__, transformers=transformers.__version__,
                        safetensors=safetensors.__version__, numpy=np.__version__)  # fmt: skip
        write_json(os.path.join(args.out, "manifest.json"), dict(versions=versions, models=entries))


if __name__ == "__main__":
    main()
