#!/usr/bin/env python3
"""Train and export a tiny Gemma 4 mixture-of-experts model on the same stories.

    python gemma4.py fit    --out run/ --minutes 4        # after `train.py tokenizer` and `train.py data`
    python gemma4.py export --run run/ --out gemma4/ [--evaluate]

The architecture is that of the text model of Gemma 4 26B-A4B (`Gemma4ForCausalLM`): a dense MLP beside routed experts,
sliding layers and full layers with different head sizes, keys used as values in the full layers, normalised queries,
keys and values, proportional rotary embedding, scaled and tied embedding, soft-capped logits.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import export
import student
import torch
import torch.nn.functional as F
import train
from safetensors.torch import load_file, save_file
from student import normal
from tokenizers import Tokenizer
from torch import nn


@dataclass
class Config:
    """The shape of the model; names as in a Gemma 4 config.json where it has them."""

    vocab_size: int = 4096
    hidden_size: int = 256
    num_hidden_layers: int = 6
    full_every: int = 3  # every third layer has full attention
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 32
    num_global_key_value_heads: int = 1
    global_head_dim: int = 64
    intermediate_size: int = 256
    num_experts: int = 16
    top_k_experts: int = 4
    moe_intermediate_size: int = 64
    sliding_window: int = 128
    max_position_embeddings: int = 2048
    rope_theta_sliding: float = 10000.0
    rope_theta_full: float = 1000000.0
    partial_rotary_factor: float = 0.25
    final_logit_softcapping: float = 30.0
    rms_norm_eps: float = 1e-6

    def full(self, layer: int) -> bool:
        """Whether a layer has full attention."""
        return layer % self.full_every == self.full_every - 1

    def heads(self, layer: int) -> tuple[int, int]:
        """Head size and number of key/value heads."""
        if self.full(layer):
            return self.global_head_dim, self.num_global_key_value_heads
        return self.head_dim, self.num_key_value_heads


NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
         "post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2")  # fmt: skip


class Block(nn.Module):
    """The weights of one layer; `block_forward` computes with them."""

    def __init__(self, c: Config, layer: int):
        super().__init__()
        hd, kv = c.heads(layer)
        d, i, m, e, width = c.hidden_size, c.intermediate_size, c.moe_intermediate_size, c.num_experts, c.num_attention_heads * hd
        for name in NORMS:
            setattr(self, name, nn.Parameter(torch.ones(d)))
        self.q = normal(width, d, std=0.6 * d**-0.5)
        self.k = normal(kv * hd, d, std=0.6 * d**-0.5)
        if not c.full(layer):
            self.v = normal(kv * hd, d, std=0.6 * d**-0.5)
        self.o = normal(d, width, std=0.6 * width**-0.5)
        # Attention has no other scale, so the norms start with 1/sqrt(head size) between them.
        self.q_norm, self.k_norm = (nn.Parameter(torch.full((hd,), hd**-0.25)) for _ in range(2))
        self.mlp_gate, self.mlp_up = normal(i, d, std=0.6 * d**-0.5), normal(i, d, std=0.6 * d**-0.5)
        self.mlp_down = normal(d, i, std=0.6 * i**-0.5)
        self.router, self.router_scale = normal(e, d, std=0.5), nn.Parameter(torch.ones(d))
        self.expert_scale = nn.Parameter(torch.ones(e))
        self.gate, self.up = normal(e, m, d, std=0.6 * d**-0.5), normal(e, m, d, std=0.6 * d**-0.5)
        self.down = normal(e, d, m, std=0.6 * m**-0.5)


def norm(x: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """RMSNorm in float32, with or without a weight."""
    y = x.float()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def gelu(x: torch.Tensor) -> torch.Tensor:
    """GELU in its tanh form, float32."""
    return F.gelu(x.float(), approximate="tanh")


def block_forward(c: Config, heads: tuple[int, int], dt: torch.dtype, w: dict, x, mask, cos, sin):
    """One layer. The residual stream x is float32, matrix products are done in `dt`."""

    def linear(t, name):
        return F.linear(t.to(dt), w[name].to(dt))

    def normed(t, name):
        return norm(t, w[name], c.rms_norm_eps)

    x = x + normed(attention(c, heads, dt, w, normed(x, "input_layernorm"), mask, cos, sin), "post_attention_layernorm")
    h = normed(x, "pre_feedforward_layernorm")
    dense = linear(gelu(linear(h, "mlp_gate")) * linear(h, "mlp_up").float(), "mlp_down")
    # The experts see the residual stream, not the dense MLP's output.
    routed, balance, share = mixture(c, dt, w, x.flatten(0, 1))
    y = normed(dense, "post_feedforward_layernorm_1") + normed(routed.view_as(x), "post_feedforward_layernorm_2")
    return x + normed(y, "post_feedforward_layernorm"), balance, share


def attention(c: Config, heads: tuple[int, int], dt: torch.dtype, w: dict, h, mask, cos, sin):
    """The layer's first half, h [batch, rows, width]."""
    (b, s, _), (hd, kv), eps = h.shape, heads, c.rms_norm_eps

    def project(name):
        return F.linear(h.to(dt), w[name].to(dt)).unflatten(-1, (-1, hd))

    def rotate(t):
        first, second = t.transpose(1, 2).chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(dt)

    q, k = project("q"), project("k")
    v = project("v") if "v" in w else k
    q, k = rotate(norm(q, w["q_norm"], eps)), rotate(norm(k, w["k_norm"], eps))
    v = norm(v, None, eps).transpose(1, 2).to(dt)
    group = c.num_attention_heads // kv
    score = (q.reshape(b, kv, group * s, hd) @ k.transpose(-1, -2)).view(b, kv, group, s, s)
    p = student.attention_weights(score, mask[:, None, None]).to(dt)
    a = (p.view(b, kv, group * s, s) @ v).view(b, c.num_attention_heads, s, hd).transpose(1, 2).reshape(b, s, -1)
    return F.linear(a, w["o"].to(dt))


def mixture(c: Config, dt: torch.dtype, w: dict, x):
    """The routed experts, x [rows, width], with the load-balancing loss and the experts' shares."""
    e, m, d, eps = c.num_experts, c.moe_intermediate_size, c.hidden_size, c.rms_norm_eps
    logits = F.linear(norm(x, None, eps) * w["router_scale"] * d**-0.5, w["router"])
    probability = logits.softmax(-1)
    value, index = probability.topk(c.top_k_experts, -1)
    weight = torch.zeros_like(logits).scatter(-1, index, value / value.sum(-1, keepdim=True))
    h = norm(x, w["pre_feedforward_layernorm_2"], eps).to(dt)

    def all_experts(name):
        return F.linear(h, w[name].reshape(e * m, d).to(dt)).float()

    act = gelu(all_experts("gate")) * all_experts("up")
    act = (act.view(-1, e, m) * (weight * w["expert_scale"])[:, :, None]).to(dt).view(-1, e * m)
    y = act @ w["down"].permute(0, 2, 1).reshape(e * m, d).to(dt)
    return y, *student.load_balance(probability, weight, c.top_k_experts)


def inverse_frequencies(width: int, theta: float, turning: int) -> torch.Tensor:
    """Rope of which the first `turning` pairs turn."""
    turn = theta ** -(torch.arange(0, 2 * turning, 2, dtype=torch.float32) / width)
    return torch.cat([turn, torch.zeros(width // 2 - turning)])


class Student(nn.Module):
    """The whole model; what train.fit wants of one is as in student.Student."""

    def __init__(self, cfg: Config):
        super().__init__()
        self.cfg, self.dtype = cfg, torch.bfloat16
        self.embed = normal(cfg.vocab_size, cfg.hidden_size, std=cfg.hidden_size**-0.5)
        self.norm = nn.Parameter(torch.ones(cfg.hidden_size))
        self.blocks = nn.ModuleList(Block(cfg, i) for i in range(cfg.num_hidden_layers))
        near = inverse_frequencies(cfg.head_dim, cfg.rope_theta_sliding, cfg.head_dim // 2)
        turning = int(cfg.partial_rotary_factor * cfg.global_head_dim // 2)
        self.register_buffer("inv_near", near, persistent=False)
        full = inverse_frequencies(cfg.global_head_dim, cfg.rope_theta_full, turning)
        self.register_buffer("inv_full", full, persistent=False)
        self.block_forward = block_forward

    def compile(self):
        """Compile the part that repeats."""
        self.block_forward = torch.compile(block_forward, dynamic=False)

    @staticmethod
    def decayed(name: str) -> bool:
        """Whether weight decay applies to a parameter."""
        return name.split(".")[-1] in ("q", "k", "v", "o", "mlp_gate", "mlp_up", "mlp_down", "gate", "up", "down")

    @property
    def head_weight(self):
        """The matrix that turns hidden states into logits."""
        return self.embed

    def hidden(self, tokens, doc, fp4=False):
        """Final hidden states, balance loss and experts' shares; this model has no MXFP4 form."""
        n = torch.arange(tokens.shape[1], device=tokens.device, dtype=torch.float32)[:, None]
        angles = {False: n * self.inv_near, True: n * self.inv_full}
        full_mask, near_mask = student.document_masks(doc, self.cfg.sliding_window)
        x = F.embedding(tokens, self.embed) * self.cfg.hidden_size**0.5
        balance, shares = 0.0, []
        for i, block in enumerate(self.blocks):
            w = {name: p.view_as(p) for name, p in block.named_parameters()}
            full = self.cfg.full(i)
            cos, sin = angles[full].cos(), angles[full].sin()
            mask = full_mask if full else near_mask
            x, layer_balance, share = self.block_forward(self.cfg, self.cfg.heads(i), self.dtype, w, x, mask, cos, sin)
            balance = balance + layer_balance
            shares.append(share)
        return norm(x, self.norm, self.cfg.rms_norm_eps), balance / len(self.blocks), torch.stack(shares)

    def logits(self, tokens):
        """Logits of rows that hold one document each."""
        cap = self.cfg.final_logit_softcapping
        return cap * torch.tanh(self.hidden(tokens, torch.ones_like(tokens))[0] @ self.embed.t() / cap)


# ------------------------------------------------------------------ export


def hf_layer(w: export.LayerWeights, prefix: str) -> dict:
    """One layer's tensors under Gemma 4's names."""
    names = {f"{name}.weight": name for name in NORMS}
    names |= {f"self_attn.{name}_proj.weight": name for name in "qkvo" if name in w}
    names |= {f"self_attn.{name}.weight": name for name in ("q_norm", "k_norm")}
    names |= {f"mlp.{name}_proj.weight": "mlp_" + name for name in ("gate", "up", "down")}
    names |= {"router.proj.weight": "router", "router.scale": "router_scale", "router.per_expert_scale": "expert_scale",
              "experts.down_proj": "down"}  # fmt: skip
    out = {prefix + name: export.to_bf16(w[ours]) for name, ours in names.items()}
    out[prefix + "experts.gate_up_proj"] = export.to_bf16(torch.cat([w["gate"], w["up"]], 1))
    out[prefix + "layer_scalar"] = torch.ones(1, dtype=torch.bfloat16)
    return out


def write_hf(cfg: Config, weights: dict, tok: Tokenizer, out: Path) -> None:
    """The checkpoint as transformers saves a Gemma 4 text model."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {"model.embed_tokens.weight": export.to_bf16(weights["embed"]),
               "model.norm.weight": export.to_bf16(weights["norm"])}  # fmt: skip
    for i in range(cfg.num_hidden_layers):
        tensors |= hf_layer(export.LayerWeights(weights, i), f"model.layers.{i}.")
    save_file(tensors, str(out / "model.safetensors"), metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    same = ("final_logit_softcapping", "global_head_dim", "head_dim", "hidden_size", "intermediate_size",
            "max_position_embeddings", "moe_intermediate_size", "num_attention_heads", "num_experts",
            "num_global_key_value_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "sliding_window",
            "top_k_experts", "vocab_size")  # fmt: skip
    export.write_json(out / "config.json", {
        "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "dtype": "bfloat16",
        **{key: getattr(cfg, key) for key in same}, **export.special_ids(tok), "attention_bias": False,
        "attention_dropout": 0.0, "attention_k_eq_v": True, "enable_moe_block": True,
        "hidden_activation": "gelu_pytorch_tanh", "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
        "layer_types": ["full_attention" if cfg.full(i) else "sliding_attention" for i in range(cfg.num_hidden_layers)],
        "rope_parameters": {
            "full_attention": {"partial_rotary_factor": cfg.partial_rotary_factor, "rope_theta": cfg.rope_theta_full,
                               "rope_type": "proportional"},
            "sliding_attention": {"rope_theta": cfg.rope_theta_sliding, "rope_type": "default"}},
        "tie_word_embeddings": True, "use_bidirectional_attention": None, "use_cache": True,
        "use_double_wide_mlp": False, "vocab_size_per_layer_input": cfg.vocab_size})  # fmt: skip
    export.write_tokenizer_files(tok, out, cfg.max_position_embeddings)


def evaluate(cfg: Config, weights: dict, out: Path, run: Path, training: dict) -> None:
    """golden.json, samples.md and results.json."""
    import evaluation

    model, tok = evaluation.load_reference(out / "hf")
    stories = evaluation.heldout_stories(run)
    ours = Student(cfg)
    ours.dtype = torch.float32
    ours.load_state_dict({name: t.to(torch.bfloat16).float() for name, t in weights.items()})

    def reference(ids):
        return model(ids).logits

    result = evaluation.largest_difference(ours.logits, reference, tok, stories[0])
    key = "perplexity of held-out stories"
    result[key], result["tokens"] = evaluation.perplexity(reference, tok, stories)
    what = "transformers Gemma4ForCausalLM, float32, hf/ checkpoint"
    evaluation.write_golden(out / "golden.json", what, reference, tok, stories[1])
    evaluation.write_samples(out / "samples.md", model, tok)
    evaluation.write_results(out / "results.json", result, training)


def fit(args: argparse.Namespace) -> None:
    """Train the Gemma 4 student."""
    torch.manual_seed(args.seed)
    args.fp4_part = 0.0
    cfg = Config(**json.loads(args.config))
    train.fit(args, Student(cfg), cfg, "gemma4", cfg.final_logit_softcapping)


def export_run(args: argparse.Namespace) -> None:
    """Write the Hugging Face checkpoint."""
    info = json.loads((args.run_folder / "gemma4.json").read_text())
    cfg, weights = Config(**info["config"]), load_file(str(args.run_folder / "gemma4.safetensors"))
    write_hf(cfg, weights, Tokenizer.from_file(str(args.run_folder / "tokenizer.json")), args.out / "hf")
    print(f"hf/model.safetensors: {(args.out / 'hf/model.safetensors').stat().st_size} bytes")
    if args.evaluate:
        evaluate(cfg, weights, args.out, args.run_folder, info["final"])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    p = commands.add_parser("fit", help=fit.__doc__)
    train.add_fit_arguments(p)
    p.set_defaults(run=fit)
    p = commands.add_parser("export", help=export_run.__doc__)
    p.add_argument("--run", type=Path, required=True, dest="run_folder", help="folder of `fit`")
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--evaluate", action="store_true", help="needs transformers")
    p.set_defaults(run=export_run)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
