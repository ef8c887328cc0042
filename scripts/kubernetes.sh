#!/usr/bin/env bash
# A real Kubernetes 1.34 for tests, of programs that are built from Go modules (scripts/kubernetes/go.mod pins them).
#
#   scripts/kubernetes.sh build [PROGRAM…]        builds what is missing: etcd and kube-apiserver, or the named ones
#   scripts/kubernetes.sh up FOLDER [PROGRAM…]    starts etcd, kube-apiserver and the named ones, as far as they do not
#                                                 run; state, logs and `kubeconfig` are in FOLDER
#   scripts/kubernetes.sh down FOLDER             ends all of them
#
# PROGRAM: kube-scheduler, kube-controller-manager or kubelet. The kubelet makes this machine a node ($NODE, usually n1),
# with a containerd of its own; it needs root, containerd, Docker, /usr/lib/cni and busybox. A machine can have one at a
# time. The cluster notices within 10 s that its kubelet is gone.
#
# ADDRESS (127.0.0.1), PORT (16443) and ETCD_PORT (12379): where they listen. `kubeconfig` has all rights; the user of
# `reader.kubeconfig` has those that somebody gives to the user `reader`.
#
# Building needs Go 1.25 and takes some 5 minutes of CPU time for the two. The programs are kept in
# ~/.cache/inco/kubernetes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/inco/kubernetes
address=${ADDRESS:-127.0.0.1} port=${PORT:-16443} etcd_port=${ETCD_PORT:-12379} node=${NODE:-n1}
say() { printf 'kubernetes: %s\n' "$*" >&2; }
usage() { sed -n '2,20s/^# \{0,1\}//p' "$0" >&2; exit 2; }

build() { # program…
    local program
    mkdir -p "$cache"
    for program in "$@"; do
        [ -x "$cache/$program" ] && continue
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

node() {
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
    cat >cni/10-bridge.conflist <<'JSON'
{"cniVersion":"0.4.0","name":"pods","plugins":[{"type":"bridge","bridge":"pods0","isGateway":true,"ipam":{"type":"host-local","subnet":"10.88.0.0/16","routes":[{"dst":"0.0.0.0/0"}]}}]}
JSON
    run containerd containerd --config containerd.toml
    await 'containerd does not answer' containerd 20 ctr -a containerd.sock version
    # There is no registry. Other images: ctr -a containerd.sock -n k8s.io images import FILE, and imagePullPolicy: Never.
    if ! ctr -a containerd.sock -n k8s.io images ls -q | grep -q local/pause; then
        mkdir -p pause/bin
        cp /bin/busybox pause/bin/
        tar -C pause -cf pause-root.tar .
        docker import -c 'ENTRYPOINT ["/bin/busybox","sleep","1000000"]' pause-root.tar local/pause:1 >/dev/null
        docker save local/pause:1 -o pause.tar
        ctr -a containerd.sock -n k8s.io images import pause.tar >/dev/null
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
YAML
    run kubelet "$cache/kubelet" --config kubelet.yaml --kubeconfig kubeconfig --root-dir "$PWD/kubelet" --hostname-override "$node"
    is_ready() {
        local said
        said=$(ask "/api/v1/nodes/$node") && grep -q KubeletReady <<<"$said" && ! grep -q '"taints"' <<<"$said"
    }
    await 'the node does not become ready' kubelet 60 is_ready
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
        kubelet) node ;;
        *) usage ;;
        esac
    done
    echo "$folder/kubeconfig"
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
        awk -v folder="$PWD" 'index($2, folder) == 1 { print $2 }' /proc/mounts | sort -r | xargs -r umount -l
        ip link del pods0 2>/dev/null || true
        find /sys/fs/cgroup -depth -type d -path '*/kubepods*' -exec rmdir {} + 2>/dev/null || true
    fi
    for name in apiserver etcd; do
        for _ in $(seq 50); do runs "$name" || break; sleep 0.1; done
        runs "$name" && kill -9 "$(cat "$name.pid")" 2>/dev/null || true
        rm -f "$name.pid"
    done
    rm -f kubelet.pid controllers.pid scheduler.pid containerd.pid
}

case ${1-} in
build)
    shift
    [ $# -gt 0 ] || set -- etcd kube-apiserver
    build "$@"
    ;;
up) [ $# -ge 2 ] || usage; shift && up "$@" ;;
down) [ $# -eq 2 ] || usage; down "$2" ;;
*) usage ;;
esac
