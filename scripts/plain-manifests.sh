#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/kubernetes/refit.yaml: the chart's CPU example as plain manifests, for those who don't use Helm. To standard output.
#   scripts/plain-manifests.sh HELM
set -euo pipefail
cd "$(dirname "$0")/.."
cat <<'HEAD'
# SPDX-License-Identifier: Apache-2.0
# A whole example without Helm: kubectl apply -f refit.yaml. Made from charts/refit by scripts/plain-manifests.sh.
# Before: a PersistentVolumeClaim `models` with all-MiniLM-L6-v2/model.safetensors, Secrets
# `refit-tokens` (key `tokens`) and `refit-certificates` (tls.crt, tls.key, ca.crt; docs/security.md), and the two images named below in a registry of yours.
HEAD
"$1" template refit charts/refit -f charts/refit/examples/cpu-native.yaml --no-hooks |
  sed -e '/^# Source: /d' -e '/helm.sh\/chart: /d' -e '/app.kubernetes.io\/managed-by: /d' -e 's/ *$//'
