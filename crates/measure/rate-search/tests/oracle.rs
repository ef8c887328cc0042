//! The reference controller (`mlrsearch` of the Python package index) searches the same devices.
#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use rate_search::{Config, Counted, Goal, Search, Step};

/// Searches a device that forwards up to `capacity` packets per second, and prints both throughputs.
const REFERENCE: &str = r#"
import sys
from dataclasses import replace
from MLRsearch import AbstractMeasurer, Config, MeasurementResult, MultipleLossRatioSearch, SearchGoal

class Device(AbstractMeasurer):
    def measure(self, intended_duration, intended_load):
        offered = int(intended_duration * intended_load)
        return MeasurementResult(
            intended_duration=intended_duration, intended_load=intended_load, offered_count=offered,
            forwarding_count=min(offered, int(intended_duration * CAPACITY)))

CAPACITY = float(sys.argv[1])
ndr = SearchGoal(loss_ratio=0.0, exceed_ratio=0.5, relative_width=float(sys.argv[2]), initial_trial_duration=0.1,
                 final_trial_duration=1.0, duration_sum=3.0, preceding_targets=2, expansion_coefficient=2)
pdr = replace(ndr, loss_ratio=0.005)
config = Config(goals=[ndr, pdr], min_load=1e3, max_load=1e8, search_duration_max=1e5, warmup_duration=None)
result = MultipleLossRatioSearch(config=config).search(measurer=Device(), debug=lambda _: None)
for goal in (ndr, pdr):
    print(float(result[goal].conditional_throughput))
"#;

/// Python with the package, if it is here: the usual one, or the one that scripts/setup.sh makes.
fn python() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
    let cache = std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from);
    let has_it = |python: &PathBuf| {
        let tried = Command::new(python).args(["-c", "import MLRsearch"]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    let known = [cache.join("inco/mlrsearch/bin/python3"), PathBuf::from("python3")];
    let found = known.into_iter().find(has_it);
    let missing = "Python has no package mlrsearch: run scripts/setup.sh test";
    let missing = found.is_none().then(|| missing.to_owned());
    if !real_parts::available("mlrsearch", missing) {
        return None;
    }
    found
}

fn ours(capacity: f64, width: f64) -> Vec<f64> {
    let ndr = Goal {
        relative_width: width,
        initial_trial: Duration::from_millis(100),
        duration_sum: Duration::from_secs(3),
        preceding_targets: 2,
        ..Goal::ndr(Duration::from_secs(1))
    };
    let config = Config {
        goals: vec![
            ndr,
            Goal {
                loss_ratio: 0.005,
                ..ndr
            },
        ],
        min_pps: 1_000,
        max_pps: 100_000_000,
        duration_limit: Duration::from_secs(100_000),
    };
    let mut search = Search::new(config).unwrap();
    loop {
        match search.step() {
            Step::Done(found) => return found.iter().filter_map(|of| of.throughput_pps).collect(),
            Step::Measure(trial) => {
                let of_trial = |pps: f64| (pps * trial.duration.as_secs_f64()) as u64;
                let offered = of_trial(trial.pps as f64);
                let forwarded = offered.min(of_trial(capacity));
                search.record(Counted { offered, forwarded }).unwrap();
            }
        }
    }
}

#[test]
fn both_find_the_same_throughput() {
    for (capacity, width) in [(1e6, 0.005), (123_456.0, 0.01), (7.7e7, 0.02), (4_321.0, 0.05)] {
        let Some(python) = python() else { return };
        let output = Command::new(python)
            .args(["-c", REFERENCE, &capacity.to_string(), &width.to_string()])
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let text = String::from_utf8(output.stdout).unwrap();
        let theirs: Vec<f64> = text.lines().map(|line| line.parse().unwrap()).collect();
        let ours = ours(capacity, width);
        assert_eq!((theirs.len(), ours.len()), (2, 2), "{text}");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            // Each is at most a width below the threshold.
            assert!(
                (ours / theirs - 1.0).abs() <= width,
                "{capacity}: {ours} and {theirs}"
            );
        }
    }
}
