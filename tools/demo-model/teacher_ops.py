"""The operations of the teacher's decode step in plain torch; teacher_triton.py has the same as fused kernels."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F


class TorchOps:
    """Rows are slots. `kc` and `vc` are a layer's caches [slots, kv heads, cap, width], `pk` and `pv` those of the prefix."""

    @staticmethod
    def add_norm(x, delta, weight, eps):
        """Add `delta` to the residual x in place, then RMSNorm."""
        if delta is not None:
            x += delta  # in place: x is the residual stream
        return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps).to(x.dtype)

    @staticmethod
    def rope_store(qkv, pos, offset, cos, sin, kc, vc, heads, kv_heads):
        """Rotate, store keys and values at `pos`, return the queries [slots, width]."""
        b, hd = len(qkv), kc.shape[-1]
        q, k, v = qkv.float().split([heads * hd, kv_heads * hd, kv_heads * hd], 1)
        c, s = cos[pos + offset][:, None], sin[pos + offset][:, None]

        def rot(t):
            t = t.reshape(b, -1, hd)
            t1, t2 = t.chunk(2, -1)
            return torch.cat([t1 * c - t2 * s, t2 * c + t1 * s], -1)

        rows = torch.arange(b, device=qkv.device)
        kc[rows, :, pos.long()] = rot(k).to(kc.dtype)
        vc[rows, :, pos.long()] = v.reshape(b, -1, hd).to(vc.dtype)
        return rot(q).to(qkv.dtype).reshape(b, -1)

    @staticmethod
    def attention(q, pk, pv, prefix, kc, vc, pos):
        """Attention of each slot to the shared prefix and to its own positions."""
        b, kv, cap, hd = kc.shape
        n = int(pos.max()) + 1
        q = q.view(b, kv, -1, hd)
        own = (q @ kc[:, :, :n].transpose(-1, -2)).float() * hd**-0.5
        own = own.masked_fill((torch.arange(n, device=q.device)[None] > pos[:, None])[:, None, None], -math.inf)
        shared = torch.einsum("bkgd,knd->bkgn", q, pk[:, :prefix]).float() * hd**-0.5
        p = torch.cat([shared, own], -1).softmax(-1).to(q.dtype)
        o = torch.einsum("bkgn,knd->bkgd", p[..., :prefix], pv[:, :prefix]) + p[..., prefix:] @ vc[:, :, :n]
        return o.reshape(b, -1)

    @staticmethod
    def silu_mul(gu):
        """silu(gate) * up of the joined product."""
        g, u = gu.chunk(2, -1)
        return F.silu(g) * u

    @staticmethod
    def sample(logits, temperature, min_p, counter):
        """A token each, by temperature and min-p, and its log-probability."""
        logp = logits.float().log_softmax(-1)
        x = logits.float() / temperature
        x = x.masked_fill(x < x.max(-1, keepdim=True).values + math.log(min_p), -math.inf)
        token = (x - torch.empty_like(x).exponential_().log()).argmax(-1)
        return token.int(), logp.gather(1, token[:, None])[:, 0]
