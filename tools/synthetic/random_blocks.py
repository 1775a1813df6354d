"""Random blocks of ggml types whose values have mean 0 and about a given standard deviation, made fast."""

from __future__ import annotations

import gguf
import numpy as np
from gguf import GGMLQuantizationType as T

POOL_BYTES = 8 << 20


def half_bytes(x: np.ndarray) -> np.ndarray:
    """[n] or [n, 1] values as [n, 2] bytes."""
    return np.asarray(x, dtype=np.float16).reshape(-1, 1).view(np.uint8)


class RandomBlocks:
    """Fills tensors from pools of some MiB a type: drawing every weight of a 12 GB file would take hours."""

    def __init__(self, seed: int):
        self.rng, self.pools = np.random.default_rng(seed), {}

    def tensor(self, kind: T, shape: tuple, std: float) -> np.ndarray:
        """Bytes of a tensor; `shape` in ggml's order, the fastest dimension first."""
        elements, octets = gguf.GGML_QUANT_SIZES[kind]
        if shape[0] % elements:
            raise ValueError(f"rows of {shape[0]} do not divide into {kind.name} blocks of {elements}")
        count = int(np.prod(shape, dtype=np.int64)) // elements
        pool = self._pool(kind, std)
        out = np.empty((count, octets), np.uint8)
        done = 0
        while done < count:
            start = int(self.rng.integers(0, len(pool)))
            take = min(count - done, len(pool) - start)
            out[done : done + take] = pool[start : start + take]
            done += take
        return out.reshape(-1)

    def _pool(self, kind: T, std: float) -> np.ndarray:
        key = (kind, float(std))
        if key not in self.pools:
            octets = gguf.GGML_QUANT_SIZES[kind][1]
            parts = BLOCKS[kind](self, max(1, POOL_BYTES // octets), std)
            blocks = np.concatenate(parts, 1)
            assert blocks.shape[1] == octets, (kind, blocks.shape)
            self.pools[key] = blocks
        return self.pools[key]

    # ---- one kind of block each: n blocks as parts that stand side by side

    def _bytes(self, n: int, width: int) -> np.ndarray:
        return self.rng.integers(0, 256, size=(n, width), dtype=np.uint8)

    def _jittered(self, n: int, scale: float) -> np.ndarray:
        """Scales that differ from block to block, as those of trained weights do."""
        return scale * (1 + 0.2 * self.rng.standard_normal(n)).clip(0.4, 1.6)

    def f32(self, n, std):
        return [(self.rng.standard_normal(n) * std).astype(np.float32).view(np.uint8).reshape(n, 4)]

    def f16(self, n, std):
        return [half_bytes(self.rng.standard_normal(n) * std)]

    def bf16(self, n, std):
        bits = (self.rng.standard_normal(n) * std).astype(np.float32).view(np.uint32) >> 16
        return [bits.astype(np.uint16).view(np.uint8).reshape(n, 2)]

    def q8_0(self, n, std):
        return [half_bytes(self._jittered(n, std / 73.6)), self._bytes(n, 32)]

    def q4_0(self, n, std):
        return [half_bytes(self._jittered(n, std / 4.63)), self._bytes(n, 16)]

    def q4_1(self, n, std):
        d = self._jittered(n, std / 4.61)
        return [half_bytes(d), half_bytes(-7.5 * d), self._bytes(n, 16)]

    def q5_0(self, n, std):
        return [half_bytes(self._jittered(n, std / 9.24)), self._bytes(n, 20)]

    def mxfp4(self, n, std):
        exponent = 127 + round(np.log2(std / 2.93)) + self.rng.integers(-1, 2, size=(n, 1))
        return [exponent.astype(np.uint8), self._bytes(n, 16)]

    def q4_q5_k(self, n, std, bits):
        top = (1 << bits) - 1
        d = self._jittered(n, std / (4.61 * (top / 15) * 31.5))
        scales = self._bytes(n, 12)
        scales[:, 4:8] = scales[:, 0:4]  # minimum equals scale, so that the mean is 0
        low = scales[:, 8:12] & 15
        scales[:, 8:12] = low | (low << 4)
        fifth = [self._bytes(n, 32)] if bits == 5 else []
        return [half_bytes(d), half_bytes(d * top / 2), scales, *fifth, self._bytes(n, 128)]

    def q6_k(self, n, std):
        scales = self.rng.integers(32, 128, size=(n, 16), dtype=np.int8).view(np.uint8)
        return [self._bytes(n, 192), scales, half_bytes(self._jittered(n, std / (18.5 * 80)))]


BLOCKS = {
    T.F32: RandomBlocks.f32, T.F16: RandomBlocks.f16, T.BF16: RandomBlocks.bf16, T.Q8_0: RandomBlocks.q8_0,
    T.Q4_0: RandomBlocks.q4_0, T.Q4_1: RandomBlocks.q4_1, T.Q5_0: RandomBlocks.q5_0, T.MXFP4: RandomBlocks.mxfp4,
    T.Q4_K: lambda self, n, std: self.q4_q5_k(n, std, 4), T.Q5_K: lambda self, n, std: self.q4_q5_k(n, std, 5),
    T.Q6_K: RandomBlocks.q6_k,
}  # fmt: skip
