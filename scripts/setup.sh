#!/usr/bin/env bash
# Installs what is missing, and prints what and why. Asks nothing: it installs as root or with passwordless sudo, else
# it prints the one line to run.
#
#   scripts/setup.sh PART...     parts: rust, build, dpdk, lint, test, api, browser, docker, bench, web, deb, arm, move-to-arm, old-kernel, kubernetes
#
# Exit status: 0 if every part is there or can be done without; 1 if one that is needed is missing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/.." && pwd)
schemathesis=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/inco/schemathesis/bin/schemathesis
mlrsearch=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/inco/mlrsearch/bin/python3
declare -a packages=() reasons=()
need_rust=no

say() { printf 'setup: %s\n' "$*" >&2; }

want() { # package, reason; a package counts once
    local have
    for have in ${packages[@]+"${packages[@]}"}; do [ "$have" = "$1" ] && return; done
    packages+=("$1")
    reasons+=("$2")
}

has() { command -v "$1" >/dev/null 2>&1; }

kernel_clang() { # true if the build will find one, or INCO_CLANG names one
    [ -n "${INCO_CLANG:-}" ] && return 0
    local name
    for name in clang clang-20 clang-19 clang-18 clang-17 clang-16 clang-15 clang-14; do has "$name" && return; done
    return 1
}

libclang() { # true if bindgen will find one
    [ -n "${LIBCLANG_PATH:-}" ] && return 0
    # The library alone is not enough: its headers (stddef.h) come with the -dev package.
    compgen -G '/usr/lib/llvm-*/lib/clang/*/include/stddef.h' >/dev/null &&
        compgen -G '/usr/lib/llvm-*/lib/libclang*.so*' >/dev/null
}

for part in "$@"; do
    case $part in
    rust)
        "$here/cargo" --version >/dev/null 2>&1 || need_rust=yes
        ;;
    build)
        has cc || want gcc 'links Rust programs'
        [ -e /usr/include/stdio.h ] || want libc6-dev 'the C library, also for static linking'
        kernel_clang || want clang-14 "compiles the programs of the driver ebpf for the kernel"
        has git || want git 'reads the version that the program reports'
        [ -d /etc/ssl/certs ] || want ca-certificates 'cargo fetches crates over TLS'
        ;;
    dpdk)
        has pkg-config || want pkg-config 'finds DPDK'
        has pkg-config && pkg-config --exists libdpdk 2>/dev/null ||
            want libdpdk-dev 'uplinks: network cards, AF_PACKET, AF_XDP, captures'
        libclang || want libclang-dev 'reads the headers of DPDK (bindgen)'
        has cc || want gcc "compiles DPDK's inline functions"
        ;;
    test)
        has dpdk-testpmd || want dpdk-dev 'dpdk-testpmd: the DPDK program that tests run as an instance and as a peer'
        has jq || want jq 'reads JSON in the examples of docs/, which tests run'
        has ip || want iproute2 'network namespaces and veth pairs for tests'
        has valgrind || want valgrind 'counts the instructions of the packet path'
        has promtool || want prometheus 'promtool and Prometheus: check metrics and alerts'
        has curl || want curl 'asks for pages in tests of services'
        # Daemons may be in a folder that only root looks into.
        has nginx || [ -x /usr/sbin/nginx ] || want nginx-light 'the web server that tests run in containers as it is'
        has haproxy || [ -x /usr/sbin/haproxy ] || want haproxy 'the balancer that tests run so'
        has redis-server || want redis-server 'the store that tests run so'
        has dnsmasq || [ -x /usr/sbin/dnsmasq ] || want dnsmasq-base 'the DNS server that tests run so'
        has dig || want bind9-dnsutils 'asks that DNS server'
        has nsd || [ -x /usr/sbin/nsd ] || want nsd 'the DNS server with which tests compare the function dns'
        has memcached || want memcached 'the cache with which tests compare the function cache'
        has tshark || want tshark 'decrypts what the function ipsec sends'
        [ -x /usr/lib/ipsec/charon ] || want strongswan-charon 'strongSwan: the other end of tunnels of the function ipsec'
        [ -x /usr/sbin/swanctl ] || want strongswan-swanctl 'commands for it'
        [ -e /usr/lib/ipsec/plugins/libstrongswan-kernel-libipsec.so ] ||
            want libcharon-extra-plugins 'its tunnels without the kernel'
        [ -e /usr/lib/ipsec/plugins/libstrongswan-gcm.so ] ||
            want libstrongswan-standard-plugins 'AES-GCM in its tunnels'
        has perl || want perl-base 'runs the server of the tests of services with an address'
        has nc || want netcat-openbsd 'listens in those tests'
        has ovs-vswitchd || want openvswitch-switch-dpdk 'Open vSwitch: the peer in OpenFlow tests'
        has wrk || want wrk 'loads web servers in tests'
        has ping || want iputils-ping 'asks addresses of services whether they are there'
        has nft || want nftables 'a peer of the web demo, which tests run'
        has ethtool || want ethtool 'sets offloads of interfaces in tests'
        has wasm-ld || compgen -G '/usr/bin/wasm-ld-*' >/dev/null || want lld-14 'links the example of an actor in C'
        has docker-registry || want docker-registry 'a registry of images, for tests that pull'
        has iperf3 || want iperf3 'TCP between two ends, in the test of the bench of paths'
        [ -x "$mlrsearch" ] || python3 -c 'import ensurepip, venv' 2>/dev/null ||
            want python3-venv 'runs mlrsearch, with which tests compare the search for rates'
        ;;
    api)
        has schemathesis || [ -x "$schemathesis" ] || python3 -c 'import ensurepip, venv' 2>/dev/null ||
            want python3-venv 'runs schemathesis, which tests the API'
        ;;
    browser)
        has chromium-headless-shell || has chromium ||
            want chromium-headless-shell 'the browser for tests of the web page (100 MB)'
        ;;
    web)
        has ip || want iproute2 'network namespaces and veth pairs of the web demo'
        has nginx || want nginx-light 'the web server in the containers'
        has wrk || want wrk 'the load'
        has haproxy || want haproxy 'a peer of the web demo'
        has nft || want nftables 'a peer of the web demo'
        has nc || want netcat-openbsd 'asks whether a web server listens'
        ;;
    old-kernel)
        has qemu-system-x86_64 || want qemu-system-x86 'QEMU: the virtual machine with an old kernel'
        has busybox || want busybox-static 'the tools in that machine'
        has cpio || want cpio 'makes its file system'
        has depmod || want kmod "finds the kernel's modules"
        ;;
    kubernetes)
        has curl || want curl "asks the API server"
        has openssl || want openssl 'makes the keys of its accounts'
        has nginx || [ -x /usr/sbin/nginx ] || want nginx-light 'the servers behind the Service'
        has containerd || want containerd 'runs the containers of a node'
        [ -x /usr/lib/cni/bridge ] || want containernetworking-plugins 'the network of its Pods'
        has busybox || want busybox-static 'what holds the network of a Pod'
        ;;
    deb)
        has dpkg-shlibdeps || want dpkg-dev 'finds the packages that a binary depends on'
        has strip || want binutils 'strip: smaller programs'
        ;;
    bench)
        has dpdk-testpmd || want dpdk-dev 'dpdk-testpmd: the I/O limit of the bench'
        [ -x /usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk ] ||
            want openvswitch-switch-dpdk 'OVS-DPDK: the peer of the soft switch in the bench'
        has nft || want nftables 'a peer of functions in the bench'
        has iperf3 || want iperf3 'TCP over each path, in the bench of paths'
        has wrk || want wrk 'requests over each path'
        has redis-server || want redis-server 'the last of three tiers in the bench of paths; beside the store of actors'
        has memcached || want memcached 'beside the store of actors in its bench'
        has nginx || [ -x /usr/sbin/nginx ] || want nginx-light 'the web server that they ask'
        has ethtool || want ethtool 'sets offloads of interfaces for Open vSwitch'
        has pkg-config && pkg-config --exists libcrypto 2>/dev/null || want libssl-dev 'OpenSSL: a peer of the function ipsec'
        [ "$(uname -m)" != x86_64 ] || [ -e /usr/include/hs/hs.h ] ||
            want libhyperscan-dev 'Hyperscan: the peer of the function ids'
        ;;
    lint)
        # rustup's cargo brings both. The distribution's packages are needed only if its Rust is in use.
        if [ "$need_rust" = no ]; then
            "$here/cargo" clippy --version >/dev/null 2>&1 || want rust-web-clippy 'cargo clippy'
            "$here/cargo" fmt --version >/dev/null 2>&1 || want rustfmt-web 'cargo fmt'
        fi
        ;;
    arm)
        # The cryptography of TLS is partly C.
        if [ "$(uname -m)" != aarch64 ] && ! has aarch64-linux-gnu-gcc; then
            want gcc-aarch64-linux-gnu 'the C compiler for Arm: cargo check for aarch64'
            want libc6-dev-arm64-cross 'its C library'
        fi
        ;;
    move-to-arm)
        has qemu-aarch64-static || want qemu-user-static 'programs for Arm on this processor'
        ;;
    docker)
        has dockerd || has podman || want docker.io 'the docker engine (the oci engine needs nothing)'
        ;;
    *)
        say "no part '$part'; there are: rust build dpdk lint test api browser docker bench web deb arm"
        exit 2
        ;;
    esac
done

run_as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    else
        sudo -n "$@"
    fi
}

can_be_root() { [ "$(id -u)" = 0 ] || { has sudo && sudo -n true 2>/dev/null; }; }

updated=no
update_lists() {
    [ "$updated" = no ] || return 0
    say 'apt-get update'
    run_as_root apt-get update -qq >/dev/null || say 'apt-get update failed; using the lists that are here'
    updated=yes
}

known_version() { apt-cache policy "$1" 2>/dev/null | awk '/Candidate:/ { print $2 }' | grep -v none; }

# Asks for the distribution's own Rust, if it is new enough.
want_rust() {
    local need version name
    need=$(sed -n 's/^rust-version = "\([0-9.]*\)".*/\1/p' "$root/Cargo.toml")
    for name in cargo-web cargo \
        $(apt-cache search --names-only '^cargo-[0-9.]+$' 2>/dev/null | awk '{ print $1 }' | sort -rV); do
        version=$(known_version "$name") || continue
        # cargo-1.NN has the version in its name; the others have it in their version.
        case $name in cargo-[0-9]*) version=${name#cargo-} ;; esac
        version=${version%%[-+~]*}
        if [ "$(printf '%s\n%s\n' "$need" "$version" | sort -V | head -n 1)" = "$need" ]; then
            want "$name" "Rust $version, from the distribution's own packages ($need or newer is needed)"
            want "${name/cargo/rustc}" 'its compiler'
            case " $PARTS " in *' lint '*)
                if [ "$name" = cargo-web ]; then
                    want rust-web-clippy 'cargo clippy'
                    want rustfmt-web 'cargo fmt'
                elif [ "$name" = cargo ]; then
                    want rust-clippy 'cargo clippy'
                    want rustfmt 'cargo fmt'
                fi
                ;;
            esac
            return 0
        fi
    done
    return 1
}
PARTS=$*

rust_line="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y"
if [ "$need_rust" = yes ]; then
    if ! has apt-get; then
        say "Rust is missing; run: $rust_line"
        exit 1
    fi
    if can_be_root; then update_lists; fi
    if ! want_rust; then
        say "Rust is missing or too old, and this distribution has no newer one; run: $rust_line"
        exit 1
    fi
fi

if [ ${#packages[@]} -gt 0 ]; then
    for i in "${!packages[@]}"; do say "missing: ${packages[$i]} (${reasons[$i]})"; done
    line="apt-get install -y --no-install-recommends ${packages[*]}"
    if ! has apt-get; then
        say "no apt-get here: install the above with this system's package manager"
    elif can_be_root; then
        update_lists
        say "$line"
        log=$(mktemp)
        # We start the services of packages ourselves, when they are needed.
        if ! run_as_root env DEBIAN_FRONTEND=noninteractive $line >"$log" 2>&1 </dev/null; then
            tail -n 20 "$log" >&2
            say "the installation failed; its log: $log"
            exit 1
        fi
        rm -f "$log"
    else
        say "run: sudo $line"
    fi
fi

fetch() { # package with its version, folder, why; Debian has no package of these
    say "fetching ${1%%=*} from the Python package index: $3"
    python3 -m venv "$2" && "$2/bin/pip" --quiet --disable-pip-version-check install "$1" && return
    rm -rf "$2"
    return 1
}

# Says what is still missing. Some parts can be done without.
failed=no
for part in "$@"; do
    case $part in
    rust)
        "$here/cargo" --version >/dev/null 2>&1 || {
            say "Rust is missing; as root: make setup, or: $rust_line"
            failed=yes
        }
        ;;
    build) has cc || failed=yes ;;
    dpdk)
        pkg-config --exists libdpdk 2>/dev/null || say 'building without DPDK: only memif: uplinks'
        ;;
    test)
        has dpdk-testpmd || say 'dpdk-testpmd is missing: the tests that need it will say so and skip'
        has valgrind || say 'valgrind is missing: the tests that count instructions will say so and skip'
        has ovs-vswitchd || say 'Open vSwitch is missing: the tests that need it will say so and skip'
        [ -x "$mlrsearch" ] ||
            fetch 'mlrsearch==1.2.1' "${mlrsearch%/bin/*}" 'tests compare the search for rates with it' ||
            say 'mlrsearch could not be fetched: the test of the search for rates with it will say so and skip'
        ;;
    api)
        has schemathesis || [ -x "$schemathesis" ] || fetch 'schemathesis==4.32.5' "${schemathesis%/bin/*}" 'it tests the API' ||
            say 'schemathesis could not be fetched: the test of the API with it will say so and skip'
        ;;
    browser)
        has chromium-headless-shell || has chromium ||
            say 'Chromium is missing: the test of the web page will say so and skip'
        ;;
    deb) has dpkg-shlibdeps || failed=yes ;;
    bench)
        has dpdk-testpmd || say 'dpdk-testpmd is missing: the bench has no I/O limit to compare with'
        has ovs-vswitchd || say 'OVS-DPDK is missing: the bench leaves its columns empty'
        ;;
    docker) has dockerd || has podman || say 'no container daemon: only the engine oci will work' ;;
    esac
done
[ "$failed" = no ]
