"""The families' forward passes in plain numpy, written from their specifications, without torch or transformers."""

from __future__ import annotations

import math

import numpy as np
from checkpoints import hf_mxfp4

f32 = np.float32

# ------------------------------------------------------------------ operations


def rms(x, weight, eps):
    """RMSNorm over the last axis; `weight` may be None."""
    y = x / np.sqrt((x * x).mean(-1, keepdims=True, dtype=f32) + f32(eps))
    return y if weight is None else y * weight


def softmax(x):
    """Over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def silu(x):
    """x * sigmoid(x)."""
    return x / (1 + np.exp(-x))


def gelu_tanh(x):
    """GELU in its tanh form."""
    return f32(0.5) * x * (1 + np.tanh(f32(math.sqrt(2 / math.pi)) * (x + f32(0.044715) * x**3)))


def rope(x, positions, inverse, scale=1.0):
    """x [T, heads, D]; pairs are (i, i + D/2)."""
    angle = positions[:, None].astype(f32) * inverse[None]
    cos, sin = ((f(angle) * scale)[:, None].astype(f32) for f in (np.cos, np.sin))
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def inverse_default(theta, dim):
    """Inverse frequencies of plain rope."""
    return (1 / theta ** (np.arange(0, dim, 2, dtype=np.float64) / dim)).astype(f32)


def inverse_yarn(theta, dim, scaling):
    """YaRN: inverse frequencies and the factor on cos and sin."""
    factor, context = scaling["factor"], scaling["original_max_position_embeddings"]

    def corner(rotations):
        return dim * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(theta))

    low, high = corner(scaling.get("beta_fast") or 32), corner(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = ((np.arange(dim // 2) - low) / max(high - low, 1e-3)).clip(0, 1)  # 0 keeps, 1 interpolates
    plain = 1 / theta ** (np.arange(0, dim, 2) / dim)
    return (plain / factor * ramp + plain * (1 - ramp)).astype(f32), 0.1 * math.log(factor) + 1


def inverse_llama3(theta, dim, scaling):
    """Llama 3.1: long wavelengths divided by the factor, short ones kept, a ramp between."""
    plain = 1 / theta ** (np.arange(0, dim, 2) / dim)
    wavelength, context = 2 * math.pi / plain, scaling["original_max_position_embeddings"]
    low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
    smooth = (context / wavelength - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    long = np.where(wavelength > context / low, plain / factor, between)
    return np.where(wavelength < context / high, plain, long).astype(f32)


def inverse_proportional(theta, dim, part):
    """Gemma 4's full layers: the first `part` of the pairs turn, by exponents over the whole width; the others stand."""
    turning = int(part * dim // 2)
    return np.concatenate([1 / theta ** (np.arange(0, 2 * turning, 2) / dim), np.zeros(dim // 2 - turning)]).astype(f32)


def attention(q, k, v, scale, window=None, sinks=None):
    """q [T, Hq, D], k and v [T, Hk, D] to [T, Hq D]; a window counts the row itself."""
    count, heads, _ = q.shape
    group = heads // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scores = np.einsum("qhd,khd->hqk", q, k) * f32(scale)
    row, column = np.arange(count)[:, None], np.arange(count)[None]
    seen = column <= row
    if window:
        seen &= column > row - window
    scores = np.where(seen[None], scores, -np.inf)
    if sinks is not None:
        scores = np.concatenate([scores, np.broadcast_to(sinks[:, None, None], (heads, count, 1))], -1)
    return np.einsum("hqk,khd->qhd", softmax(scores)[..., :count], v).reshape(count, -1)


def top_k(x, k):
    """The k largest of each row, best first: values and indices."""
    index = np.argsort(-x, -1, kind="stable")[:, :k]
    return np.take_along_axis(x, index, -1), index


# ------------------------------------------------------------------ models


class Net:
    """One model: `Net(config, weights)(ids)` are its logits [T, V]; `hidden` holds the residual after each layer.

    `edit(layer, x)` may change the residual [T, H] after each layer (make_edits.py)."""

    def __init__(self, config: dict, weights: dict, edit=None):
        self.config, self.c, self.w = config, config.get("text_config", config), weights
        self.hidden: list[np.ndarray] = []
        self.edit = edit

    def __call__(self, ids):
        self.hidden = []
        family = self.c["model_type"]
        if family == "gemma4_text":
            return self.gemma4(ids)
        return self.gemma3(ids) if family == "gemma3_text" else self.standard(ids)

    def layer_output(self, layer, x):
        """The residual that the next layer sees; kept in `hidden`."""
        x = x if self.edit is None else self.edit(layer, x)
        self.hidden.append(x)
        return x

    def linear(self, x, name):
        """x W^T, plus a bias where there is one."""
        y = x @ self.w[name + ".weight"].T
        return y + self.w[name + ".bias"] if name + ".bias" in self.w else y

    def heads(self, x, name, width):
        """A projection cut into heads."""
        return self.linear(x, name).reshape(len(x), -1, width)

    def head(self, x):
        """Final norm's output to logits."""
        tied = self.config.get("tie_word_embeddings", "lm_head.weight" not in self.w)
        y = x @ self.w["embed_tokens.weight" if tied else "lm_head.weight"].T
        cap = self.c.get("final_logit_softcapping")
        return cap * np.tanh(y / cap) if cap else y

    def experts(self, h, index, weights, gate, up, down, combine):
        """Sum over each row's experts of weight * down(combine(gate, up))."""
        y = np.zeros_like(h)
        for row in range(len(h)):
            for expert, weight in zip(index[row], weights[row]):
                inner = combine(gate(expert, h[row]), up(expert, h[row]))
                y[row] += weight * down(expert, inner)
        return y

    # ---- Llama, Mistral, Mixtral, Qwen2, Qwen3, Qwen3 MoE, gpt-oss

    def standard(self, ids):
        """Norm, attention, norm, MLP."""
        c, w, family, eps = self.c, self.w, self.c["model_type"], self.c["rms_norm_eps"]
        width = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
        inverse, amplitude = self.standard_rope(width)
        positions, x = np.arange(len(ids)), w["embed_tokens.weight"][ids]
        for i in range(c["num_hidden_layers"]):
            p = f"layers.{i}."
            a = p + "self_attn."
            h = rms(x, w[p + "input_layernorm.weight"], eps)
            q, k, v = (self.heads(h, a + f"{n}_proj", width) for n in "qkv")
            if a + "q_norm.weight" in w:
                q, k = rms(q, w[a + "q_norm.weight"], eps), rms(k, w[a + "k_norm.weight"], eps)
            q, k = rope(q, positions, inverse, amplitude), rope(k, positions, inverse, amplitude)
            window = None
            if family == "mistral" or (family == "gpt_oss" and c["layer_types"][i] == "sliding_attention"):
                window = c.get("sliding_window")
            o = attention(q, k, v, width**-0.5, window, w.get(a + "sinks"))
            x = x + self.linear(o, a + "o_proj")
            h = rms(x, w[p + "post_attention_layernorm.weight"], eps)
            x = x + self.standard_mlp(h, p)
            x = self.layer_output(i, x)
        return self.head(rms(x, w["norm.weight"], eps))

    def standard_rope(self, width):
        """Inverse frequencies and the factor on cos and sin."""
        scaling, theta = self.c.get("rope_scaling") or {}, self.c["rope_theta"]
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        if kind == "yarn":
            return inverse_yarn(theta, width, scaling)
        return (inverse_llama3(theta, width, scaling) if kind == "llama3" else inverse_default(theta, width)), 1.0

    def standard_mlp(self, h, p):
        """The second half of a layer, dense or mixture."""
        family = self.c["model_type"]
        if family == "gpt_oss":
            return self.gpt_oss_experts(h, p + "mlp.")
        if family in ("qwen3_moe", "mixtral"):
            return self.silu_experts(h, p + ("mlp." if family == "qwen3_moe" else "block_sparse_moe."))
        gate, up = self.linear(h, p + "mlp.gate_proj"), self.linear(h, p + "mlp.up_proj")
        return self.linear(silu(gate) * up, p + "mlp.down_proj")

    def silu_experts(self, h, p):
        """Qwen3 MoE and Mixtral: softmax over all, the best k, renormalised (for Mixtral always)."""
        w, c = self.w, self.c
        weights, index = top_k(softmax(self.linear(h, p + "gate")), c["num_experts_per_tok"])
        if c.get("norm_topk_prob", True):
            weights = weights / weights.sum(-1, keepdims=True)
        spelled = {"gate": "w1", "down": "w2", "up": "w3"} if p + "experts.0.w1.weight" in w else {}

        def matrix(expert, part):
            if p + f"switch_mlp.{part}_proj.weight" in w:
                return w[p + f"switch_mlp.{part}_proj.weight"][expert]
            return w[p + f"experts.{expert}.{spelled.get(part, part + '_proj')}.weight"]

        gate, up, down = ((lambda e, row, part=part: matrix(e, part) @ row) for part in ("gate", "up", "down"))
        return self.experts(h, index, weights, gate, up, down, lambda g, u: silu(g) * u)

    def gpt_oss_experts(self, h, p):
        """Softmax over the k chosen logits alone; clamped SwiGLU; biases everywhere."""
        w, e = self.w, p + "experts."
        value, index = top_k(self.linear(h, p + "router"), self.c["num_experts_per_tok"])
        if e + "up_proj.weight" in w:
            gates, ups, downs = (w[e + n + "_proj.weight"] for n in ("gate", "up", "down"))
            gate_bias, up_bias, down_bias = (w[e + n + "_proj.bias"] for n in ("gate", "up", "down"))
        else:
            if e + "gate_up_proj_blocks" in w:
                both, downs = (hf_mxfp4(w[e + n + "_blocks"], w[e + n + "_scales"]) for n in ("gate_up_proj", "down_proj"))
            else:  # bf16: [E, in, out]
                both, downs = (w[e + n].transpose(0, 2, 1) for n in ("gate_up_proj", "down_proj"))
            gates, ups = both[:, 0::2], both[:, 1::2]
            gate_bias, up_bias = w[e + "gate_up_proj_bias"][:, 0::2], w[e + "gate_up_proj_bias"][:, 1::2]
            down_bias = w[e + "down_proj_bias"]

        def swiglu(g, u):
            g, u = np.minimum(g, f32(7)), np.clip(u, -7, 7)
            return (u + 1) * g / (1 + np.exp(f32(-1.702) * g))

        gate, up, down = ((lambda x, row, m=m, b=b: m[x] @ row + b[x])
                          for m, b in ((gates, gate_bias), (ups, up_bias), (downs, down_bias)))  # fmt: skip
        return self.experts(h, index, softmax(value), gate, up, down, swiglu)

    # ---- Gemma 3

    def gemma3(self, ids):
        """(1 + w) norms around both halves of a layer, two rope bases, GeGLU."""
        c, eps = self.c, self.c["rms_norm_eps"]
        w = {n: v + f32(1) if n.endswith("norm.weight") else v for n, v in self.w.items()}
        width, pattern = c["head_dim"], c.get("sliding_window_pattern", 6)
        kinds = c.get("layer_types") or ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention"
                                         for i in range(c["num_hidden_layers"])]  # fmt: skip
        local = inverse_default(c["rope_local_base_freq"], width)
        wide = inverse_default(c["rope_theta"], width) / f32((c.get("rope_scaling") or {}).get("factor", 1))
        positions = np.arange(len(ids))
        x = w["embed_tokens.weight"][ids] * f32(math.sqrt(c["hidden_size"]))
        for i, kind in enumerate(kinds):
            p = f"layers.{i}."
            a, sliding = p + "self_attn.", kind == "sliding_attention"
            h = rms(x, w[p + "input_layernorm.weight"], eps)
            q, k, v = (self.heads(h, a + f"{n}_proj", width) for n in "qkv")
            q, k = rms(q, w[a + "q_norm.weight"], eps), rms(k, w[a + "k_norm.weight"], eps)
            q, k = (rope(t, positions, local if sliding else wide) for t in (q, k))
            o = attention(q, k, v, c["query_pre_attn_scalar"] ** -0.5, c["sliding_window"] if sliding else None)
            x = x + rms(self.linear(o, a + "o_proj"), w[p + "post_attention_layernorm.weight"], eps)
            y = self.geglu(rms(x, w[p + "pre_feedforward_layernorm.weight"], eps), p + "mlp.")
            x = x + rms(y, w[p + "post_feedforward_layernorm.weight"], eps)
            x = self.layer_output(i, x)
        return self.head(rms(x, w["norm.weight"], eps))

    def geglu(self, h, p):
        """Gemma's dense MLP."""
        return self.linear(gelu_tanh(self.linear(h, p + "gate_proj")) * self.linear(h, p + "up_proj"), p + "down_proj")

    # ---- Gemma 4

    def gemma4(self, ids):
        """Two attention geometries, a dense branch beside the experts, per-layer embeddings, shared keys and values."""
        c, w, eps = self.c, self.w, self.c["rms_norm_eps"]
        layers, kinds, positions = c["num_hidden_layers"], c["layer_types"], np.arange(len(ids))
        full, sliding = c["rope_parameters"]["full_attention"], c["rope_parameters"]["sliding_attention"]
        wide = inverse_proportional(full["rope_theta"], c["global_head_dim"], full["partial_rotary_factor"])
        local = inverse_default(sliding["rope_theta"], c["head_dim"])
        x = w["embed_tokens.weight"][ids] * f32(math.sqrt(c["hidden_size"]))
        per_layer, cache = self.per_layer_inputs(ids, x), {}
        for i, kind in enumerate(kinds):
            p = f"layers.{i}."
            a, is_full = p + "self_attn.", kind == "full_attention"
            width, inverse = (c["global_head_dim"], wide) if is_full else (c["head_dim"], local)
            h = rms(x, w[p + "input_layernorm.weight"], eps)
            q = rope(rms(self.heads(h, a + "q_proj", width), w[a + "q_norm.weight"], eps), positions, inverse)
            if i < layers - c["num_kv_shared_layers"]:
                k = self.heads(h, a + "k_proj", width)
                v = self.heads(h, a + "v_proj", width) if a + "v_proj.weight" in w else k  # the raw k projection
                k = rope(rms(k, w[a + "k_norm.weight"], eps), positions, inverse)
                cache[kind] = k, rms(v, None, eps)  # the latest producer of each kind serves the layers after it
            window = None if is_full else c["sliding_window"]
            o = self.linear(attention(q, *cache[kind], 1.0, window), a + "o_proj")
            x = x + rms(o, w[p + "post_attention_layernorm.weight"], eps)
            y = self.geglu(rms(x, w[p + "pre_feedforward_layernorm.weight"], eps), p + "mlp.")
            if c["enable_moe_block"]:
                y = rms(y, w[p + "post_feedforward_layernorm_1.weight"], eps)
                m = self.gemma4_experts(x, rms(x, w[p + "pre_feedforward_layernorm_2.weight"], eps), p)
                y = y + rms(m, w[p + "post_feedforward_layernorm_2.weight"], eps)
            x = x + rms(y, w[p + "post_feedforward_layernorm.weight"], eps)
            if per_layer is not None:
                g = gelu_tanh(self.linear(x, p + "per_layer_input_gate")) * per_layer[:, i]
                x = x + rms(self.linear(g, p + "per_layer_projection"), w[p + "post_per_layer_input_norm.weight"], eps)
            x = x * w[p + "layer_scalar"]
            x = self.layer_output(i, x)
        return self.head(rms(x, w["norm.weight"], eps))

    def per_layer_inputs(self, ids, x):
        """[T, L, P]: a table's row and a projection of the embedding, or None."""
        c, w, width = self.c, self.w, self.c["hidden_size_per_layer_input"]
        if not width:
            return None
        shape = (len(ids), c["num_hidden_layers"], width)
        token = w["embed_tokens_per_layer.weight"][ids].reshape(shape) * f32(math.sqrt(width))
        context = (self.linear(x, "per_layer_model_projection") * f32(c["hidden_size"] ** -0.5)).reshape(shape)
        return (rms(context, w["per_layer_projection_norm.weight"], c["rms_norm_eps"]) + token) * f32(2**-0.5)

    def gemma4_experts(self, residual, h, p):
        """The router reads the residual under a norm of its own; the experts read `h`."""
        w, c = self.w, self.c
        r = rms(residual, None, c["rms_norm_eps"]) * w[p + "router.scale"] * f32(c["hidden_size"] ** -0.5)
        weights, index = top_k(softmax(self.linear(r, p + "router.proj")), c["top_k_experts"])
        weights = weights / weights.sum(-1, keepdims=True) * w[p + "router.per_expert_scale"][index]
        s = p + "experts.switch_glu."
        if s + "up_proj.weight" in w:
            parts = [w[s + n + "_proj.weight"] for n in ("gate", "up", "down")]
        else:
            both = w[p + "experts.gate_up_proj"]
            half = both.shape[1] // 2
            parts = [both[:, :half], both[:, half:], w[p + "experts.down_proj"]]
        gate, up, down = ((lambda e, row, m=m: m[e] @ row) for m in parts)
        return self.experts(h, index, weights, gate, up, down, lambda g, u: gelu_tanh(g) * u)
