#!/usr/bin/env bash
# The kernels and the packing of panels under valgrind's memcheck: bash tools/check_memory.sh
#
# Fails on any invalid or uninitialised access, memory lost for good, or failing test. Needs valgrind (Debian's package
# of that name) and takes some minutes. docs/development/memory.md says what it covers.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v valgrind >/dev/null || { echo "valgrind is not installed: apt-get install valgrind" >&2; exit 2; }

# Unoptimised: optimised code compares an enum's tag together with its padding, which memcheck takes for a use of
# memory that was never set. Debug assertions guard the pointer ranges of the vector kernels.
export CARGO_PROFILE_TEST_OPT_LEVEL=0 CARGO_PROFILE_DEV_OPT_LEVEL=0
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target}/memcheck
log=$CARGO_TARGET_DIR/memcheck.log
mkdir -p "$CARGO_TARGET_DIR"
: >"$log"

# check PACKAGE FILTERS..: the package's unit tests of those modules.
check() {
  local package=$1 program
  shift
  cargo test -p "$package" --lib --no-run
  program=$(cargo test -p "$package" --lib --no-run --message-format json 2>/dev/null |
    python3 -c 'import json, sys
messages = map(json.loads, sys.stdin)
print(*(message["executable"] for message in messages if message.get("executable")))')
  valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite --errors-for-leak-kinds=definite \
    "$program" --test-threads 1 "$@" 2>&1 | tee -a "$log"
}

check turbospark-formats dequantize::
check turbospark-cpu activations:: kernels:: ops:: panels:: route:: vector::

awk '/^test result:/ { passed += $4; failed += $6 }
     END { printf "\n%d tests passed under valgrind, 0 errors\n", passed; exit passed == 0 || failed > 0 }' "$log"
