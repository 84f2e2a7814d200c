#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What runs on a real GPU: the right bytes first, then figures. Without a GPU it says why, and that is no failure.
#   scripts/test-gpu.sh BUILD
set -uo pipefail
build=$1
fetched=$(dirname "$0")/../build/tools/gpu/nvidia/nccl/lib/libnccl.so.2

# An installed NCCL comes first, as it does for refitd.
if ! ldconfig -p | grep -q 'libnccl\.so\.2' && [ -e "$fetched" ]; then
  export REFIT_NCCL_LIBRARY=${REFIT_NCCL_LIBRARY:-$fetched}
fi
"$build/sidecar/refitd" --version
! command -v nvidia-smi >/dev/null || nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader

failed=0
for program in bench_gpu bench_nccl; do
  echo "== $program"
  "$build/bench/$program"
  status=$?
  [ $status -eq 0 ] || [ $status -eq 77 ] || { echo "$program failed: $status" >&2; failed=1; }
done
exit $failed
