#!/usr/bin/env bash
# Runs the tests of the driver `ebpf` on the oldest kernel that inco supports: Debian 12's Linux 6.1, in a virtual
# machine (QEMU without KVM, which nested virtual machines lack). The machine has a file system in memory alone: kernel modules, the test program,
# its libraries, and ip and tc.
#
#   scripts/old-kernel.sh [ARGUMENT…]      arguments go to the test program: names of tests
#
# Needs Debian 12 on x86-64, root for apt, and what `scripts/setup.sh old-kernel` installs.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly time_limit=900 # seconds
cache=${XDG_CACHE_HOME:-$HOME/.cache}/inco/old-kernel
say() { printf 'old-kernel: %s\n' "$*" >&2; }

for program in qemu-system-x86_64 busybox cpio depmod dpkg; do
    command -v "$program" >/dev/null || {
        say "not run: $program is missing; run: scripts/setup.sh old-kernel"
        exit 1
    }
done

package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-6\.1\.[^ ]*\)$/\1/p' | head -n 1)
[ -n "$package" ] || { say 'not run: there is no package of Linux 6.1 (linux-image-cloud-amd64)'; exit 1; }
kernel=$cache/$package
if [ ! -e "$kernel/boot" ]; then
    say "fetching $package"
    mkdir -p "$cache"
    (cd "$cache" && apt-get download -qq "$package") || { say "not run: $package cannot be fetched"; exit 1; }
    rm -rf "$kernel.new"
    dpkg -x "$cache/$package"_*.deb "$kernel.new"
    rm -f "$cache/$package"_*.deb
    mv "$kernel.new" "$kernel"
fi
version=$(basename "$kernel"/lib/modules/*)
depmod -b "$kernel" "$version"

say 'building the tests'
with_dpdk=$(pkg-config --exists libdpdk 2>/dev/null && echo '--features dpdk' || true)
# shellcheck disable=SC2086 # words, on purpose
tests=$(scripts/cargo test --workspace $with_dpdk --test driver --no-run --message-format json |
    sed -n 's/.*ebpf-switch.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
[ -x "$tests" ] || { say 'cargo has not named the test program of ebpf-switch'; exit 1; }

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,dev,proc,sys,tmp,run,etc,usr/bin,lib/modules,var/run/netns}
cp "$(command -v busybox)" "$root/bin/busybox"
cp "$tests" "$root/bin/tests"
files=$(for program in "$tests" "$(command -v ip)" "$(command -v tc)"; do
    ldd "$program" | grep -o '/[^ ]*'
done | sort -u)
for file in $files "$(command -v ip)" "$(command -v tc)"; do
    install -D "$file" "$root$file"
done
for module in veth sch_ingress cls_bpf 8021q; do
    modprobe --dirname "$kernel" --set-version "$version" --show-depends "$module" 2>/dev/null | sed -n 's/^insmod \([^ ]*\).*/\1/p'
done | sort -u | while read -r file; do
    install -D "$file" "$root${file#"$kernel"}"
done
cp "$kernel/lib/modules/$version"/modules.* "$root/lib/modules/$version/"
printf '%q ' "$@" >"$root/etc/arguments"
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin && rm -f /bin/ip /bin/tc
export PATH=/usr/bin:/usr/sbin:/sbin:/bin HOME=/tmp TERM=dumb RUST_BACKTRACE=1
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t bpf bpf /sys/fs/bpf
mkdir -p /run/netns
for module in veth sch_ingress cls_bpf 8021q; do modprobe $module; done
ip link set lo up
echo "Linux $(uname -r)"
eval "set -- $(cat /etc/arguments)"
INCO_REQUIRE=root /bin/tests "$@"
echo "exit status of the tests: $?"
poweroff -f
INIT
chmod +x "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$root.initrd"
log=$(mktemp)
trap 'rm -rf "$root" "$root.initrd" "$log"' EXIT
say "booting Linux $version"
timeout "$time_limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -m 2048 -smp 2 -nographic -no-reboot -nodefaults \
    -serial stdio -kernel "$kernel"/boot/vmlinuz-* -initrd "$root.initrd" \
    -append 'console=ttyS0 quiet panic=-1' </dev/null | tee "$log"
grep -q '^exit status of the tests: 0' "$log" || { say 'the tests failed, or did not end in time'; exit 1; }
