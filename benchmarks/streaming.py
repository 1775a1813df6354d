#!/usr/bin/env python3
"""Time models larger than memory in control groups of limited memory, beside llama.cpp on the same file if its path is given.

    sudo python3 streaming.py --turbospark target/release/turbospark --limit 4GiB,8GiB --prompt 512 --generate 32 \\
        [--llama-bench llama.cpp/build/bin/llama-bench] gptoss-20b.gguf

Each run has a control group of its own (version 1 or 2), which the script makes and removes, and starts with a cold page
cache: both need root. turbospark finds its budget itself (--memory auto, the limit less a reserve) unless --options says
otherwise. llama.cpp maps the file and does not repack, since it could not load otherwise; it runs once, with
--llama-prompt and --llama-generate tokens, because it may take seconds for each. "Least" is the time of all that is not
experts and then of experts or of reading what is missed at the disk's rate, whichever is longer; the disk's rate is the best
of a sweep over readers and threads on that very file, read again beside every sample. Peak is the group's own counter.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import time
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def size(text: str) -> int:
    """Bytes of a size such as 4GiB."""
    return int(float(text[:-3]) * UNITS[text[-3:]])


class Group:
    """A control group with a limit of memory."""

    def __init__(self, limit: int):
        self.version = 2 if (ROOT / "cgroup.controllers").exists() else 1
        root = ROOT if self.version == 2 else ROOT / "memory"
        self.path = root / f"turbospark-{os.getpid()}-{time.monotonic_ns()}"
        self.path.mkdir()
        (self.path / ("memory.max" if self.version == 2 else "memory.limit_in_bytes")).write_text(str(limit))

    def run(self, command: list[str]) -> str:
        """Standard output of a command that runs in the group, from a cold page cache."""
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        enter = lambda: (self.path / "cgroup.procs").write_text(str(os.getpid()))  # noqa: E731
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=enter)
        if done.returncode:
            raise SystemExit(f"{shlex.join(command)}\nended with status {done.returncode}:\n{done.stderr[-2000:]}")
        return done.stdout

    def peak(self) -> int:
        """The most memory that was in use at a time, page cache included."""
        return int((self.path / ("memory.peak" if self.version == 2 else "memory.max_usage_in_bytes")).read_text())

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_) -> None:
        # The last process may take a moment to leave.
        for _ in range(100):
            try:
                return self.path.rmdir()
            except OSError:
                time.sleep(0.1)
        self.path.rmdir()


def turbospark(args: argparse.Namespace, model: str, limit: int) -> tuple[dict, int]:
    """The report of turbospark bench, and the group's peak."""
    command = [args.turbospark, "bench", model, "--prompt", args.prompt, "--generate", args.generate, "--json"]
    command += ["--repeat", str(args.repeat), *shlex.split(args.options)]
    with Group(limit) as group:
        return json.loads(group.run(command)), group.peak()


def llama_cpp(args: argparse.Namespace, model: str, limit: int) -> dict[str, float]:
    """Tokens a second of llama-bench, for prompts and for generation."""
    command = [args.llama_bench, "-m", model, "-p", str(args.llama_prompt), "-n", str(args.llama_generate), "-r", "1"]
    command += ["-t", str(os.cpu_count()), "--repack", "0", "-o", "jsonl", "--no-warmup"]
    with Group(limit) as group:
        lines = [json.loads(line) for line in group.run(command).splitlines() if line.startswith("{")]
    return {"pp" if line["n_prompt"] else "tg": line["avg_ts"] for line in lines}


def row(args: argparse.Namespace, model: str, limit: str) -> None:
    """Lines of the table for one file and limit."""
    report, peak = turbospark(args, model, size(limit))
    peer = llama_cpp(args, model, size(limit)) if args.llama_bench else {}
    for test in report["results"]:
        cells = [Path(model).name, limit, test["test"], f"{test['tokens_per_second']:.2f} ± {test['stddev']:.2f}"]
        if streamed := test["streamed"]:
            over, disk = streamed["time_to_bound"], streamed["disk_gigabytes_per_second"]
            cells += [f"{100 * streamed['hit_rate']:.0f} %", f"{streamed['bytes_read_per_token'] / 2**20:.0f}"]
            cells += [f"{disk:.2f}" if disk else "", f"{over:.2f}" if over else ""]
        else:
            cells += ["resident", "0", "", ""]
        cells.append(f"{peak / 2**20:.0f}")
        speed = peer.get(test["test"][:2])
        cells += [f"{speed:.2f}", f"{test['tokens_per_second'] / speed:.1f}"] if speed else ["", ""]
        print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("models", nargs="+", metavar="MODEL.gguf")
    p.add_argument("--turbospark", required=True)
    p.add_argument("--limit", default="4GiB,8GiB", help="limits of the group's memory")
    p.add_argument("--prompt", default="512")
    p.add_argument("--generate", default="32")
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--options", default="", help="further options of turbospark bench, as on a command line")
    p.add_argument("--llama-bench", metavar="PATH")
    p.add_argument("--llama-prompt", type=int, default=64)
    p.add_argument("--llama-generate", type=int, default=16)
    args = p.parse_args()
    print("| file | limit | test | turbospark t/s | hits | MiB read a token | disk GB/s | time / least | peak MiB "
          "| llama.cpp t/s | ratio |")  # fmt: skip
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for model in args.models:
        for limit in args.limit.split(","):
            row(args, model, limit)


if __name__ == "__main__":
    main()
