"""Independent numpy pack/unpack of the ggml block formats described in formats.md.

Ours; nothing copied.  `unpack(name, raw_bytes)` -> float32 array; `pack(name, floats)` -> uint8 array
(simple, valid, not optimal quantisers, good enough to build test checkpoints).
Run this file directly to check every type against gguf-py (and libggml if GGML_LIB is set).
"""
import numpy as np

FP4 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)
NL4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)

# name: (ggml type id, elements per block, bytes per block)
TYPES = {
    "F32": (0, 1, 4), "F16": (1, 1, 2), "BF16": (30, 1, 2),
    "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20), "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34),
    "Q2_K": (10, 256, 84), "Q3_K": (11, 256, 110), "Q4_K": (12, 256, 144), "Q5_K": (13, 256, 176),
    "Q6_K": (14, 256, 210), "IQ4_NL": (20, 32, 18), "IQ4_XS": (23, 256, 136), "MXFP4": (39, 32, 17),
}


def _f16(b):            # [n,2] u8 -> [n] f32
    return np.ascontiguousarray(b).view("<f2").astype(np.float32).reshape(len(b))


def _h(x):              # [n] f32 -> [n,2] u8
    return np.ascontiguousarray(x.astype("<f2")).view(np.uint8).reshape(-1, 2)


def e8m0(e):            # MX scale byte -> 2^(e-127); e=0 -> 2^-127 (subnormal)
    return np.ldexp(np.float32(1), e.astype(np.int32) - 127).astype(np.float32)


def _k4_scales(s):      # [n,12] -> sc,mn [n,8]
    s = s.astype(np.uint8)
    sc = np.empty((len(s), 8), np.uint8); mn = np.empty_like(sc)
    sc[:, :4] = s[:, 0:4] & 63
    mn[:, :4] = s[:, 4:8] & 63
    sc[:, 4:] = (s[:, 8:12] & 15) | ((s[:, 0:4] >> 6) << 4)
    mn[:, 4:] = (s[:, 8:12] >> 4) | ((s[:, 4:8] >> 6) << 4)
    return sc, mn


def _k4_scales_pack(sc, mn):
    s = np.zeros((len(sc), 12), np.uint8)
    s[:, 0:4] = (sc[:, :4] & 63) | ((sc[:, 4:] >> 4) << 6)
    s[:, 4:8] = (mn[:, :4] & 63) | ((mn[:, 4:] >> 4) << 6)
    s[:, 8:12] = (sc[:, 4:] & 15) | ((mn[:, 4:] & 15) << 4)
    return s


def unpack(name, raw):
    _, be, bb = TYPES[name]
    raw = np.ascontiguousarray(np.asarray(raw, np.uint8)).reshape(-1)
    if name == "F32":
        return raw.view("<f4").copy()
    if name == "F16":
        return raw.view("<f2").astype(np.float32)
    if name == "BF16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    b = raw.reshape(-1, bb)
    n = len(b)
    if be == 32:
        if name == "Q8_0":
            return (_f16(b[:, :2])[:, None] * b[:, 2:].view(np.int8).astype(np.float32)).reshape(-1)
        if name == "MXFP4":
            q = b[:, 1:]
            v = FP4[np.concatenate([q & 15, q >> 4], 1)]
            return (e8m0(b[:, 0])[:, None] * v).reshape(-1)
        q = b[:, -16:]
        q = np.concatenate([q & 15, q >> 4], 1).astype(np.int32)   # first 16 = low nibbles, last 16 = high
        d = _f16(b[:, :2])[:, None]
        if name == "IQ4_NL":
            return (d * NL4[q]).reshape(-1)
        if name in ("Q5_0", "Q5_1"):
            o = 2 if name == "Q5_0" else 4
            hb = np.ascontiguousarray(b[:, o:o + 4]).view("<u4").reshape(n, 1)
            q = q | (((hb >> np.arange(32, dtype=np.uint32)) & 1) << 4).astype(np.int32)
        if name in ("Q4_1", "Q5_1"):
            return (d * q + _f16(b[:, 2:4])[:, None]).astype(np.float32).reshape(-1)
        return (d * (q - (8 if name == "Q4_0" else 16))).astype(np.float32).reshape(-1)
    # 256-element super-blocks
    if name == "Q2_K":
        sc, qs, d, m = b[:, :16], b[:, 16:80], _f16(b[:, 80:82]), _f16(b[:, 82:84])
        q = (qs.reshape(n, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & 3   # [n,half,shift,32]
        q = q.reshape(n, 16, 16).astype(np.float32)
        return ((d[:, None] * (sc & 15))[:, :, None] * q - (m[:, None] * (sc >> 4))[:, :, None]).astype(np.float32).reshape(-1)
    if name == "Q3_K":
        hm, qs, s, d = b[:, :32], b[:, 32:96], b[:, 96:108], _f16(b[:, 108:110])
        lo = np.concatenate([s[:, :8] & 15, s[:, :8] >> 4], 1)
        i = np.arange(16)
        hi = (s[:, 8 + i % 4] >> (2 * (i // 4)).astype(np.uint8)) & 3
        sc = (lo | (hi << 4)).astype(np.int32) - 32
        q = (qs.reshape(n, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & 3
        h = (hm.reshape(n, 1, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 2, 4, 1)) & 1
        v = (q.astype(np.int32) - 4 * (1 - h.astype(np.int32))).reshape(n, 16, 16)
        return ((d[:, None] * sc)[:, :, None] * v).astype(np.float32).reshape(-1)
    if name in ("Q4_K", "Q5_K"):
        d, m = _f16(b[:, 0:2]), _f16(b[:, 2:4])
        sc, mn = _k4_scales(b[:, 4:16])
        qs = b[:, -128:].reshape(n, 4, 32)
        q = np.stack([qs & 15, qs >> 4], 2).reshape(n, 8, 32)
        if name == "Q5_K":
            h = (b[:, 16:48].reshape(n, 1, 32) >> np.arange(8, dtype=np.uint8).reshape(1, 8, 1)) & 1
            q = q | (h << 4)
        return ((d[:, None] * sc)[:, :, None] * q - (m[:, None] * mn)[:, :, None]).astype(np.float32).reshape(-1)
    if name == "Q6_K":
        ql, qh, sc, d = b[:, :128], b[:, 128:192], b[:, 192:208].view(np.int8), _f16(b[:, 208:210])
        l = ql.reshape(n, 2, 2, 32)                                     # [n,half,{l,l+32},32]
        lo = np.stack([l[:, :, 0] & 15, l[:, :, 1] & 15, l[:, :, 0] >> 4, l[:, :, 1] >> 4], 2)
        hi = (qh.reshape(n, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)) & 3
        q = (lo | (hi << 4)).astype(np.int32) - 32
        return ((d[:, None] * sc)[:, :, None] * q.reshape(n, 16, 16)).astype(np.float32).reshape(-1)
    if name == "IQ4_XS":
        d = _f16(b[:, 0:2]); sh = np.ascontiguousarray(b[:, 2:4]).view("<u2").reshape(n, 1); sl = b[:, 4:8]
        i = np.arange(8)
        lo = (sl[:, i // 2] >> (4 * (i % 2)).astype(np.uint8)) & 15
        hi = (sh >> (2 * i).astype(np.uint16)) & 3
        ls = (lo.astype(np.int32) | (hi.astype(np.int32) << 4)) - 32
        qs = b[:, 8:].reshape(n, 8, 16)
        v = NL4[np.concatenate([qs & 15, qs >> 4], 2)]
        return ((d[:, None] * ls)[:, :, None] * v).astype(np.float32).reshape(-1)
    raise KeyError(name)


def _rne_bf16(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype("<u2")


def _near(table, x):
    return np.abs(x[..., None] - table).argmin(-1).astype(np.uint8)


def mxfp4_quant(x):     # x [...,32] f32 -> (e [...], nibbles [...,32])
    a = np.abs(x).max(-1)
    e = np.where(a > 0, np.floor(np.log2(np.maximum(a, 1e-38))) - 2 + 127, 0).clip(0, 254)
    v = x / e8m0(e)[..., None]
    idx = _near(FP4[:8], np.abs(v)) | (np.signbit(v).astype(np.uint8) << 3)
    return e.astype(np.uint8), idx.astype(np.uint8)


def pack(name, x):
    _, be, bb = TYPES[name]
    x = np.ascontiguousarray(x, np.float32).reshape(-1)
    if name == "F32":
        return x.view(np.uint8).copy()
    if name == "F16":
        return np.ascontiguousarray(x.astype("<f2")).view(np.uint8)
    if name == "BF16":
        return _rne_bf16(x).view(np.uint8)
    x = x.reshape(-1, be); n = len(x)
    r16 = lambda v: v.astype(np.float16).astype(np.float32)
    inv = lambda v: np.divide(1.0, v, out=np.zeros_like(v), where=v != 0)
    if be == 32:
        amax = np.abs(x).max(1)
        nib = lambda q: (q[:, :16] | (q[:, 16:] << 4)).astype(np.uint8)
        if name == "Q8_0":
            d = r16(amax / 127); q = np.rint(x * inv(d)[:, None]).clip(-127, 127).astype(np.int8)
            return np.concatenate([_h(d), q.view(np.uint8)], 1).reshape(-1)
        if name == "MXFP4":
            e, q = mxfp4_quant(x)
            return np.concatenate([e[:, None], nib(q)], 1).reshape(-1)
        if name == "IQ4_NL":
            d = r16(amax / 113); q = _near(NL4, x * inv(d)[:, None])
            return np.concatenate([_h(d), nib(q)], 1).reshape(-1)
        if name in ("Q4_0", "Q5_0"):
            z = 8 if name == "Q4_0" else 16
            d = r16(amax / (z - 1)); q = (np.rint(x * inv(d)[:, None]) + z).clip(0, 2 * z - 1).astype(np.uint32)
            head = [_h(d)]
        else:
            z = 15 if name == "Q4_1" else 31
            m = r16(x.min(1)); d = r16((x.max(1) - m) / z)
            q = np.rint((x - m[:, None]) * inv(d)[:, None]).clip(0, z).astype(np.uint32); head = [_h(d), _h(m)]
        if name.startswith("Q5"):
            hb = ((q >> 4) << np.arange(32, dtype=np.uint32)).sum(1).astype("<u4")
            head.append(hb.view(np.uint8).reshape(n, 4))
        return np.concatenate(head + [nib((q & 15).astype(np.uint8))], 1).reshape(-1)
    if name in ("Q2_K", "Q4_K", "Q5_K"):
        nsub, qmax, smax = {"Q2_K": (16, 3, 15), "Q4_K": (8, 15, 63), "Q5_K": (8, 31, 63)}[name]
        s = x.reshape(n, nsub, -1); lo = np.minimum(s.min(2), 0); sc = (s.max(2) - lo) / qmax; mn = -lo
        d = r16(sc.max(1) / smax); dm = r16(mn.max(1) / smax)
        isc = np.rint(sc * inv(d)[:, None]).clip(0, smax).astype(np.uint8)
        imn = np.rint(mn * inv(dm)[:, None]).clip(0, smax).astype(np.uint8)
        es = d[:, None] * isc; em = dm[:, None] * imn
        q = np.rint((s + em[:, :, None]) * inv(es)[:, :, None]).clip(0, qmax).astype(np.uint8)
        if name == "Q2_K":
            q = q.reshape(n, 2, 4, 32)
            qs = (q << np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)).sum(2).astype(np.uint8).reshape(n, 64)
            return np.concatenate([isc | (imn << 4), qs, _h(d), _h(dm)], 1).reshape(-1)
        qq = q.reshape(n, 4, 2, 32)
        qs = ((qq[:, :, 0] & 15) | ((qq[:, :, 1] & 15) << 4)).reshape(n, 128)
        parts = [_h(d), _h(dm), _k4_scales_pack(isc, imn)]
        if name == "Q5_K":
            parts.append(((q >> 4) << np.arange(8, dtype=np.uint8).reshape(1, 8, 1)).sum(1).astype(np.uint8))
        return np.concatenate(parts + [qs], 1).reshape(-1)
    if name in ("Q3_K", "Q6_K"):
        qz, sz = {"Q3_K": (4, 31), "Q6_K": (32, 127)}[name]
        s = x.reshape(n, 16, 16); sc = np.abs(s).max(2) / (qz - 1)
        d = r16(sc.max(1) / sz); isc = np.rint(sc * inv(d)[:, None]).clip(0, sz).astype(np.int32)
        es = d[:, None] * isc
        q = (np.rint(s * inv(es)[:, :, None]).clip(-qz, qz - 1) + qz).astype(np.uint8)
        if name == "Q6_K":
            q = q.reshape(n, 2, 4, 32)
            ql = np.stack([(q[:, :, 0] & 15) | ((q[:, :, 2] & 15) << 4), (q[:, :, 1] & 15) | ((q[:, :, 3] & 15) << 4)], 2).reshape(n, 128)
            qh = ((q >> 4) << np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)).sum(2).astype(np.uint8).reshape(n, 64)
            return np.concatenate([ql, qh, isc.astype(np.int8).view(np.uint8), _h(d)], 1).reshape(-1)
        u = (isc + 32).astype(np.uint8)                               # 6-bit biased scale
        sb = np.zeros((n, 12), np.uint8)
        sb[:, :8] = (u[:, :8] & 15) | ((u[:, 8:] & 15) << 4)
        for i in range(16):
            sb[:, 8 + i % 4] |= (u[:, i] >> 4) << (2 * (i // 4))
        q = q.reshape(n, 2, 4, 32)                                    # 0..7; bit2 = "hmask set"
        qs = ((q & 3) << np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)).sum(2).astype(np.uint8).reshape(n, 64)
        hm = ((q >> 2).reshape(n, 8, 32) << np.arange(8, dtype=np.uint8).reshape(1, 8, 1)).sum(1).astype(np.uint8)
        return np.concatenate([hm, qs, sb, _h(d)], 1).reshape(-1)
    if name == "IQ4_XS":
        s = x.reshape(n, 8, 32); sc = np.abs(s).max(2) / 113
        d = r16(sc.max(1) / 31); isc = np.rint(sc * inv(d)[:, None]).clip(0, 31).astype(np.int32)
        es = d[:, None] * isc; q = _near(NL4, s * inv(es)[:, :, None])
        u = (isc + 32).astype(np.uint16)
        sh = ((u >> 4) << (2 * np.arange(8)).astype(np.uint16)).sum(1).astype("<u2").view(np.uint8).reshape(n, 2)
        sl = ((u[:, 0::2] & 15) | ((u[:, 1::2] & 15) << 4)).astype(np.uint8)
        qs = (q[:, :, :16] | (q[:, :, 16:] << 4)).reshape(n, 128)
        return np.concatenate([_h(d), sh, sl, qs], 1).reshape(-1)
    raise KeyError(name)
