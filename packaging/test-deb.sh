#!/usr/bin/env bash
# Installs a package, runs what it brings, and removes it again, in a copy of this machine's file system that nobody else
# sees: a mount namespace with an overlay that lies in memory.
#
#   packaging/test-deb.sh inco_0.1.0_amd64.deb      as root
set -euo pipefail
[ $# = 1 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
if [ -z "${INCO_DEB_TEST:-}" ]; then
    exec unshare --mount --pid --fork env INCO_DEB_TEST=1 "$0" "$(realpath "$1")"
fi
package=$1
top=/mnt
mount -t tmpfs none "$top"
mkdir "$top/upper" "$top/work" "$top/root"
mount -t overlay none -o "lowerdir=/,upperdir=$top/upper,workdir=$top/work" "$top/root"
root=$top/root
mount -t proc none "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs none "$root/run"
mount -t tmpfs none "$root/tmp"
cp "$package" "$root/tmp/inco.deb"
inside() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"; }
fail() { echo "test-deb: $*" >&2; exit 1; }

# Only on this copy: the machine's own installation, if any, is out of the way.
rm -f "$root/usr/local/bin/inco" "$root/usr/local/bin/inco-nf"
inside dpkg --no-triggers -i /tmp/inco.deb >"$top/log" 2>&1 || { cat "$top/log" >&2; fail 'it does not install'; }
[ "$(inside dpkg-query -W -f '${Status}' inco)" = 'install ok installed' ] || fail 'it is not installed'

inside inco --version >/dev/null
inside inco-nf --version >/dev/null 2>&1 || inside inco-nf --help >/dev/null
[ -s "$root/usr/share/man/man1/inco-run.1.gz" ] || fail 'no man page of inco run'
inside bash -n /usr/share/bash-completion/completions/inco
# What bash says to `inco instanc<Tab>`.
completed=$(inside bash -c '. /usr/share/bash-completion/completions/inco; COMP_WORDS=(inco instanc); COMP_CWORD=1
    _inco inco instanc inco; echo "${COMPREPLY[*]}"')
[ "$completed" = instances ] || fail "bash completes 'inco instanc' to '$completed'"
if inside sh -c 'command -v systemd-analyze' >/dev/null; then
    inside systemd-analyze verify --man=no /usr/lib/systemd/system/inco.service 2>"$top/log" || true
    if grep -q inco.service "$top/log"; then cat "$top/log" >&2; fail 'systemd does not like the unit'; fi
fi

mkdir -p "$root/etc/inco"
cat >"$root/etc/inco/inco.toml" <<'TOML'
[[uplink]]
name = "wan"
device = "memif:wan.sock"
[service.sink]
port = "null"
TOML
# What the unit runs, and then what it tells systemd: started by hand, since no systemd runs in here.
inside inco check -f /etc/inco/inco.toml >/dev/null
inside inco run -f /etc/inco/inco.toml >"$top/run" 2>&1 &
for _ in $(seq 200); do
    if inside inco status >/dev/null 2>&1; then break; fi
    sleep 0.05
done
inside inco status >/dev/null || { cat "$top/run" >&2; fail 'it does not run'; }

inside dpkg --no-triggers -P inco >"$top/log" 2>&1 || { cat "$top/log" >&2; fail 'it cannot be removed'; }
wait || true
grep -q 'inco has ended' "$top/run" || { cat "$top/run" >&2; fail 'removing it did not end the inco that ran'; }
left=$(cd "$root" && ls -d usr/bin/inco* usr/lib/systemd/system/inco* usr/share/man/man1/inco* usr/share/doc/inco \
    usr/share/bash-completion/completions/inco etc/inco var/lib/inco run/inco 2>/dev/null || true)
[ -z "$left" ] || fail "after its removal there is still: $left"
echo 'test-deb: installs, runs and goes'
