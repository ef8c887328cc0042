//! The demo as its users run it, with shorter pauses between new flows, and a bench that needs containers as it does.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use real_parts::is_full_length;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::support::{Place, available};

/// Calibration, one run and the end of it, on a machine that is busy with other things.
const PATIENCE: Duration = Duration::from_secs(120);

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn real_parts(engine: &str) -> bool {
    let nf = std::env::var_os("INCO_NF").is_none();
    let answers = |program: &str| {
        Command::new(program)
            .args(["version", "--format", "{{.Server.Version}}"])
            .output()
            .is_ok_and(|o| o.status.success())
    };
    available("root", (!is_root()).then(|| "this is not run as root".to_owned()))
        && available(
            engine,
            nf.then(|| "INCO_NF does not name the static inco-nf (`make nf` builds it)".to_owned()),
        )
        && (engine != "docker"
            || available(
                "docker",
                (!answers("docker")).then(|| "no Docker engine answers".to_owned()),
            ))
}

/// A demo or a bench that runs.
pub(crate) struct Demo {
    pub(crate) child: Child,
    directory: tempfile::TempDir,
}

impl Demo {
    fn start(arguments: &[&str]) -> Demo {
        Demo::of("demo", arguments)
    }

    /// Another command, in a place of its own likewise.
    pub(crate) fn of(command: &str, arguments: &[&str]) -> Demo {
        // Short, since sockets below it have paths of at most 107 bytes.
        let directory = tempfile::Builder::new()
            .prefix("inco-d")
            .tempdir_in("/tmp")
            .unwrap();
        let file = |name: &str| std::fs::File::create(directory.path().join(name)).unwrap();
        // As an operator would run a data plane: before other programs.
        let child = Command::new("nice")
            .args(["-n", "-10", env!("CARGO_BIN_EXE_inco"), command])
            .args(arguments)
            .current_dir(directory.path())
            .env("INCO_RUN_DIR", directory.path().join("run"))
            .env("INCO_STATE_DIR", directory.path().join("state"))
            .stdin(Stdio::null())
            .stdout(file("out"))
            .stderr(file("err"))
            .spawn()
            .unwrap();
        Demo { child, directory }
    }

    pub(crate) fn said(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.path().join(name)).unwrap()
    }

    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.wait_for_so_long(PATIENCE)
    }

    pub(crate) fn wait_for_so_long(&mut self, limit: Duration) -> Option<i32> {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(
                since.elapsed() < limit,
                "it does not end:\n{}\n{}",
                self.said("out"),
                self.said("err")
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until standard error or output has that text.
    pub(crate) fn wait_for(&mut self, text: &str) {
        let since = Instant::now();
        while !self.said("out").contains(text) && !self.said("err").contains(text) {
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "it has ended:\n{}\n{}",
                self.said("out"),
                self.said("err")
            );
            assert!(
                since.elapsed() < PATIENCE,
                "it does not say {text:?}:\n{}\n{}",
                self.said("out"),
                self.said("err")
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn run_dir(&self) -> PathBuf {
        self.directory
            .path()
            .join("run")
            .join(format!("inco-demo-{}", self.child.id()))
    }

    /// Processes, control groups and files of it.
    pub(crate) fn left(&self) -> Vec<String> {
        let run_dir = self.run_dir();
        let mut left = Vec::new();
        let text = run_dir.display().to_string();
        for process in std::fs::read_dir("/proc").unwrap().flatten() {
            let read = |name: &str| std::fs::read(process.path().join(name)).unwrap_or_default();
            let holds = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).contains(&text);
            if holds(read("environ")) || holds(read("cmdline")) {
                left.push(format!("process {}", process.path().display()));
            }
        }
        let group = cgroup(&run_dir);
        for tree in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            if tree.path().join(&group).exists() || tree.file_name().to_string_lossy() == group {
                left.push(format!("control group {}", tree.path().join(&group).display()));
            }
        }
        for directory in [&text, &format!("{text}-ovs")] {
            if Path::new(directory).exists() {
                left.push(format!("directory {directory}"));
            }
        }
        left
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // A test that failed leaves nothing, either: inco ends with the demo.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The control group of an embedded engine with that run directory: FNV-1a of its path.
fn cgroup(run_dir: &Path) -> String {
    let text = run_dir.as_os_str().as_encoded_bytes();
    let hash = text.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    format!("inco-{hash:016x}")
}

/// A short demo with that engine and that switch keeps what inco promises, and leaves nothing.
fn keeps_its_promises(engine: &str, switch: &str) {
    keeps_its_promises_with("forward", engine, switch);
}

/// The same with this function in the instances.
fn keeps_its_promises_with(function: &str, engine: &str, switch: &str) {
    if !real_parts(engine) {
        return;
    }
    // Packets that the function drops because it is late, and containers that are late, are counted: nobody else has
    // the CPUs meanwhile.
    let _turn = Place::quiet();
    let mut arguments = vec![
        "--quick",
        "--json",
        "--engine",
        engine,
        "--switch",
        switch,
        "--flow-interval-ms",
        "100",
    ];
    if function != "forward" {
        arguments.extend(["--function", function]);
    }
    let mut demo = Demo::start(&arguments);
    let status = demo.wait();
    assert_eq!(status, Some(0), "{}\n{}", demo.said("out"), demo.said("err"));
    let summary: Value = serde_json::from_str(&demo.said("out")).unwrap();
    let run = &summary["runs"][0];
    assert_eq!(summary["runs"].as_array().unwrap().len(), 1);
    assert_eq!(
        (run["scheduler"].as_str(), run["instance"].as_str()),
        (Some("best-fit"), Some(function))
    );
    assert_eq!(run["engine"], engine);
    for count in [
        "mis_steered",
        "expected_moves",
        "duplicated",
        "reordered",
        "altered",
        "in_flight",
    ] {
        assert_eq!(run[count], 0, "{count} in {run:#}");
    }
    let lost = &run["lost"];
    assert_eq!(lost["other"], 0, "{run:#}");
    assert_eq!(lost["function"], 0, "{run:#}");
    let number = |value: &Value| value.as_u64().unwrap();
    let (offered, returned) = (number(&run["offered_packets"]), number(&run["returned_packets"]));
    assert!(returned > 0 && returned <= offered, "{run:#}");
    // What the function says of itself: it was given all that came back, and no more than was sent.
    match function {
        "forward" => assert!(run["function_packets"].is_null(), "{run:#}"),
        _ => assert!(
            (returned..=offered).contains(&number(&run["function_packets"])),
            "{run:#}"
        ),
    }
    let by_place: u64 = ["ring", "function", "instance_lost", "uplink"]
        .iter()
        .map(|place| number(&lost[place]))
        .sum();
    let by_reason: u64 = lost["by_reason"].as_object().unwrap().values().map(number).sum();
    assert_eq!(offered - returned, by_place + by_reason, "{run:#}");
    assert_eq!(
        run["instances"],
        serde_json::json!({ "start": 3, "peak": 8, "end": 3 }),
        "{run:#}"
    );
    let flows: u64 = run["flows_per_instance"]
        .as_array()
        .unwrap()
        .iter()
        .map(number)
        .sum();
    assert_eq!(flows, 32, "{run:#}");
    assert!(
        run["reaction_ms"]["activate"].is_number() && run["reaction_ms"]["create"].is_number(),
        "{run:#}"
    );
    assert_eq!(run["left_behind"], serde_json::json!([]), "{run:#}");
    assert_eq!(demo.left(), Vec::<String>::new());
    let report = std::fs::read_to_string(demo.directory.path().join("demo-report.html")).unwrap();
    assert!(report.starts_with("<!doctype html>") && report.contains("best-fit: packets/s of each instance"));
    assert!(report.contains(&format!("<code>{function}</code> with a tenth of a CPU")));
}

#[test]
fn the_demo_keeps_its_promises_and_leaves_nothing() {
    keeps_its_promises("oci", "soft");
}

/// At full length, as the other variants: `make test` has the demo once, and its parts in tests of their own.
#[test]
fn the_demo_does_the_same_with_a_firewall_in_the_instances() {
    if is_full_length() {
        keeps_its_promises_with("firewall", "oci", "soft");
    }
}

#[test]
fn the_demo_does_the_same_with_a_router_in_the_instances() {
    if is_full_length() {
        keeps_its_promises_with("router", "oci", "soft");
    }
}

#[test]
fn the_demo_refuses_a_function_that_its_traffic_cannot_pass() {
    let mut demo = Demo::start(&["--quick", "--function", "nat"]);
    assert_eq!(demo.wait(), Some(2), "{}", demo.said("out"));
    let told = demo.said("err");
    assert!(told.contains("nat changes where packets go"), "{told}");
    assert!(
        told.contains("Functions of the demo: firewall, limiter, monitor, ids, router"),
        "{told}"
    );
}

#[test]
fn the_demo_does_the_same_with_docker() {
    if is_full_length() {
        keeps_its_promises("docker", "soft");
    }
}

#[test]
fn the_demo_does_the_same_with_open_vswitch() {
    let program = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
    let missing = (!Path::new(program).exists()).then(|| format!("there is no {program}"));
    if is_full_length() && available("ovs", missing) {
        keeps_its_promises("oci", "openflow");
    }
}

/// SmartINCO's figures 8 and 9 in short: what is too much is lost, at places that are named, and nothing else is wrong.
#[test]
fn overload_loses_what_is_too_much_and_moves_no_flow() {
    if !real_parts("oci") {
        return;
    }
    let _turn = Place::quiet();
    let mut demo = Demo::start(&[
        "--overload",
        "--scheduler",
        "round-robin",
        "--json",
        "--flow-interval-ms",
        "250",
    ]);
    let status = demo.wait();
    assert_eq!(status, Some(0), "{}\n{}", demo.said("out"), demo.said("err"));
    let summary: Value = serde_json::from_str(&demo.said("out")).unwrap();
    let (run, overload) = (&summary["runs"][0], &summary["overload"]);
    let number = |value: &Value| value.as_f64().unwrap();
    assert!(
        (number(&overload["offered_share"]) - 150.0 / 42.0).abs() < 1e-6,
        "{overload:#}"
    );
    assert_eq!(overload["flows_predicted"], 9, "{overload:#}");
    assert_eq!(overload["paper"]["flows_at_loss"], 9, "{overload:#}");
    let of = &overload["runs"][0];
    assert_eq!(of["scheduler"], "round-robin");
    // Eight instances beside generator and switch reach what one alone did, eight times; more where the machine was busy
    // while one was measured.
    assert!((0.7..1.5).contains(&number(&of["plateau_share"])), "{overload:#}");
    assert!((0.6..0.85).contains(&number(&of["lost_share"])), "{overload:#}");
    // A flow that comes before its instance is there may cost some packets sooner.
    assert!(
        (2.0..=11.0).contains(&number(&of["flows_at_loss"])),
        "{overload:#}"
    );
    assert!(
        number(&of["early_flows"]) >= number(&of["later_flows"]),
        "{overload:#}"
    );
    for count in [
        "mis_steered",
        "expected_moves",
        "duplicated",
        "reordered",
        "altered",
        "in_flight",
    ] {
        assert_eq!(run[count], 0, "{count} in {run:#}");
    }
    assert_eq!(run["lost"]["other"], 0, "{run:#}");
    assert!(number(&run["lost"]["ring"]) > 0.0, "{run:#}");
    assert_eq!(run["left_behind"], serde_json::json!([]), "{run:#}");
    assert_eq!(demo.left(), Vec::<String>::new());
    let report = std::fs::read_to_string(demo.directory.path().join("demo-report.html")).unwrap();
    assert!(report.contains("beside SmartINCO") && report.contains("loss starts with flow"));
}

#[test]
fn ctrl_c_ends_the_demo_and_leaves_nothing() {
    if !real_parts("oci") {
        return;
    }
    let _turn = Place::new();
    let mut demo = Demo::start(&["--quick", "--flow-interval-ms", "100"]);
    demo.wait_for("Calibration");
    // In the middle of a run, with containers there and coming.
    demo.wait_for(" active 3 of");
    let pid = Pid::from_raw(i32::try_from(demo.child.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(
        demo.wait(),
        Some(130),
        "{}\n{}",
        demo.said("out"),
        demo.said("err")
    );
    assert!(demo.said("err").contains("interrupted"), "{}", demo.said("err"));
    assert_eq!(demo.left(), Vec::<String>::new());
}

#[test]
fn inco_ends_when_the_demo_is_killed() {
    if !real_parts("oci") {
        return;
    }
    let _turn = Place::new();
    let mut demo = Demo::start(&["--quick", "--flow-interval-ms", "100"]);
    demo.wait_for(" active 3 of");
    demo.child.kill().unwrap();
    demo.child.wait().unwrap();
    let since = Instant::now();
    loop {
        // A killed demo cannot remove its directory.
        let left: Vec<String> = demo
            .left()
            .into_iter()
            .filter(|what| !what.starts_with("directory"))
            .collect();
        if left.is_empty() {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(120), "{left:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn without_root_it_prints_one_line_with_the_remedy() {
    if is_root()
        && !available(
            "setpriv",
            (!Path::new("/usr/bin/setpriv").exists()).then(|| "there is no setpriv".to_owned()),
        )
    {
        return;
    }
    let program = env!("CARGO_BIN_EXE_inco");
    let mut command = match is_root() {
        true => {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", program]);
            command
        }
        false => Command::new(program),
    };
    let output = command
        .args(["demo", "--quick"])
        .current_dir("/")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(
        said.contains("sudo") && said.contains("--engine docker"),
        "{said}"
    );
}

#[cfg(feature = "dpdk")]
#[test]
fn reactions_are_measured() {
    if !real_parts("oci") {
        return;
    }
    let _turn = Place::new();
    let mut bench = Demo::of(
        "bench",
        &["react", "--from", "warm,oci", "--rounds", "2", "--json"],
    );
    let status = bench.wait();
    let (out, err) = (bench.said("out"), bench.said("err"));
    assert_eq!(status, Some(0), "{out}\n{err}");
    let rows: Value = serde_json::from_str(&out).unwrap();
    let rows = rows.as_array().unwrap();
    let names: Vec<&str> = rows.iter().filter_map(|row| row["from"].as_str()).collect();
    assert_eq!(names, ["warm", "oci"]);
    for row in rows {
        let ms = |key: &str| row[key].as_f64().unwrap();
        assert_eq!(row["reactions"], 2);
        assert!(0.0 < ms("p50_ms") && ms("p50_ms") <= ms("p99_ms"), "{row}");
        assert!(ms("p99_ms") <= ms("max_ms"), "{row}");
    }
    // The heading, and each reaction.
    let csv = bench.said("bench-react.csv");
    assert_eq!(
        csv.lines().filter(|line| line.starts_with("warm,")).count(),
        2,
        "{csv}"
    );
}

#[test]
fn the_bench_of_the_driver_ebpf_counts_what_programs_cost() {
    if !real_parts("root") {
        return;
    }
    let _turn = Place::new();
    let arguments = [
        "steer", "--driver", "ebpf", "--flows", "32", "--rounds", "1", "--json",
    ];
    let mut bench = Demo::of("bench", &arguments);
    let status = bench.wait();
    assert_eq!(status, Some(0), "{}\n{}", bench.said("out"), bench.said("err"));
    let rows: Value = serde_json::from_str(&bench.said("out")).unwrap();
    let rows = rows.as_array().unwrap();
    let cases: Vec<&str> = rows.iter().filter_map(|row| row["case"].as_str()).collect();
    assert_eq!(cases, ["established", "new", "flood"]);
    for row in rows {
        let of = |key: &str| row[key].as_f64().unwrap();
        assert!(of("as_expected") > 0.95 && of("pps") > 1000.0, "{row}");
        assert!((10.0..1e6).contains(&of("program_ns")), "{row}");
    }
}

/// Functions are measured beside their peers, in one row for each case. How fast they are is not tested.
#[cfg(feature = "dpdk")]
#[test]
fn the_bench_of_functions_has_a_row_for_each_case() {
    if !available("root", (!is_root()).then(|| "this is not run as root".to_owned())) {
        return;
    }
    let _turn = Place::new();
    let measured = |name: &str| {
        let arguments = ["function", name, "--rounds", "1", "--milliseconds", "3", "--json"];
        let mut bench = Demo::of("bench", &arguments);
        let status = bench.wait();
        assert_eq!(status, Some(0), "{}\n{}", bench.said("out"), bench.said("err"));
        let rows: Vec<Value> = serde_json::from_str(&bench.said("out")).unwrap();
        let csv = bench.said("bench-function.csv");
        let in_csv = csv
            .lines()
            .filter(|line| line.starts_with(&format!("{name},")))
            .count();
        assert_eq!(in_csv, rows.len(), "{csv}");
        for row in &rows {
            let of = |key: &str| row[key].as_f64().unwrap();
            assert_eq!(row["function"], name);
            assert!(row["case"].is_string() && row["entries"].is_u64(), "{row}");
            let gbps = of("mpps") * of("size") * 8.0 / 1e3;
            assert!(
                of("mpps") > 0.0 && (of("gbps") - gbps).abs() < 1e-6 * gbps,
                "{row}"
            );
            match row["peer"].as_str() {
                // A single round has one ratio.
                Some(_) => {
                    let ratio = of("mpps") / of("peer_rate");
                    assert!((of("ratio_to_peer") / ratio - 1.0).abs() < 1e-6, "{row}");
                }
                None => assert!(
                    row["peer_rate"].is_null() && row["ratio_to_peer"].is_null(),
                    "{row}"
                ),
            }
        }
        rows
    };
    let forward = measured("forward");
    assert_eq!(forward.len(), 9);
    for row in &forward {
        let us = |key: &str| row[key].as_f64().unwrap();
        assert!(
            0.0 < us("latency_p50_us") && us("latency_p50_us") <= us("latency_p99_us"),
            "{row}"
        );
        assert!(row["peer"].is_null(), "{row}");
    }
    let sizes: Vec<u64> = forward.iter().map(|row| row["size"].as_u64().unwrap()).collect();
    assert_eq!(sizes, [64, 64, 64, 512, 512, 512, 1500, 1500, 1500]);
    let nat = measured("nat");
    let peers: Vec<Option<&str>> = nat.iter().map(|row| row["peer"].as_str()).collect();
    let nft = Command::new("nft").arg("--version").output().is_ok();
    let nft = nft.then_some("nftables");
    assert_eq!(peers, [nft, nft, nft, nft, None]);
    for name in ["classifier", "maglev", "pfabric", "ranker", "replica"] {
        let rows = measured(name);
        assert_eq!(rows.len(), 1);
        assert!(
            rows[0]["size"] == 1028 && rows[0]["peer"].is_null(),
            "{}",
            rows[0]
        );
    }

    let mut wrong = Demo::of("bench", &["function"]);
    assert_eq!(wrong.wait(), Some(2));
    assert!(
        wrong.said("err").contains("firewall, forward, ids"),
        "{}",
        wrong.said("err")
    );
}

/// Whether these programs are there, and the engine for containers.
pub(crate) fn servers(programs: &[&str]) -> bool {
    let lacks = |program: &&str| {
        let paths = ["/usr/bin", "/usr/sbin", "/sbin", "/bin"];
        (!paths.iter().any(|path| Path::new(path).join(program).exists()))
            .then(|| format!("{program} is not installed"))
    };
    real_parts("oci") && available("servers", programs.iter().find_map(lacks))
}

/// A function is the instance of a service and alone, in containers with the same quota. How fast it is is not tested.
#[cfg(feature = "dpdk")]
#[test]
fn the_bench_of_a_function_in_a_service_has_its_costs_and_those_of_the_switch() {
    if !real_parts("oci") {
        return;
    }
    let _turn = Place::with_a_cpu();
    for name in ["cache", "firewall"] {
        let arguments = [
            "function",
            name,
            "--service",
            "--rounds",
            "1",
            "--milliseconds",
            "20",
            "--json",
        ];
        let mut bench = Demo::of("bench", &arguments);
        let status = bench.wait();
        let (out, err) = (bench.said("out"), bench.said("err"));
        assert_eq!(status, Some(0), "{out}\n{err}");
        let rows: Vec<Value> = serde_json::from_str(&out).unwrap();
        let [row] = rows.as_slice() else {
            panic!("{out}");
        };
        let of = |key: &str| row[key].as_f64().unwrap();
        assert!(
            row["function"] == name && row["case"] == "service" && row["peer"] == "alone",
            "{row}"
        );
        assert!(of("switch_cpu_ns_per_packet") > 0.0, "{row}");
        // The quota holds in both: packets per second, times what one costs. It is given in periods.
        for (mpps, ns) in [
            ("mpps", "cpu_ns_per_packet"),
            ("peer_rate", "peer_cpu_ns_per_packet"),
        ] {
            let cpus = of(mpps) * of(ns) / 1e3;
            assert!(0.0 < cpus && cpus < 1.3 * of("cpus"), "{cpus} CPUs: {row}");
        }
        // A round of each of three pairs of containers. The result has the medians of their ratios.
        let csv = bench.said("bench-function.csv");
        let sides: Vec<Vec<f64>> = csv
            .lines()
            .filter(|line| line.starts_with(&format!("{name},")))
            .map(|line| line.split(',').filter_map(|field| field.parse().ok()).collect())
            .collect();
        assert_eq!(sides.len(), 6, "{csv}");
        // Size, round, packets, seconds, CPU time of the function and of the switch.
        let median = |figure: fn(&[f64]) -> f64| {
            let rounds = sides.as_chunks::<2>().0.iter();
            let ratios = rounds.map(|[service, alone]| figure(service) / figure(alone));
            let mut ratios: Vec<f64> = ratios.collect();
            ratios.sort_by(f64::total_cmp);
            ratios[1]
        };
        for (key, median) in [
            ("ratio_to_peer", median(|of| of[2] / of[3])),
            ("cpu_ratio_to_peer", median(|of| of[4] / of[2])),
        ] {
            assert!((of(key) / median - 1.0).abs() < 1e-3, "{median}: {row}");
        }
    }
    let mut wrong = Demo::of("bench", &["function", "table3", "--service"]);
    assert_eq!(wrong.wait(), Some(2));
    assert!(wrong.said("err").contains("no service"), "{}", wrong.said("err"));
}

/// Every balancer carries light and heavy downloads, and each criterion is what the figures say. How good they are is
/// not tested: that depends on the machine.
#[cfg(feature = "dpdk")]
#[test]
fn the_bench_of_balancers_counts_what_each_function_took() {
    if !servers(&["nginx", "wrk", "haproxy", "ip"]) {
        return;
    }
    let _turn = Place::with_a_cpu();
    let mut bench = Demo::of("bench", &["balance", "--seconds", "3", "--rounds", "1", "--json"]);
    let status = bench.wait();
    assert_eq!(status, Some(0), "{}\n{}", bench.said("out"), bench.said("err"));
    let document: Value = serde_json::from_str(&bench.said("out")).unwrap();
    let rows = document["rows"].as_array().unwrap();
    let names: Vec<_> = rows
        .iter()
        .map(|row| (&row["balancer"], &row["scheduler"]))
        .collect();
    let word = |text: &str| Value::from(text);
    let expected = [
        (word("rss"), word("rss")),
        (word("weighted"), word("weighted")),
        (word("default"), word("best-fit")),
        (word("haproxy"), Value::Null),
    ];
    // The same balancers with each function.
    let expected = expected.each_ref().map(|(name, scheduler)| (name, scheduler));
    assert_eq!(names, [expected, expected].concat());
    let functions: Vec<_> = rows.iter().map(|row| row["function"].as_str().unwrap()).collect();
    assert_eq!(functions, [["forward"; 4], ["ids"; 4]].concat());
    for row in rows {
        assert_eq!(row["failed_requests"], 0, "{row:#}");
        let of = |key: &str| row[key].as_f64().unwrap();
        // More than one for each connection.
        assert!(of("light_finished") > 300.0, "{row:#}");
        assert!(
            of("max_min") >= 1.0 && (0.25..=1.0).contains(&of("jain")),
            "{row:#}"
        );
        assert!(
            0.0 < of("light_p50_ms") && of("light_p50_ms") <= of("light_p90_ms"),
            "{row:#}"
        );
        assert!(of("light_p90_ms") <= of("light_p99_ms"), "{row:#}");
        let functions = row["rounds"][0]["instances"].as_array().unwrap();
        assert_eq!(functions.len(), 4);
        let all = |key: &str| functions.iter().map(|of| of[key].as_u64().unwrap()).sum::<u64>();
        // What the client got, one packet at least for each 1,448 bytes, and the handshake of each connection.
        let bytes = of("light_finished") * 5_480.0 + of("heavy_finished") * 20e6;
        assert!(all("bytes") as f64 > bytes, "{row:#}");
        assert!(all("packets") as f64 > bytes / 1_448.0, "{row:#}");
        assert!(all("flows") as f64 >= of("light_finished"), "{row:#}");
        // `best-fit` may leave one without a connection, the others give some to each.
        for function in functions {
            let took = function["packets"].as_u64().unwrap();
            assert!(took > 0 || row["balancer"] == "default", "{row:#}");
        }
    }
    let criteria = document["criteria"].as_array().unwrap();
    // With two functions, two schedulers beside two peers, by four figures.
    assert_eq!(criteria.len(), 32);
    let figure = |function: &Value, balancer: &Value, figure: &Value| {
        let row = rows
            .iter()
            .find(|row| row["function"] == *function && row["balancer"] == *balancer)
            .unwrap();
        row[figure.as_str().unwrap()].as_f64().unwrap()
    };
    for of in criteria {
        let (ours, peer) = (
            figure(&of["function"], &of["balancer"], &of["figure"]),
            figure(&of["function"], &of["peer"], &of["figure"]),
        );
        let ratio = of["ratio"].as_f64();
        let expected = (peer > 0.0).then(|| ours / peer);
        assert_eq!(ratio.is_some(), expected.is_some(), "{of}");
        assert!(
            (ratio.unwrap_or(0.0) - expected.unwrap_or(0.0)).abs() < 1e-9,
            "{of}"
        );
        let limit = |key: &str| of["aim"][key].as_f64();
        let met = ratio.is_some_and(|ratio| {
            limit("at_most").is_some_and(|limit| ratio <= limit)
                || limit("above").is_some_and(|limit| ratio > limit)
                || limit("at_least").is_some_and(|limit| ratio >= limit)
        });
        assert_eq!(of["met"], met, "{of}");
    }
    assert_eq!(
        bench
            .said("bench-balance.csv")
            .lines()
            .filter(|line| line.starts_with("forward,"))
            .count(),
        4
    );
    assert_eq!(left_of_bench(&bench), Vec::<String>::new());
}

/// What a bench of balancers leaves: as the demo, and its networks.
#[cfg(feature = "dpdk")]
fn left_of_bench(bench: &Demo) -> Vec<String> {
    let pid = bench.child.id();
    let mut left = bench.left();
    for (program, arguments) in [("ip", ["netns", "list"]), ("ip", ["-brief", "link"])] {
        let said = Command::new(program).args(arguments).output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        let own = [format!("inco-bench-{pid}-"), format!("incob{}", pid % 1_000_000)];
        let lines = said
            .lines()
            .filter(|line| own.iter().any(|name| line.starts_with(name)));
        left.extend(lines.map(str::to_owned));
    }
    left
}

#[cfg(feature = "dpdk")]
#[test]
fn an_interrupted_bench_of_balancers_leaves_nothing() {
    if !servers(&["nginx", "wrk", "haproxy", "ip"]) {
        return;
    }
    let _turn = Place::new();
    let arguments = ["balance", "--balancer", "haproxy,rss", "--seconds", "2"];
    let mut bench = Demo::of("bench", &arguments);
    // The first turn is over, and the second one under way.
    bench.wait_for("haproxy: Max/Min");
    kill_process(Pid::from_child(&bench.child), Signal::INT).unwrap();
    assert_eq!(
        bench.wait(),
        Some(130),
        "{}\n{}",
        bench.said("out"),
        bench.said("err")
    );
    assert_eq!(left_of_bench(&bench), Vec::<String>::new());
}

/// Rows, ratios and keys are as documented. How good they are is not tested: that depends on the machine.
#[cfg(feature = "dpdk")]
#[test]
fn the_bench_of_a_hop_compares_the_switch_with_a_process() {
    if !real_parts("root") {
        return;
    }
    let _turn = Place::with_a_cpu();
    let mut bench = Demo::of("bench", &["hop", "--flows", "100", "--rounds", "1", "--json"]);
    let status = bench.wait();
    assert_eq!(status, Some(0), "{}\n{}", bench.said("out"), bench.said("err"));
    let result: Value = serde_json::from_str(&bench.said("out")).unwrap();
    let expected = ["apart_at_declared", "ratio_small", "ratio_small_returned", "rows"];
    assert_eq!(keys(&result), expected);
    let rows = result["rows"].as_array().unwrap();
    let names: Vec<_> = rows
        .iter()
        .map(|row| (row["balancer"].as_str().unwrap(), row["size"].as_u64().unwrap()))
        .collect();
    let once = [
        ("switch", 64),
        ("process", 64),
        ("switch", 1500),
        ("process", 1500),
    ];
    let at_rate = [("switch", 1500), ("process", 1500)];
    assert_eq!(names, [&once[..], &at_rate].concat());
    for row in rows {
        let of = |key: &str| row[key].as_f64().unwrap();
        assert!(of("mpps") > 0.0 && row["lost"].is_u64(), "{row}");
        assert!(
            (of("mpps") * of("cpu_ns_per_packet") / 1e3 - 1.0).abs() < 1e-6,
            "{row}"
        );
    }
    // The declared rate is one for both, and the slower one carries it.
    let declared: Vec<_> = rows.iter().map(|row| row["declared_pps"].as_f64()).collect();
    assert!(declared[..4].iter().all(Option::is_none), "{declared:?}");
    assert!(
        declared[4].is_some() && declared[4] == declared[5],
        "{declared:?}"
    );
    let mpps = |at: usize| rows[at]["mpps"].as_f64().unwrap();
    let ratio = result["ratio_small"].as_f64().unwrap();
    assert!((mpps(0) / mpps(1) / ratio - 1.0).abs() < 1e-6, "{result}");
    for row in &rows[4..] {
        assert!(
            row["other_cpus"].is_number() && row["generator_late_ms"].is_number(),
            "{row}"
        );
        assert_eq!(row["limit"].is_null(), row["lost"] == 0, "{row}");
    }
}

/// The signal has an effect, forged ones have none, and no flow moves. How soon is not tested.
#[cfg(feature = "dpdk")]
#[test]
fn the_bench_of_a_signal_wakes_an_instance_and_moves_no_flow() {
    if !real_parts("oci") {
        return;
    }
    let _turn = Place::with_a_cpu();
    let mut bench = Demo::of("bench", &["wake", "--rounds", "1", "--json"]);
    let status = bench.wait();
    assert_eq!(status, Some(0), "{}\n{}", bench.said("out"), bench.said("err"));
    let result: Value = serde_json::from_str(&bench.said("out")).unwrap();
    let expected = [
        "fair_share_ms",
        "first_flow_ms",
        "flows_asleep",
        "moved_flows",
        "of_fair_share",
        "runs",
        "throughput_ratio",
    ];
    assert_eq!(keys(&result), expected);
    let of = |key: &str| result[key].as_f64().unwrap();
    assert_eq!(result["moved_flows"], 0, "{result:#}");
    assert!(
        0.0 < of("first_flow_ms") && of("fair_share_ms") < 4000.0,
        "{result:#}"
    );
    let runs = result["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 1);
    let run = &runs[0];
    assert!(
        run["forged"].as_u64().unwrap() > 0 && run["forged"] == run["refused"],
        "{run:#}"
    );
    assert!(run["before_pps"].as_f64().unwrap() > 0.0, "{run:#}");
}

/// Both paths carry downloads. Which one is faster is not tested.
#[cfg(feature = "dpdk")]
#[test]
fn the_bench_of_downloads_compares_with_a_bridge() {
    if !servers(&["nginx", "ip"]) {
        return;
    }
    let _turn = Place::with_a_cpu();
    let mut bench = Demo::of("bench", &["bulk", "--rounds", "1", "--json"]);
    let status = bench.wait();
    assert_eq!(status, Some(0), "{}\n{}", bench.said("out"), bench.said("err"));
    let result: Value = serde_json::from_str(&bench.said("out")).unwrap();
    assert_eq!(keys(&result), ["cpu_ratio", "ratio", "rows"]);
    let rows = result["rows"].as_array().unwrap();
    let names: Vec<_> = rows.iter().map(|row| row["path"].as_str().unwrap()).collect();
    assert_eq!(names, ["inco", "bridge"]);
    let of = |row: usize, key: &str| rows[row][key].as_f64().unwrap();
    for (ratio, key) in [("ratio", "gbps"), ("cpu_ratio", "cpu_s_per_gb")] {
        assert!(of(0, key) > 0.0 && of(1, key) > 0.0, "{result:#}");
        // A single round has one ratio.
        let expected = of(0, key) / of(1, key);
        assert!(
            (result[ratio].as_f64().unwrap() / expected - 1.0).abs() < 1e-6,
            "{result:#}"
        );
    }
    assert_eq!(left_of_bench(&bench), Vec::<String>::new());
}

/// The documented keys of a balancer's run.
const RUN_KEYS: [&str; 10] = [
    "balancer",
    "connections",
    "cpu_s_per_million_requests",
    "driver",
    "failed_by_kill",
    "failed_requests",
    "instances",
    "p50_ms",
    "p99_ms",
    "requests_per_s",
];

fn keys(of: &Value) -> Vec<&str> {
    of.as_object().unwrap().keys().map(String::as_str).collect()
}

/// In the short form: each balancer has its row, and scaling costs inco no request. How fast they are is not tested, nor
/// what peers lose. Peers have their turns at full length alone.
#[test]
fn every_balancer_of_the_web_demo_has_its_row() {
    /// Twice what it takes alone.
    const LIMIT: Duration = Duration::from_secs(300);
    if !servers(&["nginx", "wrk", "haproxy", "nft", "nc", "ip"]) {
        return;
    }
    let _turn = Place::with_a_cpu();
    let mut arguments = vec!["--web", "--quick", "--json"];
    let mut balancers = vec![("inco", "ebpf")];
    if is_full_length() {
        balancers.extend([
            ("haproxy", "sockets"),
            ("nftables", "conntrack"),
            ("routing", "kernel"),
        ]);
    } else {
        arguments.push("--balancer=inco");
    }
    let mut demo = Demo::start(&arguments);
    let status = demo.wait_for_so_long(LIMIT);
    assert_eq!(status, Some(0), "{}\n{}", demo.said("out"), demo.said("err"));
    let result: Value = serde_json::from_str(&demo.said("out")).unwrap();
    assert_eq!(keys(&result), ["runs"]);
    let runs = result["runs"].as_array().unwrap();
    let names: Vec<_> = runs
        .iter()
        .map(|run| ["connections", "balancer", "driver"].map(|key| run[key].as_str().unwrap()))
        .collect();
    let expected: Vec<_> = ["keep-alive", "close"]
        .into_iter()
        .flat_map(|connections| {
            balancers
                .iter()
                .map(move |&(balancer, driver)| [connections, balancer, driver])
        })
        .collect();
    assert_eq!(names, expected);
    for run in runs {
        assert_eq!(keys(run), RUN_KEYS);
        let of = |key: &str| run[key].as_f64().unwrap();
        assert!(
            of("requests_per_s") > 100.0 && of("cpu_s_per_million_requests") > 0.0,
            "{run}"
        );
        assert!(0.0 < of("p50_ms") && of("p50_ms") <= of("p99_ms"), "{run}");
        let (instances, by_kill) = (&run["instances"], &run["failed_by_kill"]);
        if run["balancer"] == "routing" {
            assert!(instances.is_null() && by_kill.is_null(), "{run}");
            continue;
        }
        assert_eq!(
            *instances,
            serde_json::json!({ "start": 1, "peak": 6, "end": 1 }),
            "{run}"
        );
        assert!(by_kill.is_u64() && run["failed_requests"].is_u64(), "{run}");
        if run["balancer"] == "inco" {
            assert_eq!(run["failed_requests"], 0, "{run}");
        }
    }
    assert_eq!(demo.left(), Vec::<String>::new());
}

/// At full length; `every_balancer_of_the_web_demo_has_its_row` has the short form.
#[test]
fn no_request_fails_while_web_servers_come_and_go() {
    if !is_full_length() || !servers(&["nginx", "wrk", "ip"]) {
        return;
    }
    let _turn = Place::quiet();
    let mut demo = Demo::start(&["--web", "--balancer", "inco", "--json"]);
    let status = demo.wait();
    assert_eq!(status, Some(0), "{}\n{}", demo.said("out"), demo.said("err"));
    let result: Value = serde_json::from_str(&demo.said("out")).unwrap();
    let runs = result["runs"].as_array().unwrap();
    let connections: Vec<&str> = runs
        .iter()
        .map(|run| run["connections"].as_str().unwrap())
        .collect();
    assert_eq!(connections, ["keep-alive", "close"]);
    for run in runs {
        assert_eq!(
            (&run["balancer"], &run["failed_requests"]),
            (&"inco".into(), &0.into()),
            "{run}"
        );
        let of = &run["instances"];
        assert_eq!([&of["start"], &of["peak"], &of["end"]], [1, 6, 1], "{run}");
        assert_eq!(keys(run), RUN_KEYS);
        assert!(run["requests_per_s"].as_f64().unwrap() > 100.0, "{run}");
        assert!(run["failed_by_kill"].is_u64(), "{run}");
    }
}

/// The result of the demo of several machines.
fn of_cluster(more: &[&str]) -> Value {
    let mut arguments = [&["--cluster", "--json"], more].concat();
    if !real_parts::is_full_length() {
        arguments.push("--quick");
    }
    let mut demo = Demo::start(&arguments);
    let status = demo.wait_for_so_long(Duration::from_secs(300));
    assert_eq!(status, Some(0), "{}\n{}", demo.said("out"), demo.said("err"));
    serde_json::from_str(&demo.said("out")).unwrap()
}

/// Three machines behind two edges: no request fails and no flow moves, but by the loss of a machine.
#[test]
fn the_cluster_demo_loses_nothing_but_by_the_loss_of_a_machine() {
    if !servers(&["ip", "nginx"]) {
        return;
    }
    let _turn = Place::with_a_cpu();
    let result = of_cluster(&[]);
    assert_eq!(keys(&result), ["edges", "left_behind", "phases"]);
    let phases = result["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 9, "{result:#}");
    for phase in phases {
        for count in ["failed", "unanswered", "moved"] {
            assert_eq!(phase[count], 0, "{result:#}");
        }
    }
    // Each machine answers: many connections, but few flows of questions a second.
    for of in ["requests", "questions"] {
        let count = |phase: &Value, machine: usize| phase[of][machine].as_u64().unwrap();
        for machine in 0..3 {
            let answered: u64 = phases.iter().map(|phase| count(phase, machine)).sum();
            assert!(answered > 0, "{of}: {result:#}");
        }
    }
    for edge in result["edges"].as_array().unwrap() {
        assert_eq!(keys(edge), ["edge", "expected_moves", "looks", "looks_returned"]);
        assert!(edge["looks"].as_u64().unwrap() > 0, "{edge}");
    }
    assert_eq!(result["left_behind"], serde_json::json!([]));
}

/// With a swarm of Docker's, whose nodes are the machines: one is drained, inco is killed, a node loses its power.
#[test]
fn the_cluster_demo_of_a_swarm_loses_nothing_but_by_the_loss_of_a_node() {
    if !real_parts::has_swarm() || !servers(&["ip", "nginx"]) {
        return;
    }
    let _turn = Place::with_a_cpu();
    loses_nothing_but_by_the_loss(&of_cluster(&["--engine", "swarm"]));
}

/// The same with nodes of a real cluster: its control plane is the demo's own, and then one that runs already.
#[test]
fn the_cluster_demo_of_kubernetes_loses_nothing_but_by_the_loss_of_a_node() {
    if !real_parts::has_kubernetes_node() || !servers(&["ip", "nginx"]) {
        return;
    }
    let place = Place::with_a_cpu();
    loses_nothing_but_by_the_loss(&of_cluster(&["--engine", "kubernetes"]));
    let cluster = ControlPlane::start(&place.path("cluster"));
    loses_nothing_but_by_the_loss(&of_cluster(&[
        "--engine",
        "kubernetes",
        "--kubeconfig",
        &format!("{}/kubeconfig", cluster.0.display()),
    ]));
}

/// A cluster without nodes, at the usual ports.
struct ControlPlane(PathBuf);

impl ControlPlane {
    fn start(folder: &Path) -> ControlPlane {
        let cluster = ControlPlane(folder.to_owned());
        let mut up = cluster.script("up");
        let ended = up.args(["kube-controller-manager", "kube-scheduler"]).output();
        assert!(ended.as_ref().unwrap().status.success(), "{ended:?}");
        cluster
    }

    fn script(&self, verb: &str) -> Command {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/kubernetes.sh");
        let mut command = Command::new(file);
        command
            .arg(verb)
            .arg(&self.0)
            .env("PORT", "16444")
            .env("ETCD_PORT", "12380");
        command
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        let _ = self.script("down").status();
    }
}

/// The result of a demo with one inco beside an orchestrator.
fn loses_nothing_but_by_the_loss(result: &Value) {
    let phases = result["phases"].as_array().unwrap();
    assert_eq!(phases.len(), 7, "{result:#}");
    for phase in phases {
        let answered: u64 = (0..3)
            .map(|machine| phase["requests"][machine].as_u64().unwrap())
            .sum();
        assert!(answered > 0, "{result:#}");
        for count in ["failed", "moved"] {
            assert_eq!(phase[count], 0, "{result:#}");
        }
    }
    // The machine that drained, and the lost one, have no web server at the end of that.
    for (phase, machine) in [("machine 1 drains", 0), ("machine 3 is lost", 2)] {
        let of = phases.iter().find(|of| of["phase"] == phase).unwrap();
        assert_eq!(of["instances"][machine], 0, "{result:#}");
    }
    assert_eq!(result["left_behind"], serde_json::json!([]));
}

/// In the short form: actors of a store and of analytics go to the host under load and come back. Clients count what they
/// lose, and compare each window with the tuples that were sent.
#[test]
fn no_request_or_tuple_of_the_actors_demo_is_lost_and_actors_of_both_move_and_return() {
    /// Twice what it takes alone, and what it may wait for moves.
    const LIMIT: Duration = Duration::from_secs(280);
    if !servers(&["ip"]) {
        return;
    }
    let _turn = Place::with_a_cpu();
    let mut demo = Demo::start(&["--actors", "--quick", "--json"]);
    let status = demo.wait_for_so_long(LIMIT);
    assert_eq!(status, Some(0), "{}\n{}", demo.said("out"), demo.said("err"));
    let result: Value = serde_json::from_str(&demo.said("out")).unwrap();
    let expected = [
        "analytics",
        "answered_twice",
        "asked_again",
        "failed_checks",
        "lost",
        "moves",
        "phases",
        "requests",
        "wrong_answers",
    ];
    assert_eq!(keys(&result), expected);
    for count in ["lost", "answered_twice", "wrong_answers"] {
        assert_eq!(result[count], 0, "{result:#}");
    }
    assert!(result["requests"].as_u64().unwrap() > 500, "{result:#}");
    let windows = &result["analytics"];
    assert_eq!(keys(windows), ["lost", "tuples", "windows", "wrong_windows"]);
    assert_eq!(windows["lost"], 0, "{result:#}");
    assert_eq!(windows["wrong_windows"], serde_json::json!([]), "{result:#}");
    assert!(windows["tuples"].as_u64().unwrap() > 5_000, "{result:#}");
    // Four a second, for 11 s at least; those of the first second are not whole.
    assert!(windows["windows"].as_u64().unwrap() > 20, "{result:#}");
    let moves = result["moves"].as_array().unwrap();
    for service in ["store", "analytics"] {
        // Who has gone to the host is where it has moved last: on the card.
        let mut away = std::collections::BTreeSet::new();
        let mut gone = 0;
        for of in moves.iter().filter(|of| of["service"] == service) {
            let actor = of["actor"].as_str().unwrap();
            if of["to"] == "host" {
                assert!(away.insert(actor), "{actor} went twice: {result:#}");
                gone += 1;
            } else {
                assert!(away.remove(actor), "{actor} came without going: {result:#}");
            }
        }
        assert!(gone > 0 && away.is_empty(), "{service}, {away:?}: {result:#}");
    }
    let phases = result["phases"].as_array().unwrap();
    let names: Vec<&str> = (phases.iter())
        .map(|phase| phase["phase"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["low load", "high load", "low again"]);
    for of in [&phases[1], &phases[1]["analytics"]] {
        assert!(of["on_host"].as_u64().unwrap() > 0, "{result:#}");
        assert!(of["answered_per_s"].as_f64().unwrap() > 0.0, "{result:#}");
    }
    assert_eq!(demo.left(), Vec::<String>::new());
}
