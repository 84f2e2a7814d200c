#!/usr/bin/env bash
# Runs the test suite of a build tree and closes with one line that counts.
#   scripts/test.sh BUILD_DIR [ctest arguments]
set -uo pipefail
build=$1
shift
log=$build/test.log
ctest --test-dir "$build" --output-on-failure --no-tests=error --timeout 300 -j "$(nproc)" "$@" 2>&1 | tee "$log"
rc=${PIPESTATUS[0]}
# "97% tests passed, 3 tests failed out of 100"
total=$(sed -n 's/.*tests failed out of \([0-9]*\).*/\1/p' "$log" | tail -1)
failed=$(sed -n 's/.*tests passed, \([0-9]*\) tests* failed out of.*/\1/p' "$log" | tail -1)
[ -n "$total" ] || { echo "test.sh: ctest ran nothing" >&2; exit 1; }
echo "$((total - failed)) passed, $failed failed"
exit "$rc"
