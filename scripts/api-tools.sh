#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What checks docs/openapi.yaml and the real server against it, from Python packages, into a virtual environment of the build tree.
#   scripts/api-tools.sh DIR      -> DIR/bin/python, DIR/bin/schemathesis
set -euo pipefail
dir=$1
packages="schemathesis==4.32.5 openapi-spec-validator==0.9.0"
[ "$(cat "$dir/.stamp" 2>/dev/null)" = "$packages" ] && exit 0

mkdir -p "$(dirname "$dir")"
exec 9>"$dir.lock"
flock 9
[ "$(cat "$dir/.stamp" 2>/dev/null)" = "$packages" ] && exit 0
echo "Fetching the tools for API tests into $dir: $packages"
python3 -m venv "$dir"
for attempt in 1 2 3; do
  # shellcheck disable=SC2086
  if "$dir/bin/python" -m pip install --quiet --disable-pip-version-check $packages 2>"$dir/pip.log"; then
    break
  fi
  [ "$attempt" != 3 ] || { tail -n 5 "$dir/pip.log" >&2; echo "api-tools.sh: could not fetch $packages" >&2; exit 1; }
done
echo "$packages" > "$dir/.stamp"
