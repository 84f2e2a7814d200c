#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CUDA's headers and compiler, and NCCL, from Python packages, into the build tree; what is installed is not fetched.
#   scripts/gpu-tools.sh DIR      -> DIR/nvidia/cu13/{bin/nvcc,include/cuda.h}, DIR/nvidia/nccl/{include/nccl.h,lib/libnccl.so.2}
#                                    and DIR/nccl/m2n/{include/nccl_m2n.h,lib/cu13/libnccl_m2n.so}, which may fail
#   scripts/gpu-tools.sh --needed -> exit status 0 when something is to be fetched
set -euo pipefail
cuda=13.0
nccl=2.32
# NCCL's reshard call, for the optional fast path of the transport nccl. One wheel for every Python: its C library is all
# that is used.
m2n="nccl-extensions==0.1.0 --hash=sha256:30d42d0218f46e394a21c5663f09ee9bb8a90caf4d69f0040e5a9eb2fef7b8ad"
packages=""
command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] ||
  packages="nvidia-cuda-runtime==$cuda.* nvidia-cuda-nvcc==$cuda.* nvidia-cuda-crt==$cuda.* nvidia-nvvm==$cuda.* nvidia-cuda-cccl==$cuda.*"
[ -e /usr/include/nccl.h ] || [ -e /usr/local/cuda/include/nccl.h ] || packages="${packages:+$packages }nvidia-nccl-cu13==$nccl.*"
if [ -e /usr/include/nccl_m2n.h ] || [ -e /usr/local/cuda/include/nccl_m2n.h ] || [ "$(uname -m)" != x86_64 ]; then
  m2n=""
fi
[ -n "$packages$m2n" ] || { [ "$1" = --needed ] && exit 1; exit 0; }
[ "$1" != --needed ] || exit 0
dir=$1
is_there() { [ "$(cat "$dir/.stamp" 2>/dev/null)" = "$packages" ] && [ "$(cat "$dir/.stamp-m2n" 2>/dev/null)" = "$m2n" ]; }
is_there && exit 0
[ "$(uname -m)" = x86_64 ] || { echo "gpu-tools.sh: no CUDA packages are fetched for $(uname -m)" >&2; exit 1; }

mkdir -p "$dir"
exec 9>"$dir.lock"
flock 9
is_there && exit 0
fetch() {
  timeout 600 python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --upgrade \
    --target "$dir" "$@"
}
if [ "$(cat "$dir/.stamp" 2>/dev/null)" != "$packages" ]; then
  echo "Fetching CUDA's headers and compiler and NCCL into $dir: $packages"
  set -f
  # shellcheck disable=SC2086
  fetch $packages || { echo "gpu-tools.sh: could not fetch $packages" >&2; exit 1; }
  set +f
  echo "$packages" > "$dir/.stamp"
fi
if [ -n "$m2n" ] && [ "$(cat "$dir/.stamp-m2n" 2>/dev/null)" != "$m2n" ]; then
  echo "Fetching NCCL M2N into $dir"
  echo "$m2n" > "$dir/.m2n.txt"
  # Nothing else lacks it.
  fetch --require-hashes --only-binary :all: --implementation cp --python-version 3.11 \
    --platform manylinux_2_28_x86_64 -r "$dir/.m2n.txt" || { echo "gpu-tools.sh: no NCCL M2N; its fast path is left out" >&2; exit 0; }
fi
echo "$m2n" > "$dir/.stamp-m2n"
