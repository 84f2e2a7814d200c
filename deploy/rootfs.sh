#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The root file system of the image, from a build tree.
#   deploy/rootfs.sh BUILD_DIR OUT     (and OUT-run: what belongs to the image's user)
set -euo pipefail
build=$1 out=$2
here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$out" "$out-run"
mkdir -p "$out-run/refit" "$out/etc" "$out/usr/share/doc/refit"
"$here/bundle.sh" "$out" /opt/refit "$build/cli/refit" "$build/sidecar/refitd"
chmod 0750 "$out-run/refit"
printf 'root:x:0:0::/:/sbin/nologin\nrefit:x:10001:10000::/:/sbin/nologin\n' > "$out/etc/passwd"
printf 'root:x:0:\nrefit:x:10000:\n' > "$out/etc/group"
printf 'hosts: files dns\n' > "$out/etc/nsswitch.conf"
cp "$here/../LICENSE" "$out/usr/share/doc/refit/"
python3 "$here/sbom.py" "$out" > "$out/usr/share/doc/refit/sbom.spdx.json"
