#!/usr/bin/env bash
# Asks the API of a running inco whatever its description allows, and what it does not, and compares the answers with the
# description: with schemathesis, fetched by pip into the target folder. An inco of its own is started for it, with a service
# that needs no container, TLS, and tokens.
#
#   scripts/schemathesis.sh INCO        the program to test, for example target/debug/inco
#
# Exit status: 0 where every answer is as described.
set -euo pipefail
inco=$(realpath "${1:?which inco? scripts/schemathesis.sh target/debug/inco}")
root=$(cd "$(dirname "$0")/.." && pwd)
tools=${CARGO_TARGET_DIR:-$root/target}/schemathesis
cases=${CASES:-20}

if [ ! -x "$tools/bin/schemathesis" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet schemathesis
fi

work=$(mktemp -d)
export INCO_RUN_DIR=$work/run
pid=
ended() {
    local status=$?
    if [ -n "$pid" ]; then
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    fi
    [ $status = 0 ] || tail -n 20 "$work/inco.log" >&2 || true
    rm -rf "$work"
    exit $status
}
trap ended EXIT

umask 077
openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
    -keyout "$work/key.pem" -out "$work/cert.pem" 2>/dev/null
token=$(openssl rand -hex 32)
echo "admin test $token" >"$work/tokens"
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >"$work/inco.toml" <<END
[[uplink]]
name = "wan"
device = "memif:wan.sock"
[service.sink]
port = "null"
instances = { min = 1, max = 3 }
[engine]
driver = "oci"
[api]
listen = "127.0.0.1:$port"
certificate = "$work/cert.pem"
key = "$work/key.pem"
tokens = "$work/tokens"
END
"$inco" run -f "$work/inco.toml" >"$work/inco.log" 2>&1 &
pid=$!
url=https://localhost:$port
for _ in $(seq 200); do
    curl -sf --cacert "$work/cert.pem" -H "authorization: Bearer $token" "$url/v1/status" >/dev/null && break
    kill -0 "$pid"
    sleep 0.05
done
# The stream does not end, and stopping inco would end the test.
"$tools/bin/schemathesis" run "$url/v1/openapi.json" --url "$url" --tls-verify "$work/cert.pem" \
    -H "Authorization: Bearer $token" --exclude-path /v1/stream --max-examples "$cases" --phases examples,coverage,fuzzing \
    --rate-limit 200/s --no-color ${SCHEMATHESIS_ARGS:-}
kill -0 "$pid"
echo "schemathesis: the API answers as it is described"
