#!/usr/bin/env python3
"""Compare turbospark's perplexity with llama.cpp's on the same file, text and window.

    python3 perplexity.py --turbospark target/release/turbospark --llama-perplexity llama.cpp/build/bin/llama-perplexity \\
        --text heldout.txt --context 512 model.gguf [model.gguf ..]

Both programs are given by path: nothing is built or fetched. llama.cpp rounds activations to 8 bits, so a difference of
some tenths of a percent is expected; the exit status is 1 if one is above --limit. A row is written as JSON with --json.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path

FINAL = re.compile(r"Final estimate: PPL = ([0-9.]+) \+/- ([0-9.]+)")


def run(command: list[str]) -> tuple[subprocess.CompletedProcess, float]:
    """Run to the end; a failure shows the end of what the program said."""
    started = time.monotonic()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done, time.monotonic() - started


def llama_cpp(args: argparse.Namespace, model: str) -> dict:
    """llama-perplexity: the second half of each window counts."""
    command = [args.llama_perplexity, "-m", model, "-f", args.text, "-c", str(args.context)]
    if args.chunks:
        command += ["--chunks", str(args.chunks)]
    done, seconds = run(command)
    found = FINAL.search(done.stdout + done.stderr)
    if not found:
        raise SystemExit(f"{args.llama_perplexity} printed no final estimate for {model}:\n{done.stderr[-2000:]}")
    return dict(perplexity=float(found[1]), error=float(found[2]), seconds=seconds)


def turbospark(args: argparse.Namespace, model: str) -> dict:
    """turbospark eval perplexity with the same windows."""
    command = [args.turbospark, "eval", "perplexity", model, "--text", args.text, "--context", str(args.context), "--json"]
    done, seconds = run(command + args.option)
    return json.loads(done.stdout) | dict(seconds=seconds)


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="GGUF files")
    parser.add_argument("--turbospark", required=True, metavar="PATH")
    parser.add_argument("--llama-perplexity", required=True, metavar="PATH")
    parser.add_argument("--text", required=True, help="file to score")
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--chunks", type=int, help="only llama.cpp's first windows; cut the text to match")
    parser.add_argument("--option", action="append", default=[], help="a further option for turbospark; may be repeated")
    parser.add_argument("--limit", type=float, default=0.01, help="largest relative difference that passes")
    parser.add_argument("--json", action="store_true", help="print one JSON line for each model")
    args = parser.parse_args()
    worst = 0.0
    for model in args.models:
        theirs, ours = llama_cpp(args, model), turbospark(args, model)
        difference = ours["perplexity"] / theirs["perplexity"] - 1
        worst = max(worst, abs(difference))
        if args.json:
            print(json.dumps(dict(model=model, llama_cpp=theirs, turbospark=ours, relative_difference=difference)), flush=True)
        else:
            print(f"{Path(model).name:40s} llama.cpp {theirs['perplexity']:.4f} +/- {theirs['error']:.4f} ({theirs['seconds']:.0f} s)  "
                  f"turbospark {ours['perplexity']:.4f} ({ours['seconds']:.0f} s)  {100 * difference:+.2f} %", flush=True)  # fmt: skip
    return int(worst > args.limit)


if __name__ == "__main__":
    sys.exit(main())
