#!/usr/bin/env bash
# Runs every libFuzzer target of a build tree for FUZZ_SECONDS (60) on its corpus; a finding ends it with its input named.
#   scripts/fuzz.sh BUILD_DIR
set -euo pipefail
build=$1
seconds=${FUZZ_SECONDS:-60}
found=0
while read -r target; do
  found=1
  name=$(basename "$target")
  corpus=$build/corpus/$name
  mkdir -p "$corpus"
  echo "== $name, $seconds s"
  "$target" -max_total_time="$seconds" -artifact_prefix="$corpus/" -print_final_stats=1 "$corpus" 2>"$build/$name.log" ||
    { tail -n 40 "$build/$name.log" >&2; exit 1; }
  grep -E 'stat::(number_of_executed_units|average_exec_per_sec)' "$build/$name.log"
done < <(find "$build/tests" -type f -executable -name 'fuzz_*')
[ "$found" = 1 ] || { echo "fuzz.sh: no fuzz target in $build" >&2; exit 1; }
