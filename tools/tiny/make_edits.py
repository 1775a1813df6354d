#!/usr/bin/env python3
"""Compute what tiny models give under edits of the residual stream, by the numpy forward passes of spec_forward.py.

    python make_edits.py ../../tests/fixtures

Writes ROOT/edits/MODEL.safetensors for some models: `direction.N` [H] for every layer N (a fixed draw, about half a
residual long) and, for each case, `logits.CASE` [4, V] of the last rows of golden's input_ids. For the cases `prompt` and
`generated` they are those of 4 tokens, `greedy.CASE`, generated greedily after input_ids while only rows of the prompt,
or only rows of generated tokens, are edited. CASES has the parameters; crates/engine/tests/edits.rs has them again.
"""

from __future__ import annotations

import argparse
import os

import numpy as np
from checkpoints import read_folder, read_safetensors
from safetensors.numpy import save_file
from spec_forward import Net

MODELS = (
    "llama3", "tinyllama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gpt_oss", "gemma3", "gemma3_4b", "gemma3_27b",
    "gemma4_dense", "gemma4_e2b", "gemma4_e4b", "gemma4_moe",
)
ROWS = 4
# name: kind, strength, target, gate on the projection on the unit direction
CASES = {
    "add": ("add", 0.75, None, None),
    "ablate": ("ablate", 0.5, None, None),
    "clamp": ("clamp", 1.0, 1.25, None),
    "renorm": ("renorm", 1.5, None, None),
    "gated": ("add", -1.0, None, 0.0),
    "prompt": ("add", 1.0, None, None),
    "generated": ("add", 1.0, None, None),
}


def edit(kind, strength, target, gate, direction, x):
    """x [T, H] changed along the direction."""
    length = np.sqrt((direction.astype(np.float64) ** 2).sum())
    unit = (direction / length).astype(np.float32)
    projection = x @ unit
    if kind == "add":
        y = x + np.float32(strength) * direction
    elif kind == "ablate":
        y = x - np.float32(strength) * projection[:, None] * unit
    elif kind == "clamp":
        y = x + np.float32(strength) * (np.float32(target) - projection)[:, None] * unit
    else:
        y = x + np.float32(strength) * direction
        y = y * (np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1))[:, None]
    return y if gate is None else np.where((projection > gate)[:, None], y, x)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("root")
    args = parser.parse_args()
    os.makedirs(os.path.join(args.root, "edits"), exist_ok=True)
    for model in MODELS:
        folder = os.path.join(args.root, model, "hf")
        config, weights = read_folder(folder)
        ids = read_safetensors(os.path.join(folder, "golden.safetensors"))["input_ids"]
        plain = Net(config, weights)
        logits = plain(ids)[-ROWS:]
        rng = np.random.default_rng(7)
        out = {}
        for layer, hidden in enumerate(plain.hidden):
            draw = rng.standard_normal(hidden.shape[-1])
            size = 0.5 * np.linalg.norm(hidden, axis=-1).mean()
            out[f"direction.{layer}"] = (draw / np.linalg.norm(draw) * size).astype(np.float32)
        for name, case in CASES.items():

            def change(layer, x, name=name, case=case):
                y = edit(*case, out[f"direction.{layer}"], x)
                if name == "prompt":
                    y[len(ids) :] = x[len(ids) :]
                if name == "generated":
                    y[: len(ids)] = x[: len(ids)]
                return y

            net, tokens, rows = Net(config, weights, change), list(ids), []
            if name in ("prompt", "generated"):
                for _ in range(ROWS):
                    rows.append(net(np.array(tokens))[-1])
                    tokens.append(int(rows[-1].argmax()))
                out["greedy." + name] = np.array(tokens[len(ids) :], np.int32)
            else:
                rows = net(ids)[-ROWS:]
            out["logits." + name] = np.ascontiguousarray(rows, np.float32)
        save_file(out, os.path.join(args.root, "edits", model + ".safetensors"))
        moved = {n: round(float(np.abs(out['logits.' + n] - logits).max()), 2) for n in CASES if 'greedy.' + n not in out}
        print(model, sum(v.nbytes for v in out.values()), "bytes", moved)


if __name__ == "__main__":
    main()
