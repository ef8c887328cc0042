#!/usr/bin/env bash
# An actor in WebAssembly moves from this machine's processor to the other one, and back: its state and its answers must be
# those of an actor that did not move. The other processor is emulated (qemu-user-static), or this one's own.
#
#   scripts/move-to-arm.sh [MESSAGES]     messages on each processor in turn (2000)
set -euo pipefail
cd "$(dirname "$0")/.."
messages=${1:-2000}
module=crates/actors/actor-wasm/tests/mixes.wat
target=aarch64-unknown-linux-gnu
say() { printf 'move-to-arm: %s\n' "$*" >&2; }

scripts/setup.sh rust arm move-to-arm
rustup target add $target >/dev/null 2>&1 || { say "no standard library for $target: rustup target add $target"; exit 2; }
cargo=(scripts/cargo build --quiet -p actor-wasm --example moved)
"${cargo[@]}"
CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc RUSTFLAGS='-C target-feature=+crt-static' \
    "${cargo[@]}" --target $target
build=${CARGO_TARGET_DIR:-target}
here=$build/debug/examples/moved
there=$build/$target/debug/examples/moved
qemu=(qemu-aarch64-static)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# All on one processor, in the same three parts; then the middle one on the other.
run() { # NAME PROGRAM…: messages from $first on, from state $state
    local name=$1
    shift
    "$@" "$module" "$first" "$messages" ${state:+"$state"} >"$work/$name" 2>"$work/$name.said" || { cat "$work/$name.said" >&2; exit 1; }
    state=$work/$name first=$((first + messages))
}
state='' first=1
run one "$here"
after_one=$state
run two "$here"
run three "$here"
state=$after_one first=$((1 + messages))
run arm "${qemu[@]}" "$there"
run back "$here"
cat "$work"/{two,arm,three,back}.said >&2
diff "$work/two.said" "$work/arm.said" && diff "$work/three.said" "$work/back.said"
cmp "$work/two" "$work/arm" && cmp "$work/three" "$work/back"
say "state and answers of $((3 * messages)) messages are equal on $(uname -m) and aarch64"
