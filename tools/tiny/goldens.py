"""What a model must compute, as transformers computes it in float32 from the weights as they are stored.

Tensors of a golden.safetensors (T = 40 tokens, more than a window; N = 200; L layers, or layers with experts):

    input_ids [T] i64, logits [T, V]            the whole sequence at once
    router_idx i32, router_w f32 [L, T, k]      experts chosen, best first, and the weights they are mixed with
    router_margin [L, T]                        how far the k-th expert's logit is above the next one's
    greedy_ids, greedy_margin [16]              greedy continuation of input_ids; gap between the best two logits
    long_ids [N], long_logits [R, V]            the last R rows of a longer sequence
    long_router_margin [L, N]
    embed [T, H], hidden [L, T, H]              input of layer 0, residual after each layer
    final_norm [T, H]                           output of the last norm (the small profile keeps these three in hf only)
    logits_bf16 [T, V]                          the same weights run in bf16: what rounding costs (full profile's hf)
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from configs import text_config
from models import run

TOKENS, LONG_TOKENS, GREEDY_TOKENS, SEED = 40, 200, 16, 1234


def token_ids(count: int, vocab: int, seed: int) -> torch.Tensor:
    """Random ids, the first three (special ones, by custom) left out."""
    return torch.from_numpy(np.random.default_rng(seed).integers(3, vocab, count).astype(np.int64))


def router_margins(seen: list, config: dict) -> torch.Tensor:
    """[L, T]: the k-th best router logit less the next."""
    text = text_config(config)
    k = text.get("top_k_experts") or text.get("num_experts_per_tok")
    rows = []
    for raw, _, _ in seen:
        # Gemma 4's router hands out probabilities, whose logarithms differ as the logits do.
        logits = raw.float().log() if config["model_type"] == "gemma4" else raw.float()
        best = logits.sort(-1, descending=True).values
        rows.append(best[:, k - 1] - best[:, k])
    return torch.stack(rows)


def golden(model: torch.nn.Module, config: dict, long_rows: int, bf16: bool = False) -> tuple[dict, dict]:
    """All golden tensors of `model`, and the smallest margins met on the way."""
    vocab = text_config(config)["vocab_size"]
    ids = token_ids(TOKENS, vocab, SEED)
    logits, seen = run(model, ids, trace=True)
    out = dict(input_ids=ids, logits=logits, embed=seen["embed"], hidden=torch.stack(seen["hidden"]),
               final_norm=seen["final_norm"])  # fmt: skip
    margins = []
    if seen["router"]:
        out["router_idx"] = torch.stack([idx for _, _, idx in seen["router"]]).to(torch.int32)
        out["router_w"] = torch.stack([weights for _, weights, _ in seen["router"]]).float()
        out["router_margin"] = router_margins(seen["router"], config)
        margins.append(out["router_margin"].min().item())

    sequence, greedy, gaps = ids.clone(), [], []
    for _ in range(GREEDY_TOKENS):
        rows, step = run(model, sequence)
        if step["router"]:
            margins.append(router_margins(step["router"], config).min().item())
        best = rows[-1].topk(2)
        greedy.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        sequence = torch.cat([sequence, best.indices[:1]])
    out["greedy_ids"], out["greedy_margin"] = torch.tensor(greedy), torch.tensor(gaps)

    out["long_ids"] = token_ids(LONG_TOKENS, vocab, SEED + 1)
    rows, seen_long = run(model, out["long_ids"])
    out["long_logits"] = rows[-long_rows:].clone()
    if seen_long["router"]:
        out["long_router_margin"] = router_margins(seen_long["router"], config)
        margins.append(out["long_router_margin"].min().item())
    if bf16:
        out["logits_bf16"] = run(copy.deepcopy(model).to(torch.bfloat16), ids)[0].float()
    summary = dict(router_margin=min(margins) if margins else None,
                   router_margin_short=margins[0] if margins else None, greedy_margin=min(gaps))  # fmt: skip
    return {name: tensor.contiguous() for name, tensor in out.items()}, summary
