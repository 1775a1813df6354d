"""Vocabularies of synthetic files: 256 bytes, another file's, or a tokenizer.json's."""

from __future__ import annotations

import argparse
import json

from gguf import GGUFReader, GGUFValueType, GGUFWriter
from gguf.gguf_reader import ReaderField

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
PRE_TOKENIZERS = {"gpt-oss": "gpt-4o", "qwen3moe": "qwen2", "llama": "llama-bpe", "gemma4": "default"}
ENDS = ("<|return|>", "<|im_end|>", "<|eot_id|>", "<turn|>", "<end_of_turn>", "<eos>")
STARTS = ("<|startoftext|>", "<|endoftext|>", "<|begin_of_text|>", "<bos>")


def copy_field(writer: GGUFWriter, key: str, value: ReaderField) -> None:
    """One metadata entry of another file."""
    if value.types[0] == GGUFValueType.ARRAY:
        writer.add_array(key, value.contents())
    else:
        writer.add_key_value(key, value.contents(), value.types[0])


def byte_letters() -> dict[int, str]:
    """GPT-2's spelling of bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {b: chr(b) for b in plain}
    for b in range(256):
        if b not in letters:
            letters[b] = chr(256 + b - sum(p < b for p in plain))
    return letters


def byte_vocabulary(count: int) -> tuple[list[str], list[int], list[str]]:
    """256 bytes, one merge, special tokens up to `count`."""
    letters = byte_letters()
    tokens = [letters[b] for b in range(256)] + ["th"] + [f"<|sp{i}|>" for i in range(1, count - 256)]
    kinds = [NORMAL] * 257 + [CONTROL] * (count - 257)
    return tokens, kinds, [f"{letters[ord('t')]} {letters[ord('h')]}"]


def json_vocabulary(path: str, count: int) -> tuple[list[str], list[int], list[str]]:
    """A tokenizer.json's tokens, padded to `count`."""
    with open(path) as f:
        data = json.load(f)
    tokens = {i: token for token, i in data["model"]["vocab"].items()}
    kinds = dict.fromkeys(tokens, NORMAL)
    for token in data["added_tokens"]:
        tokens[token["id"]] = token["content"]
        kinds[token["id"]] = CONTROL if token.get("special") else USER_DEFINED
    order = range(max(count, max(tokens) + 1))
    merges = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    return [tokens.get(i, f"[PAD{i}]") for i in order], [kinds.get(i, UNUSED) for i in order], merges


def add_vocabulary(writer: GGUFWriter, args: argparse.Namespace, arch: str, preset: int) -> int:
    """Write the tokenizer that the options ask for. Returns the number of tokens."""
    if args.vocab_from:
        fields = GGUFReader(args.vocab_from).fields
        for key, value in fields.items():
            if key.startswith("tokenizer."):
                copy_field(writer, key, value)
        return len(fields["tokenizer.ggml.tokens"].data)
    if args.tokenizer_json:
        tokens, kinds, merges = json_vocabulary(args.tokenizer_json, preset)
        index = {token: i for i, token in reversed(list(enumerate(tokens)))}
        end, start = (next((index[name] for name in names if name in index), 0) for names in (ENDS, STARTS))
    else:
        tokens, kinds, merges = byte_vocabulary(args.vocab_size or min(preset, 512))
        end, start = len(tokens) - 1, len(tokens) - 2
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZERS[arch])
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(start)
    writer.add_eos_token_id(end)
    writer.add_add_bos_token(False)
    return len(tokens)
