#!/usr/bin/env bash
# Fuzzes targets with libFuzzer, one after the other on one core, and adds what it finds to their corpora.
#
#   scripts/fuzz.sh SECONDS [TARGET…]      without TARGET: all
#
# A target ends after SECONDS or 100 million inputs.
#
# The stable compiler is enough: coverage counters are options of its code generation. A crash is kept in
# fuzz/artifacts and ends the script; it becomes an input of the corpus, and a test that names the fault.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n '2,9s/^# \?//p' "$0"; exit 2; }
seconds=$1
shift
counters="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-trace-compares \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
triple=$(rustc -vV | sed -n 's/^host: //p')
# A target of its own, so that build scripts are built without the counters.
(cd fuzz && RUSTFLAGS="--cfg fuzzing $counters -Ccodegen-units=1" cargo build --release --target "$triple")
binaries=${CARGO_TARGET_DIR:-fuzz/target}/$triple/release
targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(cd fuzz/corpora && ls)
for target in "${targets[@]}"; do
  corpus=fuzz/corpora/$target
  binary=$binaries/target
  [ "$target" != table ] || binary=$binaries/table
  mkdir -p "$corpus" fuzz/artifacts
  found=$(mktemp -d)
  status=0
  began=$SECONDS
  INCO_FUZZ_TARGET=$target "$binary" "$found" "$corpus" -artifact_prefix="fuzz/artifacts/$target-" \
    -max_total_time="$seconds" -runs=100000000 -max_len=4096 -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 \
    >"$found.log" 2>&1 || status=$?
  took=$((SECONDS - began))
  # Only inputs that reach new code are kept, the smallest first.
  INCO_FUZZ_TARGET=$target "$binary" -merge=1 -verbosity=0 "$corpus" "$found" >/dev/null 2>&1 || true
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$found.log")
  echo "$target: ${runs:-?} inputs in $took s, $(find "$corpus" -type f | wc -l) in the corpus, exit status $status"
  if [ "$status" -ne 0 ]; then
    tail -n 40 "$found.log"
    exit 1
  fi
  rm -rf "$found" "$found.log" "${TMPDIR:-/tmp}"/inco-fuzz-*
done
