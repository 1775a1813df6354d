"""Perplexity, golden log-probabilities and samples of an exported model. Needs transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from gguf import GGMLQuantizationType, quants
from student import Config, Student, mxfp4_codes

Logits = Callable[[torch.Tensor], torch.Tensor]  # ids [1, T] to logits [1, T, V]

TOP5_NOTE = "top5: for each position the five most likely next tokens as [id, natural log-probability]"
REQUESTS = [
    "Tell me a story about a fox and a lantern.",
    "Write a story about a shy bear who finds a red balloon.",
    "Tell me a bedtime story.",
    "Once upon a time",
    "Write a short story with a robot and a flower in it.",
    "Can you tell me about Lily the rabbit?",
    "Tell me a story about a dragon on the moon.",
    "Please write a story that shows that sharing makes everyone happy.",
    "I want a story about a grumpy cat and a magic hat.",
    "Hello!",
]


def load_reference(hf: Path):
    """The checkpoint in transformers' own implementation, dequantised, float32, on the CPU; with its tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(str(hf), dtype=torch.float32, attn_implementation="eager")
    return model.float().eval(), AutoTokenizer.from_pretrained(str(hf))


def encode(tokenizer, text: str) -> list[int]:
    """Ids of bare text."""
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def heldout_stories(run: Path, count: int = 200) -> list[str]:
    """The first stories that were not trained on."""
    with (run / "heldout.jsonl").open() as lines:
        return [json.loads(line)["s"] for line in lines][:count]


@torch.no_grad()
def perplexity(logits_of: Logits, tokenizer, texts: list[str]) -> tuple[float, int]:
    """Perplexity a token of texts scored one by one; the first token of each is context only."""
    total = count = 0
    for text in texts:
        ids = torch.tensor([encode(tokenizer, text)])
        log_probability = logits_of(ids)[0, :-1].float().log_softmax(-1)
        total -= log_probability.gather(1, ids[0, 1:, None]).sum().item()
        count += ids.shape[1] - 1
    return math.exp(total / count), count


@torch.no_grad()
def write_golden(path: Path, what: str, logits_of: Logits, tokenizer, text: str, count: int = 64) -> None:
    """The five most likely next tokens at each position of the beginning of `text`."""
    ids = encode(tokenizer, text)[:count]
    value, index = logits_of(torch.tensor([ids]))[0].float().log_softmax(-1).topk(5, -1)
    top = [[[int(i), round(float(v), 6)] for i, v in zip(*row)] for row in zip(index, value)]
    golden = {"model": what, "note": TOP5_NOTE, "text": tokenizer.decode(ids), "ids": ids, "top5": top}
    path.write_text(json.dumps(golden) + "\n")


@torch.no_grad()
def write_samples(path: Path, model, tokenizer, temperature: float = 0.7, limit: int = 400) -> None:
    """The first answer to each of REQUESTS."""
    parts = ["# Samples at temperature 0.7\n"]
    for seed, request in enumerate(REQUESTS):
        torch.manual_seed(seed)
        chat = [{"role": "user", "content": request}]
        ids = encode(tokenizer, tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
        prompt = torch.tensor([ids])
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, temperature=temperature,
                             top_p=1.0, top_k=0, max_new_tokens=limit)  # fmt: skip
        parts.append(f"### {request}\n\n{tokenizer.decode(out[0, len(ids) :])}\n")
    path.write_text("\n".join(parts))


@torch.no_grad()
def largest_difference(ours: Logits, reference: Logits, tokenizer, text: str) -> dict:
    """How far the training code is from transformers."""
    ids = torch.tensor([encode(tokenizer, text)[:256]])
    a, b = reference(ids), ours(ids)
    return {"largest difference of logits, training code and transformers": float((a - b).abs().max()),
            "largest logit": float(a.abs().max())}  # fmt: skip


def write_results(path: Path, result: dict, training: dict) -> None:
    """The figures as JSON, and on the screen."""
    path.write_text(json.dumps(result | {"training": training}, indent=1) + "\n")
    print(json.dumps(result, indent=1))


# ------------------------------------------------------------------ the gpt-oss student


def is_expert(name: str) -> bool:
    """Whether a parameter is stored as MXFP4."""
    return name.split(".")[-1] in ("gate", "up", "down")


def bf16_value(_name: str, t: torch.Tensor) -> torch.Tensor:
    """A weight beside the experts as the Hugging Face checkpoint stores it."""
    return t.to(torch.bfloat16).float()


def gguf_value(name: str, t: torch.Tensor) -> torch.Tensor:
    """The same as the GGUF stores it: matrices of attention, embedding and head in Q8_0, made of the bf16 values."""
    value = bf16_value(name, t)
    if name.split(".")[-1] not in ("embed", "head", "qkv", "o"):
        return value
    packed = quants.quantize(value.numpy(), GGMLQuantizationType.Q8_0)
    return torch.from_numpy(quants.dequantize(packed, GGMLQuantizationType.Q8_0))


def student_of(cfg: Config, weights: dict, fp4: bool, value=bf16_value) -> Student:
    """The training implementation with weights as stored; experts rounded to MXFP4 or left as trained."""
    model = Student(cfg)
    model.dtype = torch.float32
    rounded = {name: value(name, t) for name, t in weights.items() if not is_expert(name)}
    experts = {name: mxfp4_codes(t)[2] if fp4 else t for name, t in weights.items() if is_expert(name)}
    model.load_state_dict(rounded | experts)
    return model.eval()


def evaluate_student(cfg: Config, weights: dict, out: Path, run: Path, training: dict) -> None:
    """heldout.txt, golden.json, golden-gguf.json, samples.md and results.json."""
    model, tok = load_reference(out / "hf")
    stories = heldout_stories(run)
    (out / "heldout.txt").write_text("\n\n".join(s.replace("\n\n", "\n") for s in stories) + "\n")
    plain, as_gguf = student_of(cfg, weights, False), student_of(cfg, weights, True, gguf_value)

    def reference(ids):
        return model(ids).logits

    result = largest_difference(student_of(cfg, weights, True).logits, reference, tok, stories[0])
    for name, logits_of in {"transformers, MXFP4 experts": reference, "experts not quantised": plain.logits,
                            "GGUF values (MXFP4 experts, Q8_0 matrices)": as_gguf.logits}.items():  # fmt: skip
        result["perplexity of held-out stories: " + name], result["tokens"] = perplexity(logits_of, tok, stories)
    what = "transformers GptOssForCausalLM, float32, hf/ checkpoint dequantised"
    write_golden(out / "golden.json", what, reference, tok, stories[1])
    what = "float32, weights as stored in the GGUF file (HF's YaRN without truncation)"
    write_golden(out / "golden-gguf.json", what, as_gguf.logits, tok, stories[1])
    write_samples(out / "samples.md", model, tok)
    write_results(out / "results.json", result, training)
