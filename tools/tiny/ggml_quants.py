"""ggml's block formats in numpy: `unpack(name, bytes)` to float32 and `pack(name, floats)` to bytes.

The packers are plain rounding, valid and not optimal: good enough to build test checkpoints. check_quants.py compares
with gguf-py and libggml.
"""

from __future__ import annotations

import numpy as np

FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
NL4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)

# name: (ggml type number, elements per block, bytes per block)
TYPES = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2),
    "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210), "IQ4_NL": (20, 32, 18), "IQ4_XS": (23, 256, 136), "MXFP4": (39, 32, 17),
}  # fmt: skip
# Bit positions of the four quarters of half a super-block, and of eight single bits.
PAIRS = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
BITS = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)


def unpack(name: str, raw: np.ndarray) -> np.ndarray:
    """Bytes of whole blocks, any shape, to a flat float32 array."""
    raw = np.ascontiguousarray(np.asarray(raw, np.uint8)).reshape(-1)
    if name == "F32":
        return raw.view("<f4").copy()
    if name == "F16":
        return raw.view("<f2").astype(np.float32)
    if name == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    return UNPACKERS[name](raw.reshape(-1, TYPES[name][2])).astype(np.float32).reshape(-1)


def pack(name: str, values: np.ndarray) -> np.ndarray:
    """float32 values, whole blocks of them, to a flat array of bytes."""
    values = np.ascontiguousarray(values, np.float32).reshape(-1)
    if name == "F32":
        return values.view(np.uint8).copy()
    if name == "F16":
        return np.ascontiguousarray(values.astype("<f2")).view(np.uint8)
    if name == "BF16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").view(np.uint8)
    parts = PACKERS[name](values.reshape(-1, TYPES[name][1]))
    return np.concatenate(parts, 1).reshape(-1)


# ------------------------------------------------------------------ pieces


def _half(b):
    """[n, 2] bytes to [n] float32."""
    return np.ascontiguousarray(b).view("<f2").astype(np.float32).reshape(len(b))


def _half_bytes(x):
    return np.ascontiguousarray(x.astype("<f2")).view(np.uint8).reshape(-1, 2)


def _through_half(x):
    return x.astype(np.float16).astype(np.float32)


def _inverse(x):
    return np.divide(1.0, x, out=np.zeros_like(x), where=x != 0)


def e8m0(exponent: np.ndarray) -> np.ndarray:
    """An MX scale byte: 2^(e - 127); 0 is 2^-127, a subnormal."""
    return np.ldexp(np.float32(1), exponent.astype(np.int32) - 127).astype(np.float32)


def _nibbles(b):
    """[n, 16] bytes to [n, 32] codes: low halves, then high halves."""
    return np.concatenate([b & 15, b >> 4], -1)


def _nibble_bytes(codes):
    half = codes.shape[-1] // 2
    return (codes[..., :half] | (codes[..., half:] << 4)).astype(np.uint8)


def _nearest(table, x):
    return np.abs(x[..., None] - table).argmin(-1).astype(np.uint8)


# ------------------------------------------------------------------ blocks of 32


def _unpack_q8_0(b):
    return _half(b[:, :2])[:, None] * b[:, 2:].view(np.int8)


def _pack_q8_0(x):
    d = _through_half(np.abs(x).max(1) / 127)
    codes = np.rint(x * _inverse(d)[:, None]).clip(-127, 127).astype(np.int8)
    return [_half_bytes(d), codes.view(np.uint8)]


def _fifth_bits(b):
    """[n, 4] bytes to [n, 32]: bit i belongs to element i."""
    word = np.ascontiguousarray(b).view("<u4")
    return ((word >> np.arange(32, dtype=np.uint32)) & 1).astype(np.int32) << 4


def _fifth_bit_bytes(codes):
    word = ((codes >> 4) << np.arange(32, dtype=np.uint32)).sum(1).astype("<u4")
    return word.view(np.uint8).reshape(-1, 4)


def _unpack_symmetric(b, bits):
    codes = _nibbles(b[:, -16:]).astype(np.int32)
    if bits == 5:
        codes |= _fifth_bits(b[:, 2:6])
    return _half(b[:, :2])[:, None] * (codes - (1 << (bits - 1)))


def _pack_symmetric(x, bits):
    zero = 1 << (bits - 1)
    d = _through_half(np.abs(x).max(1) / (zero - 1))
    codes = (np.rint(x * _inverse(d)[:, None]) + zero).clip(0, 2 * zero - 1).astype(np.uint32)
    fifth = [_fifth_bit_bytes(codes)] if bits == 5 else []
    return [_half_bytes(d), *fifth, _nibble_bytes(codes & 15)]


def _unpack_with_minimum(b, bits):
    codes = _nibbles(b[:, -16:]).astype(np.int32)
    if bits == 5:
        codes |= _fifth_bits(b[:, 4:8])
    return _half(b[:, :2])[:, None] * codes + _half(b[:, 2:4])[:, None]


def _pack_with_minimum(x, bits):
    top = (1 << bits) - 1
    low = _through_half(x.min(1))
    d = _through_half((x.max(1) - low) / top)
    codes = np.rint((x - low[:, None]) * _inverse(d)[:, None]).clip(0, top).astype(np.uint32)
    fifth = [_fifth_bit_bytes(codes)] if bits == 5 else []
    return [_half_bytes(d), _half_bytes(low), *fifth, _nibble_bytes(codes & 15)]


def _unpack_iq4_nl(b):
    return _half(b[:, :2])[:, None] * NL4[_nibbles(b[:, 2:])]


def _pack_iq4_nl(x):
    d = _through_half(np.abs(x).max(1) / 113)
    return [_half_bytes(d), _nibble_bytes(_nearest(NL4, x * _inverse(d)[:, None]))]


def _unpack_mxfp4(b):
    return e8m0(b[:, 0])[:, None] * FP4[_nibbles(b[:, 1:])]


def mxfp4_quant(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[..., 32] values to scale bytes [...] and codes [..., 32], by the rule of the OCP specification."""
    top = np.abs(x).max(-1)
    exponent = np.where(top > 0, np.floor(np.log2(np.maximum(top, 1e-38))) - 2 + 127, 0).clip(0, 254)
    scaled = x / e8m0(exponent)[..., None]
    codes = _nearest(FP4[:8], np.abs(scaled)) | (np.signbit(scaled).astype(np.uint8) << 3)
    return exponent.astype(np.uint8), codes.astype(np.uint8)


def _pack_mxfp4(x):
    exponent, codes = mxfp4_quant(x)
    return [exponent[:, None], _nibble_bytes(codes)]


# ------------------------------------------------------------------ super-blocks of 256


def _k4_scales(s):
    """The 12 bytes of Q4_K and Q5_K to eight 6-bit scales and minimums."""
    scale, minimum = np.empty((len(s), 8), np.uint8), np.empty((len(s), 8), np.uint8)
    scale[:, :4], minimum[:, :4] = s[:, 0:4] & 63, s[:, 4:8] & 63
    scale[:, 4:] = (s[:, 8:12] & 15) | ((s[:, 0:4] >> 6) << 4)
    minimum[:, 4:] = (s[:, 8:12] >> 4) | ((s[:, 4:8] >> 6) << 4)
    return scale, minimum


def _k4_scale_bytes(scale, minimum):
    s = np.zeros((len(scale), 12), np.uint8)
    s[:, 0:4] = (scale[:, :4] & 63) | ((scale[:, 4:] >> 4) << 6)
    s[:, 4:8] = (minimum[:, :4] & 63) | ((minimum[:, 4:] >> 4) << 6)
    s[:, 8:12] = (scale[:, 4:] & 15) | ((minimum[:, 4:] & 15) << 4)
    return s


def _two_bits(b):
    """[n, 64] bytes to [n, 16, 16] codes: four quarters of 32 in each half, two bits each."""
    return ((b.reshape(-1, 2, 1, 32) >> PAIRS) & 3).reshape(-1, 16, 16)


def _two_bit_bytes(codes):
    return (codes.reshape(-1, 2, 4, 32) << PAIRS).sum(2).astype(np.uint8).reshape(-1, 64)


def _unpack_q2_k(b):
    scales, d, low = b[:, :16], _half(b[:, 80:82]), _half(b[:, 82:84])
    codes = _two_bits(b[:, 16:80]).astype(np.float32)
    return (d[:, None] * (scales & 15))[:, :, None] * codes - (low[:, None] * (scales >> 4))[:, :, None]


def _unpack_q4_q5_k(b, bits):
    d, low = _half(b[:, 0:2]), _half(b[:, 2:4])
    scale, minimum = _k4_scales(b[:, 4:16])
    nibbles = b[:, -128:].reshape(-1, 4, 32)
    codes = np.stack([nibbles & 15, nibbles >> 4], 2).reshape(-1, 8, 32)
    if bits == 5:
        codes = codes | (((b[:, 16:48].reshape(-1, 1, 32) >> BITS) & 1) << 4)
    return (d[:, None] * scale)[:, :, None] * codes - (low[:, None] * minimum)[:, :, None]


def _minimum_codes(x, parts, top, top_scale):
    """Codes, integer scales and minimums, and their half-precision factors, of formats with a minimum."""
    s = x.reshape(len(x), parts, -1)
    low = np.minimum(s.min(2), 0)
    scale, minimum = (s.max(2) - low) / top, -low
    d, dmin = _through_half(scale.max(1) / top_scale), _through_half(minimum.max(1) / top_scale)
    scale_code = np.rint(scale * _inverse(d)[:, None]).clip(0, top_scale).astype(np.uint8)
    minimum_code = np.rint(minimum * _inverse(dmin)[:, None]).clip(0, top_scale).astype(np.uint8)
    step, offset = d[:, None] * scale_code, dmin[:, None] * minimum_code
    codes = np.rint((s + offset[:, :, None]) * _inverse(step)[:, :, None]).clip(0, top).astype(np.uint8)
    return codes, scale_code, minimum_code, _half_bytes(d), _half_bytes(dmin)


def _pack_q2_k(x):
    codes, scale, minimum, d, dmin = _minimum_codes(x, 16, 3, 15)
    return [scale | (minimum << 4), _two_bit_bytes(codes), d, dmin]


def _pack_q4_q5_k(x, bits):
    codes, scale, minimum, d, dmin = _minimum_codes(x, 8, (1 << bits) - 1, 63)
    pairs = codes.reshape(-1, 4, 2, 32)
    nibbles = ((pairs[:, :, 0] & 15) | ((pairs[:, :, 1] & 15) << 4)).reshape(-1, 128)
    fifth = [((codes >> 4) << BITS).sum(1).astype(np.uint8)] if bits == 5 else []
    return [d, dmin, _k4_scale_bytes(scale, minimum), *fifth, nibbles]


def _unpack_q3_k(b):
    s, d, i = b[:, 96:108], _half(b[:, 108:110]), np.arange(16)
    low = np.concatenate([s[:, :8] & 15, s[:, :8] >> 4], 1)
    high = (s[:, 8 + i % 4] >> (2 * (i // 4)).astype(np.uint8)) & 3
    scale = (low | (high << 4)).astype(np.int32) - 32
    third = ((b[:, :32].reshape(-1, 1, 32) >> BITS) & 1).reshape(-1, 16, 16).astype(np.int32)
    return (d[:, None] * scale)[:, :, None] * (_two_bits(b[:, 32:96]).astype(np.int32) - 4 * (1 - third))


def _signed_codes(x, zero, top_scale):
    """Codes from 0, integer scales and the half-precision factor of formats without a minimum."""
    s = x.reshape(len(x), 16, 16)
    scale = np.abs(s).max(2) / (zero - 1)
    d = _through_half(scale.max(1) / top_scale)
    scale_code = np.rint(scale * _inverse(d)[:, None]).clip(0, top_scale).astype(np.int32)
    step = d[:, None] * scale_code
    codes = (np.rint(s * _inverse(step)[:, :, None]).clip(-zero, zero - 1) + zero).astype(np.uint8)
    return codes, scale_code, _half_bytes(d)


def _pack_q3_k(x):
    codes, scale, d = _signed_codes(x, 4, 31)
    six = (scale + 32).astype(np.uint8)
    scales = np.zeros((len(x), 12), np.uint8)
    scales[:, :8] = (six[:, :8] & 15) | ((six[:, 8:] & 15) << 4)
    for i in range(16):
        scales[:, 8 + i % 4] |= (six[:, i] >> 4) << (2 * (i // 4))
    third = ((codes >> 2).reshape(-1, 8, 32) << BITS).sum(1).astype(np.uint8)
    return [third, _two_bit_bytes(codes & 3), scales, d]


def _unpack_q6_k(b):
    scale, d = b[:, 192:208].view(np.int8), _half(b[:, 208:210])
    nibbles = b[:, :128].reshape(-1, 2, 2, 32)
    first, second = nibbles[:, :, 0], nibbles[:, :, 1]
    low = np.stack([first & 15, second & 15, first >> 4, second >> 4], 2).reshape(-1, 16, 16)
    codes = (low | (_two_bits(b[:, 128:192]) << 4)).astype(np.int32) - 32
    return (d[:, None] * scale)[:, :, None] * codes


def _pack_q6_k(x):
    codes, scale, d = _signed_codes(x, 32, 127)
    quarters = codes.reshape(-1, 2, 4, 32)
    low = [(quarters[:, :, i] & 15) | ((quarters[:, :, i + 2] & 15) << 4) for i in (0, 1)]
    return [np.stack(low, 2).reshape(-1, 128), _two_bit_bytes(codes >> 4), scale.astype(np.int8).view(np.uint8), d]


def _unpack_iq4_xs(b):
    i = np.arange(8)
    low = (b[:, 4:8][:, i // 2] >> (4 * (i % 2)).astype(np.uint8)) & 15
    high = (np.ascontiguousarray(b[:, 2:4]).view("<u2") >> (2 * i).astype(np.uint16)) & 3
    scale = (low.astype(np.int32) | (high.astype(np.int32) << 4)) - 32
    return (_half(b[:, 0:2])[:, None] * scale)[:, :, None] * NL4[_nibbles(b[:, 8:].reshape(-1, 8, 16))]


def _pack_iq4_xs(x):
    s = x.reshape(-1, 8, 32)
    scale = np.abs(s).max(2) / 113
    d = _through_half(scale.max(1) / 31)
    scale_code = np.rint(scale * _inverse(d)[:, None]).clip(0, 31).astype(np.int32)
    codes = _nearest(NL4, s * _inverse(d[:, None] * scale_code)[:, :, None])
    six = (scale_code + 32).astype(np.uint16)
    high = ((six >> 4) << (2 * np.arange(8)).astype(np.uint16)).sum(1).astype("<u2").view(np.uint8).reshape(-1, 2)
    low = ((six[:, 0::2] & 15) | ((six[:, 1::2] & 15) << 4)).astype(np.uint8)
    return [_half_bytes(d), high, low, _nibble_bytes(codes).reshape(-1, 128)]


UNPACKERS = {
    "Q4_0": lambda b: _unpack_symmetric(b, 4), "Q5_0": lambda b: _unpack_symmetric(b, 5),
    "Q4_1": lambda b: _unpack_with_minimum(b, 4), "Q5_1": lambda b: _unpack_with_minimum(b, 5),
    "Q8_0": _unpack_q8_0, "IQ4_NL": _unpack_iq4_nl, "MXFP4": _unpack_mxfp4, "Q2_K": _unpack_q2_k, "Q3_K": _unpack_q3_k,
    "Q4_K": lambda b: _unpack_q4_q5_k(b, 4), "Q5_K": lambda b: _unpack_q4_q5_k(b, 5), "Q6_K": _unpack_q6_k,
    "IQ4_XS": _unpack_iq4_xs,
}  # fmt: skip
PACKERS = {
    "Q4_0": lambda x: _pack_symmetric(x, 4), "Q5_0": lambda x: _pack_symmetric(x, 5),
    "Q4_1": lambda x: _pack_with_minimum(x, 4), "Q5_1": lambda x: _pack_with_minimum(x, 5),
    "Q8_0": _pack_q8_0, "IQ4_NL": _pack_iq4_nl, "MXFP4": _pack_mxfp4, "Q2_K": _pack_q2_k, "Q3_K": _pack_q3_k,
    "Q4_K": lambda x: _pack_q4_q5_k(x, 4), "Q5_K": lambda x: _pack_q4_q5_k(x, 5), "Q6_K": _pack_q6_k,
    "IQ4_XS": _pack_iq4_xs,
}  # fmt: skip
