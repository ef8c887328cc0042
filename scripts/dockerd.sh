#!/usr/bin/env bash
# Makes sure that a Docker daemon answers, for the engine `docker`. Leaves a running one alone.
#
#   scripts/dockerd.sh start     start one if none answers
#   scripts/dockerd.sh stop      stop the one that `start` started, if it did
#   scripts/dockerd.sh status    say whether one runs, and whose; exit 1 if none answers
set -euo pipefail
socket=/var/run/docker.sock
run_dir=/run/inco-dockerd
pid_file=$run_dir/pid
log=$run_dir/log
start_limit_s=60

say() { printf 'dockerd: %s\n' "$*" >&2; }

answers() {
    [ -S "$socket" ] || return 1
    if command -v docker >/dev/null 2>&1; then
        timeout 10 docker -H "unix://$socket" version >/dev/null 2>&1
    elif command -v curl >/dev/null 2>&1; then
        [ "$(timeout 10 curl -s --unix-socket "$socket" http://localhost/_ping)" = OK ]
    else
        return 0
    fi
}

ours() { # true if the process that we started still runs
    local pid
    pid=$(cat "$pid_file" 2>/dev/null) || return 1
    [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = dockerd ]
}

wait_until_it_answers() { # gives up early if the process is gone
    local deadline=$((SECONDS + start_limit_s))
    until answers; do
        [ $SECONDS -lt $deadline ] || return 1
        [ $# -eq 0 ] || kill -0 "$1" 2>/dev/null || return 1
        sleep 0.1
    done
}

as_root=
if [ "$(id -u)" != 0 ]; then as_root='sudo -n'; fi

start() {
    if answers; then
        if ours; then
            say "already running (process $(cat "$pid_file"), started by us)"
        else
            say 'already running, left alone'
        fi
        return 0
    fi
    if ! command -v dockerd >/dev/null 2>&1; then
        say "not installed; run: sudo apt-get install -y docker.io"
        return 1
    fi
    if [ -n "$as_root" ] && ! { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }; then
        say "no daemon answers on $socket, and starting one needs root; run: sudo scripts/dockerd.sh start"
        return 1
    fi
    if [ -d /run/systemd/system ]; then
        say 'starting the service docker (it stays; stop it with: systemctl stop docker)'
        $as_root systemctl start docker
        wait_until_it_answers
        return
    fi
    $as_root mkdir -p "$run_dir"
    local driver launched pid
    # No network: instances have only their data ports. vfs if the file system has no overlays.
    for driver in overlay2 vfs; do
        # Left by a daemon that died, or by the attempt before.
        $as_root rm -f "$pid_file"
        $as_root sh -c 'log=$1; shift; exec setsid nohup dockerd "$@" </dev/null >"$log" 2>&1' sh "$log" \
            --host="unix://$socket" --storage-driver="$driver" --iptables=false --bridge=none --live-restore \
            --pidfile="$pid_file" </dev/null >/dev/null 2>&1 &
        launched=$!
        disown
        local deadline=$((SECONDS + start_limit_s))
        until pid=$(cat "$pid_file" 2>/dev/null) && [ -n "$pid" ]; do
            [ $SECONDS -lt $deadline ] && kill -0 "$launched" 2>/dev/null || break
            sleep 0.05
        done
        if [ -n "$pid" ] && wait_until_it_answers "$pid"; then
            say "started (process $pid, storage $driver, log $log); it stays; stop it with: make clean-machine"
            return 0
        fi
        if ours; then
            $as_root kill "$pid" || true
            deadline=$((SECONDS + start_limit_s))
            while kill -0 "$pid" 2>/dev/null && [ $SECONDS -lt $deadline ]; do sleep 0.1; done
        fi
    done
    say "did not start; the end of its log ($log):"
    tail -n 5 "$log" >&2 || true
    return 1
}

stop() {
    if ! ours; then
        say 'no daemon of ours runs'
        return 0
    fi
    local pid deadline
    pid=$(cat "$pid_file")
    $as_root kill "$pid"
    deadline=$((SECONDS + start_limit_s))
    while ours && [ $SECONDS -lt $deadline ]; do sleep 0.1; done
    if ours; then
        say "process $pid does not end"
        return 1
    fi
    $as_root rm -f "$pid_file" "$log"
    say "stopped (process $pid)"
}

case ${1:-} in
start) start ;;
stop) stop ;;
status)
    if answers; then
        if ours; then say "running (process $(cat "$pid_file"), started by us)"; else say 'running, not ours'; fi
    else
        say 'no daemon answers'
        exit 1
    fi
    ;;
*)
    say "usage: scripts/dockerd.sh start|stop|status"
    exit 2
    ;;
esac
