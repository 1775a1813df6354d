"""A decode engine for a Qwen2-architecture teacher with a few thousand sequences in flight.

It only decodes: prompts are fed through the same step as generated tokens, so a slot whose story ended simply starts
over with the next prompt (continuous batching without a separate prefill). On a GPU the step is captured once as a CUDA
graph. The prompts' common beginning is computed once: all slots share its keys and values. The vocabulary is cut to
plain English tokens, since no story needs the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import gguf
import numpy as np
import prompts
import torch
import torch.nn.functional as F
from teacher_ops import TorchOps

PREFIX_CAP = 1536
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PLAIN_ENGLISH = re.compile(
    r"Ġ?[A-Z]?[a-z]+|Ġ?[A-Z]|Ġ?[.,!?;:'\"-]{1,4}|[.,!?'\"]{1,3}Ċ{1,2}|Ċ{1,2}|Ġ|[0-9]|Ġ?'[a-z]{1,2}"
)


class TeacherFile:
    """The teacher's GGUF: metadata and dequantised tensors."""

    def __init__(self, path: str):
        reader = gguf.GGUFReader(path)
        self.fields = reader.fields
        self.tensors = {t.name: t for t in reader.tensors}
        if self.meta("general.architecture") != "qwen2":
            raise SystemExit(
                f"{path}: the teacher must have the qwen2 architecture, not {self.meta('general.architecture')}"
            )

    def meta(self, key: str):
        """A metadata value."""
        return self.fields[key].contents()

    def tensor(self, name: str, device: str, rows: np.ndarray | None = None) -> torch.Tensor:
        """A tensor, or some of its rows, in bf16."""
        stored = self.tensors[name]
        data = stored.data if rows is None else stored.data[rows]
        values = gguf.quants.dequantize(data, stored.tensor_type)
        return torch.from_numpy(np.array(values, np.float32)).to(device, torch.bfloat16)


def make_tokenizer(file: TeacherFile):
    """The teacher's tokenizer from its GGUF."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    tokens = file.meta("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in file.meta("tokenizer.ggml.merges")]
    tok = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    split = pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tok.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    tok.decoder = decoders.ByteLevel()
    special = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
    tok.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tok


def kept_tokens(tokens: list[str], tokenizer, samples: int = 20000) -> np.ndarray:
    """Sorted ids of the tokens that plain English stories and our prompts are made of."""
    keep = {i for i, t in enumerate(tokens) if i < 45000 and len(t) < 18 and PLAIN_ENGLISH.fullmatch(t)}
    keep.update(tokenizer.encode(prompts.prompt_prefix()).ids)
    for i in range(samples):
        keep.update(tokenizer.encode(prompts.prompt_rest(prompts.seed_of(0, i))).ids)
    return np.array(sorted(keep))


@dataclass
class Settings:
    """How many sequences at a time, how long, and how they are sampled."""

    slots: int
    cap: int  # most tokens of one prompt and story
    prompt_cap: int
    device: str
    temperature: float
    min_p: float


class Engine:
    """Decodes for a fixed number of slots. Token numbers are those of the cut vocabulary."""

    def __init__(self, file: TeacherFile, kept: np.ndarray, settings: Settings):
        self.settings, device = settings, settings.device
        self.ops = TorchOps
        if device.startswith("cuda"):
            from teacher_triton import TritonOps

            self.ops = TritonOps
        self.layers, self.dim = file.meta("qwen2.block_count"), file.meta("qwen2.embedding_length")
        self.heads, self.kv_heads = file.meta("qwen2.attention.head_count"), file.meta("qwen2.attention.head_count_kv")
        self.eps, self.head_dim = file.meta("qwen2.attention.layer_norm_rms_epsilon"), self.dim // self.heads
        self.eos = int(np.searchsorted(kept, file.meta("tokenizer.ggml.eos_token_id")))
        self._load_weights(file, kept)
        self._make_state()
        theta = file.meta("qwen2.rope.freq_base")
        inverse = 1 / theta ** (torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
        angle = torch.arange(settings.cap + PREFIX_CAP, dtype=torch.float64)[:, None] * inverse
        angle = angle.float().to(device)
        self.cos, self.sin = angle.cos().contiguous(), angle.sin().contiguous()
        self.prefix, self.graph = 0, None

    def _load_weights(self, file: TeacherFile, kept: np.ndarray) -> None:
        device = self.settings.device
        # With tied embeddings the head is the same matrix, often stored more precisely.
        head = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
        self.embedding = self.head = file.tensor(head, device, rows=kept)
        self.final_norm = file.tensor("output_norm.weight", device)
        self.blocks = []
        for i in range(self.layers):

            def joined(*names, prefix=f"blk.{i}."):
                return torch.cat([file.tensor(prefix + name, device) for name in names])

            self.blocks.append(dict(
                norm1=joined("attn_norm.weight"), norm2=joined("ffn_norm.weight"),
                wqkv=joined("attn_q.weight", "attn_k.weight", "attn_v.weight"),
                bqkv=joined("attn_q.bias", "attn_k.bias", "attn_v.bias"), wo=joined("attn_output.weight"),
                wgu=joined("ffn_gate.weight", "ffn_up.weight"), wd=joined("ffn_down.weight")))  # fmt: skip

    def _make_state(self) -> None:
        s = self.settings

        def zeros(*shape, dtype=torch.int32):
            return torch.zeros(*shape, dtype=dtype, device=s.device)

        def cache(*shape):
            return [zeros(*shape, self.head_dim, dtype=torch.bfloat16) for _ in range(self.layers)]

        self.token, self.position, self.prompt_length = zeros(s.slots), zeros(s.slots), zeros(s.slots)
        self.finished = zeros(s.slots, dtype=torch.bool)
        self.score = zeros(s.slots, dtype=torch.float32)  # sum of the sampled tokens' log-probabilities
        self.prompt, self.out = zeros(s.slots, s.prompt_cap), zeros(s.slots, s.cap)
        self.counter = zeros(1, dtype=torch.int64)
        self.keys, self.values = (cache(s.slots, self.kv_heads, s.cap) for _ in range(2))
        self.prefix_keys, self.prefix_values = (cache(self.kv_heads, PREFIX_CAP) for _ in range(2))

    def logits(self) -> torch.Tensor:
        """Logits after every slot's current token, whose keys and values are stored on the way."""
        ops, x, delta = self.ops, self.embedding[self.token.long()], None
        for i, w in enumerate(self.blocks):
            h = ops.add_norm(x, delta, w["norm1"], self.eps)
            qkv = torch.addmm(w["bqkv"], h, w["wqkv"].t())
            own = (self.keys[i], self.values[i])
            q = ops.rope_store(qkv, self.position, self.prefix, self.cos, self.sin, *own, self.heads, self.kv_heads)
            shared = (self.prefix_keys[i], self.prefix_values[i], self.prefix)
            delta = ops.attention(q, *shared, *own, self.position) @ w["wo"].t()
            h = ops.add_norm(x, delta, w["norm2"], self.eps)
            delta = ops.silu_mul(h @ w["wgu"].t()) @ w["wd"].t()
        return ops.add_norm(x, delta, self.final_norm, self.eps) @ self.head.t()

    def step(self) -> None:
        """One token for every slot: the prompt's next one, or a sampled one. Finished slots stand still."""
        s = self.settings
        sampled, log_probability = self.ops.sample(self.logits(), s.temperature, s.min_p, self.counter)
        self.counter.add_(1)
        following = (self.position + 1).clamp_(max=s.cap - 1)
        in_prompt = following < self.prompt_length
        given = self.prompt.gather(1, following.clamp(max=s.prompt_cap - 1).long()[:, None])[:, 0]
        token = torch.where(in_prompt, given, sampled)
        token = torch.where(self.finished, self.token, token)
        following = torch.where(self.finished, self.position, following)
        self.score.add_(torch.where(in_prompt | self.finished, 0.0, log_probability))
        self.out.scatter_(1, following.long()[:, None], token[:, None])
        self.finished.logical_or_(~in_prompt & ((token == self.eos) | (following == s.cap - 1)))
        self.token.copy_(token)
        self.position.copy_(following)

    def set_prefix(self, ids: np.ndarray) -> None:
        """Compute the shared keys and values of the prompts' common beginning, in plain torch."""
        n, width, kv = len(ids), self.head_dim, self.kv_heads
        x, norm = self.embedding[torch.as_tensor(ids, device=self.settings.device)], TorchOps.add_norm
        cos, sin = self.cos[:n, None], self.sin[:n, None]

        def heads_first(t):
            return t.reshape(n, -1, width).transpose(0, 1)

        def rotate(t):
            first, second = t.float().reshape(n, -1, width).chunk(2, -1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)

        for i, w in enumerate(self.blocks):
            qkv = torch.addmm(w["bqkv"], norm(x, None, w["norm1"], self.eps), w["wqkv"].t())
            q, k, v = qkv.split([self.heads * width, kv * width, kv * width], 1)
            q, k, v = heads_first(rotate(q)), heads_first(rotate(k)), heads_first(v)
            self.prefix_keys[i][:, :n], self.prefix_values[i][:, :n] = k, v
            k, v = (t.repeat_interleave(self.heads // kv, 0) for t in (k, v))
            a = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)
            x = x + a[0].transpose(0, 1).reshape(n, -1) @ w["wo"].t()
            x = x + TorchOps.silu_mul(norm(x, None, w["norm2"], self.eps) @ w["wgu"].t()) @ w["wd"].t()
        self.prefix = n

    def capture(self) -> None:
        """Record the step as a CUDA graph."""
        if not self.settings.device.startswith("cuda"):
            return
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step()
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.step()

    def run(self, steps: int) -> None:
        """Several steps."""
        advance = self.graph.replay if self.graph else self.step
        for _ in range(steps):
            advance()

    def fill(self, slots: np.ndarray, new_prompts: np.ndarray, lengths: np.ndarray) -> None:
        """Start new prompts [n, prompt_cap] in the given slots."""
        where = torch.as_tensor(slots, device=self.settings.device)
        ids = torch.from_numpy(new_prompts).to(self.settings.device)
        self.prompt[where] = ids
        self.prompt_length[where] = torch.from_numpy(lengths).to(self.settings.device)
        self.token[where] = ids[:, 0]
        self.position[where] = 0
        self.finished[where] = False
        self.score[where] = 0.0
