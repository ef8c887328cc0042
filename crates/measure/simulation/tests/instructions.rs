//! The cost of a simulated second in instructions, counted by valgrind's callgrind, so that machine load does
//! not matter. Skipped without valgrind.
#![allow(clippy::unwrap_used, reason = "what goes wrong here fails the test")]

use std::path::Path;
use std::process::Command;

use simulation::{ScenarioFile, play};

/// The variable with the simulated seconds of the counted process, which is this test program again.
const SECONDS: &str = "INCO_TEST_SECONDS";
const INSTANCES: u64 = 64;

/// Simulates `seconds` seconds with 64 instances, constant arrivals of new flows in ten classes, and a load that
/// changes every second.
fn run(seconds: u64) {
    let points: Vec<String> = (0..seconds)
        .map(|second| format!("[{second}, 20000, {}e6]", 30 + second % 7))
        .collect();
    let classes: Vec<String> = (0..10)
        .map(|class| format!("[0.1, {}, 1]", 0.05 * f64::from(1 << class)))
        .collect();
    let text = format!(
        r#"
name = "cost"
duration_s = {seconds}
[service]
scheduler = "worst-fit"
autoscaler = "ladder"
capacity_pps = 1e6
min = {INSTANCES}
max = {INSTANCES}
[instances]
capacity_pps = 1e6
[[traffic]]
kind = "aggregate"
points = [{}]
flows = {{ classes = [{}] }}
"#,
        points.join(", "),
        classes.join(", ")
    );
    let here = Path::new(".");
    let scenario = ScenarioFile::parse(Path::new("cost.toml"), &text)
        .and_then(|file| file.variant(""))
        .unwrap();
    let metrics = play(&scenario, 1, here, here).unwrap().metrics;
    assert!(metrics["served_packets"] > 25e6 * seconds as f64, "{metrics:?}");
    assert_eq!(metrics["active_max"], INSTANCES as f64);
}

/// Instructions of a run.
fn counted(seconds: u64) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "counted_run", "--nocapture"])
        .env(SECONDS, seconds.to_string())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let (_, count) = said.split_once("Collected : ").unwrap();
    count.split_whitespace().next().unwrap().parse().unwrap()
}

/// The run counted by the other test. Run directly it simulates a few seconds.
#[test]
fn counted_run() {
    run(std::env::var(SECONDS).map_or(3, |seconds| seconds.parse().unwrap()));
}

/// Maximum instructions per instance and simulated second in the development profile: the measured count plus 10 %.
const LIMIT: f64 = 20_400.0;

#[test]
fn a_simulated_second_stays_within_its_instruction_limit() {
    let found = Command::new("valgrind").arg("--version").output();
    let missing = found
        .err()
        .map(|_| "valgrind is not installed (scripts/setup.sh test)".to_owned());
    if !real_parts::available("valgrind", missing) {
        return;
    }
    if !cfg!(debug_assertions) {
        eprintln!("skipped: the limit holds for the development profile only");
        return;
    }
    // Long enough that series points are further apart than steps.
    let (few, many) = (60, 120);
    let cost = (counted(many) - counted(few)) as f64 / ((many - few) * INSTANCES) as f64;
    eprintln!("{cost:.0} instructions per instance and second");
    assert!(
        cost < LIMIT,
        "{cost:.0} instructions per instance and second; the limit is {LIMIT}"
    );
}
