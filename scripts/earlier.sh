#!/usr/bin/env bash
# earlier.sh COMMIT FOLDER: builds the inco of an earlier commit as FOLDER/inco. Once it is there, it stays.
set -euo pipefail
if [ $# -ne 2 ]; then
    echo "earlier.sh: give a commit and a folder, as in: scripts/earlier.sh HEAD~100 target/earlier" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/.." && pwd)
if ! commit=$(git -C "$root" rev-parse --verify --quiet "$1^{commit}"); then
    echo "earlier.sh: this clone has no commit $1: fetch the whole history with git fetch --unshallow" >&2
    exit 1
fi
mkdir -p "$2"
folder=$(cd "$2" && pwd)
[ "$(cat "$folder/commit" 2>/dev/null)" != "$commit" ] || exit 0
sources=$(mktemp -d)
trap 'git -C "$root" worktree remove --force "$sources"' EXIT
git -C "$root" worktree add --quiet --detach "$sources" "$commit"
dpdk=$(pkg-config --exists libdpdk 2>/dev/null && echo --features dpdk) || true
echo "earlier.sh: building inco of $(git -C "$root" log -1 --format='%h, %as' "$commit")"
(cd "$sources" && CARGO_TARGET_DIR=$folder/target scripts/cargo build -p inco $dpdk)
install -m 755 "$folder/target/debug/inco" "$folder/inco"
# Some gigabytes, for nothing but this.
rm -rf "$folder/target"
echo "$commit" >"$folder/commit"
