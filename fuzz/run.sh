#!/usr/bin/env bash
# Fuzzes with coverage guidance: fuzz/run.sh TARGET|all SECONDS [arguments of libFuzzer]
# Each target runs for SECONDS on one core, starting from fuzz/corpus/TARGET; what it finds interesting
# is kept in the build folder (ONEFOLD_FUZZ_CORPUS), what breaks a property is written there too, and its
# name printed: copy that file to fuzz/corpus/TARGET/regression-WHAT once the bug is fixed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -ge 2 ] || { echo "usage: fuzz/run.sh TARGET|all SECONDS [arguments of libFuzzer]; targets: $(ls "$root/fuzz/corpus" | xargs)" >&2; exit 1; }
target=$1 seconds=$2
shift 2

. "$root/scripts/build.sh"
prepare_build
build=$CARGO_TARGET_DIR
work=${ONEFOLD_FUZZ_CORPUS:-$build/fuzz-corpus}

# RocksDB is only linked, never fuzzed: `prepare_build` compiled it without coverage.
# Coverage by flags that the stable compiler has: counters and comparisons for libFuzzer. The host's
# triple is named, so that build scripts are not instrumented.
host=$(rustc -vV | sed -n 's/^host: //p')
cd "$root/fuzz/guided"
CARGO_TARGET_DIR=$build/fuzz RUSTFLAGS="-Cpasses=sancov-module \
  -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
  -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
  -Ccodegen-units=1" cargo build --release --target "$host"
program=$build/fuzz/$host/release/guided

run() {
  local name=$1
  shift
  mkdir -p "$work/$name" "$work/found"
  echo "== $name for $seconds s"
  ONEFOLD_FUZZ_TARGET=$name "$program" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 \
    -artifact_prefix="$work/found/$name-" -print_final_stats=1 "$@" \
    "$work/$name" "$root/fuzz/corpus/$name"
}

if [ "$target" = all ]; then
  broken=
  for folder in "$root"/fuzz/corpus/*/; do
    run "$(basename "$folder")" "$@" || broken="$broken $(basename "$folder")"
  done
  [ -z "$broken" ] || { echo "a property does not hold in:$broken" >&2; exit 1; }
else
  [ -d "$root/fuzz/corpus/$target" ] || { echo "no target '$target'; there are: $(ls "$root/fuzz/corpus" | xargs)" >&2; exit 1; }
  run "$target" "$@"
fi
