#!/usr/bin/env bash
# A real Kubernetes 1.34 for tests, of programs that are built from Go modules (scripts/kubernetes/go.mod pins them).
#
#   scripts/kubernetes.sh build [PROGRAM…]        builds what is missing: etcd and kube-apiserver, or the named ones
#   scripts/kubernetes.sh up FOLDER [PROGRAM…]    starts etcd, kube-apiserver and the named ones, as far as they do not
#                                                 run; state, logs and `kubeconfig` are in FOLDER
#   scripts/kubernetes.sh join FOLDER KUBECONFIG  makes the network namespace in which this runs a node ($NODE) of a cluster,
#                                                 with Pods in $PODS (10.88.0.0/16), the address $NODE_ADDRESS there,
#                                                 and the taint and label `inco.dev/demo`, whose value is $LABEL
#   scripts/kubernetes.sh image FOLDER NAME FILE  gives the node of FOLDER an image: an archive (tar) of its files
#   scripts/kubernetes.sh kill FOLDER             the node of FOLDER loses its power: all of its processes end at once
#   scripts/kubernetes.sh down FOLDER             ends everything of FOLDER, in the network namespace where it began
#
# PROGRAM: kube-scheduler, kube-controller-manager or kubelet. The kubelet makes this machine a node ($NODE, usually n1),
# with a containerd of its own; it needs root, containerd, /usr/lib/cni and busybox. A machine can have one at a
# time, and beside it nodes by `join`. The cluster notices within 10 s that its kubelet is gone.
#
# ADDRESS (127.0.0.1), PORT (16443) and ETCD_PORT (12379): where they listen. `kubeconfig` has all rights; the user of
# `reader.kubeconfig` has those that somebody gives to the user `reader`.
#
# Building needs Go 1.25 and takes some 5 minutes of CPU time for the two. The programs are kept in
# ~/.cache/inco/kubernetes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/inco/kubernetes
address=${ADDRESS:-127.0.0.1} port=${PORT:-16443} etcd_port=${ETCD_PORT:-12379} node=${NODE:-n1} pods=${PODS:-10.88.0.0/16} label=${LABEL:-} own=${NODE_ADDRESS:-}
say() { printf 'kubernetes: %s\n' "$*" >&2; }
usage() { sed -n '2,23s/^# \{0,1\}//p' "$0" >&2; exit 2; }

build() { # program…
    local program
    mkdir -p "$cache"
    for program in "$@"; do
        [ -x "$cache/$program" ] && continue
        [ -f "$here/kubernetes/go.mod" ] || {
            say "$program is not built: run \`scripts/kubernetes.sh build $program\` in the source of inco"
            exit 1
        }
        command -v go >/dev/null || { say "not run: $program is not built, and Go is missing: https://go.dev/dl"; exit 1; }
        say "building $program"
        case $program in
        etcd) (cd "$here/kubernetes/etcd" && go build -trimpath -ldflags='-s -w' -o "$cache/$program.new" go.etcd.io/etcd/server/v3) ;;
        *) (cd "$here/kubernetes" && go build -trimpath -ldflags='-s -w' -o "$cache/$program.new" "k8s.io/kubernetes/cmd/$program") ;;
        esac || { say "not run: $program cannot be built"; exit 1; }
        mv "$cache/$program.new" "$cache/$program"
    done
}

runs() { # name; one that has ended and whose parent has not noticed yet does not run
    local pid
    pid=$(cat "$1.pid" 2>/dev/null) && [ -n "$pid" ] && readlink "/proc/$pid/exe" >/dev/null 2>&1
}

run() { # name, command…
    local name=$1
    shift
    runs "$name" && return
    setsid nohup "$@" >>"$name.log" 2>&1 </dev/null &
    echo $! >"$name.pid"
}

await() { # what, name, seconds, command…
    local what=$1 name=$2 deadline=$((SECONDS + $3))
    shift 3
    until "$@" >/dev/null 2>&1; do
        if [ $SECONDS -ge $deadline ] || ! runs "$name"; then
            say "$what; the end of $PWD/$name.log:"
            tail -n 5 "$name.log" >&2
            exit 1
        fi
        sleep 0.2
    done
}

kubeconfig() { # file, token
    (umask 077 && cat >"$1") <<YAML
apiVersion: v1
kind: Config
clusters: [{name: tests, cluster: {server: "https://$address:$port", certificate-authority: "$PWD/certs/apiserver.crt"}}]
users: [{name: tests, user: {token: "$2"}}]
contexts: [{name: tests, context: {cluster: tests, user: tests}}]
current-context: tests
YAML
}

ask() { # path, options of curl…
    local path=$1
    shift
    curl -sS --fail --cacert certs/apiserver.crt -H "Authorization: Bearer $(cut -d, -f1 tokens.csv | head -n 1)" "$@" "https://$address:$port$path"
}

image() { # name, archive of its files, its entry point in JSON: for the node's containerd; there is no registry
    local machine=amd64
    [ "$(uname -m)" != aarch64 ] || machine=arm64
    rm -rf image.new
    mkdir image.new
    cp "$2" image.new/layer.tar
    printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":%s},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
        "$machine" "$3" "$(sha256sum image.new/layer.tar | cut -d' ' -f1)" >image.new/config.json
    printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$1" >image.new/manifest.json
    tar -C image.new -cf image.tar manifest.json config.json layer.tar
    ctr -a containerd.sock -n k8s.io images import image.tar >/dev/null
    rm -rf image.new image.tar
}

node() { # kubeconfig, control groups of its Pods, lines of the kubelet's configuration
    local need
    for need in /usr/bin/containerd /usr/lib/cni/bridge /bin/busybox; do
        [ -e "$need" ] || { say "there is no $need: apt-get install containerd containernetworking-plugins busybox-static"; exit 1; }
    done
    # A negative score is not permitted everywhere; runc then fails with "can't get final child's PID from pipe: EOF".
    cat >containerd.toml <<TOML
version = 2
root = "$PWD/containerd"
state = "$PWD/containerd-state"
[grpc]
  address = "$PWD/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/local/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$PWD/cni"
TOML
    mkdir -p cni
    cat >cni/10-bridge.conflist <<JSON
{"cniVersion":"0.4.0","name":"pods-$node","plugins":[{"type":"bridge","bridge":"pods0","isGateway":true,"ipam":{"type":"host-local","subnet":"$pods","dataDir":"$PWD/addresses","routes":[{"dst":"0.0.0.0/0"}]}}]}
JSON
    echo "$node" >node
    echo "$2" >groups
    run containerd containerd --config containerd.toml
    await 'containerd does not answer' containerd 20 ctr -a containerd.sock version
    # Other images by `image`, or ctr -a containerd.sock -n k8s.io images import FILE, and imagePullPolicy: Never.
    if ! ctr -a containerd.sock -n k8s.io images ls -q | grep -q local/pause; then
        mkdir -p pause/bin
        cp /bin/busybox pause/bin/
        tar -C pause -cf pause.tar .
        image docker.io/local/pause:1 pause.tar '["/bin/busybox","sleep","1000000"]'
    fi
    # Linux with cgroup v1 needs failCgroupV1: false, which later versions refuse. There is no DNS.
    cat >kubelet.yaml <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
failSwapOn: false
failCgroupV1: false
containerRuntimeEndpoint: unix://$PWD/containerd.sock
resolvConf: /dev/null
evictionHard: {memory.available: "50Mi", nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%"}
localStorageCapacityIsolation: false
podLogsDir: $PWD/pod-logs
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 8
enforceNodeAllocatable: []
healthzPort: 0
$3
YAML
    run kubelet "$cache/kubelet" --config kubelet.yaml --kubeconfig "$1" --root-dir "$PWD/kubelet" --hostname-override "$node" \
        ${label:+--node-labels "inco.dev/demo=$label"} ${own:+--node-ip "$own"}
}

join() { # folder, kubeconfig
    build kubelet
    local kubeconfig
    kubeconfig=$(realpath "$2")
    mkdir -p "$1"
    cd "$1"
    # Kubelets of one machine know control groups of each other's Pods as none of theirs, and would remove them; without
    # a group for each Pod, and below a root of its own, each leaves them alone.
    node "$kubeconfig" "$node" "cgroupsPerQOS: false
cgroupRoot: /$node
registerWithTaints: [{key: inco.dev/demo, value: '$label', effect: NoSchedule}]
registerNode: true"
}

up() { # folder, program…
    local folder=$1 program
    shift
    build etcd kube-apiserver "$@"
    mkdir -p "$folder"
    cd "$folder"
    folder=$PWD
    [ -f sa.key ] || (umask 077 && openssl genrsa -out sa.key 2048 2>/dev/null)
    if [ ! -f tokens.csv ]; then
        (umask 077 && printf '%s,admin,admin,system:masters\n%s,reader,reader\n' "$(openssl rand -hex 16)" "$(openssl rand -hex 16)" >tokens.csv)
    fi
    run etcd "$cache/etcd" --data-dir "$folder/etcd" --log-level warn \
        --listen-client-urls "http://127.0.0.1:$etcd_port" --advertise-client-urls "http://127.0.0.1:$etcd_port" \
        --listen-peer-urls 'http://127.0.0.1:0' --initial-advertise-peer-urls 'http://127.0.0.1:1' --initial-cluster 'default=http://127.0.0.1:1'
    run apiserver "$cache/kube-apiserver" --etcd-servers "http://127.0.0.1:$etcd_port" --cert-dir "$folder/certs" \
        --bind-address "$address" --advertise-address "$address" --secure-port "$port" \
        --service-account-issuer https://tests --service-account-key-file sa.key --service-account-signing-key-file sa.key \
        --authorization-mode RBAC --token-auth-file tokens.csv --service-cluster-ip-range 10.96.0.0/16 \
        --endpoint-reconciler-type none --allow-privileged
    kubeconfig kubeconfig "$(cut -d, -f1 tokens.csv | sed -n 1p)"
    kubeconfig reader.kubeconfig "$(cut -d, -f1 tokens.csv | sed -n 2p)"
    is_ready() { [ "$(ask /readyz)" = ok ]; }
    await 'kube-apiserver does not become ready' apiserver 90 is_ready
    for program in "$@"; do
        case $program in
        kube-scheduler)
            run scheduler "$cache/$program" --kubeconfig kubeconfig --authentication-kubeconfig kubeconfig \
                --authorization-kubeconfig kubeconfig --leader-elect=false --secure-port 0
            ;;
        kube-controller-manager)
            run controllers "$cache/$program" --kubeconfig kubeconfig --leader-elect=false \
                --service-account-private-key-file sa.key --secure-port 0 \
                --node-monitor-period 1s --node-monitor-grace-period 10s
            has_account() { ask /api/v1/namespaces/default/serviceaccounts/default; }
            await 'there is no account for Pods' controllers 60 has_account
            ;;
        kubelet)
            node kubeconfig 'kubepods*' ''
            is_there() {
                local said
                said=$(ask "/api/v1/nodes/$node") && grep -q KubeletReady <<<"$said" && ! grep -q '"taints"' <<<"$said"
            }
            await 'the node does not become ready' kubelet 60 is_there
            ;;
        *) usage ;;
        esac
    done
    echo "$folder/kubeconfig"
}

children() { # process…: they, and all that they have started
    local found="$*" more
    while :; do
        more=$(for pid in $found; do cat "/proc/$pid/task/"*/children 2>/dev/null || true; done)
        more=$(printf '%s\n' $found $more | sort -un)
        [ "$(printf '%s\n' $found | sort -un)" = "$more" ] && break
        found=$more
    done
    printf '%s\n' $found
}

shims() { # what holds the containers of this folder's containerd
    local file
    for file in /proc/[0-9]*/cmdline; do
        if tr '\0' ' ' 2>/dev/null <"$file" | grep -q -- "containerd-shim.* -address $PWD/containerd.sock "; then
            file=${file#/proc/}
            echo "${file%/cmdline}"
        fi
    done
}

forget() { # what a node leaves outside of its folder
    local name file network groups
    name=$(cat node 2>/dev/null) || return 0
    groups=$(cat groups)
    for file in /var/lib/cni/results/"pods-$name"-*; do
        [ -f "$file" ] || continue
        for network in $(grep -o '/run/netns/cni-[0-9a-f-]*' "$file" | sort -u); do
            umount -l "$network" 2>/dev/null && rm -f "$network" || true
        done
        file=${file##*/"pods-$name-"}
        rm -f "/var/lib/cni/results/pods-$name-$file" "/var/lib/cni/results/cni-loopback-${file%-eth0}-lo"
    done
    awk -v folder="$PWD/" 'index($2, folder) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r umount -l 2>/dev/null || true
    ip link del pods0 2>/dev/null || true
    find /sys/fs/cgroup -depth -type d \( -path "*/$groups" -o -path "*/$groups/*" \) -exec rmdir {} + 2>/dev/null || true
}

lose() { # folder
    cd "$1"
    local name pid
    for name in kubelet containerd; do
        pid=$(cat "$name.pid" 2>/dev/null) && kill -9 "$pid" 2>/dev/null || true
        rm -f "$name.pid"
    done
    for pid in $(children $(shims)); do kill -9 "$pid" 2>/dev/null || true; done
    forget
}

down() { # folder
    cd "$1" 2>/dev/null || exit 0
    local name pid task client='ctr -a containerd.sock -n k8s.io'
    for name in kubelet controllers scheduler apiserver etcd; do
        pid=$(cat "$name.pid" 2>/dev/null) && kill "$pid" 2>/dev/null || true
    done
    if runs containerd; then
        for task in $($client tasks ls -q 2>/dev/null); do $client tasks kill -s 9 "$task" >/dev/null 2>&1 || true; done
        sleep 1
        for task in $($client containers ls -q 2>/dev/null); do
            $client tasks rm -f "$task" >/dev/null 2>&1 || true
            $client containers rm "$task" >/dev/null 2>&1 || true
        done
        kill "$(cat containerd.pid)"
        sleep 1
    fi
    [ ! -f node ] || lose .
    for name in apiserver etcd; do
        for _ in $(seq 50); do runs "$name" || break; sleep 0.1; done
        runs "$name" && kill -9 "$(cat "$name.pid")" 2>/dev/null || true
        rm -f "$name.pid"
    done
    rm -f controllers.pid scheduler.pid
}

case ${1-} in
build)
    shift
    [ $# -gt 0 ] || set -- etcd kube-apiserver
    build "$@"
    ;;
up) [ $# -ge 2 ] || usage; shift && up "$@" ;;
join) [ $# -eq 3 ] || usage; join "$2" "$3" ;;
image)
    [ $# -eq 4 ] || usage
    file=$(realpath "$4")
    cd "$2" && image "$3" "$file" '[]'
    ;;
kill) [ $# -eq 2 ] || usage; lose "$2" ;;
down) [ $# -eq 2 ] || usage; down "$2" ;;
*) usage ;;
esac
