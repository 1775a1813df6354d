"""The tiny gpt-oss model (the student) as it is trained, and MXFP4 rounding.

It computes exactly what `GptOssForCausalLM` computes. At this size it is fastest to evaluate all experts with two
large matrix products and to weigh those that the router did not choose with zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    """The shape of the model; names as in a gpt-oss config.json where it has them."""

    vocab_size: int = 4096
    hidden_size: int = 256
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 32
    num_local_experts: int = 16
    num_experts_per_tok: int = 4
    intermediate_size: int = 128
    sliding_window: int = 128
    rope_theta: float = 150000.0
    yarn_factor: float = 4.0
    yarn_original: int = 512
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    rms_norm_eps: float = 1e-5


# ------------------------------------------------------------------ MXFP4

FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
FP4_EDGES = (FP4[1:] + FP4[:-1]) / 2


def mxfp4_codes(w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Quantise blocks of 32 along the last dimension: magnitudes (0 to 7), exponents (scale = 2^e), values.

    Of the two sensible scales (the largest value rounds into the grid, or is clipped to 6) the one with the smaller
    squared error is taken.
    """
    blocks = w.float().unflatten(-1, (-1, 32))
    top = blocks.abs().amax(-1, keepdim=True).clamp_min(2.0**-100)
    low = torch.floor(torch.log2(top)) - 2  # the OCP rule: top / 2^low lies in [4, 8)
    edges, grid = FP4_EDGES.to(w.device), FP4.to(w.device)
    candidates = []
    for exponent in (low, low + 1):
        scale = torch.exp2(exponent)
        codes = torch.bucketize((blocks.abs() / scale).contiguous(), edges)
        value = grid[codes] * scale * blocks.sign()
        candidates.append((codes, exponent, value, (value - blocks).square().sum(-1, keepdim=True)))
    better = candidates[1][3] < candidates[0][3]
    codes, exponent, value, _ = (torch.where(better, b, a) for a, b in zip(*candidates))
    return codes, exponent.squeeze(-1), value.flatten(-2)


def fake_mxfp4(w: torch.Tensor) -> torch.Tensor:
    """MXFP4 values forward, the identity backward."""
    return w + (mxfp4_codes(w)[2] - w).detach()


# ------------------------------------------------------------------ model


def yarn(cfg: Config) -> tuple[torch.Tensor, float]:
    """Inverse frequencies and attention factor of YaRN without truncation, as in gpt-oss."""
    dim, base = cfg.head_dim, cfg.rope_theta
    freq = base ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)

    def corner(turns):
        return dim * math.log(cfg.yarn_original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(corner(cfg.yarn_beta_fast), 0), min(corner(cfg.yarn_beta_slow), dim - 1)
    keep = 1 - ((torch.arange(dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return (1 / (cfg.yarn_factor * freq)) * (1 - keep) + (1 / freq) * keep, 0.1 * math.log(cfg.yarn_factor) + 1


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """RMSNorm in float32."""
    y = x.float()
    return weight * (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps))


def normal(*shape: int, std: float) -> nn.Parameter:
    """A parameter drawn from a normal distribution."""
    return nn.Parameter(torch.randn(*shape) * std)


def zeros(*shape: int) -> nn.Parameter:
    """A parameter that starts at zero."""
    return nn.Parameter(torch.zeros(*shape))


class Block(nn.Module):
    """The weights of one layer; `block_forward` computes with them."""

    def __init__(self, c: Config):
        super().__init__()
        d, e, i = c.hidden_size, c.num_local_experts, c.intermediate_size
        width = c.num_attention_heads * c.head_dim
        qkv = width + 2 * c.num_key_value_heads * c.head_dim
        depth = (2 * c.num_hidden_layers) ** -0.5
        self.norm1, self.norm2 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.qkv, self.qkv_bias = normal(qkv, d, std=0.6 * d**-0.5), zeros(qkv)
        self.o, self.o_bias = normal(d, width, std=0.6 * width**-0.5 * depth), zeros(d)
        self.sinks = zeros(c.num_attention_heads)
        self.router, self.router_bias = normal(e, d, std=0.02), zeros(e)
        self.gate, self.gate_bias = normal(e, i, d, std=0.6 * d**-0.5), zeros(e, i)
        self.up, self.up_bias = normal(e, i, d, std=0.6 * d**-0.5), zeros(e, i)
        self.down, self.down_bias = normal(e, d, i, std=0.6 * i**-0.5 * depth), zeros(e, d)


def attention_weights(score, mask, sink=None):
    """Softmax over allowed positions; `sink` is one more logit that takes part in the sum only."""
    score = score.float().masked_fill(~mask, -1e30)
    top = score.amax(-1, keepdim=True)
    if sink is not None:
        top = torch.maximum(top, sink)
    top = top.detach()
    p = torch.exp(score - top)
    total = p.sum(-1, keepdim=True)
    return p / (total if sink is None else total + torch.exp(sink - top))


def block_forward(c: Config, dt: torch.dtype, w: dict, x, mask, cos, sin):
    """One layer. The residual stream x is float32, matrix products are done in `dt`."""
    x = x + attention(c, dt, w, rms_norm(x, w["norm1"], c.rms_norm_eps), mask, cos, sin)
    y, balance, share = mixture(c, dt, w, rms_norm(x, w["norm2"], c.rms_norm_eps).flatten(0, 1))
    return x + y.view_as(x), balance, share


def attention(c: Config, dt: torch.dtype, w: dict, h, mask, cos, sin):
    """The layer's first half, h [batch, rows, width]."""
    b, s, _ = h.shape
    heads, kv, hd = c.num_attention_heads, c.num_key_value_heads, c.head_dim

    def linear(t, name):
        return F.linear(t.to(dt), w[name].to(dt), w[name + "_bias"].to(dt))

    def rotate(t):
        first, second = t.unflatten(-1, (-1, hd)).transpose(1, 2).float().chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(dt)

    q, k, v = linear(h, "qkv").split([heads * hd, kv * hd, kv * hd], -1)
    q, k, v = rotate(q), rotate(k), v.unflatten(-1, (kv, hd)).transpose(1, 2)
    group = heads // kv
    score = (q.reshape(b, kv, group * s, hd) @ k.transpose(-1, -2)).view(b, kv, group, s, s) * hd**-0.5
    p = attention_weights(score, mask[:, None, None], w["sinks"].float().view(1, kv, group, 1, 1)).to(dt)
    a = (p.view(b, kv, group * s, s) @ v).view(b, heads, s, hd).transpose(1, 2).reshape(b, s, heads * hd)
    return linear(a, "o")


def mixture(c: Config, dt: torch.dtype, w: dict, h):
    """The layer's second half, h [rows, width], with its load-balancing loss and the experts' shares."""
    e, i, d = c.num_local_experts, c.intermediate_size, c.hidden_size
    logits = F.linear(h, w["router"], w["router_bias"])
    value, index = logits.topk(c.num_experts_per_tok, -1)
    weight = torch.zeros_like(logits).scatter(-1, index, value.softmax(-1))

    def all_experts(name):
        return F.linear(h.to(dt), w[name].reshape(e * i, d).to(dt), w[name + "_bias"].view(-1).to(dt)).float()

    gate, up = all_experts("gate").clamp(max=c.swiglu_limit), all_experts("up").clamp(-c.swiglu_limit, c.swiglu_limit)
    act = (up + 1) * gate * torch.sigmoid(c.swiglu_alpha * gate)
    act = (act.view(-1, e, i) * weight[:, :, None]).to(dt).view(-1, e * i)
    y = act @ w["down"].permute(0, 2, 1).reshape(e * i, d).to(dt) + (weight @ w["down_bias"]).to(dt)
    return y, *load_balance(logits.softmax(-1), weight, c.num_experts_per_tok)


def load_balance(probability, weight, chosen):
    """Share of the choices times mean probability, summed over the experts: 1 when the load is even."""
    share = (weight > 0).float().mean(0) / chosen
    return len(share) * (share * probability.mean(0)).sum(), share.detach()


def document_masks(doc, window):
    """Causal attention within each document, in full and within the sliding window."""
    n = torch.arange(doc.shape[1], device=doc.device)
    distance = n[:, None] - n[None, :]
    full = (distance >= 0)[None] & (doc[:, :, None] == doc[:, None, :])
    return full, full & (distance < window)[None]


class Student(nn.Module):
    """The whole model. `dtype` is what matrix products are done in."""

    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg, self.dtype = cfg, torch.bfloat16
        self.embed = normal(cfg.vocab_size, cfg.hidden_size, std=0.05)
        self.head = normal(cfg.vocab_size, cfg.hidden_size, std=0.02)
        self.norm = nn.Parameter(torch.ones(cfg.hidden_size))
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.num_hidden_layers))
        inverse, self.rope_scale = yarn(cfg)
        self.register_buffer("inv_freq", inverse, persistent=False)
        self.block_forward, self.quantize = block_forward, fake_mxfp4

    def compile(self):
        """Compile the parts that repeat."""
        self.block_forward = torch.compile(block_forward, dynamic=False)
        self.quantize = torch.compile(fake_mxfp4, dynamic=False)

    @staticmethod
    def decayed(name: str) -> bool:
        """Whether weight decay applies to a parameter."""
        return name.split(".")[-1] in ("qkv", "o", "gate", "up", "down")

    @property
    def head_weight(self):
        """The matrix that turns hidden states into logits."""
        return self.head

    def hidden(self, tokens, doc, fp4=False):
        """Final hidden states, balance loss and experts' shares; `doc` numbers the documents of each row."""
        angle = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)[:, None] * self.inv_freq
        cos, sin = angle.cos() * self.rope_scale, angle.sin() * self.rope_scale
        full, near = document_masks(doc, self.cfg.sliding_window)
        x = F.embedding(tokens, self.embed)
        balance, shares = 0.0, []
        for i, block in enumerate(self.blocks):
            w = {name: p.view_as(p) for name, p in block.named_parameters()}
            if fp4:
                w |= {name: self.quantize(w[name]) for name in ("gate", "up", "down")}
            x, layer_balance, share = self.block_forward(self.cfg, self.dtype, w, x, full if i % 2 else near, cos, sin)
            balance = balance + layer_balance
            shares.append(share)
        return rms_norm(x, self.norm, self.cfg.rms_norm_eps), balance / len(self.blocks), torch.stack(shares)

    def logits(self, tokens, fp4=False):
        """Logits of rows that hold one document each."""
        return self.hidden(tokens, torch.ones_like(tokens), fp4)[0] @ self.head.t()
