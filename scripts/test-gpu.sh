#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What runs on a real GPU: the tests labelled `gpu` (of memory, transports, senders, banks and whole refits; what needs the
# look-alikes' switches skips itself and says so), with one device and with all, then the benchmarks with their limits.
# Without a GPU it says why, and that is no failure. The driver is the one that refitd finds: with LD_LIBRARY_PATH set to
# the look-alikes of the build, those.
#   scripts/test-gpu.sh BUILD [--list]
set -uo pipefail
build=$1
fetched=$(dirname "$0")/../build/tools/gpu/nvidia/nccl/lib/libnccl.so.2

# An installed NCCL comes first, as it does for refitd.
if ! ldconfig -p | grep -q 'libnccl\.so\.2' && [ -e "$fetched" ]; then
  export REFIT_NCCL_LIBRARY=${REFIT_NCCL_LIBRARY:-$fetched}
fi
if [ "${2:-}" = --list ]; then
  ctest --test-dir "$build" -C gpu -L '^gpu$' -N
  exit
fi
said=$("$build/sidecar/refitd" --version) || exit 1
echo "$said"
devices=$(sed -n 's/^cuda: .*driver for [0-9.]*, \([0-9]*\) devices\{0,1\}$/\1/p' <<<"$said")
if [ "${devices:-0}" -eq 0 ]; then
  echo "skipped: no GPU here ($(sed -n 's/^cuda: //p' <<<"$said"))"
  exit 0
fi
! command -v nvidia-smi >/dev/null || nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
# Where this NCCL lets processes share a GPU they do; where not, its tests skip, and replicas copy through VMM handles.
! grep -q 'several ranks per GPU' <<<"$said" || export NCCL_MULTI_RANK_GPU_ENABLE=1

failed=0
suite() { # suite DEVICES WHAT
  echo "== tests, $2"
  REFIT_TEST_GPUS=$1 ctest --test-dir "$build" -C gpu -L '^gpu$' --output-on-failure || failed=1
  echo "-- what was skipped:"
  grep -ahE '^\[  SKIPPED \] [a-z_]+$|\.\.\. skipped' "$build/Testing/Temporary/LastTest.log" | sort | uniq -c | sort -rn
  grep -ahE '^skipped: ' "$build/Testing/Temporary/LastTest.log" | sort | uniq -c
}
all=${CUDA_VISIBLE_DEVICES:-}
CUDA_VISIBLE_DEVICES=${all%%,*}
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
suite 1 "one device"
if [ -n "$all" ]; then export CUDA_VISIBLE_DEVICES=$all; else unset CUDA_VISIBLE_DEVICES; fi
[ "$devices" -eq 1 ] || suite "$devices" "$devices devices"

for program in bench_gpu bench_nccl; do
  echo "== $program"
  "$build/bench/$program" ${REFIT_BENCH_GPU_FLAGS:-}
  status=$?
  [ $status -eq 0 ] || [ $status -eq 77 ] || { echo "$program failed: $status" >&2; failed=1; }
done
exit $failed
