#!/usr/bin/env bash
# Runs `cargo test` with these arguments. Tests on real containers, rings and clocks can fail when the machine has no
# CPU for them. So up to six that failed run once more, by themselves. One that passes then is named `unsteady`: a
# fault to fix. One that fails again fails the whole, and so do more than six.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
most=6

log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$here/cargo" test --no-fail-fast "$@" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
[ "$status" -eq 0 ] && exit 0

# The names are after the last `failures:` of each binary. They must be all that failed: no compiler, no binary that a
# signal ended, no example in the documentation.
mapfile -t failed < <(awk '/^failures:$/ { in_list = 1; names = ""; next }
    /^test result:/ { printf "%s", names; in_list = 0; names = "" }
    in_list && /^    [A-Za-z0-9_:]+$/ { names = names $1 "\n" }' "$log")
counted=$(awk '/^test result: FAILED/ { for (i = 1; i < NF; i++) if ($(i + 1) ~ /^failed/) sum += $i }
    END { print sum + 0 }' "$log")
binaries=$(grep -c '^test result: FAILED' "$log")
ended=$(sed -n 's/^error: \([0-9]*\) targets\{0,1\} failed:$/\1/p' "$log")
if [ ${#failed[@]} -eq 0 ] || [ ${#failed[@]} -gt $most ] || [ "$counted" -ne ${#failed[@]} ] ||
    [ "${ended:-0}" -ne "$binaries" ]; then
    exit "$status"
fi
printf '\ntest: failed, running once more: %s\n' "${failed[*]}"
"$here/cargo" test --no-fail-fast "$@" -- --exact "${failed[@]}" 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
[ "$status" -eq 0 ] || exit "$status"
for name in "${failed[@]}"; do
    # A test that did not run again has not passed. Output of others may stand between its name and its result.
    grep -q "^test $name \.\.\." "$log" || exit 1
    echo "unsteady: $name failed once and passed when it was run again"
done
