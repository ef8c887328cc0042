//! `inco bench paths`: what it measures arrives, and nothing of it stays.

use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::demo::{Demo, servers};
use crate::support::{PATIENCE, Place, eventually};

/// What each row has.
const KEYS: [&str; 8] = [
    "path",
    "scope",
    "streams",
    "gbps",
    "cpu_s_per_gbit",
    "requests_per_s",
    "p50_us",
    "p99_us",
];

/// What is left of a bench: namespaces, links, processes in its namespaces.
fn left(bench: &Demo) -> Vec<String> {
    let pid = bench.child.id();
    let mut left = bench.left();
    for arguments in [["netns", "list"], ["-brief", "link"]] {
        let said = Command::new("ip").args(arguments).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let own = [format!("inco-paths-{pid}-"), format!("incop{}u", pid % 1_000_000)];
        let lines = said
            .lines()
            .filter(|line| own.iter().any(|name| line.starts_with(name)));
        left.extend(lines.map(str::to_owned));
    }
    left
}

#[test]
fn the_bench_of_paths_measures_what_arrives() {
    if !servers(&["nginx", "wrk", "iperf3", "ip", "setpriv"]) {
        return;
    }
    let _turn = Place::quiet();
    let mut bench = Demo::of(
        "bench",
        &[
            "paths",
            "--path",
            "bridge,ebpf,memif",
            "--scope",
            "local",
            "--streams",
            "1,4",
            "--rounds",
            "1",
            "--html",
            "paths.html",
            "--costs",
            "paths.toml",
            "--json",
        ],
    );
    let status = bench.wait_for_so_long(4 * PATIENCE);
    let (out, err) = (bench.said("out"), bench.said("err"));
    assert_eq!(status, Some(0), "{out}\n{err}");
    let rows: Vec<Value> = serde_json::from_str(&out).unwrap();
    for row in &rows {
        let row = row.as_object().unwrap();
        assert!(KEYS.iter().all(|key| row.contains_key(*key)), "{row:?}");
    }
    let find = |path: &str, work: &str, streams: u64| -> &Value {
        let is_it = |row: &&Value| row["path"] == path && row["work"] == work && row["streams"] == streams;
        rows.iter()
            .find(is_it)
            .unwrap_or_else(|| panic!("{path}, {work}: {out}\n{err}"))
    };
    let cpus = std::thread::available_parallelism().unwrap().get() as f64;
    for path in ["bridge", "ebpf"] {
        for streams in [1, 4] {
            let row = find(path, "tcp", streams);
            let of = |key: &str| row[key].as_f64().unwrap();
            // Received bytes. No more CPU time was used than there is; connections begin and end outside of the time that
            // counts.
            let used = of("gbps") * of("cpu_s_per_gbit");
            assert!(of("gbps") > 0.0 && 0.0 < used && used < 2.0 * cpus, "{row}");
            assert!(
                of("retransmits") >= 0.0 && row["requests_per_s"].is_null(),
                "{row}"
            );
        }
        let row = find(path, "requests", 16);
        let of = |key: &str| row[key].as_f64().unwrap();
        assert!(
            of("requests_per_s") > 0.0 && of("cpu_us_per_request") > 0.0,
            "{row}"
        );
        assert!(0.0 < of("p50_us") && of("p50_us") <= of("p99_us"), "{row}");
    }
    for path in ["bridge", "ebpf", "memif"] {
        let row = find(path, "packets", 16);
        let of = |key: &str| row[key].as_f64().unwrap();
        assert!(of("pdr_pps") > 0.0 && of("cpu_ns_per_packet") > 0.0, "{row}");
        // None where even the lowest rate loses a packet.
        assert!(row["ndr_pps"].as_f64().unwrap_or(0.0) <= of("pdr_pps"), "{row}");
    }
    let refused = rows
        .iter()
        .find(|row| row["path"] == "memif" && row["work"] == "tcp")
        .unwrap();
    assert!(
        refused["gbps"].is_null()
            && refused["unavailable"]
                .as_str()
                .is_some_and(|reason| !reason.is_empty()),
        "{refused}"
    );
    let page = bench.said("paths.html");
    assert!((11..=20).all(|number| page.contains(&format!("PT-{number}"))));
    let costs = bench.said("paths.toml");
    assert!(
        costs.contains("version = 1") && costs.contains("path = \"ebpf\""),
        "{costs}"
    );
    // Two numbers of connections, requests and packets of two paths, packets of one.
    let csv = bench.said("bench-paths.csv");
    assert_eq!(
        csv.lines().filter(|line| line.contains(",local,")).count(),
        9,
        "{csv}"
    );
    assert_eq!(left(&bench), Vec::<String>::new());
}

#[test]
fn an_interrupted_bench_of_paths_leaves_nothing() {
    if !servers(&["nginx", "wrk", "iperf3", "ip", "setpriv"]) {
        return;
    }
    let _turn = Place::new();
    let arguments = [
        "paths",
        "--path",
        "bridge,ebpf",
        "--work",
        "tcp",
        "--duration",
        "2",
    ];
    for signal in [Signal::INT, Signal::TERM] {
        let mut bench = Demo::of("bench", &arguments);
        // Iperf3 runs, and the second turn begins.
        bench.wait_for("round 1: bridge, local, tcp, 1 at a time");
        kill_process(Pid::from_child(&bench.child), signal).unwrap();
        assert_eq!(
            bench.wait(),
            Some(130),
            "{}\n{}",
            bench.said("out"),
            bench.said("err")
        );
        assert_eq!(left(&bench), Vec::<String>::new());
    }
}

#[test]
fn the_next_bench_of_paths_removes_what_a_killed_one_left() {
    if !servers(&["nginx", "wrk", "iperf3", "ip", "setpriv"]) {
        return;
    }
    let _turn = Place::new();
    let arguments = ["paths", "--path", "bridge", "--work", "tcp", "--duration", "2"];
    let mut killed = Demo::of("bench", &arguments);
    killed.wait_for("round 1: bridge, local, tcp, 1 at a time");
    let network = format!("inco-paths-{}-server", killed.child.id());
    kill_process(Pid::from_child(&killed.child), Signal::KILL).unwrap();
    killed.wait();
    // Programs end with the bench, namespaces do not.
    eventually("its programs end", PATIENCE, || {
        let said = Command::new("ip")
            .args(["netns", "pids", &network])
            .output()
            .unwrap();
        (said.status.success() && said.stdout.is_empty()).then_some(())
    });
    let mut next = Demo::of(
        "bench",
        &["paths", "--path", "bridge", "--work", "requests", "--rounds", "1"],
    );
    assert_eq!(next.wait(), Some(0), "{}\n{}", next.said("out"), next.said("err"));
    let networks = |bench: &Demo| -> Vec<String> {
        let of = left(bench).into_iter();
        of.filter(|line| line.starts_with("inco-paths-")).collect()
    };
    assert_eq!(networks(&killed), Vec::<String>::new());
    assert_eq!(left(&next), Vec::<String>::new());
}
