#!/usr/bin/env bash
# Installs a package, runs what it brings, by systemd too where this machine has it, upgrades it beside traffic, and
# removes it again, in a copy of a private view of this machine's file system: a mount namespace with an overlay in
# memory.
#
#   packaging/test-deb.sh inco_VERSION_amd64.deb      as root
set -euo pipefail
[ $# = 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
if [ -z "${INCO_DEB_TEST:-}" ]; then
    exec unshare --mount --mount-proc --pid --fork env INCO_DEB_TEST=1 "$0" "$(realpath "$1")"
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
failed() { # a log, and what has failed
    cat "$1" >&2
    fail "$2"
}

# Only on this copy: the machine's own installation, if any, is out of the way.
rm -rf "$root/usr/local/bin/inco" "$root/usr/local/bin/inco-nf" "$root/usr/local/bin/inco-actors" "$root/etc/inco" "$root/var/lib/inco"
inside dpkg --no-triggers -i /tmp/inco.deb >"$top/log" 2>&1 || { cat "$top/log" >&2; fail 'it does not install'; }
[ "$(inside dpkg-query -W -f '${Status}' inco)" = 'install ok installed' ] || fail 'it is not installed'

inside inco --version >/dev/null
inside inco-nf --version >/dev/null 2>&1 || inside inco-nf --help >/dev/null
inside inco-actors --version >/dev/null
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

# A later version of the package, with the same content in new files.
later() { # the package, the file to make
    local tree=$top/later
    dpkg-deb --raw-extract "$1" "$tree"
    sed -i 's/^Version: .*/&+later/' "$tree/DEBIAN/control"
    dpkg-deb --root-owner-group -z0 --build "$tree" "$2" >/dev/null
    rm -rf "$tree"
}

# The unit, by a systemd of its own with nothing else to do: it starts, reloads, is upgraded and restarted, comes back
# after a crash and after a hang with the containers that it had, and stops.
by_systemd() {
    local init group tree unit parent
    inside inco image build forward >/dev/null
    cat >"$root/etc/inco/inco.toml" <<'TOML'
[[uplink]]
name = "wan"
device = "memif:wan.sock"
[service.dns]
match = { proto = "udp" }
image = "inco/forward"
command = ["/inco-nf", "forward", "--stamp"]
cpus = 0.1
memory = "64MiB"
capacity = "10kpps"
instances = { min = 2, max = 2 }
autoscaler = "fixed"
[engine]
linger = "3s"
TOML
    unit=$root/etc/systemd/system
    mkdir -p "$unit/inco.service.d"
    printf '[Unit]\nDefaultDependencies=no\nWants=inco.service\n' >"$unit/inco-test.target"
    # A run directory of its own: control groups have their names by it, and those are the whole machine's.
    cat >"$unit/inco.service.d/test.conf" <<UNIT
[Unit]
DefaultDependencies=no
Wants=
After=
[Service]
Environment=INCO_RUN_DIR=/run/inco-test
Environment=INCO_STATE_DIR=/var/lib/inco
RuntimeDirectory=
RuntimeDirectory=inco-test
WatchdogSec=4
UNIT
    # systemd keeps below the groups that it is started in. What it does to the place where their trees are mounted, it does
    # to a copy.
    group=inco-test-$(cut -c1-8 /proc/sys/kernel/random/uuid)
    local trees=()
    for tree in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do
        if [ -e "$tree/cgroup.procs" ]; then trees+=("$tree/$group") && mkdir "$tree/$group"; fi
    done
    unshare --mount --pid --fork bash -c '
        root=$1; shift
        for tree; do echo 0 >"$tree/cgroup.procs"; done
        for folder in run tmp; do mount -t tmpfs none "$root/$folder"; done
        if [ ! -e /sys/fs/cgroup/cgroup.procs ]; then
            mount -t tmpfs none "$root/sys/fs/cgroup"
            for tree in /sys/fs/cgroup/*; do
                name=${tree##*/}
                if [ -L "$tree" ]; then
                    cp -P "$tree" "$root/sys/fs/cgroup/$name"
                else
                    mkdir "$root/sys/fs/cgroup/$name"
                    mount --bind "$tree" "$root/sys/fs/cgroup/$name"
                fi
            done
        fi
        mount -t proc none "$root/proc"
        # A change of the root directory alone would keep containers from having user namespaces.
        cd "$root" && mkdir -p .old && pivot_root . .old && umount -l .old
        exec /lib/systemd/systemd --system --unit=inco-test.target --log-target=null --show-status=no
    ' bash "$root" "${trees[@]}" >/dev/null 2>&1 &
    local namespace=$!
    init=
    for _ in $(seq 100); do
        init=$(pgrep -P $namespace || true)
        [ -n "$init" ] && [ -d "/proc/$init/root/run/systemd/system" ] && break
        sleep 0.05
    done
    within() {
        nsenter --target "$init" --mount --pid --root="/proc/$init/root" --wd="/proc/$init/root" \
            env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin INCO_RUN_DIR=/run/inco-test INCO_STATE_DIR=/var/lib/inco "$@"
    }
    become() { # what is expected, and a command that holds then
        local what=$1
        shift
        for _ in $(seq 300); do
            if "$@" >/dev/null 2>&1; then return; fi
            sleep 0.1
        done
        within systemctl status --no-pager inco >&2 || true
        within inco events >&2 || true
        fail "under systemd: $what: not within 30 s"
    }
    both_serve() { [ "$(within inco instances | grep -c ' active ')" = 2 ]; }
    came_back() { [ "$(within systemctl show -p NRestarts --value inco)" = "$1" ] && within inco events | grep -q 'adopted'; }
    main() { within systemctl show -p MainPID --value inco; }
    containers() { within pgrep -x inco-nf | sort -n; }
    has_flows() { [ "$(within inco flows --json --limit 1000 | grep -o '"flow":' | wc -l)" = 200 ]; }
    # While packets flow, a later version of the package is installed, systemd restarts inco, and inco is killed: each time
    # the main process is a new one with the same containers. No flow moves, and no packet is lost.
    no_flow_notices() {
        local before after nf traffic
        later "$package" "$root/var/tmp/later.deb"
        cat >"$root/var/tmp/load.toml" <<'TOML'
uplink_wait = "5s"
settle = "1s"
[[phase]]
duration = "120s"
flows = 200
rate_per_flow = "2pps"
TOML
        within inco traffic --json -f /var/tmp/load.toml --uplink memif:wan.sock >"$top/traffic" 2>"$top/log" &
        traffic=$!
        become 'all flows are pinned' has_flows
        before=$(main)
        nf=$(containers)
        within dpkg --no-triggers -i /var/tmp/later.deb >"$top/upgrade" 2>&1 ||
            failed "$top/upgrade" 'it is not upgraded'
        case $(within dpkg-query -W -f '${Version}' inco) in
        *+later) ;;
        *) fail 'the later version is not installed' ;;
        esac
        after=$(main)
        within inco events | grep -q 'took over from' || failed "$top/upgrade" 'the new program has not taken over'
        [ "$after" != "$before" ] || fail 'the main process is the one before'
        within inco status | grep -q "process $after" || fail "systemd takes $after for the main process"
        [ "$(within readlink "/proc/$after/exe")" = /usr/bin/inco ] || fail 'the main process is not the new program'
        within systemctl is-active --quiet inco || fail 'systemd says that it does not run after the upgrade'
        [ "$(within systemctl show -p NRestarts --value inco)" = 0 ] || fail 'systemd restarted it for the upgrade'
        [ "$(containers)" = "$nf" ] || fail 'the upgrade has not kept the containers'
        within systemctl restart inco || fail 'systemctl restart fails'
        [ "$(main)" != "$after" ] || fail 'systemctl restart has not restarted it'
        become 'the containers serve after a restart' both_serve
        become 'all flows are pinned after a restart' has_flows
        within kill -KILL "$(main)"
        become 'it comes back after a crash' came_back 1
        become 'the containers serve again' both_serve
        become 'all flows are pinned after a crash' has_flows
        [ "$(containers)" = "$nf" ] || fail 'a restart or a crash has not kept the containers'
        kill -0 "$traffic" || failed "$top/log" 'the traffic has ended before the upgrade'
        within pkill -INT -f '^inco traffic'
        wait "$traffic" || failed "$top/log" 'the traffic has failed'
        for count in lost mis_steered expected_moves lost_in_restarts duplicated reordered; do
            grep -Eq "\"$count\": ?0(,|}|$)" "$top/traffic" || failed "$top/traffic" "$count is not 0"
        done
    }
    become 'it starts' within systemctl is-active --quiet inco
    become 'two containers serve' both_serve
    within systemctl reload inco || fail 'systemctl reload fails'
    sed -i 's/max = 2/max = "x"/' "$root/etc/inco/inco.toml"
    if within systemctl reload inco 2>/dev/null; then fail 'systemctl reload takes a wrong file'; fi
    sed -i 's/max = "x"/max = 2/' "$root/etc/inco/inco.toml"
    within systemctl is-active --quiet inco || fail 'a wrong file ended it'
    no_flow_notices
    within kill -STOP "$(main)"
    become 'it comes back after a hang' came_back 2
    become 'the containers serve again' both_serve
    parent=$(within sh -c 'cat "/proc/$(pgrep -xo inco-nf)/cgroup"' | awk -F: '$3 ~ "^/inco-" { sub("/[^/]*$", "", $3); print $3; exit }')
    [ -n "$parent" ] || fail 'the containers are not in control groups of their own'
    within systemctl stop inco || fail 'systemctl stop fails'
    [ "$(within systemctl show -p Result --value inco)" = success ] || fail 'its end is no success'
    within pgrep -x inco-nf >/dev/null || fail 'containers are not kept for the next inco'
    removed() { ! within pgrep -x inco-nf; }
    become 'the containers are removed when no next inco comes' removed
    no_launcher() { ! within pgrep -f 'inco launcher'; }
    become 'the launcher leaves' no_launcher
    if compgen -G "/sys/fs/cgroup/*$parent" >/dev/null || [ -e "/sys/fs/cgroup$parent" ]; then
        fail "the control groups $parent outlive systemctl stop"
    fi
    kill -KILL "$init"
    wait $namespace 2>/dev/null || true
    for tree in "${trees[@]}"; do find "$tree" -depth -type d -exec rmdir {} + 2>/dev/null || true; done
    rm -rf "$unit/inco.service.d" "$unit/inco-test.target"
}
if [ -x "$root/lib/systemd/systemd" ] && command -v pgrep >/dev/null && command -v nsenter >/dev/null; then
    by_systemd
    echo 'test-deb: runs under systemd'
else
    echo 'test-deb: not run under systemd: that, pgrep or nsenter is not installed'
fi

cat >"$root/etc/inco/inco.toml" <<'TOML'
[[uplink]]
name = "wan"
device = "memif:wan.sock"
[service.sink]
port = "null"
TOML
# Removal also ends an inco that was started by hand.
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
