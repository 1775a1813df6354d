#!/usr/bin/env python3
"""Compare ggml_quants.py with gguf-py, and with libggml where one is given, on packed values and on random blocks.

    python check_quants.py [--libggml PATH/libggml-base.so]
"""

from __future__ import annotations

import argparse
import ctypes

import ggml_quants
import gguf
import numpy as np

BLOCKS = 64
# Where a block's half-precision scales stand: random bits there would be infinite as often as not.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}  # fmt: skip


def random_blocks(name: str, rng: np.random.Generator) -> np.ndarray:
    """Blocks of random bytes with finite scales."""
    raw = rng.integers(0, 256, (BLOCKS, ggml_quants.TYPES[name][2]), dtype=np.uint8)
    for offset in SCALES[name]:
        raw[:, offset : offset + 2] = rng.standard_normal(BLOCKS).astype("<f2").view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        raw[:, 0] = rng.integers(0, 255, BLOCKS)
    return raw


def libggml_values(lib: ctypes.CDLL, name: str, raw: np.ndarray) -> np.ndarray:
    """The same blocks, expanded by libggml."""
    spelled = name.lower().replace("_k", "_K") if name.endswith("_K") else name.lower()
    out = np.empty(BLOCKS * ggml_quants.TYPES[name][1], np.float32)
    expand = getattr(lib, "dequantize_row_" + spelled)
    expand(raw.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(out.size))
    return out


def main() -> None:
    """Command line; stops at the first difference."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--libggml", help="a libggml-base of llama.cpp")
    args = parser.parse_args()
    lib = ctypes.CDLL(args.libggml) if args.libggml else None
    rng = np.random.default_rng(0)
    for name, (number, elements, octets) in ggml_quants.TYPES.items():
        kind = gguf.GGMLQuantizationType[name]
        assert kind.value == number and gguf.GGML_QUANT_SIZES[kind] == (elements, octets), name
        values = rng.standard_normal(256 * BLOCKS).astype(np.float32)
        packed = ggml_quants.pack(name, values)
        ours = ggml_quants.unpack(name, packed)
        theirs = gguf.quants.dequantize(packed.reshape(BLOCKS, -1), kind).reshape(-1)
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-7, err_msg=name)
        error = np.sqrt(((ours - values) ** 2).mean() / (values**2).mean())
        if elements > 1:
            raw = random_blocks(name, rng)
            ours = ggml_quants.unpack(name, raw)
            theirs = gguf.quants.dequantize(raw, kind).reshape(-1)
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6, err_msg=name)
            if lib is not None:
                np.testing.assert_allclose(ours, libggml_values(lib, name, raw), rtol=1e-5, atol=1e-6, err_msg=name)
        print(f"{name:7s} {elements:3d} values in {octets:3d} bytes, relative error of packing {error:.4f}")


if __name__ == "__main__":
    main()
