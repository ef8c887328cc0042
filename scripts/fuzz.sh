#!/usr/bin/env bash
# Fuzzes targets with libFuzzer, one after the other on one core, and keeps the inputs that it finds.
#
#   scripts/fuzz.sh SECONDS [TARGET…]      each target once, for SECONDS; without TARGET: all
#   scripts/fuzz.sh aim [TARGET…]          each target until all its runs reach the aim, in turns of 10 minutes
#
# The aim of a target is 100 million inputs or 30 minutes of CPU time, whichever comes first. fuzz/effort.tsv has what
# each target has run: name, inputs, seconds of CPU time.
#
# Inputs that a run finds and that reach new code are kept in fuzz/found/TARGET.tar.gz; seeds are in fuzz/corpora.
#
# The stable compiler is enough: coverage counters are options of its code generation. A crash is kept in
# fuzz/artifacts and ends the script; it becomes an input of the corpus, and a test that names the fault.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n '2,13s/^# \?//p' "$0"; exit 2; }
readonly aim_inputs=100000000 aim_seconds=1800 turn_seconds=600 effort=fuzz/effort.tsv
duration=$1
shift
counters="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-trace-compares \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
triple=$(rustc -vV | sed -n 's/^host: //p')
# A target of its own, so that build scripts are built without the counters.
(cd fuzz && RUSTFLAGS="--cfg fuzzing $counters -Ccodegen-units=1" cargo build --release --target "$triple")
binaries=${CARGO_TARGET_DIR:-fuzz/target}/$triple/release
targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(cd fuzz/corpora && ls)

# Prints the inputs and the seconds that a target has run.
so_far() {
  awk -F '\t' -v target="$1" '$1 == target { inputs = $2; seconds = $3 } END { print inputs + 0, seconds + 0 }' "$effort"
}

# Adds inputs and seconds to what a target has run. Two scripts may do so at a time.
add() {
  (
    flock 9
    awk -F '\t' -v OFS='\t' -v target="$1" -v inputs="$2" -v seconds="$3" '
      $1 == target { $2 += inputs; $3 += seconds; found = 1 }
      { print }
      END { if (!found) print target, inputs + 0, seconds + 0 }' "$effort" | sort >"$effort.new"
    mv "$effort.new" "$effort"
  ) 9>>"$effort.lock"
}

# Runs a target for some seconds.
run() {
  local target=$1 seconds=$2 seeds=fuzz/corpora/$1 archive=fuzz/found/$1.tar.gz binary=$binaries/target
  local work status=0 inputs cpu
  [ "$target" != table ] || binary=$binaries/table
  work=$(mktemp -d)
  mkdir -p fuzz/artifacts fuzz/found "$work"/{new,found,scratch}
  [ ! -e "$archive" ] || tar -xzf "$archive" -C "$work/found"
  # A target may run beside another one.
  export TMPDIR=$work/scratch INCO_FUZZ_TARGET=$target
  {
    TIMEFORMAT='%U %S'
    time "$binary" "$work/new" "$work/found" "$seeds" -artifact_prefix="fuzz/artifacts/$target-" \
      -max_total_time="$seconds" -runs="$aim_inputs" -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
      -print_final_stats=1 -verbosity=0 >"$work/log" 2>&1 || status=$?
  } 2>"$work/time"
  # Only inputs that reach new code are kept, the smallest first.
  "$binary" -merge=1 -verbosity=0 "$work/found" "$work/new" >/dev/null 2>&1 || true
  unset TMPDIR INCO_FUZZ_TARGET
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$work/found" -cf - . | gzip -9n >"$archive.new"
  mv "$archive.new" "$archive"
  inputs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$work/log")
  cpu=$(awk '{ print int($1 + $2) }' "$work/time")
  add "$target" "${inputs:-0}" "$cpu"
  echo "$target: ${inputs:-?} inputs in $cpu s of CPU time, $(find "$work/found" -type f | wc -l) are kept," \
    "exit status $status"
  if [ "$status" -ne 0 ]; then
    tail -n 40 "$work/log"
    exit 1
  fi
  rm -rf "$work"
}

[ -e "$effort" ] || : >"$effort"
for target in "${targets[@]}"; do
  if [ "$duration" != aim ]; then
    run "$target" "$duration"
    continue
  fi
  while read -r inputs seconds < <(so_far "$target") && [ "$inputs" -lt $aim_inputs ] && [ "$seconds" -lt $aim_seconds ]; do
    run "$target" $turn_seconds
  done
  echo "$target: aim reached with $inputs inputs in $seconds s of CPU time"
done
