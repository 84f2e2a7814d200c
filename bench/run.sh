#!/usr/bin/env bash
# Every figure of docs/performance.md, in its order. Run on an idle machine; takes some minutes.
#   bench/run.sh BUILD_DIR [SECTION...]      sections: transport plan digest pins memory
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: bench/run.sh BUILD_DIR [SECTION...]}
shift
sections=${*:-transport plan digest pins memory}

echo "Machine: $(nproc) cores, $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), Linux $(uname -r), $(date -u +%F)"
for section in $sections; do
  printf '\n## %s\n\n' "$section"
  case $section in
    transport) for streams in 1 2; do "$build/bench/bench_transport" --streams "$streams"; echo; done ;;
    plan | digest | pins) "$build/bench/bench_$section" ;;
    memory) python3 bench/memory.py --build "$build" ;;
    *) echo "run.sh: unknown section '$section'" >&2; exit 2 ;;
  esac
done
