#!/usr/bin/env python3
"""Compare every rendering below a folder with its golden, by the numpy forward passes of spec_forward.py.

    python check.py ../../tests/fixtures
"""

from __future__ import annotations

import argparse
import json
import os
import sys

import numpy as np
from checkpoints import read_folder, read_gguf_weights, read_safetensors
from spec_forward import Net


def renderings(root: str):
    """Yield (name, net, golden) for every checkpoint that has a golden."""
    for folder, _, files in sorted(os.walk(root)):
        name = os.path.relpath(folder, root)
        if {"golden.safetensors", "model.safetensors", "config.json"} <= set(files):
            yield name, Net(*read_folder(folder)), read_safetensors(os.path.join(folder, "golden.safetensors"))
        for file in sorted(f for f in files if f.endswith(".gguf")):
            stem = os.path.join(folder, file.removesuffix(".gguf"))
            if not os.path.exists(stem + ".golden.safetensors"):
                continue
            with open(os.path.join(folder, "hf", "config.json")) as f:
                config = json.load(f)
            weights = read_gguf_weights(os.path.join(folder, file), config.get("text_config", config))
            yield f"{name}/{file}", Net(config, weights), read_safetensors(stem + ".golden.safetensors")


def main() -> int:
    """Command line; the exit status is 1 if anything is off."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("root")
    parser.add_argument("--limit", type=float, default=5e-3, help="largest difference of a logit that passes")
    parser.add_argument("--quiet", action="store_true", help="print only what is off, and the summary")
    args = parser.parse_args()
    worst, count = 0.0, 0
    for name, net, gold in renderings(args.root):
        short = np.abs(net(gold["input_ids"]) - gold["logits"]).max()
        hidden = np.abs(np.stack(net.hidden) - gold["hidden"]).max() if "hidden" in gold else float("nan")
        long = np.abs(net(gold["long_ids"])[-len(gold["long_logits"]) :] - gold["long_logits"]).max()
        worst, count = max(worst, short, long), count + 1
        if args.quiet and max(short, long) <= args.limit:
            continue
        print(f"{name:36s} logits {short:.1e}  long {long:.1e}  hidden {hidden:.1e}  "
              f"(logits' standard deviation {gold['logits'].std():.1f})", flush=True)  # fmt: skip
    print(f"{count} renderings, worst {worst:.1e}")
    return int(not (count and worst <= args.limit))


if __name__ == "__main__":
    sys.exit(main())
