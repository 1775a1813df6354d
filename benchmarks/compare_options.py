#!/usr/bin/env python3
"""What an option of turbospark costs: time the same model with and without it, in turns.

    python3 compare_options.py --turbospark target/release/turbospark model.gguf --generate 128 --pairs 20 \\
        --before="--expert-residency resident" --after="--expert-residency stream"
    python3 compare_options.py --turbospark target/release/turbospark model.gguf --after="--steer v.gguf:add:0.1"
    python3 compare_options.py --turbospark target/release/turbospark model.gguf --after=--capture

Each pair is one `turbospark bench` with the options of --before and one with those of --after, the first of them in turns,
because machines drift. A pair's ratio is the speed after over the speed before; told are the geometric mean of the ratios
and its 95 % interval, from Student's t on their logarithms. With --share it is the ratio of the shares of what the machine gave
to the same process (memory reads for tg, multiply-adds for pp): virtual machines give one process half as much again as the next.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import statistics
import subprocess

# Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond, that of the normal distribution is near enough.
STUDENT = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
           2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045]  # fmt: skip


def speeds(args: argparse.Namespace, options: str) -> dict[str, float]:
    """Tokens a second, or the share of the ceiling, by test: the median of the runs."""
    command = [args.turbospark, "bench", args.model, "--prompt", args.prompt, "--generate", args.generate, "--json"]
    command += ["--repeat", str(args.repeat), *shlex.split(options)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}\nended with status {done.returncode}:\n{done.stderr[-2000:]}")
    speed = lambda test: test["whole"]["share_of_ceiling"] if args.share else statistics.median(test["samples"])  # noqa: E731
    return {test["test"]: speed(test) for test in json.loads(done.stdout)["results"]}


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean and the ends of its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    degrees = len(logs) - 1
    t = STUDENT[degrees - 1] if degrees <= len(STUDENT) else 1.96
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def main() -> None:
    """Command line."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("--turbospark", required=True)
    p.add_argument("--before", default="", help="options of the one side, as on a command line")
    p.add_argument("--after", default="", help="options of the other")
    p.add_argument("--prompt", default="0")
    p.add_argument("--generate", default="128")
    p.add_argument("--repeat", type=int, default=3, help="runs of a test in each half of a pair")
    p.add_argument("--pairs", type=int, default=20)
    p.add_argument("--share", action="store_true", help="compare shares of the ceiling, not tokens a second")
    args = p.parse_args()
    if args.pairs < 3:
        p.error("an interval needs at least three pairs")
    ratios: dict[str, list[float]] = {}
    for pair in range(args.pairs):
        sides = [args.before, args.after]
        if pair % 2:
            after, before = (speeds(args, side) for side in reversed(sides))
        else:
            before, after = (speeds(args, side) for side in sides)
        for test, speed in after.items():
            ratios.setdefault(test, []).append(speed / before[test])
    print("| test | pairs | after / before | 95 % interval |\n| --- | ---: | ---: | ---: |")
    for test, found in ratios.items():
        mean, low, high = interval(found)
        print(f"| {test} | {len(found)} | {mean:.4f} | {low:.4f} to {high:.4f} |")


if __name__ == "__main__":
    main()
