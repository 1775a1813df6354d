#!/usr/bin/env python3
"""Check that no crate of the workspace imports upward (ARCHITECTURE.md, floors).

    python3 tools/check_floors.py            # reads `cargo metadata`; exit status 1 names each wrong import

A crate imports from lower floors only. Its tests may also use crates of its own floor: executors are compared with the
reference. The binary may use the server, which stands beside it.
"""

import json
import subprocess
import sys

FLOORS = {
    "turbospark": 5, "turbospark-server": 5,
    "turbospark-engine": 4,
    "turbospark-reference": 3, "turbospark-cpu": 3, "turbospark-gpu": 3, "turbospark-text": 3,
    "turbospark-families": 2, "turbospark-experts": 2,
    "turbospark-program": 1, "turbospark-sampling": 1,
    "turbospark-formats": 0,
}  # fmt: skip
BESIDE = {("turbospark", "turbospark-server")}


def wrong_imports(packages):
    """Yield a sentence for each import that the floors forbid."""
    members = {p["name"] for p in packages}
    for package in packages:
        name = package["name"]
        if name not in FLOORS:
            yield f"{name} has no floor: give it one in tools/check_floors.py and in ARCHITECTURE.md"
            continue
        for dependency in package["dependencies"]:
            other = dependency["name"]
            if other not in members or other not in FLOORS or (name, other) in BESIDE:
                continue
            highest = FLOORS[name] if dependency["kind"] == "dev" else FLOORS[name] - 1
            if FLOORS[other] > highest:
                kind = "tests of " if dependency["kind"] == "dev" else ""
                yield f"{kind}{name} (floor {FLOORS[name]}) import {other} (floor {FLOORS[other]})"


def main():
    """Command line."""
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
    packages = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    problems = list(wrong_imports(packages))
    print("\n".join(problems) or f"{len(packages)} crates, no import upward")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
