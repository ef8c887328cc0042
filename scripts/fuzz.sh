#!/usr/bin/env bash
# Fuzzes targets with libFuzzer, one after the other on one core, and keeps the inputs that it finds.
#
#   scripts/fuzz.sh SECONDS [TARGET…]      each target once, for SECONDS; without TARGET: all
#   scripts/fuzz.sh aim [TARGET…]          each target until all its runs reach the aim, in turns of 10 minutes
#
# The aim of a target is 100 million inputs or 30 minutes of CPU time, whichever comes first. fuzz/effort.tsv has what
# each target has run: name, inputs, seconds of CPU time. The table in docs/fuzzing.md is made of it.
#
# Inputs that a run finds and that reach new code are kept in fuzz/found/TARGET.tar.gz; seeds are in fuzz/corpora.
#
# The stable compiler is enough: coverage counters are options of its code generation. A target is a program of its
# own, since libFuzzer looks at all counters of a program after each input. A crash is kept in fuzz/artifacts and ends
# the script; it becomes an input of the corpus, and a test that names the fault.
#
# INCO_FUZZ_HANG: seconds after which an input hangs (10). More where this is stopped meanwhile.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ ${1-} =~ ^([1-9][0-9]*|aim)$ ]] || { sed -n '2,17s/^# \?//p' "$0"; exit 2; }
readonly aim_inputs=100000000 aim_seconds=1800 turn_seconds=600 effort=fuzz/effort.tsv results=docs/fuzzing.md
duration=$1
shift
counters="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-trace-compares \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table"
triple=$(rustc -vV | sed -n 's/^host: //p')
binaries=${CARGO_TARGET_DIR:-fuzz/target}/$triple/release
targets=("$@")
[ $# -gt 0 ] || mapfile -t targets < <(cd fuzz/corpora && ls)

# Bytes of an input at most. Each input is copied and looked at as a whole, so that short ones are worth more.
longest() {
  case $1 in
    images) echo 8192 ;; # archives consist of blocks of 512 bytes
    answers | http | manifests | openflow_message) echo 1024 ;;
    captures | events | load_reports | memif_messages | memif_rings | references | requests | signals | translation) echo 512 ;;
    offload | openflow_session | ovsdb | packets | table) echo 2048 ;;
    *) echo 4096 ;;
  esac
}

# Builds the program of a target. A target triple of its own, so that build scripts are built without the counters.
build() {
  local program=target
  [ "$1" != table ] || program=table
  mkdir -p "$binaries/targets"
  (
    # All programs but one have the same name until they are copied.
    flock 9
    cd fuzz
    INCO_FUZZ_TARGET=$1 RUSTFLAGS="--cfg fuzzing $counters -Ccodegen-units=1" \
      cargo build --release --quiet --target "$triple" --bin "$program" 9>&-
    cd ..
    cp "$binaries/$program" "$binaries/targets/$1"
  ) 9>>"$effort.lock"
}

# Prints the inputs and the seconds that a target has run.
so_far() {
  awk -F '\t' -v target="$1" '$1 == target { inputs = $2; seconds = $3 } END { print inputs + 0, seconds + 0 }' "$effort"
}

# Prints what all targets have run, as rows of a table.
rows() {
  local target inputs seconds
  for target in fuzz/corpora/*; do
    target=${target##*/}
    read -r inputs seconds < <(so_far "$target")
    awk -v target="$target" -v inputs="$inputs" -v seconds="$seconds" -v aim="$aim_inputs" -v limit="$aim_seconds" '
      BEGIN {
        reached = inputs >= aim || seconds >= limit ? "reached" : "**not yet**"
        printf "| `%s` | %.1f million | %d s | %s |\n", target, inputs / 1e6, seconds, reached
      }'
  done
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
    awk -v rows="$(rows)" '
      /^\| target \| inputs/ { print; getline; print; print rows; inside = 1; next }
      inside && /^\|/ { next }
      { inside = 0; print }' "$results" >"$results.new"
    mv "$results.new" "$results"
  ) 9>>"$effort.lock"
}

# Runs a target for some seconds, or for so many inputs.
run() {
  local target=$1 seconds=$2 most=$3 seeds=fuzz/corpora/$1 archive=fuzz/found/$1.tar.gz binary=$binaries/targets/$1
  local work status=0 inputs cpu length
  length=$(longest "$target")
  # In memory: some targets have files.
  work=$(mktemp -d -p "$([ -w /dev/shm ] && echo /dev/shm || echo "${TMPDIR:-/tmp}")")
  mkdir -p fuzz/artifacts fuzz/found "$work"/{new,found,scratch}
  [ ! -e "$archive" ] || tar -xzf "$archive" -C "$work/found"
  # A target may run beside another one.
  export TMPDIR=$work/scratch
  {
    TIMEFORMAT='%U %S'
    time "$binary" "$work/new" "$work/found" "$seeds" -artifact_prefix="fuzz/artifacts/$target-" \
      -max_total_time="$seconds" -runs="$most" -max_len="$length" -timeout="${INCO_FUZZ_HANG:-10}" \
      -rss_limit_mb=2048 -print_final_stats=1 -verbosity=0 >"$work/log" 2>&1 || status=$?
  } 2>"$work/time"
  # Only inputs that reach new code are kept, the smallest first.
  "$binary" -merge=1 -verbosity=0 "$work/found" "$work/new" >/dev/null 2>&1 || true
  unset TMPDIR
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
  build "$target"
  if [ "$duration" != aim ]; then
    run "$target" "$duration" $aim_inputs
    continue
  fi
  while read -r inputs seconds < <(so_far "$target") && [ "$inputs" -lt $aim_inputs ] && [ "$seconds" -lt $aim_seconds ]; do
    run "$target" $turn_seconds $((aim_inputs - inputs))
  done
  echo "$target: aim reached with $inputs inputs in $seconds s of CPU time"
done
