#!/usr/bin/env python3
"""Whether two outputs of make_tiny.py hold the same tensors, configs and GGUF bytes.

    python compare_folders.py OLD NEW      # goldens may gain tensors, and NEW may hold more models
"""

from __future__ import annotations

import json
import os
import sys

import torch
from safetensors.torch import load_file


def same_tensors(old: str, new: str, may_gain: bool) -> bool:
    """Equal names (or more of them), types and bits."""
    a, b = load_file(old), load_file(new)
    if not (set(a) <= set(b) if may_gain else set(a) == set(b)):
        return False
    return all(a[k].dtype == b[k].dtype and torch.equal(a[k].view(torch.uint8), b[k].view(torch.uint8)) for k in a)


def same_file(old: str, new: str) -> bool:
    """Equal as far as their kind of file cares."""
    if not os.path.exists(new):
        return False
    with open(old, "rb") as a, open(new, "rb") as b:
        if a.read() == b.read():
            return True
    if old.endswith(".json"):
        with open(old) as a, open(new) as b:
            return json.load(a) == json.load(b)
    return old.endswith(".safetensors") and same_tensors(old, new, "golden" in os.path.basename(old))


def main() -> int:
    """Command line; the exit status is 1 if anything differs."""
    old, new = sys.argv[1:]
    count, different = 0, []
    for folder, _, files in os.walk(old):
        for file in files:
            if file == "manifest.json":
                continue
            path = os.path.join(folder, file)
            count += 1
            if not same_file(path, os.path.join(new, os.path.relpath(path, old))):
                different.append(os.path.relpath(path, old))
    print("\n".join(f"differs: {name}" for name in sorted(different)) or f"{count} files agree")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
