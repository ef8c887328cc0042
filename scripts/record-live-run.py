#!/usr/bin/env python3
"""Records a service of a running inco for the simulation: the offered packets every 0.1 s, and the decisions.

    inco run -f FILE &                      # with one service
    scripts/record-live-run.py SERVICE SECONDS OUT.json -- inco traffic -f PROFILE

Starts the traffic command after two seconds. Writes a recording that a scenario plays with
`kind = "recording"`. It queries the inco that $INCO names (default: `inco`)."""

import json
import os
import subprocess
import sys
import time


def main() -> None:
    if len(sys.argv) < 6 or sys.argv[4] != "--":
        sys.exit(__doc__)
    service, seconds, out, command = sys.argv[1], float(sys.argv[2]), sys.argv[3], sys.argv[5:]
    inco = os.environ.get("INCO", "inco")
    watch = subprocess.Popen([inco, "services", "--json", "--watch", "0.1"], stdout=subprocess.PIPE, text=True)
    begin = time.time()
    traffic = None
    samples = []
    for line in watch.stdout:
        now = time.time()
        row = next(row for row in json.loads(line) if row["name"] == service)
        samples.append((round(now - begin, 4), row["offered_packets"], row["live_flows"]))
        if traffic is None and now - begin > 2:
            traffic = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        if now - begin > seconds:
            break
    watch.terminate()
    watch.wait()
    if traffic is not None:
        traffic.wait()
    log = subprocess.run([inco, "events", "--json", "--last", "1000"], stdout=subprocess.PIPE, text=True, check=True)
    decisions = []
    for line in log.stdout.splitlines():
        event = json.loads(line)
        at = event["unix_ms"] / 1000 - begin
        if event["event"] == "scaled" and event.get("service") == service and 0 <= at <= samples[-1][0]:
            decisions.append({"at_s": round(at, 3), "from": event["from"], "to": event["to"]})
    first = samples[0][1]
    recording = {
        "about": f"inco run, {' '.join(command)}; service {service}, sampled every 0.1 s",
        "samples": [(at, packets - first, flows) for at, packets, flows in samples],
        "decisions": decisions,
    }
    with open(out, "w", encoding="utf-8") as file:
        json.dump(recording, file)
        file.write("\n")
    print(f"{len(samples)} samples, {len(decisions)} decisions in {out}")


if __name__ == "__main__":
    main()
