#!/usr/bin/env bash
# `cargo check` for aarch64 (a BlueField is Arm) of everything that needs no C library, on any machine.
#
# The target's standard library comes from the first of these that works:
#   1. the toolchain in use;
#   2. the distribution's packages of a compiler and both standard libraries, unpacked into a cache of our own;
#   3. rustup.
# If none does, it says so. With INCO_REQUIRE naming `aarch64` that is a failure.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
target=aarch64-unknown-linux-gnu
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/inco/aarch64
export CARGO_TARGET_DIR=${INCO_AARCH64_TARGET_DIR:-${CARGO_TARGET_DIR:-$root/target}/aarch64-check}
download_limit_s=600
need=$(sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' "$root/Cargo.toml")

say() { printf 'check-aarch64: %s\n' "$*" >&2; }

has_std() { compgen -G "$1/lib/rustlib/$target/lib/libstd-*.rlib" >/dev/null; }

# Gets the compiler, its libraries and both standard libraries from apt, with lists and state of our own. It neither
# needs nor changes the machine's package database. Sets RUSTC.
from_packages() {
    local work=$cache/apt version runtime name done_file
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || return 1
    if [ ! -e "$cache/complete" ]; then
        mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$cache/debs"
        : >"$work/status"
        local apt=(-qq -o "Dir::State=$work/state" -o "Dir::State::status=$work/status" -o "Dir::Cache=$work/cache"
            -o "APT::Architecture=$(dpkg --print-architecture)" -o "APT::Architectures::=$(dpkg --print-architecture)"
            -o APT::Architectures::=arm64 -o APT::Sandbox::User=root -o Acquire::Retries=2)
        say 'reading the package lists for arm64'
        timeout $download_limit_s apt-get "${apt[@]}" update >/dev/null 2>&1 || return 1
        version=
        for name in web ''; do # Debian's newer packages, else its default ones
            version=$(apt-cache "${apt[@]}" policy "libstd-rust${name:+-$name}-dev:arm64" |
                awk '/Candidate:/ { print $2 }' | grep -v none) || continue
            [ "$(printf '%s\n%s\n' "$need" "${version%%[-+~]*}" | sort -V | head -n 1)" = "$need" ] && break
            version=
        done
        [ -n "$version" ] || return 1
        local compiler=rustc${name:+-$name} std=libstd-rust${name:+-$name}-dev
        runtime=$(apt-cache "${apt[@]}" show "$std=$version" |
            sed -n 's/^Depends: \(libstd-rust[^ ,]*\).*/\1/p' | head -n 1)
        local llvm
        llvm=$(apt-cache "${apt[@]}" show "$runtime=$version" |
            sed -n 's/^Depends:.*\(libllvm[0-9.]*\).*/\1/p' | head -n 1)
        say "fetching $compiler, $std (amd64 and arm64), $runtime, $llvm $version into $cache (once)"
        (cd "$cache/debs" && timeout $download_limit_s apt-get "${apt[@]}" download \
            "$compiler=$version" "$runtime=$version" "$std=$version" "$std:arm64=$version" \
            ${llvm:+"$llvm"} >/dev/null 2>&1) || return 1
        rm -rf "$cache/root"
        mkdir -p "$cache/root"
        for name in "$cache"/debs/*.deb; do dpkg-deb -x "$name" "$cache/root"; done
        rm -rf "$cache/debs" "$work"
        cat >"$cache/rustc" <<END
#!/bin/sh
LD_LIBRARY_PATH=\$(echo "$cache"/root/usr/lib/*-linux-gnu | tr ' ' ':')\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH} exec "$cache/root/usr/bin/rustc" --sysroot "$cache/root/usr" "\$@"
END
        chmod +x "$cache/rustc"
        "$cache/rustc" --version >/dev/null || return 1
        has_std "$cache/root/usr" || return 1
        touch "$cache/complete"
    fi
    export RUSTC=$cache/rustc
    say "with $("$RUSTC" --version)"
}

sysroot=$(cd "$root" && rustc --print sysroot 2>/dev/null || true)
if [ "$(uname -m)" = aarch64 ] || { [ -n "$sysroot" ] && has_std "$sysroot"; }; then
    :
elif from_packages; then
    :
elif command -v rustup >/dev/null && (cd "$root" && timeout 120 rustup target add $target >/dev/null 2>&1); then
    say 'added the target with rustup'
else
    say "not checked: no standard library for $target; install it with: rustup target add $target"
    case ",${INCO_REQUIRE:-}," in *,aarch64,*) exit 1 ;; esac
    exit 0
fi
cd "$root"
"$here/cargo" check --workspace --target $target "$@"
say "cargo check --workspace --target $target: ok"
