#!/usr/bin/env bash
# A real swarm of Docker's on this machine, for tests: each node is a network namespace with a daemon of its own. Root.
#
#   scripts/swarm.sh up FOLDER [NODES]    starts that many nodes (3), as far as they do not run; the first one manages
#                                         the swarm. State and logs are in FOLDER, nN/docker.sock is node N's Docker
#   scripts/swarm.sh nodes FOLDER         what the manager says of them
#   scripts/swarm.sh stop FOLDER N        ends the daemon of node N; its containers run on
#   scripts/swarm.sh start FOLDER N       starts it again
#   scripts/swarm.sh kill FOLDER N        node N loses its power: all of its processes, and its link
#   scripts/swarm.sh down FOLDER          ends all of them
#
# BRIDGE: a bridge of the network namespace in which this runs, to which nodes are connected; without it, one in a
# namespace of its own. NET (10.1.0): node N has the address NET.(10+N)/24, and the gateway NET.1.
#
# There are neither packet filters nor the swarm's own balancing: nodes publish ports by docker-proxy. A manager notices
# within 3 s that a node is down.
set -euo pipefail
net=${NET:-10.1.0}
say() { printf 'swarm: %s\n' "$*" >&2; }
usage() { sed -n '2,19s/^# \{0,1\}//p' "$0" >&2; exit 2; }

alive() { # file with a process id
    local pid
    pid=$(cat "$1" 2>/dev/null) && [ -n "$pid" ] && readlink "/proc/$pid/exe" >/dev/null 2>&1
}

namespace() { # file: holds a network namespace of its own, and writes who holds it
    alive "$1" && return
    setsid unshare --net sleep infinity </dev/null >/dev/null 2>&1 &
    echo $! >"$1.new"
    until [ "$(readlink "/proc/$(cat "$1.new")/ns/net" 2>/dev/null)" != "$(readlink /proc/self/ns/net)" ] &&
        [ "$(cat "/proc/$(cat "$1.new")/comm" 2>/dev/null)" = sleep ]; do sleep 0.01; done
    mv "$1.new" "$1"
}

within() { # file of a namespace, command…
    local file=$1
    shift
    nsenter --net="/proc/$(cat "$file")/ns/net" "$@"
}

docker_of() { # node, arguments…
    local node=$1
    shift
    docker --host "unix://$PWD/n$node/docker.sock" "$@"
}

await() { # what, seconds, command…
    local what=$1 deadline=$((SECONDS + $2))
    shift 2
    until "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $deadline ]; then
            say "$what"
            tail -n 5 n*/log >&2 2>/dev/null || true
            exit 1
        fi
        sleep 0.1
    done
}

connect() { # node: its namespace, and its link to the bridge
    local node=$1
    mkdir -p "n$node"
    alive "n$node/net" && return
    namespace "n$node/net"
    local pid link="to-n$node"
    pid=$(cat "n$node/net")
    if [ -n "${BRIDGE:-}" ]; then
        ip link add "$link" type veth peer name eth0 netns "$pid"
        ip link set "$link" master "$BRIDGE" up
    else
        namespace lan
        if ! within lan ip link show lan >/dev/null 2>&1; then
            within lan ip link add lan address 02:00:00:00:00:b0 type bridge mcast_snooping 0
            within lan ip address add "$net.1/24" dev lan
            within lan ip link set lan up
            within lan ip link set lo up
        fi
        within lan ip link add "$link" type veth peer name eth0 netns "$pid"
        within lan ip link set "$link" master lan up
    fi
    within "n$node/net" ip link set lo up
    within "n$node/net" ip address add "$net.$((10 + node))/24" dev eth0
    within "n$node/net" ip link set eth0 up
    within "n$node/net" ip route add default via "$net.1"
    # There is no registry: that a name is not known is to be said at once. Images: docker load at each node.
    local server
    for server in $(awk '$1 == "nameserver" && $2 ~ /^[0-9.]+$/ { print $2 }' /etc/resolv.conf); do
        within "n$node/net" ip route add unreachable "$server" 2>/dev/null || true
    done
}

daemon() { # node
    local node=$1
    alive "n$node/pid" && return
    # What a killed one has left: the next one would wait for it.
    rm -f "n$node/pid" "n$node/exec/containerd/containerd.pid"
    setsid nsenter --net="/proc/$(cat "n$node/net")/ns/net" dockerd \
        --data-root "$PWD/n$node/data" --exec-root "$PWD/n$node/exec" --pidfile "$PWD/n$node/pid" \
        --host "unix://$PWD/n$node/docker.sock" --iptables=false --ip6tables=false --bip "172.30.$node.1/24" \
        </dev/null >>"n$node/log" 2>&1 &
    await "the daemon of node $node does not answer" 60 docker_of "$node" version
}

manages() { [ "$(docker_of 1 info --format '{{.Swarm.ControlAvailable}}')" = true ]; }
joined() { [ "$(docker_of "$1" info --format '{{.Swarm.LocalNodeState}}')" = active ]; }
are_ready() { [ "$(docker_of 1 node ls --format '{{.Status}}' | grep -c Ready)" -ge "$1" ]; }

up() { # folder, nodes
    local node nodes=$2 token
    mkdir -p "$1"
    cd "$1"
    for node in $(seq "$nodes"); do connect "$node"; done
    local starting=() one
    for node in $(seq "$nodes"); do
        daemon "$node" &
        starting+=($!)
    done
    for one in "${starting[@]}"; do wait "$one"; done
    joined 1 || docker_of 1 swarm init --advertise-addr "$net.11" --dispatcher-heartbeat 1s >/dev/null
    await 'the first node does not manage the swarm' 30 manages
    token=$(docker_of 1 swarm join-token --quiet worker)
    for node in $(seq 2 "$nodes"); do
        joined "$node" || docker_of "$node" swarm join --advertise-addr "$net.$((10 + node))" --token "$token" "$net.11:2377" >/dev/null
    done
    await 'the nodes do not become ready' 60 are_ready "$nodes"
}

lose() { # node: all of its processes end at once
    local node=$1 network pid
    alive "n$node/net" || return 0
    ip link del "to-n$node" 2>/dev/null || { alive lan && within lan ip link del "to-n$node" 2>/dev/null; } || true
    for pid in $(pids "$node"); do kill -9 "$pid" 2>/dev/null || true; done
    awk -v folder="$PWD/n$node/" 'index($2, folder) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r umount -l 2>/dev/null || true
    rm -f "n$node/net" "n$node/pid"
}

pids() { # node: what is in its network, and all children: containers have networks of their own
    local own found more
    own=$(readlink "/proc/$(cat "n$1/net")/ns/net") || return 0
    found=$(find /proc/[0-9]*/ns/net -maxdepth 0 -printf '%l %p\n' 2>/dev/null | awk -v own="$own" '$1 == own { split($2, part, "/"); print part[3] }' || true)
    while :; do
        more=$(for pid in $found; do cat "/proc/$pid/task/"*/children 2>/dev/null || true; done)
        more=$(printf '%s\n' $found $more | sort -un)
        [ "$(printf '%s\n' $found | sort -un)" = "$more" ] && break
        found=$more
    done
    printf '%s\n' $found
}

down() { # folder
    cd "$1" 2>/dev/null || exit 0
    local node
    for node in n*/; do
        [ -d "$node" ] || continue
        node=${node#n}
        lose "${node%/}"
    done
    alive lan && kill -9 "$(cat lan)"
    rm -f lan
}

[ $# -ge 2 ] || usage
case $1 in
up) [ $# -le 3 ] || usage; up "$2" "${3:-3}" ;;
nodes) cd "$2" && docker_of 1 node ls ;;
stop)
    [ $# -eq 3 ] || usage
    cd "$2"
    for file in "n$3/pid" "n$3/exec/containerd/containerd.pid"; do
        kill -9 "$(cat "$file")"
        while alive "$file"; do sleep 0.05; done
        rm -f "$file"
    done
    ;;
start) [ $# -eq 3 ] || usage; cd "$2" && daemon "$3" ;;
kill) [ $# -eq 3 ] || usage; cd "$2" && lose "$3" ;;
down) [ $# -eq 2 ] || usage; down "$2" ;;
*) usage ;;
esac
