//! A running inco as its operators' tools see it: a Prometheus server, a tester of its API, and many that watch at
//! once.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use packet::build::Frame;
use packet::capture::{CaptureWriter, Captured};
use serde_json::Value;

use crate::support::{
    ApiOverTls, Engine, FORWARD, Inco, PATIENCE, Place, assert_clean, available, eventually, free_port, text,
};

const CONFIGURATION: &str = r#"
FORWARD
capacity = "100kpps"
instances = { min = 2, max = 3, standby = 0 }
autoscaler = "fixed"
scheduler = { policy = "best-fit", slow_start = "0s" }
ring = { slots = 8192 }
"#;

/// The repository's folder.
fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../.."))
}

/// A server that scrapes what deploy/prometheus/scrape.yml says, every second, and evaluates the alert rules beside
/// it.
struct Prometheus {
    child: Child,
    port: u16,
    log: PathBuf,
}

impl Prometheus {
    fn start(place: &Place, tls: &ApiOverTls) -> Prometheus {
        let deploy = root().join("deploy/prometheus");
        let token = place.secret_file("inco.token", ApiOverTls::READ);
        let given = std::fs::read_to_string(deploy.join("scrape.yml")).unwrap();
        let configuration = given
            .replace("/etc/prometheus/inco.token", token.to_str().unwrap())
            .replace("/etc/prometheus/inco.pem", tls.certificate.to_str().unwrap())
            .replace("localhost:8443", &tls.address)
            .replace("scrape_interval: 5s", "scrape_interval: 1s");
        let configuration = format!("global: {{ evaluation_interval: 1s }}\n{configuration}");
        std::fs::copy(deploy.join("inco.rules.yml"), place.path("inco.rules.yml")).unwrap();
        let configuration = place.file("prometheus.yml", &configuration);
        let (port, log) = (free_port(), place.path("prometheus.log"));
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", configuration.display()))
            .arg(format!("--storage.tsdb.path={}", place.path("tsdb").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        Prometheus { child, port, log }
    }

    /// What its API answers, once it does.
    fn ask(&self, path: &str) -> Option<Value> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        stream
            .write_all(format!("GET /api/v1/{path} HTTP/1.0\r\nhost: localhost\r\n\r\n").as_bytes())
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let body: Value = serde_json::from_str(body).ok()?;
        head.contains(" 200 ").then(|| body["data"].clone())
    }

    /// The sum of an expression's values; `None` where it has none.
    fn value(&self, expression: &str) -> Option<f64> {
        let mut escaped = String::new();
        for byte in expression.bytes() {
            write!(escaped, "%{byte:02x}").unwrap();
        }
        let answer = self.ask(&format!("query?query=sum({escaped})"))?;
        answer["result"][0]["value"][1].as_str()?.parse().ok()
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _ended = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(&self.log).unwrap_or_default());
        }
    }
}

#[test]
fn a_prometheus_server_scrapes_it_over_tls_and_evaluates_the_alerts() {
    let missing = (!is_there("prometheus")).then(|| "there is no prometheus".to_owned());
    if !available("prometheus", missing) || !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let tls = ApiOverTls::new(&place);
    // With a quota, so that every metric has something to tell.
    let text = CONFIGURATION
        .replace("FORWARD\n", FORWARD)
        .replace("memory", "cpus = 0.5\nmemory");
    let inco = place.run(&(text + &tls.toml));
    inco.settled(2, 0);
    place.must(&["scale", "forward", "2"]);
    let prometheus = Prometheus::start(&place, &tls);
    let report = place
        .traffic(
            "uplink_wait = \"5s\"\nsettle = \"1s\"\n[[phase]]\nduration = \"1s\"\nflows = 12\n\
             rate_per_flow = \"200pps\"\n",
        )
        .report();
    assert_clean(&report);
    eventually("it is scraped", PATIENCE, || {
        (prometheus.value("up{job=\"inco\"}")? == 1.0).then_some(())
    });
    // What it has stored is what was sent.
    let offered = report.counts.offered_packets as f64;
    for series in [
        "inco_uplink_received_packets_total{uplink=\"wan\"}",
        "inco_uplink_sent_packets_total{uplink=\"wan\"}",
        "inco_service_offered_packets_total{service=\"forward\"}",
        "inco_service_returned_packets_total",
        "inco_instance_to_packets_total",
        "inco_instance_back_packets_total",
    ] {
        let mut stored = None;
        let all = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually(series, PATIENCE, || {
                stored = prometheus.value(series);
                (stored == Some(offered)).then_some(())
            });
        }));
        assert!(all.is_ok(), "{series} is {stored:?} and not {offered}");
    }
    assert_eq!(
        prometheus.value("inco_service_instances{state=\"active\"}"),
        Some(2.0)
    );
    assert_eq!(
        prometheus.value("inco_uplink_up"),
        Some(0.0),
        "the generator has gone"
    );
    // Prometheus has every described metric with its described type.
    let known = prometheus.ask("metadata").unwrap();
    let described = std::fs::read_to_string(root().join("docs/reference/metrics.md")).unwrap();
    let (mut rows, mut others) = (0, Vec::new());
    for row in described.lines().filter(|line| line.starts_with("| `inco_")) {
        let cells: Vec<&str> = row.split('|').map(|cell| cell.trim().trim_matches('`')).collect();
        // It asks for OpenMetrics, whose families have no such endings, and a type of their own for what tells of a
        // build.
        let (family, kind) = match cells[1].strip_suffix("_info") {
            Some(family) => (family, "info"),
            None => (cells[1].strip_suffix("_total").unwrap_or(cells[1]), cells[2]),
        };
        if known[family][0]["type"] != kind {
            others.push(row);
        }
        rows += 1;
    }
    // Calls to the engine that failed are told by name, once there are some; fairness and times while packets flow;
    // `forward` drops nothing and has no gauges; there are no actors and no load reports, and a machine has a power meter or
    // not.
    let conditional = [
        "inco_actor_",
        "inco_instance_packet_gap_seconds",
        "inco_instance_ring_wait_",
        "inco_instance_function_p",
        "inco_instance_watts",
        "inco_instance_model_watts",
        "inco_function_dropped_packets_total",
        "inco_function_value",
        "inco_engine_call_failures_total",
        "inco_service_jain_index",
        "inco_service_max_min_ratio",
        "inco_sent_reports_",
        "inco_failed_reports_",
        "inco_accepted_reports_",
        "inco_refused_reports_",
        "inco_report_age_",
    ];
    others.retain(|row| !conditional.iter().any(|name| row.contains(name)));
    assert!(others.is_empty(), "{others:#?}");
    assert!(rows > 50, "{rows}");
    // Every alert can be evaluated, and the one whose cause is there, and no other, is on its way.
    let rules = eventually("an alert", PATIENCE, || {
        let groups = prometheus.ask("rules")?["groups"].as_array()?.clone();
        let rules: Vec<Value> = groups
            .iter()
            .flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default())
            .collect();
        let evaluated = rules.iter().all(|rule| rule["health"] != "unknown");
        let raised = rules.iter().any(|rule| rule["state"] != "inactive");
        (evaluated && raised).then_some(rules)
    });
    assert!(rules.len() > 8, "{rules:#?}");
    for rule in &rules {
        assert_eq!(rule["health"], "ok", "{rule:#?}");
        assert_eq!(
            rule["state"] != "inactive",
            rule["name"] == "IncoUplinkDown",
            "{rule:#?}"
        );
    }
    inco.stop(&place);
}

fn is_there(program: &str) -> bool {
    Command::new(program)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Requests made from the description that inco itself gives, right and wrong ones; every answer must be one that the
/// description allows.
#[test]
fn schemathesis_finds_no_answer_outside_the_description() {
    // `scripts/setup.sh api` puts it into a folder of its own.
    let own = std::env::var_os("XDG_CACHE_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cache"),
        PathBuf::from,
    );
    let own = own.join("inco/schemathesis/bin/schemathesis");
    let program = if own.exists() {
        own
    } else {
        PathBuf::from("schemathesis")
    };
    let missing = (!is_there(program.to_str().unwrap()))
        .then(|| "there is no schemathesis (`scripts/setup.sh api` fetches it)".to_owned());
    if !available("schemathesis", missing) || !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let tls = ApiOverTls::new(&place);
    let inco = place.run(&(CONFIGURATION.replace("FORWARD\n", FORWARD) + &tls.toml));
    inco.settled(2, 0);
    let report = place
        .traffic(
            "uplink_wait = \"5s\"\n[[phase]]\nduration = \"100ms\"\nflows = 12\nrate_per_flow = \"200pps\"\n",
        )
        .report();
    assert_clean(&report);
    let output = Command::new(program)
        .args(["run", &format!("https://{}/v1/openapi.json", tls.address)])
        .args([
            "--header",
            &format!("Authorization: Bearer {}", ApiOverTls::ADMIN),
        ])
        .args(["--tls-verify", tls.certificate.to_str().unwrap()])
        .args(["--phases", "examples,coverage,fuzzing"])
        .args(["--max-examples", "20", "--seed", "1"])
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env(
            "PYTHONPATH",
            root().join("crates/command/inco/tests/end_to_end/schemathesis"),
        )
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(place.path(""))
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
    inco.stop(&place);
}

/// Requests per second, and streams at once, that must not disturb the data plane.
const REQUESTS_PER_S: u32 = 100;
const STREAMS: usize = 10;

/// Counts the snapshots of a stream until the end.
fn watch(place: &Place, ends: &AtomicBool) -> u64 {
    let mut stream = UnixStream::connect(place.run_dir().join("api.sock")).unwrap();
    stream
        .write_all(b"GET /v1/stream?last=100 HTTP/1.1\r\nhost: x\r\n\r\n")
        .unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let mut snapshots = 0;
    let mut lines = BufReader::new(stream);
    let mut line = String::new();
    while !ends.load(Ordering::Relaxed) {
        // What was read before the time was up stays in the line.
        if matches!(lines.read_line(&mut line), Ok(1..)) {
            snapshots += u64::from(line.starts_with("event: snapshot"));
            line.clear();
        }
    }
    snapshots
}

/// Does something for at least as long as `lasts` while many ask and watch.
fn while_many_ask_and_watch<T>(place: &Place, lasts: Duration, work: impl FnOnce() -> T) -> T {
    let ends = AtomicBool::new(false);
    let snapshots = AtomicU64::new(0);
    let paths = [
        "/v1/snapshot",
        "/metrics",
        "/v1/flows?top=10",
        "/v1/counters",
        "/v1/events?last=100",
    ];
    let (done, rate) = std::thread::scope(|scope| {
        for _ in 0..STREAMS {
            scope.spawn(|| snapshots.fetch_add(watch(place, &ends), Ordering::Relaxed));
        }
        let asks = scope.spawn(|| {
            let began = Instant::now();
            let mut asked = 0;
            while !ends.load(Ordering::Relaxed) {
                let answer = place.ask(paths[asked as usize % paths.len()]);
                assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
                asked += 1;
                let due = began + Duration::from_secs(1) * asked / REQUESTS_PER_S;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
            }
            f64::from(asked) / began.elapsed().as_secs_f64()
        });
        let began = Instant::now();
        let done = work();
        std::thread::sleep((began + lasts).saturating_duration_since(Instant::now()));
        ends.store(true, Ordering::Relaxed);
        (done, asks.join().unwrap())
    });
    let (snapshots, least) = (
        snapshots.into_inner(),
        (lasts.as_secs_f64() - 1.0) * STREAMS as f64,
    );
    let share = if real_parts::is_full_length() { 0.95 } else { 0.5 };
    assert!(
        rate > share * f64::from(REQUESTS_PER_S),
        "{rate} requests per second"
    );
    assert!(snapshots as f64 >= least, "{snapshots} snapshots");
    done
}

#[test]
fn many_requests_and_streams_lose_no_packet() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::with_a_cpu();
    let inco = place.run(&CONFIGURATION.replace("FORWARD\n", FORWARD));
    inco.settled(2, 0);
    let traffic = place.traffic(
        "tick = \"500us\"\nuplink_wait = \"5s\"\nsettle = \"2s\"\n[[phase]]\nduration = \"60s\"\nflows = 12\n\
         rate_per_flow = \"200pps\"\n",
    );
    eventually("packets flow", PATIENCE, || {
        (inco.status().accounting.returned > 1000).then_some(())
    });
    while_many_ask_and_watch(&place, Duration::from_secs(3), || ());
    traffic.interrupt();
    assert_clean(&traffic.report());
    inco.at_rest();
    inco.stop(&place);
}

/// Packets that the switch takes in a second, of a device that always has some.
fn rate(inco: &Inco, lasts: Duration) -> f64 {
    let at = || (Instant::now(), inco.status().accounting.offered);
    let (began, before) = at();
    std::thread::sleep(lasts);
    let (ended, after) = at();
    (after - before) as f64 / (ended - began).as_secs_f64()
}

/// The worker has a CPU and takes packets out of a capture as fast as it can; who asks and watches has the other one.
/// Pairs of a second without and with them, so that what else the machine does hits both.
#[test]
fn many_requests_and_streams_cost_the_data_plane_little() {
    let missing = cfg!(not(feature = "dpdk")).then(|| "inco was built without it".to_owned());
    if !available("dpdk", missing) || !Engine::Oci.is_here() {
        return;
    }
    let place = Place::quiet();
    let mut capture = CaptureWriter::new();
    for flow in 0..32 {
        let (from, to) = ([10, 0, 0, 1], [10, 128, 0, 1]);
        let frame = Frame::udp((from, 1024 + flow).into(), (to, 80).into(), &[0; 22]).unwrap();
        let frame = frame.to_vec().unwrap();
        capture.push(&Captured {
            timestamp_ns: 0,
            frame: &frame,
            original_len: frame.len() as u32,
        });
    }
    std::fs::write(place.path("flows.pcap"), capture.into_bytes()).unwrap();
    let inco = place.run(&format!(
        "[switch]\nworkers = [0]\n[[uplink]]\nname = \"wan\"\ndevice = \"pcap:{},loop\"\n\
         [service.all]\nport = \"null\"\ninstances = 2\n",
        place.path("flows.pcap").display()
    ));
    inco.settled(2, 0);
    let pairs = if real_parts::is_full_length() { 41 } else { 3 };
    let second = Duration::from_secs(1);
    let mut ratios: Vec<f64> = (0..pairs)
        .map(|_| {
            let alone = rate(&inco, second);
            let watched = while_many_ask_and_watch(&place, second, || rate(&inco, second));
            eprintln!(
                "{:.3} M packets/s alone, {:.3} M watched",
                alone / 1e6,
                watched / 1e6
            );
            watched / alone
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ratios.len() / 2];
    eprintln!("watched by alone: {median:.4}, the middle of {pairs}");
    // The promise is 2 %. Few pairs say no more than that it is not a fifth.
    let least = if real_parts::is_full_length() { 0.98 } else { 0.8 };
    assert!(median > least, "{ratios:?}");
    place.must(&["stop"]);
    inco.ended();
}
