#!/usr/bin/env python3
"""Train the tiny gpt-oss model (the student) on generated stories.

    python train.py tokenizer --stories stories/ --out run/
    python train.py data      --stories stories/ --out run/
    python train.py fit       --out run/ --minutes 5.6

`tokenizer` learns a byte-level BPE with the o200k split pattern and the harmony special tokens. `data` renders the
stories as harmony chats (and some as bare text) and packs them into rows. `fit` trains and writes student.safetensors
(float32, names of student.py); export.py turns that into a Hugging Face checkpoint and a GGUF file.

In the last part of the training the experts' weights are rounded to MXFP4 in the forward pass (straight-through
gradients), so the exported model is the one that was trained.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing as mp
import os
import random
import time
from dataclasses import asdict
from pathlib import Path

import corpus
import numpy as np
import torch
import torch.nn.functional as F
from student import Config, Student

# ------------------------------------------------------------------ tokenizer and data


def make_tokenizer(args: argparse.Namespace) -> None:
    """Write tokenizer.json."""
    started = time.time()
    stories = corpus.simple_stories(corpus.read_stories(args.stories, args.limit), args.min_count, args.max_rare)
    texts = [record["s"] for record in stories] + list(corpus.request_texts(max(2000, len(stories) // 10)))
    tok = corpus.train_tokenizer(texts, args.vocab)
    args.out.mkdir(parents=True, exist_ok=True)
    tok.save(str(args.out / "tokenizer.json"))
    sample = texts[:2000]
    per_token = sum(map(len, sample)) / sum(len(e.ids) for e in tok.encode_batch(sample))
    print(f"[{time.time() - started:.0f}s] tokenizer from {len(texts)} texts, {per_token:.2f} characters per token", flush=True)


def encode_part(job: tuple) -> list[np.ndarray]:
    """Worker: tokens of some texts."""
    tokenizer, texts = job
    return [np.array(e.ids, np.uint16) for e in tokenizer.encode_batch(texts, add_special_tokens=False)]


def encode(pool, tokenizer, records: list[dict], part: int = 4000) -> list[np.ndarray]:
    """Tokens of all stories, by the workers of `pool`."""
    texts = [record["s"] for record in records]
    jobs = [(tokenizer, texts[i : i + part]) for i in range(0, len(texts), part)]
    return [ids for batch in pool.map(encode_part, jobs, chunksize=1) for ids in batch]


SHARED = {}  # what forked workers inherit


def render_epoch(job: tuple) -> tuple:
    """Worker: render and pack one epoch into NAME.npz."""
    name, seed, length = job
    documents = corpus.render(SHARED["stories"], SHARED["ids"], SHARED["tok"], seed, length > 600)
    tokens, doc, learn = corpus.pack(documents, length, random.Random(seed))
    np.savez(SHARED["out"] / f"{name}.npz", tokens=tokens, doc=doc, learn=learn)
    return name, tokens.shape, float((doc > 0).mean()), int(learn.sum())


def make_data(args: argparse.Namespace) -> None:
    """Write train-*.npz, long-*.npz, valid.npz and heldout.jsonl."""
    from tokenizers import Tokenizer

    started = time.time()

    def say(*what) -> None:
        print(f"[{time.time() - started:.0f}s]", *what, flush=True)

    tok = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    stories = corpus.read_stories(args.stories)
    say(f"{len(stories)} stories read")
    stories = corpus.simple_stories(stories, args.min_count, args.max_rare)
    stories = corpus.likely_stories(stories, args.drop_unlikely)
    held = [record for record in stories if corpus.is_heldout(record)]
    stories = [record for record in stories if not corpus.is_heldout(record)]
    say(f"{len(stories)} training stories, {len(held)} held out")
    if not stories or not held:
        raise SystemExit("one story in 512 is held out: these are too few to have both kinds")
    with mp.Pool(args.workers) as pool:
        ids, held_ids = encode(pool, tok, stories), encode(pool, tok, held)
    total = sum(map(len, ids))
    say(f"{total / 1e6:.1f}M story tokens, mean {total / len(ids):.0f}")
    (args.out / "heldout.jsonl").write_text("".join(json.dumps(record) + "\n" for record in held))
    jobs = [(f"train-{epoch}", 100 + epoch, 512) for epoch in range(args.epochs)]
    jobs += [(f"long-{epoch}", 200 + epoch, 2048) for epoch in range(args.long_epochs)]
    SHARED.update(stories=stories, ids=ids, tok=tok, out=args.out)
    with mp.Pool(min(args.workers, len(jobs))) as pool:
        for line in pool.imap_unordered(render_epoch, jobs):
            say(*line)
    SHARED.update(stories=held, ids=held_ids)
    say(*render_epoch(("valid", 1, 512)))
    (args.out / "data.json").write_text(json.dumps(dict(stories=len(stories), heldout=len(held), story_tokens=total)))


# ------------------------------------------------------------------ training


class Rows:
    """Endless batches from the packed epochs, on the device."""

    def __init__(self, paths: list[Path], batch: int, device: str):
        self.batch, self.part, self.at, self.epochs, self.parts = batch, 0, 0, 0, []
        for path in paths:
            packed = np.load(path)
            arrays = (packed["tokens"].astype(np.int16), packed["doc"], packed["learn"])
            self.parts.append([torch.from_numpy(array).to(device) for array in arrays])
        if any(len(tokens) < batch for tokens, _, _ in self.parts):
            raise SystemExit(f"an epoch holds fewer rows than a batch ({batch}): use a smaller --batch")

    def next(self) -> tuple:
        """The next batch, ready to learn from."""
        if self.at + self.batch > len(self.parts[self.part][0]):
            self.part, self.at, self.epochs = (self.part + 1) % len(self.parts), 0, self.epochs + 1
        self.at += self.batch
        return self.ready(self.part, self.at - self.batch)

    def ready(self, part: int, at: int) -> tuple:
        """Inputs, documents, targets and weights of the next-token task."""
        tokens, doc, learn = (t[at : at + self.batch] for t in self.parts[part])
        tokens = tokens.long()
        weight = (learn[:, 1:] & (doc[:, 1:] == doc[:, :-1])).float()
        return tokens, doc, F.pad(tokens[:, 1:], (0, 1)), F.pad(weight, (0, 1))


def next_token_loss(hidden, head, target, weight, softcap: float = 0.0):
    """Mean cross entropy of the learned tokens."""
    logits = (hidden.bfloat16() @ head.bfloat16().t()).float()
    if softcap:
        logits = softcap * torch.tanh(logits / softcap)
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    return (loss * weight.flatten()).sum() / weight.sum().clamp_min(1)


@torch.no_grad()
def evaluate(model, rows: Rows, fp4: bool, loss_fn, batches: int | None = 16) -> float:
    """Loss over the first batches of `rows`, or all."""
    total = count = 0.0
    starts = range(0, len(rows.parts[0][0]) - rows.batch + 1, rows.batch)
    for at in starts[:batches]:
        x, doc, target, weight = rows.ready(0, at)
        hidden, _, _ = model.hidden(x, doc, fp4=fp4)
        total += loss_fn(hidden, model.head_weight, target, weight).item() * weight.sum().item()
        count += weight.sum().item()
    return total / max(count, 1)


class Schedule:
    """What changes as the training goes on: learning rate, MXFP4 experts, long rows."""

    def __init__(self, args: argparse.Namespace):
        self.args, self.clock, self.step = args, None, 0

    def start_clock(self) -> None:
        """Time counts once everything is compiled."""
        self.clock = time.time()

    def progress(self) -> float:
        """From 0 to 1."""
        if self.args.steps:
            return self.step / self.args.steps
        return (time.time() - self.clock) / (self.args.minutes * 60) if self.clock else 0.0

    def rate(self, progress: float) -> float:
        """Warm-up, then a cosine down to 2 %."""
        warm = min(1, (self.step + 1) / self.args.warmup)
        return self.args.lr * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))

    def fp4(self, progress: float) -> bool:
        """Whether experts are rounded; two early steps are, so that all is compiled."""
        return self.args.fp4_part > 0 and (progress > 1 - self.args.fp4_part or self.step in (2, 3))

    def long_rows(self, progress: float) -> bool:
        """Whether the step takes rows of 2048 tokens."""
        return (progress > 1 - self.args.long_part and self.step % 2 == 0) or self.step in (1, 3)


def make_optimiser(model, args: argparse.Namespace) -> torch.optim.Optimizer:
    """AdamW, with decay on the matrices alone."""
    decay = [p for name, p in model.named_parameters() if model.decayed(name)]
    other = [p for name, p in model.named_parameters() if not model.decayed(name)]
    groups = [dict(params=decay, weight_decay=args.decay), dict(params=other, weight_decay=0.0)]
    return torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95), eps=1e-9, fused=args.device == "cuda")


def fit(args: argparse.Namespace, model, cfg, name: str, softcap: float = 0.0) -> None:
    """Train `model` as the arguments say; writes NAME.safetensors (float32), NAME.json and NAME-log.jsonl."""
    from safetensors.torch import save_file

    torch.set_float32_matmul_precision("high")
    started, device = time.time(), args.device
    model = model.to(device)
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters", flush=True)
    raw_loss = torch.compile(next_token_loss, dynamic=False) if args.compile else next_token_loss
    if args.compile:
        torch._dynamo.config.cache_size_limit = 64
        model.compile()

    def loss_fn(*tensors):
        return raw_loss(*tensors, softcap)

    optimiser = make_optimiser(model, args)
    short = Rows(sorted(args.out.glob("train-*.npz")), args.batch, device)
    long = Rows(sorted(args.out.glob("long-*.npz")), max(1, args.batch // 4), device)
    valid = Rows([args.out / "valid.npz"], min(args.batch, args.valid_batch), device)
    log = (args.out / f"{name}-log.jsonl").open("w")
    schedule, seen, recent = Schedule(args), 0, torch.zeros((), device=device)
    while (progress := schedule.progress()) < 1:
        for group in optimiser.param_groups:
            group["lr"] = schedule.rate(progress)
        fp4 = schedule.fp4(progress)
        x, doc, target, weight = (long if schedule.long_rows(progress) else short).next()
        hidden, balance, share = model.hidden(x, doc, fp4=fp4)
        loss = loss_fn(hidden, model.head_weight, target, weight)
        (loss + args.balance * balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        schedule.step += 1
        seen += x.numel()
        recent = torch.lerp(recent, loss.detach(), 0.02) if schedule.step > 50 else loss.detach()
        if schedule.step == 5:
            if device == "cuda":
                torch.cuda.synchronize()
            schedule.start_clock()
            print(f"[{time.time() - started:.0f}s] first steps done", flush=True)
        if schedule.step % args.log_every == 0:
            entry = dict(step=schedule.step, tokens=seen, loss=round(recent.item(), 4), lr=optimiser.param_groups[0]["lr"],
                         seconds=round(time.time() - (schedule.clock or started), 1), fp4=fp4, epochs=short.epochs,
                         least_used_expert=round(share.min().item() * share.shape[-1], 3),
                         most_used_expert=round(share.max().item() * share.shape[-1], 2))  # fmt: skip
            if schedule.step % (4 * args.log_every) == 0:
                entry["valid"] = round(evaluate(model, valid, fp4, loss_fn), 4)
            log.write(json.dumps(entry) + "\n")
            log.flush()
            print(json.dumps(entry), flush=True)
    final = dict(steps=schedule.step, tokens=seen, seconds=round(time.time() - started, 1),
                 train_loss=round(recent.item(), 4),
                 valid_unquantised=round(evaluate(model, valid, False, loss_fn, None), 4))  # fmt: skip
    if args.fp4_part:
        final["valid_mxfp4"] = round(evaluate(model, valid, True, loss_fn, None), 4)
    print("final", json.dumps(final), flush=True)
    weights = {key: p.detach().float().cpu().contiguous() for key, p in model.named_parameters()}
    save_file(weights, str(args.out / f"{name}.safetensors"))
    (args.out / f"{name}.json").write_text(json.dumps(dict(config=asdict(cfg), final=final), indent=1))


def fit_student(args: argparse.Namespace) -> None:
    """Train the gpt-oss student."""
    torch.manual_seed(args.seed)
    cfg = Config(**json.loads(args.config))
    fit(args, Student(cfg), cfg, "student")


# ------------------------------------------------------------------ command line


def add_fit_arguments(p: argparse.ArgumentParser) -> None:
    """The options of training, for both architectures."""
    cuda = torch.cuda.is_available()
    p.add_argument("--out", type=Path, required=True, help="folder of `tokenizer` and `data`")
    p.add_argument("--config", default="{}", help="JSON with changed Config fields")
    p.add_argument("--minutes", type=float, default=5.6)
    p.add_argument("--steps", type=int, default=0, help="instead of --minutes")
    p.add_argument("--batch", type=int, default=64, help="rows of 512 tokens a step")
    p.add_argument("--valid-batch", type=int, default=64, help="rows of held-out text at a time")
    p.add_argument("--lr", type=float, default=2.5e-3, help="peak learning rate")
    p.add_argument("--warmup", type=int, default=200, help="steps")
    p.add_argument("--decay", type=float, default=0.1, help="weight decay of the matrices")
    p.add_argument("--balance", type=float, default=0.01, help="weight of the load-balancing loss")
    p.add_argument("--fp4-part", type=float, default=0.35, help="last part of the training with MXFP4 experts")
    p.add_argument("--long-part", type=float, default=0.15, help="last part that also sees rows of 2048 tokens")
    p.add_argument("--log-every", type=int, default=100, help="steps")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--compile", type=int, default=int(cuda))
    p.add_argument("--device", default="cuda" if cuda else "cpu")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, what in (("tokenizer", make_tokenizer), ("data", make_data)):
        p = commands.add_parser(name, help=what.__doc__)
        p.set_defaults(run=what)
        p.add_argument("--stories", type=Path, required=True, help="folder of generate_stories.py")
        p.add_argument("--out", type=Path, required=True)
        p.add_argument("--min-count", type=int, default=12, help="a word in fewer stories than this is rare")
        p.add_argument("--max-rare", type=int, default=1, help="most rare words in a story")
        if name == "tokenizer":
            p.add_argument("--vocab", type=int, default=Config.vocab_size)
            p.add_argument("--limit", type=int, default=0, help="stories used")
        else:
            p.add_argument("--workers", type=int, default=os.cpu_count())
            p.add_argument("--drop-unlikely", type=float, default=0.08, help="share dropped for low probability")
            p.add_argument("--epochs", type=int, default=8, help="renderings of the stories in rows of 512 tokens")
            p.add_argument("--long-epochs", type=int, default=2, help="renderings of conversations in rows of 2048")
    p = commands.add_parser("fit", help=fit_student.__doc__)
    p.set_defaults(run=fit_student)
    add_fit_arguments(p)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
