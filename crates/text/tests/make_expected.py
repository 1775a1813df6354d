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


def template_sweep(folder):
    from transformers.utils import chat_template_utils as utils

    class Clock(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(*NOW.timetuple()[:6])

    utils.datetime = Clock
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
                                                          add_generation_prompt=True, bos_token="<BOS>", eos_token="<EOS>")
                result = {"text": rendered[0]}
            except Exception as e:
                result = {"error": f"{type(e).__name__}: {e}"}
            out.setdefault(name, {"source": source})[case] = result
    data = {"now": int(NOW.replace(tzinfo=datetime.timezone.utc).timestamp()), "templates": out,
            "conversations": {k: {"messages": m, "tools": t or []} for k, (m, t) in CONVERSATIONS.items()}}
    (folder / "templates" / "templates.json").write_text(json.dumps(data))
    for case in CONVERSATIONS:
        print(case, sum("text" in t[case] for t in out.values()), "of", len(out), "render in transformers")


if __name__ == "__main__":
    sweep = pathlib.Path(sys.argv[1])
    tokenizer_sweep(sweep)
    template_sweep(sweep)
