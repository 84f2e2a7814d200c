#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CUDA's headers and compiler, and NCCL, from Python packages, into the build tree; what is installed is not fetched.
#   scripts/gpu-tools.sh DIR      -> DIR/nvidia/cu13/{bin/nvcc,include/cuda.h}, DIR/nvidia/nccl/{include/nccl.h,lib/libnccl.so.2}
#   scripts/gpu-tools.sh --needed -> exit status 0 when something is to be fetched
set -euo pipefail
cuda=13.0
nccl=2.32
packages=""
command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] ||
  packages="nvidia-cuda-runtime==$cuda.* nvidia-cuda-nvcc==$cuda.* nvidia-cuda-crt==$cuda.* nvidia-nvvm==$cuda.* nvidia-cuda-cccl==$cuda.*"
[ -e /usr/include/nccl.h ] || [ -e /usr/local/cuda/include/nccl.h ] || packages="${packages:+$packages }nvidia-nccl-cu13==$nccl.*"
[ -n "$packages" ] || { [ "$1" = --needed ] && exit 1; exit 0; }
[ "$1" != --needed ] || exit 0
dir=$1
[ "$(cat "$dir/.stamp" 2>/dev/null)" = "$packages" ] && exit 0
[ "$(uname -m)" = x86_64 ] || { echo "gpu-tools.sh: no CUDA packages are fetched for $(uname -m)" >&2; exit 1; }

mkdir -p "$(dirname "$dir")"
exec 9>"$dir.lock"
flock 9
[ "$(cat "$dir/.stamp" 2>/dev/null)" = "$packages" ] && exit 0
echo "Fetching CUDA's headers and compiler and NCCL into $dir: $packages"
set -f
# shellcheck disable=SC2086
timeout 600 python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --upgrade \
  --target "$dir" $packages || { echo "gpu-tools.sh: could not fetch $packages" >&2; exit 1; }
echo "$packages" > "$dir/.stamp"
