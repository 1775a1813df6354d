"""Makes what the text tests compare with, from real tokenizers and templates.

    python make_expected.py FOLDER

FOLDER holds vocabularies/ (GGUF files with .inp and .out), templates/ (*.jinja) and tokenizers/NAME/ (tokenizer.json,
tokenizer_config.json). Writes into FOLDER: text.txt, tokenizers/NAME/ids.json, templates/templates.json; and the small extracts
beside this script in data/. Needs tokenizers, transformers (for templates only) and gguf.
"""

import datetime
import json
import pathlib
import random
import sys

HERE = pathlib.Path(__file__).parent
NOW = datetime.datetime(2026, 11, 30, 12, 5, 9)

WORDS = """the of and a story about small foxes I'll don't WE'RE they've it's O'Neil café naïve Straße ŒUVRE ﬁnal ǅungla
один два нещо България γλώσσα ΕΛΛΗΝΙΚΑ שלום עולם مرحبا بالعالم हिन्दी में लिखा है தமிழ் ภาษาไทย 中文字符 日本語のテキスト カタカナ 한국어 문장
tiếng Việt e\u0301te\u0301 a\u0300\u0301\u0302 n\u0303 🦙 👩‍👩‍👧‍👦 🇩🇪 ❤️ 👍🏽 ½ Ⅷ ٣٤٥ 1 22 333 4444 1234567890 3.14159 1e-5 0xFF v1.2.3
foo_bar fooBar FooBARBaz HTTPServer snake_case_name a.b.c user@example.com https://example.com/a?b=c&d=%20 C++ C# x=y; i++
{"key": [1, 2, null]} <b>bold</b> fn main() { println!("{}", x); } for(int i=0;i<n;++i){sum+=a[i];} \\frac{a}{b} $x^2$ # // /* */ -- ``` ''' \"\"\"
\u200b \u00a0 \u3000 \ufeff \u2028 \u00ad \u0000 \u0007 \u007f \ufffd ﷽ ̈ ་ ꙮ 𝔘𝔫𝔦 𓀀 … — “quoted” ‘single’ « » ¿qué? ¡olé! № ™ © § ± × ÷ ∑ ≠ →""".split(" ")
SPACES = [" "] * 30 + ["  ", "   ", "    ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", " \n", "\n ", "\r\n", "\r\n\r\n", " \t \n  ", "        ", "\n    ", ""]


def make_text(size, seed=1):
    rng = random.Random(seed)
    out = []
    length = 0
    while length < size:
        kind = rng.random()
        if kind < 0.93:
            piece = rng.choice(WORDS).replace("\n", " ") + rng.choice(SPACES)
        elif kind < 0.95:
            piece = " " * rng.randrange(1, 80) + "\n" * rng.randrange(0, 12)
        elif kind < 0.97:
            piece = "".join(chr(rng.randrange(0x20, 0x250)) for _ in range(rng.randrange(1, 12)))
        elif kind < 0.98:
            piece = "".join(c for c in (chr(rng.randrange(0x20, 0x1FFFF)) for _ in range(6)) if not 0xD800 <= ord(c) < 0xE000)
        else:
            piece = "".join(rng.choice("abcdefghijklmnopqrstuvwxyzABCDEFG'") for _ in range(rng.randrange(1, 60)))
        out.append(piece)
        length += len(piece.encode())
    return "".join(out)


def tokenizer_sweep(folder):
    from tokenizers import Tokenizer

    text = make_text(220_000)
    (folder / "text.txt").write_bytes(text.encode())
    for path in sorted((folder / "tokenizers").iterdir()):
        tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        special = make_special(tokenizer)
        data = {
            "ids": ids,
            "decoded": tokenizer.decode(ids),
            "special_text": special,
            "special_ids": tokenizer.encode(special, add_special_tokens=True).ids,
        }
        (path / "ids.json").write_text(json.dumps(data))
        print(path.name, len(ids), "ids")


def make_special(tokenizer):
    added = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    rng = random.Random(2)
    return "".join(rng.choice(["hello", " world", "\n", rng.choice(added)]) for _ in range(400))


# Messages for the templates: plain, with a system message, with a tool call and its result.
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather of a city",
          "parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "The city's name"},
                         "days": {"type": "integer"}}, "required": ["city"]}}}]
CONVERSATIONS = {
    "plain": ([{"role": "user", "content": "What is 2 < 3 & \"é\"?"}], None),
    "turns": ([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "Bye "}], None),
    "system": ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], None),
    "tools": ([{"role": "user", "content": "Weather in Rome?"},
               {"role": "assistant", "content": "", "tool_calls": [{"id": "call12345", "type": "function", "function":
                   {"name": "get_weather", "arguments": {"city": "Rome", "days": 2}}}]},
               {"role": "tool", "content": "{\"sky\": \"clear\"}", "tool_call_id": "call12345", "name": "get_weather"}], TOOLS),
}
# The system conversation once more, for templates that know thinking.
THINKING = {"thinking on": True, "thinking off": False}
CONVERSATIONS |= dict.fromkeys(THINKING, CONVERSATIONS["system"])


def template_args(case):
    return {"enable_thinking": THINKING[case]} if case in THINKING else {}


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(*NOW.timetuple()[:6])


def frozen_templates():
    """transformers' renderer with the clock stopped at NOW."""
    from transformers.utils import chat_template_utils as utils

    datetime.datetime = Clock
    utils.datetime = Clock if isinstance(getattr(utils, "datetime", Clock), type) else datetime
    return utils


def template_sweep(folder):
    utils = frozen_templates()
    sources = {p.stem: p.read_text() for p in sorted((folder / "templates").glob("*.jinja"))}
    for path in sorted((folder / "tokenizers").iterdir()):
        config = json.loads((path / "tokenizer_config.json").read_text())
        if isinstance(config.get("chat_template"), str):
            sources["tokenizers/" + path.name] = config["chat_template"]
    out = {}
    for name, source in sources.items():
        for case, (messages, tools) in CONVERSATIONS.items():
            try:
                rendered, _ = utils.render_jinja_template([messages], tools=tools, chat_template=source,
                                                          add_generation_prompt=True, bos_token="<BOS>", eos_token="<EOS>", **template_args(case))
                result = {"text": rendered[0]}
            except Exception as e:
                result = {"error": f"{type(e).__name__}: {e}"}
            out.setdefault(name, {"source": source})[case] = result
    data = {"now": int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()), "templates": out,
            "conversations": {k: {"messages": m, "tools": t or [], "args": template_args(k)} for k, (m, t) in CONVERSATIONS.items()}}
    (folder / "templates" / "templates.json").write_text(json.dumps(data))
    for case in CONVERSATIONS:
        print(case, sum("text" in t[case] for t in out.values()), "of", len(out), "render in transformers")


# Small templates of our own, one for each thing that engines do differently.
SMALL_TEMPLATES = [
    "{% for m in messages %}\n    {% if m.role == 'user' %}\n  [{{ m.content }}]\n    {% endif %}\n{% endfor %}\nend\n",
    "{%- for m in messages -%}\n  {{- m.role + ': ' + m['content'] | trim }}\n{% endfor -%}\n  tail",
    "{{ tools | tojson }}|{{ tools | tojson(indent=2) }}|{{ {'a': 1.0, 'b': [true, none, 1e20, 'é\\n\\\"<>&\\'']} | tojson }}",
    "{{ {'a': 1.5, 'b': [true, false, none], 'c': \"it's\"} }} {{ [1, 'x'] }} {{ true }} {{ none }} {{ 3 / 2 }} {{ 7 // 2 }} {{ 1.0 }}",
    "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d %H:%M:%S %A %B') }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}\n{% endfor %}{%- generation -%} x {%- endgeneration -%} y",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{{ loop.last }}{% endfor %}",
    "{% set ns = namespace(n=0, found=false) %}{% for m in messages[::-1] %}{% set ns.n = ns.n + 1 %}{% if not ns.found and m.role == 'user' %}{% set ns.found = true %}{{ loop.index0 }}{% endif %}{% endfor %}{{ ns.n }}",
    "{{ ' a b '.strip() }}|{{ 'a-b-c'.split('-')[-1] }}|{{ 'abc'.startswith('ab') }}|{{ 'x'.upper() }}|{{ 'a.b'.replace('.', '!') }}|{{ 'aXbX'.rstrip('X') }}|{{ 'a\\nb'.splitlines() }}|{{ 'abc'[1:] }}|{{ 'l' in 'hello' }}",
    "{% for k, v in {'b': 1, 'a': [2]}.items() %}{{ k }}={{ v }};{% endfor %}{{ {'a': 1}.get('z', 'none') }}{% for k in {'y': 1, 'x': 2} | dictsort %}{{ k }}{% endfor %}",
    "{% macro show(x, y='d') %}<{{ x }}{{ y }}>{% endmacro %}{{ show(1) }}{{ show('a', y=none) }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | map(attribute='role') | join(',') }}",
    "{{ undefined_thing }}{{ undefined_thing is defined }}{{ messages[0].nothing is defined }}{{ none is iterable }}{{ '' or 'b' }}{{ tools is none }}{{ bos_token }}{{ 'x' if false }}{{ documents is none }}",
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}{# a comment #}{% raw %}{{ raw }}{% endraw %}{{ '\\u00e9\\t' }}{{ 5 | string + 'x' }}{{ '%s' | format('y') }}{{ [3, 1, 2] | sort | first }}{{ 'a' ~ 1 ~ none }}",
    "{% if messages[0].role != 'system' %}{{ raise_exception('a system message, please') }}{% endif %}",
]


def small_templates():
    utils = frozen_templates()
    messages, tools = CONVERSATIONS["tools"]
    cases = []
    for source in SMALL_TEMPLATES:
        try:
            rendered, _ = utils.render_jinja_template([messages[:1] + CONVERSATIONS["turns"][0]], tools=tools, chat_template=source,
                                                      add_generation_prompt=True, bos_token="<BOS>", eos_token="<EOS>")
            cases.append({"source": source, "text": rendered[0]})
        except Exception as e:
            cases.append({"source": source, "error": str(e)})
    return {"now": int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()), "tools": tools,
            "messages": messages[:1] + CONVERSATIONS["turns"][0], "cases": cases}


def splits(folder, text):
    """Words of the real pre-tokenizers, by the name that GGUF files give them."""
    from tokenizers import Tokenizer

    out = {"text": text, "words": {}}
    for name, pre in [("gptoss", "gpt-4o"), ("qwen3", "qwen2"), ("llama3_1", "llama-bpe")]:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / name / "tokenizer.json"))
        pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
        out["words"][pre] = [text[a:b] for _, (a, b) in pieces]
    return out


def kept_bpe(vocab, merges, text, base):
    """The tokens and merges that can take part in encoding a text: those that occur in it."""
    tokens = [t for t in vocab if t in base or t in text]
    have = set(tokens)
    return tokens, [m for m in merges if m[0] in have and m[1] in have and m[0] + m[1] in have]


def byte_level_extract(folder, name, pre, texts):
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import ByteLevel

    path = folder / "tokenizers" / name / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    model = json.loads(path.read_text())["model"]
    merges = [m.split(" ") if isinstance(m, str) else m for m in model["merges"]]
    encode = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str
    normal = tokenizer.normalizer.normalize_str if tokenizer.normalizer else str
    spelt = "\x00".join(encode(normal(t))[0][0] for t in texts if t)
    order = sorted(model["vocab"], key=model["vocab"].get)
    tokens, merges = kept_bpe(order, merges, spelt, set(ByteLevel.alphabet()))
    new = {model["vocab"][t]: i for i, t in enumerate(tokens)}
    cases = [[t, [new[i] for i in tokenizer.encode(t, add_special_tokens=False).ids]] for t in texts]
    return {"name": name, "model": "gpt2", "pre": pre, "tokens": tokens, "merges": [" ".join(m) for m in merges], "cases": cases}


def gguf_vocabulary(folder, name):
    from gguf import GGUFReader

    fields = GGUFReader(folder / "vocabularies" / f"ggml-vocab-{name}.gguf").fields
    get = lambda key: fields[f"tokenizer.ggml.{key}"].contents() if f"tokenizer.ggml.{key}" in fields else None
    return get("tokens"), get("token_type"), get("scores"), get("merges")


def as_bytes(pieces, ids):
    out = []
    for piece in pieces:
        out += [ids[piece]] if piece in ids else [ids[f"<0x{b:02X}>"] for b in piece.encode()]
    return out


def score_extract(folder, name, texts):
    """Score-based SentencePiece by the plainest algorithm: join the best pair until none is left."""
    tokens, types, scores, _ = gguf_vocabulary(folder, name)
    prefixed = ["\u2581" + t.replace(" ", "\u2581") for t in texts]
    everything = "\x00".join(prefixed)
    keep = [i for i, t in enumerate(tokens) if types[i] == 6 or (types[i] == 1 and t in everything) or i < 3]
    ids = {tokens[i]: n for n, i in enumerate(keep)}
    score = {tokens[i]: scores[i] for i in keep}
    cases = []
    for text, prefixed in zip(texts, prefixed):
        parts = list(prefixed) if text else []
        while True:
            pairs = [(score[a + b], -i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in score]
            if not pairs:
                break
            at = -max(pairs)[1]
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        cases.append([text, as_bytes(parts, ids)])
    return {"name": name, "model": "llama", "pre": "default", "tokens": [tokens[i] for i in keep],
            "types": [types[i] for i in keep], "scores": [scores[i] for i in keep], "cases": cases}


def gemma_extract(folder, name, texts):
    """BPE over whole lines by the plainest algorithm: join the pair of lowest rank until none is left."""
    tokens, types, _, merges = gguf_vocabulary(folder, name)
    spaced = [t.replace(" ", "\u2581") for t in texts]
    everything = "\x00".join(spaced)
    keep = [i for i, t in enumerate(tokens) if types[i] == 6 or (types[i] == 1 and t in everything) or i < 4]
    ids = {tokens[i]: n for n, i in enumerate(keep)}
    cuts = [(m, m.index(" ", 1)) for m in merges]
    pairs = [(m[:at], m[at + 1:]) for m, at in cuts]
    pairs = [(a, b) for a, b in pairs if a in ids and b in ids and a + b in ids]
    rank = {pair: n for n, pair in reversed(list(enumerate(pairs)))}
    cases = []
    for text, spaced in zip(texts, spaced):
        parts = list(spaced)
        while True:
            found = [(rank[p], i) for i, p in enumerate(zip(parts, parts[1:])) if p in rank]
            if not found:
                break
            at = min(found)[1]
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        cases.append([text, as_bytes(parts, ids)])
    return {"name": name, "model": "gemma4", "pre": "gemma4", "tokens": [tokens[i] for i in keep],
            "types": [types[i] for i in keep], "merges": [" ".join(p) for p in pairs], "cases": cases}


def extracts(folder):
    data = HERE / "data"
    data.mkdir(exist_ok=True)
    texts = ["", " ", "Hello world", "  two  spaces\n\n\n\ttab  ", "I'll don't WE'RE 1234567 3.14", "naïve e\u0301 中文字符 🦙👩‍👩‍👧 ﷽",
             "fn main() { println!(\"{}\", x + 1); }\r\n\r\n"] + [make_text(160, seed) for seed in range(3, 6)]
    out = [byte_level_extract(folder, "gptoss", "gpt-4o", texts), byte_level_extract(folder, "qwen3", "qwen2", texts),
           score_extract(folder, "phi-3", texts), gemma_extract(folder, "gemma-4", texts)]
    write = lambda name, value: (data / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n")
    write("vocabularies.json", out)
    write("splits.json", splits(folder, make_text(3000, 10)))
    write("templates.json", small_templates())
    for path in sorted(data.iterdir()):
        print(path.name, path.stat().st_size, "bytes")


if __name__ == "__main__":
    sweep = pathlib.Path(sys.argv[1])
    tokenizer_sweep(sweep)
    template_sweep(sweep)
    extracts(sweep)
