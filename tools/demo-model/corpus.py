"""From stories to rows of tokens: which stories are kept, the tokenizer, harmony chats, packing."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import story_seeds
import story_words as words

SPECIALS = ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>",
            "<|message|>", "<|call|>"]  # fmt: skip

# The split pattern of o200k (gpt-4o, gpt-oss).
O200K_SPLIT = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])  # fmt: skip

# ------------------------------------------------------------------ stories


def story_digest(record: dict) -> bytes:
    """A digest of a story's text."""
    return hashlib.md5(record["s"].encode()).digest()


def read_stories(folder: Path, limit: int = 0) -> list[dict]:
    """All records of the JSON-line shards in `folder`, exact duplicates dropped; shards up to `limit` stories."""
    out, seen = [], set()
    for path in sorted(folder.glob("*.jsonl")):
        for line in path.open():
            record = json.loads(line)
            digest = story_digest(record)
            if digest not in seen:
                seen.add(digest)
                out.append(record)
        if limit and len(out) >= limit:
            break
    return out


def simple_stories(stories: list[dict], min_count: int, max_rare: int) -> list[dict]:
    """Drop the stories that use too many words which hardly occur elsewhere."""
    vocabularies = [set(re.findall(r"[a-z]+", record["s"].lower())) for record in stories]
    count = Counter(word for vocabulary in vocabularies for word in vocabulary)
    return [record for record, vocabulary in zip(stories, vocabularies)
            if sum(count[word] < min_count for word in vocabulary) <= max_rare]  # fmt: skip


def likely_stories(stories: list[dict], share: float) -> list[dict]:
    """Drop the given share of the stories: those that the teacher found least likely (mostly incoherent ones)."""
    if not share or "lp" not in stories[0]:
        return stories
    bar = float(np.quantile([record["lp"] for record in stories], share))
    return [record for record in stories if record["lp"] >= bar]


def is_heldout(record: dict) -> bool:
    """One story in 512, by its text."""
    digest = story_digest(record)
    return digest[0] == 0 and digest[1] < 128


# ------------------------------------------------------------------ tokenizer


def train_tokenizer(texts: Iterable[str], vocab_size: int):
    """Byte-level BPE with the special tokens at the end."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tok = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(O200K_SPLIT), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size - len(SPECIALS), min_frequency=2, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # fmt: skip
    tok.train_from_iterator(texts, trainer)
    tok.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    if tok.get_vocab_size() != vocab_size:
        raise SystemExit(f"the stories give {tok.get_vocab_size()} tokens, {vocab_size} were asked for: use a smaller --vocab")
    return tok


def request_texts(count: int, seed: int = 7) -> Iterator[str]:
    """Requests and small talk, so that the tokenizer knows their words."""
    rng = random.Random(seed)
    for _ in range(count):
        drawn = story_seeds.make_seed(rng)
        yield story_seeds.user_request(rng, drawn.fields, drawn.teacher)
    for questions, answers in words.SMALL_TALK:
        yield from questions + answers


# ------------------------------------------------------------------ rendering

CHATGPT_SYSTEM = """{who}
Knowledge cutoff: 2024-06
Current date: {date}

Reasoning: {effort}

# Valid channels: analysis, commentary, final. Channel must be included for every message."""


class Renderer:
    """Turns stories into token sequences with a loss mask."""

    def __init__(self, tokenizer, rng: random.Random):
        self.tok, self.rng, self.cache = tokenizer, rng, {}
        self.special = {name[2:-2]: tokenizer.token_to_id(name) for name in SPECIALS}
        self.assistant, self.final = self.text("assistant"), self.text("final")

    def text(self, text: str) -> list[int]:
        """Tokens of plain text."""
        ids = self.cache.get(text)
        if ids is None:
            ids = self.tok.encode(text, add_special_tokens=False).ids
            if len(self.cache) < 200_000:
                self.cache[text] = ids
        return ids

    def turn(self, role: str, text: str) -> list[int]:
        """A turn that is not the assistant's."""
        t = self.special
        return [t["start"], *self.text(role), t["message"], *self.text(text), t["end"]]

    def system(self) -> list[int]:
        """No system message, a plain one, or the one that gpt-oss clients send."""
        draw, rng = self.rng.random(), self.rng
        if draw < 0.72:
            return []
        if draw < 0.86:
            return self.turn("system", rng.choice(words.SYSTEMS))
        date = f"20{rng.randint(24, 29)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"
        who = rng.choice(["You are ChatGPT, a large language model trained by OpenAI.", "You are a helpful assistant."])
        effort = rng.choice(["low", "medium", "medium", "high"])
        out = self.turn("system", CHATGPT_SYSTEM.format(who=who, date=date, effort=effort))
        if rng.random() < 0.3:
            out += self.turn("developer", "# Instructions\n\n" + rng.choice(words.SYSTEMS))
        return out

    def answer(self, ids: list[int], last: bool = True, learn: bool = True) -> tuple[list[int], list[int]]:
        """The assistant's turn: tokens and, for each token, whether it is learned."""
        t = self.special
        head = [t["start"], *self.assistant]
        body = [t["channel"], *self.final, t["message"], *ids, t["return"] if last else t["end"]]
        # <|end|> closes only answers that the user has already replied to: a new answer is to end in <|return|>.
        return head + body, [0] * len(head) + [int(learn)] * (len(body) - 1) + [int(learn and last)]

    def chat(self, turns: list[tuple], learn: list[bool] | None = None) -> tuple[list[int], list[int]]:
        """A conversation of (request, answer's tokens)."""
        ids = self.system()
        mask = [0] * len(ids)
        for i, (request, answer) in enumerate(turns):
            asked = self.turn("user", request)
            told, told_mask = self.answer(answer, i == len(turns) - 1, learn is None or learn[i])
            ids += asked + told
            mask += [0] * len(asked) + told_mask
        return ids, mask

    def question(self, record: dict, fields: dict) -> tuple[str, list[int]]:
        """A question about the story and its answer, both certain from the story's ingredients."""
        rng, name, kind = self.rng, record["n"], record["k"]
        a_kind = story_seeds.article(kind)
        named = rng.choice([f"What was the {kind} called?", f"What was the name of the {kind}?",
                            f"What is the {kind}'s name?", f"Who was the {kind}?", f"what was the {kind} called"])  # fmt: skip
        who = f"What kind of animal is {name}?" if kind in words.ANIMALS else f"Who is {name}?"
        options = [(named, f"The {kind} was called {name}."),
                   (rng.choice([f"Who is {name}?", f"Who was {name}?", who]), f"{name} is {a_kind}."),
                   (rng.choice(["Who is the story about?", "Who was in the story?", "What was the story about?"]),
                    f"The story is about {a_kind} named {name}.")]  # fmt: skip
        if record.get("p"):
            where = rng.choice(["Where did the story happen?", f"Where was {name}?", "Where were they?"])
            place = record["p"]
            options.append((where, f"The story happened {place}." if rng.random() < 0.5 else f"{name} was {place}."))
        if rng.random() < 0.25:
            options = [(rng.choice([f"Is {name} {a_kind}?", f"Was {name} {a_kind}?"]), f"Yes, {name} is {a_kind}."),
                       (f"Is {name} a boy or a girl?", f"{name} is a {'girl' if fields['she'] else 'boy'}.")]  # fmt: skip
        asked, told = rng.choice(options)
        return asked, self.text(told)


def render(stories: list[dict], token_ids: list, tokenizer, seed: int, long_rows: bool) -> Iterator[tuple]:
    """Yield the (ids, mask) documents of one epoch."""
    rng = random.Random(seed)
    r = Renderer(tokenizer, rng)
    order = list(range(len(stories)))
    rng.shuffle(order)
    order = iter(order)

    def story(index: int) -> tuple[dict, list[int], dict]:
        record = stories[index]
        return record, token_ids[index].tolist(), story_seeds.make_seed(random.Random(record["i"])).fields

    for index in order:
        record, ids, fields = story(index)
        draw = rng.random()
        if draw < 0.12:
            yield ids + [r.special["endoftext"]], [1] * (len(ids) + 1)
            continue
        first = (story_seeds.user_request(rng, fields, record["s"]), ids)
        if long_rows and draw < 0.62:
            yield r.chat([first, *more_stories(rng, order, story, rng.randint(500, 1900) - len(ids))])
            continue
        yield short_chat(r, record, fields, first, draw)
        if rng.random() < 0.03:
            yield r.chat([small_talk(r, words.SMALL_TALK) for _ in range(rng.choice((1, 1, 1, 2)))])


def small_talk(r: Renderer, topics: list) -> tuple[str, list[int]]:
    """A greeting, thanks or a question beside the point, and its answer."""
    questions, answers = r.rng.choice(topics)
    return r.rng.choice(questions), r.text(r.rng.choice(answers))


def more_stories(rng: random.Random, order: Iterator[int], story, room: int) -> list[tuple]:
    """Further turns of a conversation, a story each, while there is room."""
    turns = []
    while room > 300:
        index = next(order, None)
        if index is None:
            break
        record, ids, fields = story(index)
        again = rng.random() < 0.25
        turns.append((rng.choice(words.AGAIN) if again else story_seeds.user_request(rng, fields, record["s"]), ids))
        room -= len(ids) + 30
    return turns


def short_chat(r: Renderer, record: dict, fields: dict, first: tuple, draw: float) -> tuple[list[int], list[int]]:
    """One story; with it, by `draw`, questions, a continuation or thanks."""
    rng, (request, ids) = r.rng, first
    if draw < 0.22 and "n" in record:
        turns = [first, r.question(record, fields)]
        if rng.random() < 0.3:
            turns.append(r.question(record, fields))
        return r.chat(turns)
    if draw < 0.27:
        # The story in two parts; the end of the first part is not learned.
        ends = (".", "!", '."', '!"')
        cuts = [i for i, t in enumerate(ids) if 0.3 < i / len(ids) < 0.7 and r.tok.id_to_token(t) in ends]
        if cuts:
            cut = rng.choice(cuts) + 1
            rest = r.text(r.tok.decode(ids[cut:]).lstrip())
            return r.chat([(request, ids[:cut]), (rng.choice(words.CONTINUE), rest)], learn=[False, True])
    elif draw < 0.29:
        return r.chat([first, small_talk(r, words.SMALL_TALK[3:5])])
    return r.chat([first])


def pack(documents: Iterable[tuple], length: int, rng: random.Random) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Best-fit packing into rows: tokens, document number within the row (0 is padding), loss mask."""
    rows, open_rows = [], []
    for ids, mask in documents:
        if len(ids) > length:
            continue
        fitting = [row for row in open_rows if row[0] >= len(ids)]
        best = min(fitting, key=lambda row: row[0], default=None)
        if best is None:
            best = [length, []]
            rows.append(best)
            open_rows.append(best)
        best[1].append((ids, mask))
        best[0] -= len(ids)
        open_rows = [row for row in open_rows if row[0] > 24][-64:]
    rng.shuffle(rows)
    tokens = np.zeros((len(rows), length), np.uint16)
    doc = np.zeros((len(rows), length), np.uint8)
    learn = np.zeros((len(rows), length), bool)
    for i, (_, parts) in enumerate(rows):
        at = 0
        for number, (ids, mask) in enumerate(parts, 1):
            here = slice(at, at + len(ids))
            tokens[i, here], doc[i, here], learn[i, here] = ids, min(number, 255), mask
            at += len(ids)
    return tokens, doc, learn
