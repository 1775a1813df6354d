#!/usr/bin/env python3
"""Sample short children's stories from an instruction-tuned Qwen2-architecture teacher.

    python generate_stories.py --teacher qwen2.5-coder-1.5b-instruct-q4_k_m.gguf --out stories/ --seconds 450

One GPU, one process, a few thousand sequences in flight (teacher.py); without a GPU the same engine runs on plain torch
operations, slowly, for tests. A second process decodes, filters and writes the finished stories as JSON lines
{"i": seed number, "r": request, "s": story, "lp": mean log-probability of its tokens, "n": name, "k": kind, "p": place};
n, k and p are there only if the story contains them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import random
import time
from collections import Counter
from pathlib import Path

import numpy as np
import prompts
import story_seeds
import torch
from teacher import Engine, Settings, TeacherFile, kept_tokens, make_tokenizer

PROMPT_CAP = 160  # tokens after the common prefix

# ------------------------------------------------------------------ prompts


class PromptList:
    """All prompts of a run in the cut vocabulary, those that are too long left out, and which come next."""

    def __init__(self, encoded: list[list[int]], kept: np.ndarray, vocab: int):
        self.small = np.full(vocab, -1)
        self.small[kept] = np.arange(len(kept))
        self.ids = np.zeros((len(encoded), PROMPT_CAP), np.int32)
        self.lengths = np.zeros(len(encoded), np.int32)
        for i, ids in enumerate(encoded):
            if len(ids) <= PROMPT_CAP and (self.small[ids] >= 0).all():
                self.ids[i, : len(ids)], self.lengths[i] = self.small[ids], len(ids)
        self.order, self.at = np.nonzero(self.lengths)[0], 0

    def take(self, count: int) -> np.ndarray:
        """The numbers of the next prompts; fewer when they run out."""
        taken = self.order[self.at : self.at + count]
        self.at += len(taken)
        return taken


SHARED = {}  # what forked workers inherit


def encode_part(job: tuple) -> list[list[int]]:
    """Worker: prompts [low, high) as the teacher's tokens."""
    base, low, high = job
    texts = [prompts.prompt_rest(prompts.seed_of(base, i)) for i in range(low, high)]
    return [e.ids for e in SHARED["tokenizer"].encode_batch(texts)]


def encode_prompts(tokenizer, base: int, count: int, workers: int, part: int = 2000) -> list[list[int]]:
    """All prompts of a run as the teacher's tokens."""
    SHARED["tokenizer"] = tokenizer
    jobs = [(base, low, min(low + part, count)) for low in range(0, count, part)]
    with mp.Pool(workers) as pool:
        return [ids for batch in pool.map(encode_part, jobs, chunksize=1) for ids in batch]


# ------------------------------------------------------------------ writing


class ShardWriter:
    """Filters finished stories and writes them as shards of JSON lines."""

    def __init__(self, folder: Path, base: int, shard_size: int):
        self.folder, self.base, self.shard_size = folder, base, shard_size
        self.shard, self.lines, self.seen, self.counts = 0, [], set(), Counter()

    def add(self, index: int, text: str, ended: bool, score: float) -> None:
        """One story; dropped stories are counted by why."""
        seed = prompts.seed_of(self.base, index)
        fields = seed.fields
        story = prompts.clean(seed.opener + text) if ended else None
        if story is None:
            self.counts["cut" if not ended else "filtered"] += 1
            return
        low = story.lower()
        named, has_kind = fields["n"].lower() in low, story_seeds.has(fields["k"], low)
        if story[:160] in self.seen or not (named or has_kind):
            self.counts["known or off the subject"] += 1
            return
        self.seen.add(story[:160])
        self.counts["kept"] += 1
        request = story_seeds.user_request(random.Random(index), fields, story)
        record = dict(i=prompts.seed_number(self.base, index), r=request, s=story, lp=round(score, 3))
        if named and has_kind:
            record |= dict(n=fields["n"], k=fields["k"])
            if fields["p"] and story_seeds.has(fields["p"], low):
                record["p"] = fields["p"]
        self.lines.append(json.dumps(record) + "\n")
        if len(self.lines) >= self.shard_size:
            self.flush()

    def flush(self) -> None:
        """Write what is there as a shard."""
        if self.lines:
            temporary = self.folder / f"stories-{self.shard:04d}.tmp"
            temporary.write_text("".join(self.lines))
            temporary.rename(temporary.with_suffix(".jsonl"))
            self.shard, self.lines = self.shard + 1, []
        print(f"  writer: {self.counts.total()} stories, {dict(self.counts)}", flush=True)


def write_stories(inbox: mp.Queue, writer: ShardWriter, tokenizer, kept: np.ndarray) -> None:
    """Process: everything from the inbox until None."""
    while (batch := inbox.get()) is not None:
        texts = tokenizer.decode_batch([kept[ids].tolist() for _, ids, _, _ in batch])
        for (index, _, ended, score), text in zip(batch, texts):
            writer.add(index, text, ended, score)
    writer.flush()


# ------------------------------------------------------------------ sampling


class Sampler:
    """Keeps the engine's slots full and hands finished stories on."""

    def __init__(self, engine: Engine, todo: PromptList):
        self.engine, self.todo = engine, todo
        self.made = self.story_tokens = self.steps = 0
        self.current = np.full(engine.settings.slots, -1)  # the prompt in each slot
        engine.finished.fill_(True)
        self.refill(np.arange(engine.settings.slots))

    def refill(self, slots: np.ndarray) -> None:
        """Start the next prompts in free slots; with none left they stay empty."""
        fresh = self.todo.take(len(slots))
        if len(fresh):
            self.engine.fill(slots[: len(fresh)], self.todo.ids[fresh], self.todo.lengths[fresh])
        self.current[slots] = -1
        self.current[slots[: len(fresh)]] = fresh

    def advance(self, steps: int) -> list[tuple]:
        """Some steps; the stories finished by then as (prompt, tokens, ended by itself, mean log-probability)."""
        engine = self.engine
        engine.run(steps)
        self.steps += steps
        slots = np.nonzero(engine.finished.cpu().numpy() & (self.current >= 0))[0]
        if not len(slots):
            return []
        where = torch.from_numpy(slots).to(engine.finished.device)
        rows, ends, scores = (t[where].cpu().numpy() for t in (engine.out, engine.position, engine.score))
        batch = []
        for slot, row, end, score in zip(slots, rows, ends, scores):
            prompt = int(self.current[slot])
            start = self.todo.lengths[prompt]
            ended = bool(row[end] == engine.eos)
            batch.append((prompt, row[start : end if ended else end + 1], ended, float(score / max(1, end - start))))
            self.story_tokens += int(end - start)
        self.made += len(batch)
        self.refill(slots)
        return batch

    def idle(self) -> bool:
        """Whether nothing is left to do."""
        return bool((self.current < 0).all())


def sample(args: argparse.Namespace, engine: Engine, todo: PromptList, inbox: mp.Queue, started: float) -> Sampler:
    """Sample until the time is over or the prompts are used up."""
    sampler = Sampler(engine, todo)
    begun = reported = time.time()
    while time.time() - started < args.seconds and not sampler.idle():
        batch = sampler.advance(8)
        if batch:
            inbox.put(batch)
        if time.time() - reported > 15:
            reported = time.time()
            spent = reported - begun
            print(f"[{reported - started:.0f}s] {sampler.made} stories, {sampler.story_tokens / 1e6:.1f}M story tokens, "
                  f"{sampler.story_tokens / spent:.0f} tokens/s, step {1000 * spent / sampler.steps:.1f} ms", flush=True)  # fmt: skip
    return sampler


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--teacher", required=True, help="GGUF file of a Qwen2-architecture instruct model")
    parser.add_argument("--out", type=Path, required=True, help="folder for the JSON-line shards")
    parser.add_argument("--slots", type=int, default=4096, help="sequences in flight")
    parser.add_argument("--seconds", type=float, default=450, help="stop after this long")
    parser.add_argument("--stories", type=int, default=400_000, help="number of prompts prepared")
    parser.add_argument("--temperature", type=float, default=0.75)
    parser.add_argument(
        "--min-p", type=float, default=0.08, help="drop tokens less likely than this share of the likeliest"
    )
    parser.add_argument("--cap", type=int, default=400, help="most tokens of one prompt and story")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--shard", type=int, default=4096, help="stories in a file")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # the pool is the parallelism
    args.out.mkdir(parents=True, exist_ok=True)
    started = time.time()

    file = TeacherFile(args.teacher)
    tokenizer, tokens = make_tokenizer(file), file.meta("tokenizer.ggml.tokens")
    kept = kept_tokens(tokens, tokenizer)
    # The processes are started before CUDA is touched (fork).
    inbox, writer = mp.Queue(1000), ShardWriter(args.out, args.seed, args.shard)
    scribe = mp.Process(target=write_stories, args=(inbox, writer, tokenizer, kept))
    scribe.start()
    todo = PromptList(encode_prompts(tokenizer, args.seed, args.stories, args.workers), kept, len(tokens))
    print(
        f"[{time.time() - started:.0f}s] {len(todo.order)} of {args.stories} prompts, {len(kept)} tokens kept",
        flush=True,
    )

    settings = Settings(args.slots, args.cap, PROMPT_CAP, args.device, args.temperature, args.min_p)
    with torch.inference_mode():
        engine = Engine(file, kept, settings)
        engine.set_prefix(todo.small[tokenizer.encode(prompts.prompt_prefix()).ids])
        engine.counter.fill_(args.seed << 20)
        engine.capture()
        print(f"[{time.time() - started:.0f}s] teacher ready", flush=True)
        sampler = sample(args, engine, todo, inbox, started)
    inbox.put(None)
    scribe.join()
    print(f"{sampler.made} stories, {sampler.story_tokens} story tokens sampled, {time.time() - started:.0f} s")


if __name__ == "__main__":
    main()
