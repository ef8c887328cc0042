//! Making containers does not hold up a worker, however much memory the process has.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::support::{Engine, FORWARD, PATIENCE, Place, assert_clean, eventually};

const LOAD: &str = r#"
tick = "500us"
uplink_wait = "5s"
settle = "2s"
[[phase]]
duration = "60s"
flows = 100
rate_per_flow = "100pps"
"#;

#[test]
fn a_worker_with_16_million_flows_goes_on_while_containers_are_made() {
    if !Engine::Oci.is_here() {
        return;
    }
    let place = Place::alone();
    let text = format!(
        r#"
[switch]
flows = "16M"

{FORWARD}
capacity = "100kpps"
instances = {{ min = 1, max = 5, standby = 0 }}
autoscaler = "fixed"
ring = {{ slots = 8192 }}
"#
    );
    let inco = place.run(&text);
    inco.settled(1, 0);
    assert!(inco.status().flow_limit >= 16_000_000, "{:#?}", inco.status());
    let traffic = place.traffic(LOAD);
    eventually("packets flow", PATIENCE, || {
        (inco.status().accounting.returned > 100).then_some(())
    });
    let gap = || inco.status().workers[0].longest_gap_us;
    let shared = gap();
    no_other_program_before("inco-worker-0", inco.status().pid);
    let before = eventually("gaps that are the worker's own", PATIENCE, || {
        Some(gap()).filter(|gap| *gap < LIMIT_US)
    });
    let stolen_before = stolen_us();
    let (mut longest, mut stolen) = (0.0_f64, 0.0);
    let scaling = std::thread::scope(|scope| {
        let scaling = scope.spawn(|| {
            place.must(&["scale", "forward", "5"]);
            inco.settled(5, 0);
        });
        while !scaling.is_finished() {
            longest = longest.max(gap());
            stolen = stolen_us() - stolen_before;
            std::thread::sleep(Duration::from_millis(50));
        }
        scaling.join()
    });
    scaling.unwrap();
    longest = longest.max(gap());
    println!(
        "longest gap: {shared:.0} us on a shared CPU, {before:.0} us alone on it, {longest:.0} us while 4 containers \
         are made, in which other machines had the CPUs for {stolen:.0} us"
    );
    assert!(longest > 0.0, "no gap is reported");
    assert!(
        longest < LIMIT_US + stolen,
        "{longest} us, {stolen} us of it stolen"
    );
    traffic.interrupt();
    assert_clean(&traffic.report());
    inco.stop(&place);
}

/// What a gap may last.
const LIMIT_US: f64 = 1000.0;

/// Lets no ordinary program have the CPU while that thread wants it: as on a CPU that it shares with nobody.
fn no_other_program_before(thread: &str, pid: u32) {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let is_it =
        |task: &PathBuf| std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == thread);
    let task = tasks.map(|task| task.unwrap().path()).find(is_it).unwrap();
    let done = Command::new("chrt")
        .args(["--fifo", "--pid", "50"])
        .arg(task.file_name().unwrap())
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
}

/// For how long this machine, where it is a virtual one, had to do without CPUs that it wanted, in microseconds.
fn stolen_us() -> f64 {
    /// What `/proc/stat` counts in.
    const TICK_US: f64 = 10_000.0;
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let of_all = text.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap();
    let ticks: f64 = of_all.split_whitespace().nth(7).unwrap().parse().unwrap();
    ticks * TICK_US
}
