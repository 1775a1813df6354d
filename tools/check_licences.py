#!/usr/bin/env python3
"""Check that every dependency may be used under a licence on the list below.

    python3 tools/check_licences.py          # reads `cargo metadata`; exit status 1 names the crates that may not
    python3 tools/check_licences.py --test   # checks the evaluation of licence expressions
"""

import json
import re
import subprocess
import sys

ALLOWED = {
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CDLA-Permissive-2.0", "ISC", "MIT",
    "MIT-0", "Unicode-3.0", "Unlicense", "Zlib", "Apache-2.0 WITH LLVM-exception",
}  # fmt: skip


def allowed(expression):
    """Whether an SPDX expression can be satisfied; the old spelling `MIT/Apache-2.0` means OR. AND binds tighter."""
    tokens = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))

    def alternatives():
        value = conjunction()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            value = conjunction() or value
        return value

    def conjunction():
        value = licence()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            value = licence() and value
        return value

    def licence():
        if not tokens:
            raise ValueError(f"licence expression ends too early: {expression}")
        name = tokens.pop(0)
        if name == "(":
            value = alternatives()
            if not tokens or tokens.pop(0) != ")":
                raise ValueError(f"unbalanced licence expression: {expression}")
            return value
        if tokens and tokens[0] == "WITH":
            name = f"{name} WITH {tokens[1]}"
            del tokens[:2]
        return name in ALLOWED

    value = alternatives()
    if tokens:
        raise ValueError(f"cannot read licence expression: {expression}")
    return value


def self_test():
    """The cases that decide whether a crate passes."""
    for expression, expected in {
        "MIT": True, "GPL-3.0-only": False, "MIT OR GPL-3.0-only": True, "MIT AND GPL-3.0-only": False,
        "MIT/Apache-2.0": True, "(MIT OR Apache-2.0) AND Unicode-3.0": True, "(MIT OR Zlib) AND GPL-2.0": False,
        "GPL-2.0 OR MIT AND Zlib": True, "Apache-2.0 WITH LLVM-exception": True, "GPL-2.0 WITH Classpath-exception-2.0": False,
    }.items():  # fmt: skip
        assert allowed(expression) is expected, expression


def main():
    """Command line."""
    if sys.argv[1:] == ["--test"]:
        self_test()
        return 0
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--all-features"]
    packages = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    refused = [p for p in packages if not (p["license"] and allowed(p["license"]))]
    for package in refused:
        print(f"{package['name']} {package['version']}: licence {package['license'] or 'not stated'} is not on the list")
    print(f"{len(packages)} packages, {len(refused)} refused")
    return int(bool(refused))


if __name__ == "__main__":
    sys.exit(main())
