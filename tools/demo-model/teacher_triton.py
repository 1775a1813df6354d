"""The operations of the teacher's decode step as fused Triton kernels; they compute what teacher_ops.py computes."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl


@triton.jit
def add_norm_kernel(X, D, W, Y, n, eps, HAS_D: tl.constexpr, N: tl.constexpr):
    """x += delta (stored), then RMSNorm of x: a row a program."""
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, N)
    m = c < n
    x = tl.load(X + row * n + c, m, 0.0).to(tl.float32)
    if HAS_D:
        x += tl.load(D + row * n + c, m, 0.0).to(tl.float32)
        xb = x.to(X.dtype.element_ty)
        tl.store(X + row * n + c, xb, m)
        x = xb.to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / n + eps) * tl.load(W + c, m, 0.0).to(tl.float32)
    tl.store(Y + row * n + c, y.to(Y.dtype.element_ty), m)


@triton.jit
def rope_store_kernel(
    QKV, POS, offset, COS, SIN, KC, VC, Q, slots, cap, H: tl.constexpr, KV: tl.constexpr, HD: tl.constexpr
):
    """Rotate queries and keys, store keys and values in the cache, lay queries out by key/value head."""
    row, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pos = tl.load(POS + row)
    c = tl.arange(0, HD // 2)
    src = QKV + row * ((H + 2 * KV) * HD) + h * HD
    a = tl.load(src + c).to(tl.float32)
    b = tl.load(src + HD // 2 + c).to(tl.float32)
    if h < H + KV:
        cs = tl.load(COS + (pos + offset) * (HD // 2) + c)
        sn = tl.load(SIN + (pos + offset) * (HD // 2) + c)
        a2 = a * cs - b * sn
        b = b * cs + a * sn
        a = a2
    if h < H:  # queries are laid out [kv head, slot, group]
        dst = Q + (((h // (H // KV)) * slots + row) * (H // KV) + h % (H // KV)) * HD
    elif h < H + KV:
        dst = KC + ((row * KV + (h - H)) * cap + pos) * HD
    else:
        dst = VC + ((row * KV + (h - H - KV)) * cap + pos) * HD
    tl.store(dst + c, a.to(Q.dtype.element_ty))
    tl.store(dst + HD // 2 + c, b.to(Q.dtype.element_ty))


@triton.jit
def attention_kernel(
    Q,
    PO,
    PL,
    po_h,
    po_r,
    pl_h,
    HAS_P: tl.constexpr,
    KC,
    VC,
    POS,
    O,
    slots,
    cap,
    scale,
    KV: tl.constexpr,
    G: tl.constexpr,
    GP: tl.constexpr,
    HD: tl.constexpr,
    BLK: tl.constexpr,
):
    """A slot's attention to its own keys, started from its attention to the shared prefix."""
    row, h = tl.program_id(0).to(tl.int64), tl.program_id(1)
    n = tl.load(POS + row) + 1
    g, c, j = tl.arange(0, GP), tl.arange(0, HD), tl.arange(0, BLK)
    gm = g < G
    q = tl.load(Q + ((h * slots + row) * G + g[:, None]) * HD + c[None, :], gm[:, None], 0.0)
    if HAS_P:  # start from the attention to the shared prefix
        top = tl.load(PL + h * pl_h + row * G + g, gm, 0.0)
        den = tl.full([GP], 1.0, tl.float32)
        acc = tl.load(PO + h * po_h + (row * G + g[:, None]) * po_r + c[None, :], gm[:, None], 0.0).to(tl.float32)
    else:
        top = tl.full([GP], -1e30, tl.float32)
        den = tl.zeros([GP], tl.float32)
        acc = tl.zeros([GP, HD], tl.float32)
    kb, vb = KC + (row * KV + h) * cap * HD, VC + (row * KV + h) * cap * HD
    for start in range(0, n, BLK):
        ok = (start + j) < n
        k = tl.load(kb + (start + j)[:, None] * HD + c[None, :], ok[:, None], 0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        s = tl.where(ok[None, :], s, -1e30)
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        fix = tl.exp(top - new)
        den = den * fix + tl.sum(p, 1)
        v = tl.load(vb + (start + j)[:, None] * HD + c[None, :], ok[:, None], 0.0)
        acc = acc * fix[:, None] + tl.dot(p.to(v.dtype), v)
        top = new
    tl.store(
        O + row * (KV * G * HD) + (h * G + g[:, None]) * HD + c[None, :],
        (acc / den[:, None]).to(O.dtype.element_ty),
        gm[:, None],
    )


@triton.jit
def silu_mul_kernel(GU, Y, n, N: tl.constexpr):
    """silu(gate) * up."""
    row, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * N + tl.arange(0, N)
    m = c < n
    g = tl.load(GU + row * 2 * n + c, m, 0.0).to(tl.float32)
    u = tl.load(GU + row * 2 * n + n + c, m, 0.0).to(tl.float32)
    tl.store(Y + row * n + c, (g / (1 + tl.exp(-g)) * u).to(Y.dtype.element_ty), m)


@triton.jit
def sample_kernel(L, OUT, LP, COUNTER, n, inv_t, log_min_p, N: tl.constexpr):
    """Sample by the Gumbel trick among the tokens above the min-p floor; its log-probability."""
    row, c = tl.program_id(0).to(tl.int64), tl.arange(0, N)
    seed = tl.load(COUNTER)
    top = tl.full([N], -1e30, tl.float32)
    for start in range(0, n, N):
        top = tl.maximum(top, tl.load(L + row * n + start + c, start + c < n, -1e30).to(tl.float32))
    peak = tl.max(top, 0)
    floor = peak * inv_t + log_min_p
    total = tl.zeros([N], tl.float32)
    best = tl.full([N], -1e30, tl.float32)
    arg = tl.zeros([N], tl.int32)
    for start in range(0, n, N):
        x = tl.load(L + row * n + start + c, start + c < n, -1e30).to(tl.float32)
        total += tl.exp(x - peak)
        x = x * inv_t
        u = tl.maximum(tl.rand(seed, (row * n + start + c).to(tl.int32)), 1e-9)
        y = tl.where(x >= floor, x - tl.log(-tl.log(u)), -1e30)
        arg = tl.where(y > best, start + c, arg)
        best = tl.maximum(best, y)
    token = tl.sum(tl.where(c == tl.argmax(best, 0), arg, 0), 0)
    tl.store(OUT + row, token)
    tl.store(LP + row, tl.load(L + row * n + token).to(tl.float32) - peak - tl.log(tl.sum(total, 0)))


class TritonOps:
    """The operations of TorchOps; see there for what each does."""

    @staticmethod
    def add_norm(x, delta, weight, eps):
        y = torch.empty_like(x)
        n = x.shape[1]
        add_norm_kernel[(len(x),)](
            x,
            delta if delta is not None else x,
            weight,
            y,
            n,
            eps,
            delta is not None,
            triton.next_power_of_2(n),
            num_warps=4,
        )
        return y

    @staticmethod
    def rope_store(qkv, pos, offset, cos, sin, kc, vc, heads, kv_heads):
        b, hd = len(qkv), kc.shape[-1]
        q = torch.empty(b, heads * hd, dtype=qkv.dtype, device=qkv.device)
        rope_store_kernel[(b, heads + 2 * kv_heads)](
            qkv, pos, offset, cos, sin, kc, vc, q, b, kc.shape[2], heads, kv_heads, hd, num_warps=1
        )
        return q

    @staticmethod
    def attention(q, pk, pv, prefix, kc, vc, pos):
        b, kv, cap, hd = kc.shape
        o = torch.empty_like(q)
        group = q.shape[1] // (kv * hd)
        po, pl, scale = q, q, hd**-0.5
        strides = (0, 0, 0)
        if prefix:
            po, pl = torch.ops.aten._scaled_dot_product_flash_attention(
                q.view(1, kv, b * group, hd), pk[None, :, :prefix], pv[None, :, :prefix], 0.0, False, scale=scale
            )[:2]
            strides = (po.stride(1), po.stride(2), pl.stride(1))
        attention_kernel[(b, kv)](
            q,
            po,
            pl,
            *strides,
            bool(prefix),
            kc,
            vc,
            pos,
            o,
            b,
            cap,
            scale,
            kv,
            group,
            max(16, triton.next_power_of_2(group)),
            hd,
            64,
            num_warps=4,
        )
        return o

    @staticmethod
    def silu_mul(gu):
        n = gu.shape[1] // 2
        y = torch.empty(len(gu), n, dtype=gu.dtype, device=gu.device)
        silu_mul_kernel[(len(gu), triton.cdiv(n, 1024))](gu, y, n, 1024, num_warps=4)
        return y

    @staticmethod
    def sample(logits, temperature, min_p, counter):
        out = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
        logp = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        sample_kernel[(len(logits),)](
            logits, out, logp, counter, logits.shape[1], 1 / temperature, math.log(min_p), 2048, num_warps=8
        )
        return out, logp
