#!/usr/bin/env bash
# Installs the Debian packages that a task needs and that are missing. Says what, before it does.
#   scripts/setup.sh build|demo|cluster|fuzz|tools|api|pod|gpu|tls
set -euo pipefail

build="gcc libc6-dev cmake ninja-build pkg-config libevent-dev libjansson-dev libssl-dev libcmocka-dev python3 curl iproute2"
case ${1:-build} in
  build) packages=$build ;;
  demo) packages="$build python3-pip" ;;
  cluster) packages="$build python3-venv util-linux" ;;
  fuzz) packages="$build clang llvm $(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/libclang-rt-\1-dev/p' | head -1)" ;;
  # What single tests drive, and skip without: promtool and a parser of metrics; a browser for the page.
  tools) packages="prometheus python3-prometheus-client chromium fonts-dejavu-core" ;;
  # A virtual environment for scripts/api-tools.sh, and what reads man pages and completions.
  api) packages="python3-venv mandoc zsh fish" ;;
  # Images, the pod that podman runs, and pip for scripts/deploy-tools.sh.
  pod) packages="podman buildah runc netavark iptables catatonit patchelf binutils python3-pip" ;;
  # scripts/gpu-tools.sh and nvcc's host compiler.
  gpu) packages="python3-pip g++" ;;
  # Vector AES for bulk bytes over TLS beside an OpenSSL that has none; after `build`.
  tls) packages=$([ "$(uname -m)" != x86_64 ] || pkg-config --atleast-version=3.1 libcrypto || echo libipsec-mb-dev) ;;
  *) echo "setup.sh: unknown task '$1': expected build, demo, cluster, fuzz, tools, api, pod, gpu or tls" >&2; exit 2 ;;
esac

command -v dpkg-query >/dev/null || {
  echo "setup.sh: this is not a Debian system; install by hand: $packages" >&2; exit 1; }
missing=()
for package in $packages; do
  dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

echo "Refit needs these Debian packages, installing them now: ${missing[*]}"
sudo=""
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || { echo "setup.sh: run as root, or install sudo, or install them by hand" >&2; exit 1; }
  sudo=sudo
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
for attempt in 1 2 3; do
  if $sudo apt-get update -q >"$log" 2>&1 &&
     $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
    exit 0
  fi
  [ "$attempt" = 3 ] || echo "setup.sh: attempt $attempt failed, trying again" >&2
done
tail -n 30 "$log" >&2
echo "setup.sh: could not install: ${missing[*]}" >&2
exit 1
