#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the image with podman, buildah or docker, whichever there is.
#   deploy/image.sh [--tag NAME:TAG] [--build-base IMAGE] [--from-build BUILD_DIR]
# --from-build packs what a build tree on this machine holds instead of compiling in a container: the last stage of the
# Containerfile on the host's own libraries. It needs no other image.
set -euo pipefail
cd "$(dirname "$0")/.."
tag=refit:$(sed -n 's/^project(refit VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt) base= from=
while [ $# -gt 0 ]; do
  case $1 in
    --tag) tag=$2; shift 2 ;;
    --build-base) base=$2; shift 2 ;;
    --from-build) from=$2; shift 2 ;;
    *) echo "image.sh: unknown option '$1'" >&2; exit 2 ;;
  esac
done
builder=
for candidate in buildah podman docker; do
  if command -v "$candidate" >/dev/null; then builder=$candidate; break; fi
done
case $builder in
  buildah) build="buildah bud --layers=false" ;;
  podman) build="podman build --layers=false" ;;
  docker) build="docker build" ;;
  *) echo "image.sh: none of buildah, podman and docker is here" >&2; exit 1 ;;
esac
if [ -z "$from" ]; then
  exec $build ${base:+--build-arg "BUILD_BASE=$base"} -f deploy/Containerfile -t "$tag" .
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
deploy/rootfs.sh "$from" "$scratch/out"
sed -n '/^FROM scratch/,$p' deploy/Containerfile | sed 's/--from=build //' > "$scratch/Containerfile"
$build -f "$scratch/Containerfile" -t "$tag" "$scratch"
