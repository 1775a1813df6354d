#!/usr/bin/env python3
"""Write a GGUF with random weights and a real architecture, so that two engines can be timed on the same file.

    make_synth_gguf.py --arch gpt-oss --layers 4 -o gptoss-4l.gguf                # 20b shape, 4 layers, small vocabulary
    make_synth_gguf.py --arch gpt-oss --full-size --tokenizer-json gptoss/tokenizer.json -o gptoss-20b.gguf
    make_synth_gguf.py --arch qwen3moe --layers 4 --quant q4_k -o q3moe-4l.gguf
    make_synth_gguf.py --arch gemma4 --tiny --quant f32 -o gemma4-tiny.gguf
    make_synth_gguf.py --upcycle smollm2.gguf --experts 4 --top-k 2 -o moe.gguf

The last one turns a real dense file of the llama architecture into a mixture whose experts are all equal: its text must
equal the dense model's, so routing and streaming of experts can be checked end to end.

Weights are not trained: the text is noise, and routing is near uniform unless --router-skew is given. Memory use is the
largest tensor, so full-size files work anywhere. Needs gguf and numpy.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import architectures
import gguf
import numpy as np
from gguf import GGMLQuantizationType as T
from gguf import GGUFReader, GGUFWriter
from random_blocks import RandomBlocks
from vocabulary import add_vocabulary, copy_field

TYPES = {kind.name.lower(): kind for kind in (T.F32, T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q4_1, T.Q5_0, T.Q4_K, T.Q5_K, T.Q6_K,
                                              T.MXFP4)}  # fmt: skip


@dataclass
class Tensor:
    """A tensor to be written: its bytes are made when its turn comes."""

    name: str
    shape: tuple[int, ...]  # ggml's order
    kind: T
    make: Callable[[], np.ndarray]


class Plan:
    """Collects the tensors of a file."""

    def __init__(self, seed: int, types: architectures.Types):
        self.blocks, self.types, self.tensors = RandomBlocks(seed), types, []
        self.rng = np.random.default_rng(seed)

    def random(self, name: str, shape: tuple, kind: T = T.F32, std: float | None = None) -> None:
        """A random tensor; the standard deviation is 1/sqrt(row) unless given. Rows that do not divide fall back."""
        kind = self._fitting(kind, shape[0])
        std = shape[0] ** -0.5 if std is None else std
        self.tensors.append(Tensor(name, shape, kind, lambda: self.blocks.tensor(kind, shape, std)))

    def fixed(self, name: str, shape: tuple, value: float | np.ndarray) -> None:
        """A float32 tensor of given values."""
        values = np.broadcast_to(np.asarray(value, np.float32).reshape(-1), (int(np.prod(shape)),))
        self.tensors.append(Tensor(name, shape, T.F32, lambda: np.ascontiguousarray(values).view(np.uint8)))

    @staticmethod
    def _fitting(kind: T, row: int) -> T:
        if row % gguf.GGML_QUANT_SIZES[kind][0] == 0:
            return kind
        return T.Q8_0 if row % 32 == 0 else T.F16


def write(writer: GGUFWriter, tensors: list[Tensor]) -> None:
    """Header, then tensor by tensor."""
    total = count = 0
    for t in tensors:
        elements, octets = gguf.GGML_QUANT_SIZES[t.kind]
        size = int(np.prod(t.shape, dtype=np.int64))
        total, count = total + size // elements * octets, count + size
        writer.add_tensor_info(t.name, tuple(reversed(t.shape)), np.dtype(np.float32), size // elements * octets, raw_dtype=t.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    started = time.time()
    for t in tensors:
        writer.write_tensor_data(t.make())
    writer.close()
    print(f"{len(tensors)} tensors, {count / 1e9:.3f} B parameters, {total / 1e9:.3f} GB, {time.time() - started:.1f} s")


def synthesise(args: argparse.Namespace) -> None:
    """A file of random weights."""
    arch = args.arch
    shape = architectures.shape(arch, "tiny" if args.tiny else args.preset)
    if args.layers or not (args.full_size or args.tiny):
        shape.layers = args.layers or 4
    shape.experts, shape.top_k = args.experts or shape.experts, args.top_k or shape.top_k
    experts = TYPES[args.quant or ("mxfp4" if arch == "gpt-oss" else "q4_k")]
    attention = TYPES[args.attn_quant or ("f32" if args.quant == "f32" else "q8_0")]
    types = architectures.Types(experts, attention, TYPES[args.embd_quant] if args.embd_quant else attention)
    if args.full_size and not (args.vocab_from or args.tokenizer_json or args.vocab_size):
        print("note: the vocabulary is the small one; --tokenizer-json or --vocab-from give the real size", file=sys.stderr)

    writer, plan = GGUFWriter(args.out, arch), Plan(args.seed, types)
    writer.add_name(f"synthetic {arch} {shape.layers} layers (random weights)")
    writer.add_type("model")
    shape.vocab = add_vocabulary(writer, args, arch, shape.vocab)
    architectures.add(writer, plan, arch, shape, args.router_skew)
    writer.add_quantization_version(2)
    write(writer, plan.tensors)


def upcycle(args: argparse.Namespace) -> None:
    """A dense llama file as a mixture of equal experts."""
    reader = GGUFReader(args.upcycle)
    arch = reader.fields["general.architecture"].contents()
    if arch != "llama":
        raise SystemExit(f"{args.upcycle}: architecture {arch}; only llama files can be upcycled")
    experts, top_k = args.experts or 4, args.top_k or 2
    writer, rng = GGUFWriter(args.out, arch), np.random.default_rng(args.seed)
    for key, value in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            copy_field(writer, key, value)
    writer.add_expert_count(experts)
    writer.add_expert_used_count(top_k)
    hidden = int(reader.fields["llama.embedding_length"].contents())
    tensors = []
    for t in reader.tensors:
        base, _, suffix = t.name.rpartition(".")
        shape, data = tuple(int(n) for n in t.shape), np.asarray(t.data).reshape(-1).view(np.uint8)
        if not base.endswith(("ffn_gate", "ffn_up", "ffn_down")):
            tensors.append(Tensor(t.name, shape, t.tensor_type, lambda data=data: data))
            continue
        copies = lambda data=data: np.tile(data, experts)  # noqa: E731
        tensors.append(Tensor(f"{base}_exps.{suffix}", (*shape, experts), t.tensor_type, copies))
        if base.endswith("ffn_gate"):
            router = rng.standard_normal(hidden * experts).astype(np.float32).view(np.uint8)
            name = base.replace("ffn_gate", "ffn_gate_inp") + ".weight"
            tensors.append(Tensor(name, (hidden, experts), T.F32, lambda router=router: router))
    write(writer, tensors)


def main() -> None:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-o", "--out", required=True)
    p.add_argument("--arch", choices=architectures.PRESETS, default="gpt-oss")
    presets = "; ".join(f"{arch}: {', '.join(names)}" for arch, names in architectures.PRESETS.items())
    p.add_argument("--preset", help=presets)
    p.add_argument("--layers", type=int, help="default 4 unless --full-size")
    p.add_argument("--full-size", action="store_true", help="the preset's own number of layers")
    p.add_argument("--tiny", action="store_true", help="the tiny preset")
    p.add_argument("--experts", type=int)
    p.add_argument("--top-k", type=int)
    p.add_argument("--quant", choices=TYPES, help="experts, or the MLP of a dense model; mxfp4 for gpt-oss, else q4_k")
    p.add_argument("--attn-quant", choices=TYPES, help="attention, and a mixture's dense MLP; default q8_0")
    p.add_argument("--embd-quant", choices=TYPES, help="embedding and head; default as attention")
    p.add_argument("--vocab-size", type=int, help="of the default vocabulary: 256 bytes and special tokens")
    p.add_argument("--vocab-from", metavar="GGUF", help="copy this file's tokenizer")
    p.add_argument("--tokenizer-json", help="a Hugging Face BPE tokenizer.json")
    p.add_argument("--router-skew", type=float, default=0.0,
                   help="standard deviation of a fixed preference of each expert (gpt-oss: bias; others: larger router rows)")  # fmt: skip
    p.add_argument("--upcycle", metavar="GGUF", help="a dense llama file to turn into a mixture of equal experts")
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    if args.upcycle:
        upcycle(args)
    else:
        synthesise(args)


if __name__ == "__main__":
    main()
