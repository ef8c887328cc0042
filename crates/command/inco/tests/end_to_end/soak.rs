//! `inco soak`: a minute of random faults, and its clean-up.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{Engine, Ovs, Place, available, eventually, kill, mounts_under, text};

/// What start and clean-up may take beside the minutes.
const MARGIN: Duration = Duration::from_secs(90);

/// The beds that this machine has.
fn beds() -> String {
    let mut beds = vec!["soft-oci"];
    beds.extend(Engine::Docker.is_here().then_some("soft-docker"));
    beds.extend(Ovs::is_here().then_some("openflow-oci"));
    let has_nginx = ["/usr/sbin", "/usr/bin"]
        .iter()
        .any(|path| Path::new(path).join("nginx").exists());
    let missing = (!has_nginx).then(|| "nginx is not installed".to_owned());
    if available("servers", missing) {
        beds.extend(["ebpf-oci", "soft-kernel-oci"]);
        beds.extend(Engine::Docker.is_here().then_some("ebpf-docker"));
    }
    beds.join(",")
}

/// A minute of these faults in these beds breaks no promise.
fn a_minute(faults: &str, beds: &str) {
    // Each bed has an inco, traffic and often an engine of its own: they take the whole machine.
    let place = Place::quiet();
    let started = Instant::now();
    let output = place.output(&[
        "soak",
        "--minutes=1",
        "--seed=7",
        "--json",
        faults,
        &format!("--bed={beds}"),
    ]);
    let took = started.elapsed();
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}\n{}", text(&output.stderr));
    let verdict: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    let counts = [
        "mis_steered",
        "unexpected_moves",
        "unaccounted",
        "duplicated",
        "reordered",
    ];
    assert_eq!(counts.map(|key| verdict[key].as_u64()), [Some(0); 5], "{said}");
    assert_eq!(
        (&verdict["ok"], &verdict["seed"]),
        (&Value::from(true), &Value::from(7))
    );
    let faults: u64 = verdict["faults"]
        .as_object()
        .unwrap()
        .values()
        .filter_map(Value::as_u64)
        .sum();
    assert!(faults >= 4, "{said}");
    // A line for each fault.
    let lines = said.lines().filter(|line| line.contains("  outage ")).count() as u64;
    assert_eq!(lines, faults, "{said}");
    assert!(took < Duration::from_secs(60) + MARGIN, "{took:?}\n{said}");
}

/// The same faults each time, without the two that reach the whole machine: other tests run there, and builds.
#[test]
fn a_minute_of_faults_breaks_no_promise() {
    if Engine::Oci.is_here() {
        a_minute("--without=clock-jump,cpu-contention", &beds());
    }
}

/// A place that disappears and returns, an engine that hangs, a quota that cannot be set.
#[test]
fn a_minute_of_faults_of_places_and_quotas_breaks_no_promise() {
    if Engine::Oci.is_here() && Engine::Docker.is_here() {
        let faults = "--fault=place-away,engine-freeze,quota-refused";
        a_minute(faults, "soft-oci,soft-places");
    }
}

/// Its guard removes what a killed one leaves.
#[test]
fn a_killed_soak_leaves_nothing() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::new();
    let mut soak = place
        .inco(&[
            "soak",
            "--minutes=5",
            "--seed=3",
            "--fault=inco-kill,inco-freeze",
            "--bed=soft-oci",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let directory = std::env::temp_dir().join(format!("inco-soak-{}.d", soak.id()));
    let mut lines = BufReader::new(soak.stdout.take().unwrap()).lines();
    // In the middle of the second fault or after it.
    let first = lines.find(|line| line.as_ref().unwrap().contains("  outage "));
    assert!(first.is_some());
    assert!(!mounts_under(&directory).is_empty() && !of(&directory).is_empty());
    kill(soak.id(), Signal::KILL);
    soak.wait().unwrap();
    eventually("everything is removed", MARGIN, || {
        (!directory.exists() && of(&directory).is_empty()).then_some(())
    });
    assert!(mounts_under(&directory).is_empty());
}

/// The processes that run with something in a directory.
fn of(directory: &Path) -> Vec<String> {
    let wanted = directory.display().to_string();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter_map(|entry| {
            let read = |name: &str| std::fs::read(entry.path().join(name)).ok();
            let words = text(&[read("cmdline")?, read("environ")?].concat());
            words.contains(&wanted).then_some(words)
        })
        .collect()
}
