"""Building the models in transformers, filling them with random weights, and running them with their insides recorded."""

from __future__ import annotations

import torch
from configs import text_config


def build(config: dict) -> torch.nn.Module:
    """An empty float32 model of transformers for `config`, eager attention, in evaluation mode."""
    from transformers import AutoConfig, AutoModelForCausalLM, Gemma4ForConditionalGeneration

    def without_dtype(part: dict) -> dict:
        # A dtype of bf16 would round the embedding scale while the model is built.
        return {k: v for k, v in part.items() if k not in ("architectures", "torch_dtype", "dtype")}

    plain = without_dtype(config)
    if "text_config" in plain:
        plain["text_config"] = without_dtype(plain["text_config"])
    resolved = AutoConfig.for_model(**plain)
    resolved._attn_implementation = "eager"
    if config["model_type"] == "gemma4":
        model = Gemma4ForConditionalGeneration(resolved)
    else:
        model = AutoModelForCausalLM.from_config(resolved, attn_implementation="eager")
    return model.float().eval()


def load(folder: str, config: dict) -> torch.nn.Module:
    """The checkpoint in `folder` as transformers loads it, in float32."""
    from transformers import AutoModelForCausalLM, Gemma4ForConditionalGeneration

    cls = Gemma4ForConditionalGeneration if config["model_type"] == "gemma4" else AutoModelForCausalLM
    return cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def _norm_value(name: str, family: str, uniform) -> torch.Tensor | None:
    """Norm weights far enough from their defaults to matter; the final one gives the logits their spread."""
    if "norm" not in name:
        return None
    final = name.endswith("norm.weight") and "layers" not in name and "projection" not in name
    if family == "gemma3_text":  # stored as w of (1 + w)
        return uniform(2.0, 5.0) if final else uniform(-0.4, 0.4)
    if family == "gemma4":
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            return uniform(0.2, 0.6)  # the attention scale is 1: keep q.k small
        if final:
            return uniform(6.0, 14.0)  # pushes logits into the soft cap
    return uniform(0.6, 1.4)


def _matrix_gain(name: str, family: str) -> float:
    """How much wider than 1/sqrt(fan in) a matrix is drawn."""
    if family == "gpt_oss" and name.endswith("gate_up_proj"):
        return 3.0  # so that the clamp at 7 is hit
    if family == "gpt_oss" and name.endswith("down_proj"):
        return 0.3
    if name.endswith(("router.weight", "gate.weight", "router.proj.weight", "lm_head.weight")):
        return 3.0  # clear routing, clear logits
    if name.endswith(("q_proj.weight", "k_proj.weight")):
        return 1.5
    return 1.0


def randomise(model: torch.nn.Module, config: dict, seed: int) -> torch.nn.Module:
    """Give every parameter a value that matters, rounded to bf16 (default initialisation leaves norms at 1 and sinks at 0)."""
    generator = torch.Generator().manual_seed(seed)
    text, family = text_config(config), config["model_type"]
    hidden, tied = text["hidden_size"], config["tie_word_embeddings"]
    state = model.state_dict()
    for name in sorted(state):
        parameter = state[name]

        def uniform(low, high, shape=parameter.shape):
            return torch.rand(shape, generator=generator) * (high - low) + low

        def normal(std, shape=parameter.shape):
            return torch.randn(shape, generator=generator) * std

        if name.endswith("lm_head.weight") and tied:
            continue
        value = _norm_value(name, family, uniform)
        if value is not None:
            pass
        elif name.endswith("layer_scalar"):
            value = uniform(0.6, 1.1)
        elif name.endswith(("router.scale", "per_expert_scale")):
            value = uniform(0.5, 1.5) * (hidden**0.5 if name.endswith("router.scale") else 1.0)
        elif name.endswith("sinks"):
            value = normal(1.5)
        elif name.endswith(("bias", "_bias")):
            value = normal(0.5)
        elif name.endswith("embed_tokens_per_layer.weight"):
            value = normal(text["hidden_size_per_layer_input"] ** -0.5)
        elif name.endswith("embed_tokens.weight"):
            gemma = family in ("gemma4", "gemma3_text")
            value = normal(hidden**-0.5 * (1.0 if gemma else 4.0 if tied else hidden**0.5))
        else:
            fan_in = parameter.shape[-2] if family == "gpt_oss" and "experts" in name else parameter.shape[-1]
            value = normal(_matrix_gain(name, family) * fan_in**-0.5)
        parameter.copy_(value.to(torch.bfloat16).float())
    return model


def upcycle(dense: torch.nn.Module, config: dict, seed: int) -> torch.nn.Module:
    """A mixture of experts whose every expert is the dense model's MLP; only the routers are new."""
    model = randomise(build(config), config, seed)
    state, source = model.state_dict(), dense.state_dict()
    for name, parameter in state.items():
        if name.endswith("experts.gate_up_proj"):
            stem = name.removesuffix("experts.gate_up_proj")
            both = torch.cat([source[stem + "gate_proj.weight"], source[stem + "up_proj.weight"]])
            parameter.copy_(both.expand_as(parameter))
        elif name.endswith("experts.down_proj"):
            down = source[name.removesuffix("experts.down_proj") + "down_proj.weight"]
            parameter.copy_(down.expand_as(parameter))
        elif not name.endswith("mlp.gate.weight"):
            parameter.copy_(source[name])
    return model


def _inner(model: torch.nn.Module) -> torch.nn.Module:
    return model.model.language_model if hasattr(model.model, "language_model") else model.model


@torch.no_grad()
def run(model: torch.nn.Module, ids: torch.Tensor, trace: bool = False) -> tuple[torch.Tensor, dict]:
    """Logits [T, V] of one sequence, and what was seen on the way: routers always, residuals when `trace`."""
    seen, hooks = {"hidden": [], "router": []}, []
    inner = _inner(model)

    def hidden_hook(_module, _inputs, output):
        first = output[0] if isinstance(output, tuple) else output
        seen["hidden"].append(first[0].clone())

    if trace:
        hooks.append(inner.layers[0].register_forward_pre_hook(lambda _m, a: seen.__setitem__("embed", a[0][0].clone())))
        hooks.append(inner.norm.register_forward_hook(lambda _m, _a, o: seen.__setitem__("final_norm", o[0].clone())))
        hooks.extend(layer.register_forward_hook(hidden_hook) for layer in inner.layers)
    for module in inner.modules():
        if type(module).__name__.endswith("Router"):
            hooks.append(module.register_forward_hook(
                lambda _m, _a, o: seen["router"].append((o[0].clone(), o[1].clone(), o[2].clone()))))  # fmt: skip
    extra = {}
    if hasattr(model.model, "language_model"):
        extra["mm_token_type_ids"] = torch.zeros_like(ids)[None]
    logits = model(input_ids=ids[None], use_cache=False, **extra).logits[0]
    for hook in hooks:
        hook.remove()
    return logits, seen
