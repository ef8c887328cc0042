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
        let own = [format!("inco-paths-{pid}-"), format!("incop{}", pid % 1_000_000)];
        let lines = said
            .lines()
            .filter(|line| own.iter().any(|name| line.starts_with(name)));
        left.extend(lines.map(str::to_owned));
    }
    left
}

#[test]
fn the_bench_of_paths_measures_what_arrives() {
    if !servers(&["nginx", "redis-server", "wrk", "iperf3", "ip", "setpriv"]) {
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
    let status = bench.wait_for_so_long(6 * PATIENCE);
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
        let [one, three] = ["requests", "tiers"].map(|work| {
            let row = find(path, work, 16);
            let of = |key: &str| row[key].as_f64().unwrap();
            assert!(
                of("requests_per_s") > 0.0 && of("cpu_us_per_request") > 0.0,
                "{row}"
            );
            assert!(0.0 < of("p50_us") && of("p50_us") <= of("p99_us"), "{row}");
            of("cpu_us_per_request")
        });
        // It crosses the path three times, and two servers more.
        assert!(three > 1.5 * one, "{path}: {one} {three}");
    }
    for path in ["bridge", "ebpf", "memif"] {
        let row = find(path, "packets", 16);
        let of = |key: &str| row[key].as_f64().unwrap();
        assert!(of("pdr_pps") > 0.0 && of("cpu_ns_per_packet") > 0.0, "{row}");
        assert!(
            of("overload_pps") > 0.0 && of("overload_pps") < 2.1 * of("pdr_pps"),
            "{row}"
        );
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
    // Two numbers of connections, requests, those of three tiers, packets and three mixes of two paths, packets of one.
    let csv = bench.said("bench-paths.csv");
    assert_eq!(
        csv.lines().filter(|line| line.contains(",local,")).count(),
        17,
        "{csv}"
    );
    assert_eq!(left(&bench), Vec::<String>::new());
}

/// The driver `hybrid` beside the two paths between which it chooses. At full length the bound is asked for, too: ten rounds
/// on a machine that does nothing else.
#[test]
fn hybrid_is_compared_with_the_best_path_for_all_flows() {
    if !servers(&["nginx", "ip", "setpriv"]) {
        return;
    }
    let is_full = real_parts::is_full_length();
    let rounds = if is_full { 10 } else { 1 };
    let _turn = Place::quiet();
    let mixes = ["mix-large", "mix-half", "mix-small"];
    let mut bench = Demo::of(
        "bench",
        &[
            "paths",
            "--path",
            "soft-kernel,ebpf,hybrid",
            "--work",
            &mixes.join(","),
            "--scope",
            "local",
            "--rounds",
            &rounds.to_string(),
            "--html",
            "paths.html",
            "--costs",
            "paths.toml",
            "--json",
        ],
    );
    let status = bench.wait_for_so_long((2 + rounds) * PATIENCE);
    let (out, err) = (bench.said("out"), bench.said("err"));
    assert_eq!(status, Some(0), "{out}\n{err}");
    let rows: Vec<Value> = serde_json::from_str(&out).unwrap();
    for work in mixes {
        for path in ["soft-kernel", "ebpf", "hybrid"] {
            let row = rows.iter().find(|row| row["path"] == path && row["work"] == work);
            let row = row.unwrap_or_else(|| panic!("{path}, {work}: {out}\n{err}"));
            // What the whole machine uses is that of other tests, too, in the short form.
            let least = if is_full { 100.0 } else { 0.0 };
            assert!(
                row["cpu_ns_per_packet"].as_f64().is_some_and(|ns| ns >= least),
                "{row}"
            );
            assert!(row["p50_us"].as_f64().is_some_and(|us| us > 0.0), "{row}");
            if !is_full {
                continue;
            }
            let ratio = row["of_best_static"].as_f64();
            assert_eq!(ratio.is_some(), path == "hybrid", "{row}");
            let Some(ratio) = ratio else { continue };
            let lower = row["of_best_static_lower"].as_f64();
            println!("{work}: {ratio:.3} of {}, at least {lower:?}", row["best_static"]);
            assert!(lower.is_some_and(|lower| lower >= 0.93), "{row}");
        }
    }
    let costs = bench.said("paths.toml");
    assert!(
        costs.contains("path = \"hybrid\"") && costs.contains("work = \"mix-half\""),
        "{costs}"
    );
    assert!(bench.said("bench-paths.csv").contains("hybrid,local,mix-small"));
    assert!(bench.said("paths.html").contains("at least 0.93"));
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

/// A pair of interfaces of this machine, with these names. It goes with the test.
struct Pair(&'static str);

impl Pair {
    fn new(near: &'static str, far: &str) -> Pair {
        let made = Command::new("ip")
            .args(["link", "add", near, "type", "veth", "peer", "name", far])
            .status();
        assert!(made.unwrap().success());
        Pair(near)
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", self.0]).status();
    }
}

/// Without a card: virtual interfaces stand in for its functions. Whatever was measured says so, no policy reads of it,
/// rules of a card are refused by what is none, and the interfaces are back.
#[test]
fn the_paths_of_a_card_are_measured_on_a_stand_in_which_is_called_so() {
    if !servers(&["nginx", "wrk", "ip", "tc", "setpriv"]) {
        return;
    }
    let _turn = Place::new();
    let _pairs = [
        Pair::new("incotcf0", "incotcr0"),
        Pair::new("incotcf1", "incotcr1"),
        Pair::new("incotcd0", "incotcd1"),
    ];
    let run = |more: &[&str]| {
        let all = [
            "paths",
            "--rounds",
            "1",
            "--json",
            "--costs",
            "paths.toml",
            "--work",
            "requests",
            "--scope",
            "local",
        ];
        let mut bench = Demo::of("bench", &[&all, more].concat());
        let status = bench.wait_for_so_long(2 * PATIENCE);
        let said = (bench.said("out"), bench.said("err"));
        assert_eq!(left(&bench), Vec::<String>::new());
        for name in ["incotcf0", "incotcf1", "incotcd0", "incotcd1"] {
            assert!(
                std::path::Path::new("/sys/class/net").join(name).exists(),
                "{name}"
            );
        }
        (bench, status, said)
    };
    let device = ["--device", "incotcd0,incotcd1"];
    let (_, status, (_, err)) = run(&[&device[..], &["--path", "device"]].concat());
    assert_eq!(status, Some(1), "{err}");
    assert!(err.contains("incotcd0 is no function of a card"), "{err}");

    let (bench, status, (out, err)) =
        run(&[&device[..], &["--stand-in", "--path", "bridge,device,card-rules"]].concat());
    assert_eq!(status, Some(0), "{out}\n{err}");
    let rows: Vec<Value> = serde_json::from_str(&out).unwrap();
    let find = |rows: &[Value], path: &str| rows.iter().find(|row| row["path"] == path).unwrap().clone();
    assert!(
        find(&rows, "device")["requests_per_s"].as_f64().unwrap() > 0.0,
        "{out}"
    );
    assert_eq!(
        ["device", "bridge"].map(|path| find(&rows, path)["stand_in"] == true),
        [true, false]
    );
    assert!(
        find(&rows, "card-rules")["unavailable"]
            .as_str()
            .unwrap()
            .contains("--representors"),
        "{out}"
    );
    let costs = bench.said("paths.toml");
    assert!(
        costs.contains("\"bridge\"") && !costs.contains("\"device\""),
        "{costs}"
    );
    assert!(bench.said("bench-paths.csv").contains("STAND-IN"), "{out}");

    let functions = [
        "--device",
        "incotcf0,incotcf1",
        "--representors",
        "incotcr0,incotcr1",
        "--stand-in",
    ];
    let (_, status, (out, err)) = run(&[&functions[..], &["--path", "representors,card-rules"]].concat());
    assert_eq!(status, Some(0), "{out}\n{err}");
    let rows: Vec<Value> = serde_json::from_str(&out).unwrap();
    assert!(
        find(&rows, "representors")["requests_per_s"].as_f64().unwrap() > 0.0,
        "{out}"
    );
    let refused = find(&rows, "card-rules");
    assert!(
        refused["unavailable"]
            .as_str()
            .unwrap()
            .contains("the card takes no rule"),
        "{refused}"
    );
    assert_eq!(
        Command::new("tc")
            .args(["qdisc", "show", "dev", "incotcr0"])
            .output()
            .unwrap()
            .stdout
            .windows(6)
            .filter(|of| of == b"clsact")
            .count(),
        0
    );
}
