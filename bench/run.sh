#!/usr/bin/env bash
# Every figure of docs/performance.md, as the Markdown that stands between its two marker lines. For an idle machine; takes
# some minutes.
#   bench/run.sh BUILD_DIR [SECTION...]              sections: transport tls plan digest pins memory probes
#   bench/run.sh --update docs/performance.md BUILD_DIR
# TRANSPORT_FLAGS: options of bench_transport, "--mib 256" say, where memory or time is short.
set -euo pipefail
cd "$(dirname "$0")/.."

usage() {
  echo "usage: bench/run.sh [--update FILE] BUILD_DIR [SECTION...]" >&2
  exit 2
}

load() {
  echo "Load averages $1: $(cut -d' ' -f1-3 /proc/loadavg)."
}

# Ratios of times on the clock mean little beside others' work; better that the page says so than that nobody looks.
warn_if_busy() {
  if awk -v cores="$(nproc)" '{ exit !($1 > 0.75 * cores) }' /proc/loadavg; then
    printf '**The machine was busy with other work: speeds and their ratios are not to be relied on; CPU seconds are.**\n'
  fi
}

# What is printed and what has to be typed are one.
command_line() {
  printf '\n`%s`\n' "$*"
  "$@"
}

block() {
  printf '\n`%s`\n\n```text\n' "$*"
  "$@"
  printf '```\n'
}

transport() {
  local flags
  read -ra flags <<<"${TRANSPORT_FLAGS:-}"
  for streams in 1 2; do
    command_line "$build/bench/bench_transport" --streams "$streams" ${flags[@]+"${flags[@]}"} 2>/dev/null
  done
}

section() {
  printf '\n### %s\n' "$1"
  case $1 in
    transport) transport ;;
    tls)
      printf '\nGoal: the data path of one stream pair >= 0.6 of plain.\n'
      block "$build/bench/bench_tls" ;;
    plan)
      printf '\nGoal: 288 tensors, FSDP16 to TP8, all ranks together in <= 2 ms.\n'
      block "$build/bench/bench_plan" ;;
    digest) block "$build/bench/bench_digest" ;;
    pins)
      printf '\nGoal: acquire and release of one thread in <= 25 ns.\n'
      block "$build/bench/bench_pins" ;;
    memory)
      printf '\nGoal: <= 64 MiB in `refitd` and <= 64 MiB in each sender rank.\n'
      command_line python3 bench/memory.py --build "$build" ;;
    probes)
      printf '\nGoal: p99 of each in <= 5 ms while refits run; first answer <= 1 s after the start.\n'
      command_line python3 bench/probes.py --build "$build" || true ;; # it says so itself when the goal is missed
    *) echo "run.sh: unknown section '$1'" >&2; exit 2 ;;
  esac
}

figures() {
  echo "$(nproc) cores of $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), Linux $(uname -r), $(date -u +%F)."
  load before
  warn_if_busy
  for name in "$@"; do
    section "$name"
  done
  echo
  load after
}

# Replaces what stands between the markers of $1 by the file $2.
replace() {
  local begin='<!-- figures: begin -->' end='<!-- figures: end -->'
  grep -qxF "$begin" "$1" && grep -qxF "$end" "$1" || { echo "run.sh: $1 lacks the marker lines" >&2; exit 2; }
  sed -n "1,/^$begin\$/p" "$1" >"$2.page"
  cat "$2" >>"$2.page"
  sed -n "/^$end\$/,\$p" "$1" >>"$2.page"
  cat "$2.page" >"$1"
}

update=
if [ "${1:-}" = --update ]; then
  update=${2:?run.sh: --update FILE}
  shift 2
fi
[ $# -ge 1 ] || usage
[ -z "$update" ] || [ $# -eq 1 ] || { echo "run.sh: --update runs all sections" >&2; exit 2; }
build=$1
shift
[ $# -gt 0 ] || set -- transport tls plan digest pins memory probes
if [ -z "$update" ]; then
  figures "$@"
  exit
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
figures "$@" >"$scratch/figures"
replace "$update" "$scratch/figures"
