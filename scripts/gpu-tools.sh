#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CUDA's headers and compiler, from Python packages, into the build tree.
#   scripts/gpu-tools.sh DIR      -> DIR/nvidia/cu13/{bin/nvcc,include/cuda.h}
set -euo pipefail
dir=$1
cuda=13.0
packages="nvidia-cuda-runtime==$cuda.* nvidia-cuda-nvcc==$cuda.* nvidia-cuda-crt==$cuda.* nvidia-nvvm==$cuda.*"
[ "$(cat "$dir/.stamp" 2>/dev/null)" = "$packages" ] && exit 0
[ "$(uname -m)" = x86_64 ] || { echo "gpu-tools.sh: no CUDA packages are fetched for $(uname -m)" >&2; exit 1; }

mkdir -p "$(dirname "$dir")"
exec 9>"$dir.lock"
flock 9
[ "$(cat "$dir/.stamp" 2>/dev/null)" = "$packages" ] && exit 0
echo "Fetching CUDA's headers and compiler into $dir: $packages"
set -f
# shellcheck disable=SC2086
timeout 300 python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --upgrade \
  --target "$dir" $packages || { echo "gpu-tools.sh: could not fetch $packages" >&2; exit 1; }
echo "$packages" > "$dir/.stamp"
