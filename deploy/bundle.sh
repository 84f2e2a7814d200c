#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Programs and every library they load, the loader too, as a tree that runs from PREFIX in any Linux container: beside
# another C library, or in an image that is otherwise empty. OUT/PREFIX/MANIFEST names its files.
#   deploy/bundle.sh OUT PREFIX PROGRAM...
set -euo pipefail
out=$1 prefix=$2
shift 2
root=$out$prefix
rm -rf "$root"
mkdir -p "$root/bin" "$root/lib"

loader=
for program in "$@"; do
  name=$(basename "$program")
  strip -o "$root/bin/$name" "$program"
  interpreter=$(patchelf --print-interpreter "$program")
  loader=$(basename "$interpreter")
  cp -L "$interpreter" "$root/lib/$loader"
  missing=$(ldd "$program" | grep 'not found' || true)
  [ -z "$missing" ] || { echo "bundle.sh: $program: $missing" >&2; exit 1; }
  while read -r library; do
    cp -L "$library" "$root/lib/"
  done < <(ldd "$program" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p')
  # RPATH, not RUNPATH: it holds for what the libraries need in turn, too.
  patchelf --set-interpreter "$prefix/lib/$loader" --force-rpath --set-rpath "$prefix/lib" "$root/bin/$name"
done
# A library that is loaded at run time (a GPU's driver) may ask for these, and they only fit the C library they came with.
libc=$(ldd "$1" | sed -n 's/.*libc.so.6 => \([^ ]*\) .*/\1/p')
for library in libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1; do
  cp -L "$(dirname "$libc")/$library" "$root/lib/"
done
chmod 0755 "$root"/bin/* "$root/lib/$loader"
(cd "$root" && find bin lib -type f | LC_ALL=C sort > MANIFEST)
