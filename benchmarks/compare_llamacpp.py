#!/usr/bin/env python3
"""Time turbospark and llama.cpp on the same GGUF files, in turns, and print a Markdown table.

    python3 compare_llamacpp.py --turbospark target/release/turbospark --llama-bench llama.cpp/build/bin/llama-bench \\
        --prompt 512 --generate 128 --depth 0,4096 model.gguf [model.gguf ..]

Both programs are given by path: nothing is built or fetched. For each file they run one after the other, A B A B, at
least five times, because machines drift within minutes: what is told is the median over the pairs of the ratio of the two
speeds, with the smallest and the largest, and the medians of the speeds. A program's figure in a pair is the median of
its runs of that test (--repeat, after a warm-up of its own). The table's last columns are turbospark's shares of what the
same process measured that the machine gives: memory reads for tg, integer multiply-adds for pp, each over the linear
products alone and, in brackets, over the whole time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

LEAST_PAIRS = 5


def run(command: list[str]) -> str:
    """Standard output of a command; a failure shows the end of what the program said."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def test_name(prompt: int, generate: int, depth: int) -> str:
    """The name llama-bench's own table has."""
    return (f"pp{prompt}" if prompt else f"tg{generate}") + (f" @ d{depth}" if depth else "")


def llama_cpp(args: argparse.Namespace, model: str) -> dict[str, dict]:
    """llama-bench's samples by test, in tokens a second."""
    command = [args.llama_bench, "-m", model, "-p", args.prompt, "-n", args.generate, "-d", args.depth]
    command += ["-t", str(args.threads), "-r", str(args.repeat), "-o", "jsonl", *args.llama_option]
    lines = [json.loads(line) for line in run(command).splitlines() if line.startswith("{")]
    return {test_name(t["n_prompt"], t["n_gen"], t["n_depth"]): dict(speed=statistics.median(t["samples_ts"])) for t in lines}


def turbospark(args: argparse.Namespace, model: str) -> dict[str, dict]:
    """The same from turbospark bench, with its shares of the ceilings."""
    command = [args.turbospark, "bench", model, "--prompt", args.prompt, "--generate", args.generate, "--depth", args.depth]
    command += ["--threads", str(args.threads), "--repeat", str(args.repeat), "--json", *args.turbospark_option]
    report = json.loads(run(command))
    share = lambda rate: (rate or {}).get("share_of_ceiling")  # noqa: E731
    return {
        t["test"]: dict(speed=statistics.median(t["samples"]), whole=share(t["whole"]), linears=share(t["linears"]),
                        ceilings=report["ceilings"])
        for t in report["results"]
    }  # fmt: skip


def measure(args: argparse.Namespace, model: str) -> dict[str, list[tuple[dict, dict]]]:
    """Pairs of (turbospark, llama.cpp) by test."""
    pairs: dict[str, list[tuple[dict, dict]]] = {}
    for index in range(args.pairs):
        ours, theirs = turbospark(args, model), llama_cpp(args, model)
        if ours.keys() != theirs.keys():
            raise SystemExit(f"{model}: turbospark ran {list(ours)}, llama-bench {list(theirs)}")
        for test in ours:
            pairs.setdefault(test, []).append((ours[test], theirs[test]))
        told = ", ".join(f"{test} {ours[test]['speed']:.1f} : {theirs[test]['speed']:.1f}" for test in ours)
        print(f"{Path(model).name} pair {index + 1} of {args.pairs}: {told}", file=sys.stderr, flush=True)
    return pairs


def median(values: list[float | None]) -> float | None:
    """The median; none if one is missing."""
    return None if not values or None in values else statistics.median(values)


def row(model: str, test: str, pairs: list[tuple[dict, dict]]) -> dict:
    """What the pairs of a test come to."""
    ratios = [ours["speed"] / theirs["speed"] for ours, theirs in pairs]
    column = lambda name: median([ours[name] for ours, _ in pairs])  # noqa: E731
    ceiling = lambda name: median([ours["ceilings"].get(name) for ours, _ in pairs])  # noqa: E731
    return dict(
        model=Path(model).name,
        test=test,
        turbospark=column("speed"),
        llama_cpp=statistics.median(theirs["speed"] for _, theirs in pairs),
        ratio=statistics.median(ratios),
        ratio_range=[min(ratios), max(ratios)],
        linears=column("linears"),
        whole=column("whole"),
        read_gigabytes_per_second=ceiling("read_gigabytes_per_second"),
        giga_multiply_adds_per_second=ceiling("giga_multiply_adds_per_second"),
        pairs=[(ours["speed"], theirs["speed"]) for ours, theirs in pairs],
    )


def processor() -> str:
    """The processor's name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    fields = {name.strip(): value.strip() for name, value in fields.items()}
    family = f" (family {fields['cpu family']}, model {fields['model']})" if "cpu family" in fields else ""
    return fields.get("model name", platform.machine()) + family


def table(args: argparse.Namespace, rows: list[dict]) -> str:
    """Markdown."""
    load = f", load {os.getloadavg()[0]:.1f} at the end" if hasattr(os, "getloadavg") else ""
    percent = lambda share: "-" if share is None else f"{100 * share:.0f} %"  # noqa: E731
    lines = [
        f"{processor()}, {os.cpu_count()} processors, {args.threads} threads, {args.pairs} pairs of {args.repeat} runs{load}",
        "",
        "| file | test | turbospark | llama.cpp | ratio (range) | of the ceiling: linear (whole) | ceiling |",
        "|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        reads, name = r["read_gigabytes_per_second"], "giga_multiply_adds_per_second"
        ceiling = "-" if reads is None else f"{reads:.1f} GB/s" if r["test"].startswith("tg") else f"{r[name]:.0f} G/s"
        low, high = r["ratio_range"]
        lines.append(f"| {r['model']} | {r['test']} | {r['turbospark']:.1f} | {r['llama_cpp']:.1f} "
                     f"| {r['ratio']:.2f} ({low:.2f}-{high:.2f}) | {percent(r['linears'])} ({percent(r['whole'])}) "
                     f"| {ceiling} |")  # fmt: skip
    return "\n".join(lines)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="GGUF files")
    parser.add_argument("--turbospark", required=True, metavar="PATH")
    parser.add_argument("--llama-bench", required=True, metavar="PATH")
    parser.add_argument("--prompt", default="512", help="lengths of prompts, with commas; 0 for none")
    parser.add_argument("--generate", default="128", help="numbers of tokens to generate, with commas; 0 for none")
    parser.add_argument("--depth", default="0", help="positions before them, with commas")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="for both; the machine's processors by default")
    parser.add_argument("--pairs", type=int, default=LEAST_PAIRS, help=f"at least {LEAST_PAIRS}")
    parser.add_argument("--repeat", type=int, default=2, help="runs of each test within a pair")
    parser.add_argument("--turbospark-option", action="append", default=[], help="a further argument; may be repeated")
    parser.add_argument("--llama-option", action="append", default=[], help="a further argument; may be repeated")
    parser.add_argument("--json", metavar="FILE", help="also write the rows, with every pair")
    args = parser.parse_args()
    if args.pairs < LEAST_PAIRS:
        parser.error(f"--pairs {args.pairs}: a median of fewer than {LEAST_PAIRS} says little")
    rows = []
    for model in args.models:
        rows += [row(model, test, pairs) for test, pairs in measure(args, model).items()]
    if args.json:
        Path(args.json).write_text(json.dumps(rows, indent=1) + "\n")
    print(table(args, rows))


if __name__ == "__main__":
    main()
